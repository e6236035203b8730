//! The cluster of the run, which may be crashed, and its tenants.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use counterfoil_domain::id::TenantId;
use counterfoil_domain::ports::NoFaults;
use counterfoil_store::cluster::{Cluster, ClusterConfig, Durability, Launcher, Shutdown};
use counterfoil_store::{Store, StoreConfig};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tokio::sync::Mutex;

use super::plan::TENANTS;
use crate::tenant::create_tenant;

/// Longest wait for a connection of the harness's own: a restart takes some hundred milliseconds.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(20);

/// A database in a cluster of its own.
pub(super) struct Database {
    cluster: Mutex<Option<Cluster>>,
    config: ClusterConfig,
    pool: PgPool,
    socket: PathBuf,
    /// Whose the work is, and the key that each speaks with.
    pub(super) tenants: Vec<(TenantId, String)>,
}

impl Database {
    /// Makes it in `dir`, with the tables and the tenants.
    pub(super) async fn start(dir: &Path) -> anyhow::Result<Self> {
        // A killed server loses nothing that the operating system has: the machine itself is not killed here.
        let config = ClusterConfig {
            dir: dir.into(),
            launcher: Launcher::this_program()?,
            durability: Durability::Volatile,
        };
        let cluster = Cluster::start(config.clone()).await.context("starting Postgres")?;
        let options = cluster.connect_options();
        let socket_dir = options.get_socket().context("the cluster has a socket")?;
        let socket = socket_dir.join(format!(".s.PGSQL.{}", options.get_port()));
        let store =
            Store::connect(StoreConfig { url: cluster.url(), connections_max: 2 }, Arc::new(NoFaults))
                .await?;
        store.migrate().await.context("making the tables")?;
        let mut tenants = vec![];
        for name in TENANTS {
            tenants.push(create_tenant(&store, name).await?);
        }
        store.close().await;
        let pool = PgPoolOptions::new()
            .max_connections(4)
            .acquire_timeout(ACQUIRE_TIMEOUT)
            .connect_with(options.application_name("harness"))
            .await?;
        Ok(Self { cluster: Mutex::new(Some(cluster)), config, pool, socket, tenants })
    }

    /// What the harness itself looks and writes through: not through the proxy.
    pub(super) fn pool(&self) -> &PgPool {
        &self.pool
    }

    /// The server's socket.
    pub(super) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Ends the server at once, as a crash would, and starts it again.
    pub(super) async fn restart(&self) -> anyhow::Result<()> {
        let mut cluster = self.cluster.lock().await;
        if let Some(running) = cluster.take() {
            running.stop(Shutdown::Immediate).await.context("ending Postgres")?;
        }
        *cluster = Some(Cluster::start(self.config.clone()).await.context("starting Postgres again")?);
        Ok(())
    }

    /// Terminates so many connections of hosts; `salt` chooses which.
    pub(super) async fn terminate(&self, count: u32, salt: u64) -> anyhow::Result<()> {
        sqlx::query(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'counterfoil'
             ORDER BY md5(pid::text || $2) LIMIT $1",
        )
        .bind(i64::from(count))
        .bind(salt.to_string())
        .execute(&self.pool)
        .await?;
        Ok(())
    }

    /// Ends the server.
    pub(super) async fn stop(&self) -> anyhow::Result<()> {
        self.pool.close().await;
        if let Some(cluster) = self.cluster.lock().await.take() {
            cluster.stop(Shutdown::Immediate).await?;
        }
        Ok(())
    }
}
