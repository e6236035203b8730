//! A private Postgres with fsync on, a tenant with the blocks that are measured, and hosts over them.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, ensure};
use counterfoil_domain::ports::NoFaults;
use counterfoil_store::cluster::{Cluster, ClusterConfig, Durability, Launcher};
use counterfoil_store::{Store, StoreConfig};
use counterfoil_testkit::host::{Host, HostConfig};
use counterfoil_testkit::postgres::PgPool;
use counterfoil_testkit::provider::Provider;
use counterfoil_testkit::tenant::{PEPPER, create_tenant};
use serde_json::json;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};

/// As long as a host has by default.
pub(crate) const LEASE_MS: u64 = 15_000;

pub(crate) struct World {
    cluster: Cluster,
    directory: tempfile::TempDir,
    binary: PathBuf,
    guests: PathBuf,
    key: String,
    pool: PgPool,
}

impl World {
    pub(crate) async fn new(binary: PathBuf, guests: PathBuf) -> anyhow::Result<Self> {
        ensure!(binary.exists(), "{} is not there: build it first", binary.display());
        let directory = tempfile::Builder::new().prefix("counterfoil-bench-").tempdir()?;
        let config = ClusterConfig {
            dir: directory.path().join("postgres"),
            launcher: Launcher::this_program()?,
            durability: Durability::Durable,
        };
        let cluster = Cluster::start(config).await?;
        let url = cluster.url();
        let store =
            Store::connect(StoreConfig { url: url.clone(), connections_max: 2 }, Arc::new(NoFaults)).await?;
        store.migrate().await?;
        let (_, key) = create_tenant(&store, "bench").await?;
        store.close().await;
        let pool = PgPoolOptions::new().max_connections(2).connect(&url).await?;
        Ok(Self { cluster, directory, binary, guests, key, pool })
    }

    pub(crate) fn database_url(&self) -> String {
        self.cluster.url()
    }

    /// The process of the server.
    pub(crate) fn postgres(&self) -> anyhow::Result<u32> {
        let file = self.directory.path().join("postgres/data/postmaster.pid");
        let text = std::fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
        let first = text.lines().next().unwrap_or_default();
        first.trim().parse().with_context(|| format!("{first:?} is no process"))
    }

    pub(crate) fn pool(&self) -> &PgPool {
        &self.pool
    }

    /// A host that may have `in_flight` steps under way, with its connection pointed at `provider`.
    pub(crate) async fn host(&self, provider: &Provider, in_flight: u32) -> anyhow::Result<Host> {
        self.host_with(provider, in_flight, LEASE_MS, &[]).await
    }

    /// The same, with another lease, and with these settings beside the usual ones.
    pub(crate) async fn host_with(
        &self,
        provider: &Provider,
        in_flight: u32,
        lease_ms: u64,
        settings: &[(&str, &str)],
    ) -> anyhow::Result<Host> {
        let mut config = HostConfig {
            binary: self.binary.clone(),
            database_url: self.database_url(),
            data_dir: self.directory.path().join("host"),
            lease_ms,
            environment: vec![
                ("COUNTERFOIL__PEPPER".into(), hex::encode(PEPPER)),
                ("COUNTERFOIL__ENGINE__IN_FLIGHT_MAX".into(), in_flight.to_string()),
                ("COUNTERFOIL__LOG__FILTER".into(), "warn".into()),
            ],
        };
        for (name, value) in settings {
            config = config.with(name, value);
        }
        let host = Host::start(&config, &self.key).await?;
        let connection = json!({ "base_url": provider.url() });
        host.call("PUT", "/v1/connections/payments", &connection).await?;
        Ok(host)
    }

    /// Another tenant's key.
    pub(crate) async fn tenant(&self, name: &str) -> anyhow::Result<String> {
        let config = StoreConfig { url: self.database_url(), connections_max: 1 };
        let store = Store::connect(config, Arc::new(NoFaults)).await?;
        let (_, key) = create_tenant(&store, name).await?;
        store.close().await;
        Ok(key)
    }

    /// The component of an example block.
    pub(crate) fn guest(&self, name: &str) -> anyhow::Result<PathBuf> {
        let file = self.guests.join(format!("{name}.wasm"));
        ensure!(file.exists(), "{} is not there: run scripts/guests first", file.display());
        Ok(file)
    }

    /// The server, for databases beside the host's.
    pub(crate) fn server(&self) -> PgConnectOptions {
        self.cluster.connect_options()
    }
}
