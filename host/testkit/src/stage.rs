//! A host with a Postgres of its own and tenants, for programs that play on it from outside.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use counterfoil_domain::ports::NoFaults;
use counterfoil_store::cluster::{Cluster, ClusterConfig, Durability, Launcher, Shutdown};
use counterfoil_store::{Store, StoreConfig};
use tempfile::TempDir;

use crate::host::{Host, HostConfig};
use crate::tenant::{PEPPER, create_tenant};

pub(crate) struct Stage {
    cluster: Cluster,
    pub(crate) host: Host,
    /// Of the tenants, in their order.
    pub(crate) keys: Vec<String>,
    _directory: TempDir,
}

impl Stage {
    pub(crate) async fn build(binary: PathBuf, tenants: &[&str]) -> anyhow::Result<Self> {
        let directory = tempfile::Builder::new().prefix("counterfoil-stage-").tempdir()?;
        // As root, Postgres runs as another user, who must come in.
        std::fs::set_permissions(directory.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
        let cluster = Cluster::start(ClusterConfig {
            dir: directory.path().join("postgres"),
            launcher: Launcher::this_program()?,
            durability: Durability::Volatile,
        })
        .await
        .context("starting Postgres")?;
        let config = StoreConfig { url: cluster.url(), connections_max: 2 };
        let store = Store::connect(config, Arc::new(NoFaults)).await?;
        store.migrate().await.context("making the tables")?;
        let mut keys = vec![];
        for tenant in tenants {
            keys.push(create_tenant(&store, tenant).await?.1);
        }
        store.close().await;
        let config = HostConfig {
            binary,
            database_url: cluster.url(),
            data_dir: directory.path().join("host"),
            lease_ms: 15_000,
            environment: vec![],
        }
        .with("COUNTERFOIL__PEPPER", &hex::encode(PEPPER));
        let host = Host::start(&config, keys.first().context("no tenant")?).await?;
        Ok(Self { cluster, host, keys, _directory: directory })
    }

    pub(crate) fn database_url(&self) -> String {
        self.cluster.url()
    }

    pub(crate) async fn strike(self) -> anyhow::Result<()> {
        self.cluster.stop(Shutdown::Fast).await.context("ending Postgres")
    }
}
