//! The tables' own history.

use sqlx::migrate::{AppliedMigration, Migrate, Migrator};
use sqlx::{ConnectOptions, Connection};

use crate::{Store, StoreError};

static MIGRATIONS: Migrator = sqlx::migrate!("../../migrations");

impl Store {
    /// Applies the migrations that the database does not have yet. Hosts that do so at once wait for each other.
    pub async fn migrate(&self) -> Result<(), StoreError> {
        // The lock that is held meanwhile belongs to a session, and a migration may take longer than a statement may.
        let mut connection = self.inner.options.connect().await?;
        MIGRATIONS.run(&mut connection).await?;
        connection.close().await?;
        Ok(())
    }

    /// Whether the database has exactly the migrations that this program knows.
    pub async fn is_migrated(&self) -> Result<bool, StoreError> {
        let applied = self.applied().await?;
        let mut known: Vec<_> = MIGRATIONS.iter().map(|known| (known.version, &known.checksum)).collect();
        known.sort();
        Ok(known.into_iter().eq(applied.iter().map(|applied| (applied.version, &applied.checksum))))
    }

    /// Whether the database has at least those: a host goes on while a newer version of it is brought in.
    pub async fn has_its_tables(&self) -> Result<bool, StoreError> {
        let applied = self.applied().await?;
        Ok(MIGRATIONS.iter().all(|known| applied.iter().any(|applied| applied.version == known.version)))
    }

    /// The migrations that the database has, in their order.
    async fn applied(&self) -> Result<Vec<AppliedMigration>, StoreError> {
        let table = &*MIGRATIONS.table_name;
        let exists = sqlx::query_scalar!(r#"SELECT to_regclass($1) IS NOT NULL AS "exists!""#, table)
            .fetch_one(self.pool())
            .await?;
        if !exists {
            return Ok(vec![]);
        }
        let mut connection = self.pool().acquire().await?;
        Ok(connection.list_applied_migrations(table).await?)
    }
}
