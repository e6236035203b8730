//! A database, a provider, and a tenant with the example blocks uploaded and a workflow for each.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::ensure;
use counterfoil_domain::ports::NoFaults;
use counterfoil_store::{Store, StoreConfig};
use counterfoil_testkit::host::{Host, HostConfig, PATIENCE};
use counterfoil_testkit::ledger;
use counterfoil_testkit::postgres::{PgPool, TestDatabase};
use counterfoil_testkit::provider::{Provider, ProviderConfig};
use counterfoil_testkit::tenant::{PEPPER, create_tenant};
use serde_json::{Value, json};
use uuid::Uuid;

/// The example blocks, built by `scripts/guests`.
pub(crate) const BLOCKS: [&str; 6] =
    ["charge-card", "charge-card-verified", "enrich-lead", "place-order", "plain-charge", "two-effects"];

pub(crate) struct World {
    pub(crate) database: TestDatabase,
    pub(crate) provider: Provider,
    pub(crate) key: String,
    pub(crate) directory: tempfile::TempDir,
    pool: PgPool,
}

impl World {
    pub(crate) async fn new(name: &str) -> anyhow::Result<Self> {
        let world = Self::bare(name).await?;
        world.furnish().await?;
        Ok(world)
    }

    /// Without blocks and workflows.
    pub(crate) async fn bare(name: &str) -> anyhow::Result<Self> {
        Self::over(TestDatabase::new().await, name).await
    }

    /// Likewise, over a database.
    pub(crate) async fn over(database: TestDatabase, name: &str) -> anyhow::Result<Self> {
        let provider = Provider::start(ProviderConfig::default()).await?;
        let directory = tempfile::tempdir()?;
        let key = tenant(&database, name).await?;
        let pool = database.pool().await;
        Ok(Self { database, provider, key, directory, pool })
    }

    /// How a host of this world is started.
    pub(crate) fn host(&self, lease_ms: u64) -> HostConfig {
        HostConfig {
            binary: env!("CARGO_BIN_EXE_counterfoil").into(),
            database_url: self.database.url(),
            data_dir: self.directory.path().join("host"),
            lease_ms,
            environment: vec![
                ("COUNTERFOIL__PEPPER".into(), hex::encode(PEPPER)),
                // An effect's total time and the margin bound how soon an absence can be known.
                ("COUNTERFOIL__EFFECTS__TIMEOUT_MS".into(), "2000".into()),
                ("COUNTERFOIL__EFFECTS__ABSENCE_MARGIN_MS".into(), "200".into()),
                ("RUST_LOG".into(), "info".into()),
            ],
        }
    }

    pub(crate) fn pool(&self) -> &PgPool {
        &self.pool
    }

    /// Uploads the blocks, and makes a workflow of one step for each.
    async fn furnish(&self) -> anyhow::Result<()> {
        let host = Host::start(&self.host(15_000), &self.key).await?;
        for name in ["payments", "crm"] {
            let connection = json!({ "base_url": self.provider.url() });
            host.call("PUT", &format!("/v1/connections/{name}"), &connection).await?;
        }
        for block in BLOCKS {
            host.push_block(block, &guest(block)?).await?;
            let step = json!({ block: { "block": block, "input": "=input", "retry": { "attempts": 3, "delays": ["1s"] } } });
            host.activate(&json!({ "name": block, "steps": [step] })).await?;
        }
        host.kill().await
    }

    /// The run that was started for an order, if its admission committed.
    pub(crate) async fn run_with_order(&self, order: &str) -> anyhow::Result<Option<Uuid>> {
        ledger::run_with_input(&self.pool, "order", order).await
    }

    /// Resolves an effect, and waits where its absence cannot be known yet.
    pub(crate) async fn resolve_when_allowed(
        &self,
        host: &Host,
        effect: &str,
        body: &Value,
    ) -> anyhow::Result<()> {
        let begun = Instant::now();
        loop {
            let reply = host.send("POST", &format!("/v1/effects/{effect}/resolve"), body).await?;
            let answer = reply.json()?;
            if reply.status == 200 {
                return Ok(());
            }
            ensure!(answer["code"] == "too_early", "{effect}: {answer}");
            ensure!(begun.elapsed() < PATIENCE, "{effect} can never be resolved: {answer}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

async fn tenant(database: &TestDatabase, name: &str) -> anyhow::Result<String> {
    let config = StoreConfig { url: database.url(), connections_max: 2 };
    let store = Store::connect(config, Arc::new(NoFaults)).await?;
    Ok(create_tenant(&store, name).await?.1)
}

/// The component of an example block.
pub(crate) fn guest(name: &str) -> anyhow::Result<PathBuf> {
    let directory = std::env::var_os("COUNTERFOIL_GUESTS").map_or_else(
        || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/guests")),
        PathBuf::from,
    );
    let file = directory.join(format!("{name}.wasm"));
    ensure!(file.exists(), "{} is not there: run scripts/guests first", file.display());
    Ok(file)
}
