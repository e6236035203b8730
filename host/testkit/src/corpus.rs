//! Runs in flight, as the rows that a version of the host left behind: kept, so that every later version goes on with them.

use anyhow::Context as _;
use serde_json::{Map, Value};
use sqlx::AssertSqlSafe;

use crate::postgres::TestDatabase;

/// What is kept, in the order in which it can be written again. Nothing else says where a run is.
const TABLES: &[&str] = &[
    "tenants",
    "components",
    "block_versions",
    "connections",
    "workflows",
    "workflow_versions",
    "bindings",
    "listened_types",
    "events",
    "deliveries",
    "runs",
    "open_runs",
    "open_steps",
    "settled_steps",
    "step_attempts",
    "receipts",
    "receipt_history",
    "worker_tasks",
    "containers",
    "container_parts",
    "waits",
    "signals",
    "approvals",
];

/// All rows, by table.
///
/// # Errors
/// The database cannot be read.
pub async fn capture(database: &TestDatabase) -> anyhow::Result<Value> {
    let mut connection = database.connect().await;
    let mut tables = Map::new();
    for table in TABLES {
        let query =
            format!("SELECT COALESCE(json_agg(t), '[]') FROM (SELECT * FROM {table} ORDER BY 1, 2) t");
        let rows: Value =
            sqlx::query_scalar(AssertSqlSafe(query)).fetch_one(&mut connection).await.context(*table)?;
        tables.insert((*table).to_owned(), rows);
    }
    Ok(Value::Object(tables))
}

/// What a migration fills in, in rows that were captured before it: table, column, and its value.
const FILLED: &[(&str, &str, &str)] = &[(
    "open_steps",
    "workflow_id",
    "(SELECT r.workflow_id FROM open_runs r WHERE r.tenant_id = old.tenant_id AND r.run_id = old.run_id)",
)];

/// Writes rows that were captured. Columns that did not exist then have what their migration fills in, or their defaults.
///
/// # Errors
/// The database refuses: a later version does not take what an earlier one wrote.
pub async fn restore(database: &TestDatabase, captured: &Value) -> anyhow::Result<()> {
    let mut connection = database.connect().await;
    for table in TABLES {
        let rows = &captured[*table];
        let Some(first) = rows.get(0).and_then(Value::as_object) else { continue };
        let filled = FILLED.iter().filter(|(of, column, _)| of == table && !first.contains_key(*column));
        let (mut columns, mut values): (Vec<_>, Vec<_>) =
            first.keys().map(|column| (format!("\"{column}\""), value(column))).unzip();
        for (_, column, value) in filled {
            columns.push((*column).into());
            values.push((*value).into());
        }
        let (columns, values) = (columns.join(", "), values.join(", "));
        let insert = format!(
            "INSERT INTO {table} ({columns})
             SELECT {values} FROM json_populate_recordset(NULL::{table}, $1::text::json) old"
        );
        sqlx::query(AssertSqlSafe(insert))
            .bind(rows.to_string())
            .execute(&mut connection)
            .await
            .context(*table)?;
    }
    Ok(())
}

/// What is read of a column. A payload that is null has become the null of SQL on the way.
fn value(column: &str) -> String {
    match column {
        "event" | "input" | "data" | "detail" => format!("COALESCE(\"{column}\", 'null')"),
        _ => format!("\"{column}\""),
    }
}
