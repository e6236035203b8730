//! The databases that tests are given.

use counterfoil_testkit::postgres::TestDatabase;

#[tokio::test]
async fn each_test_has_a_migrated_database_of_its_own_that_goes_with_it() {
    let (first, second) = (TestDatabase::new().await, TestDatabase::new().await);
    let mut connection = first.connect().await;
    sqlx::raw_sql("CREATE TABLE mine (id int)").execute(&mut connection).await.expect("a table");
    let elsewhere: Option<String> = sqlx::query_scalar("SELECT to_regclass('mine')::text")
        .fetch_one(&second.pool().await)
        .await
        .expect("an answer");
    assert_eq!(elsewhere, None);

    let migrated: Option<String> = sqlx::query_scalar("SELECT to_regclass('_sqlx_migrations')::text")
        .fetch_one(&mut connection)
        .await
        .expect("an answer");
    assert_eq!(migrated.as_deref(), Some("_sqlx_migrations"));

    let name: String =
        sqlx::query_scalar("SELECT current_database()").fetch_one(&mut connection).await.expect("a name");
    // Although it is still connected to.
    drop(first);
    let left: bool = sqlx::query_scalar("SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)")
        .bind(name)
        .fetch_one(&mut second.connect().await)
        .await
        .expect("an answer");
    assert!(!left);
}
