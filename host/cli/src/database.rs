//! The database that a command works on: a configured one, or the private cluster of the data directory.

use std::sync::Arc;

use anyhow::Context as _;
use counterfoil_domain::ports::{Faults, NoFaults};
use counterfoil_store::cluster::{Cluster, ClusterConfig, ClusterError, Durability, Launcher, Shutdown};
use counterfoil_store::{Store, StoreConfig};

use crate::config::{Config, without_password};
use crate::data::DevFile;
use crate::exit::{Exit, Failure};

/// What makes the tables.
const MIGRATE: &str = "counterfoil migrate    (or `counterfoil dev`, which does that too)";

/// A database, and the server behind it where that is ours to end.
pub(crate) struct Database {
    url: String,
    cluster: Option<Cluster>,
    connections_max: u32,
}

impl Database {
    /// The configured one, else the private cluster, started now.
    pub(crate) async fn open(config: &Config) -> anyhow::Result<Self> {
        let connections_max = config.database.connections_max;
        if let Some(url) = config.database.url.clone() {
            return Ok(Self { url, cluster: None, connections_max });
        }
        config.data.create()?;
        let cluster = Cluster::start(ClusterConfig {
            dir: config.data.cluster_dir(),
            launcher: Launcher::this_program()?,
            durability: Durability::Durable,
        });
        let cluster = cluster.await?;
        Ok(Self { url: cluster.url(), cluster: Some(cluster), connections_max })
    }

    /// The same, or the private cluster of the host that runs on this data directory.
    pub(crate) async fn open_beside(config: &Config) -> anyhow::Result<Self> {
        match Self::open(config).await {
            Err(error) if matches!(error.downcast_ref(), Some(ClusterError::InUse { .. })) => {
                let dev = DevFile::read(&config.data)?.ok_or(error)?;
                let connections_max = config.database.connections_max;
                Ok(Self { url: dev.database_url, cluster: None, connections_max })
            }
            opened => opened,
        }
    }

    /// Whether there is one to look into: a command that only reads makes none.
    pub(crate) fn exists(config: &Config) -> bool {
        // A configured one is found to be missing by whoever connects.
        config.database.url.is_some() || config.data.cluster_dir().join("data/PG_VERSION").exists()
    }

    /// The one that there is, with tables that this version knows.
    ///
    /// # Errors
    /// A [`Failure`] that names what makes a database, where there is none or its tables are not up to date.
    pub(crate) async fn join(config: &Config) -> anyhow::Result<(Self, Store)> {
        if !Self::exists(config) {
            let what = format!("there is no database yet: none in {}", config.data.dir.display());
            return Err(Failure::new(Exit::Error, what)
                .details(["and none is configured (DATABASE_URL or COUNTERFOIL__DATABASE__URL)".to_owned()])
                .next(MIGRATE)
                .into());
        }
        Self::open_beside(config).await?.with_tables(Arc::new(NoFaults)).await
    }

    /// Connects, if the tables of this version are there: a newer version's hold them too.
    ///
    /// # Errors
    /// A [`Failure`] that names what makes them.
    pub(crate) async fn with_tables(self, faults: Arc<dyn Faults>) -> anyhow::Result<(Self, Store)> {
        let store = self.connect(faults).await?;
        if store.has_its_tables().await? {
            return Ok((self, store));
        }
        drop(store);
        let what = "the database has not the tables of this version";
        let failure = Failure::new(Exit::Error, what).details([without_password(&self.url)]).next(MIGRATE);
        self.close().await?;
        Err(failure.into())
    }

    /// Says where it is if it is a private one: who starts a host may have meant another.
    pub(crate) fn tell_if_private(&self, config: &Config) {
        if self.cluster.is_some() {
            let dir = config.data.cluster_dir();
            anstream::eprintln!(
                "no DATABASE_URL is set: the database is a Postgres of its own in {}",
                dir.display()
            );
        }
    }

    /// How to reach it.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Major version of the private cluster, if that is what it is.
    pub(crate) fn private_version(&self) -> Option<u32> {
        self.cluster.as_ref().map(Cluster::version)
    }

    /// Connects.
    pub(crate) async fn connect(&self, faults: Arc<dyn Faults>) -> anyhow::Result<Store> {
        // The other half is for requests, where there are any.
        let connections_max = self.connections_max.div_ceil(2).max(2);
        let config = StoreConfig { url: self.url.clone(), connections_max };
        Store::connect(config, faults).await.map_err(|error| {
            let why = format!("{:#}", anyhow::Error::from(error));
            Failure::new(Exit::Error, "the database cannot be reached")
                .details([
                    format!("{}: {why}", without_password(&self.url)),
                    "look whether a Postgres runs there, has that database, and lets that user in".to_owned(),
                ])
                .next("counterfoil doctor")
                .into()
        })
    }

    /// Connects, for a command that is no host.
    pub(crate) async fn connect_quietly(&self) -> anyhow::Result<Store> {
        self.connect(Arc::new(NoFaults)).await
    }

    /// Ends the server, if it is ours.
    pub(crate) async fn close(self) -> anyhow::Result<()> {
        match self.cluster {
            Some(cluster) => {
                cluster.stop(Shutdown::Fast).await.context("the private Postgres did not end well")
            }
            None => Ok(()),
        }
    }
}
