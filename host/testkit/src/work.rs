//! Work to hold: a tenant, a run of one step, and claims of it by hosts that are only ids.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use counterfoil_domain::id::{HostId, RunId, TenantId, WorkflowId, WorkflowVersionId};
use counterfoil_domain::ports::NoFaults;
use counterfoil_domain::receipt::Actor;
use counterfoil_domain::workflow::definition::DedupMode;
use counterfoil_store::admission::{Admission, Admitted};
use counterfoil_store::connection::{NewConnection, SecretChanges};
use counterfoil_store::run::Trigger;
use counterfoil_store::settle::NewStep;
use counterfoil_store::step::{ClaimRequest, Claimed, Take, Wait};
use counterfoil_store::{Store, StoreConfig};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::postgres::TestDatabase;

/// A database with one tenant.
pub struct Work {
    /// Dropped last.
    pub database: TestDatabase,
    /// Over it.
    pub store: Store,
    /// Whose work it is.
    pub tenant: TenantId,
    /// What every run of it is a run of.
    pub workflow: WorkflowId,
}

impl Work {
    /// A fresh database with one tenant.
    ///
    /// # Errors
    /// There is none to be had.
    pub async fn new() -> anyhow::Result<Self> {
        Self::over(TestDatabase::new().await).await
    }

    /// One tenant in this database.
    ///
    /// # Errors
    /// It cannot be written to.
    pub async fn over(database: TestDatabase) -> anyhow::Result<Self> {
        let config = StoreConfig { url: database.url(), connections_max: 8 };
        let store = Store::connect(config, Arc::new(NoFaults)).await?;
        let tenant = TenantId(Uuid::now_v7());
        store.create_tenant(tenant, "acme").await?;
        Ok(Self { database, store, tenant, workflow: WorkflowId(Uuid::now_v7()) })
    }

    /// Sets a connection to `base_url`, whose host is the only one allowed.
    ///
    /// # Errors
    /// The database refuses.
    pub async fn connect(&self, name: &str, base_url: &str, abilities: Value) -> anyhow::Result<()> {
        let host = base_url.split_once("://").map_or(base_url, |(_, host)| host).to_owned();
        let connection = NewConnection {
            name: name.into(),
            base_url: base_url.into(),
            allowed_hosts: vec![host],
            abilities,
            rate: None,
            in_flight_max: None,
            secrets: SecretChanges::default(),
        };
        self.set_connection(&connection).await
    }

    /// Sets a connection as it is.
    ///
    /// # Errors
    /// The database refuses.
    pub async fn set_connection(&self, connection: &NewConnection) -> anyhow::Result<()> {
        self.store.set_connection(self.tenant, connection, &Actor::Host).await?;
        Ok(())
    }

    /// Admits a run whose only open step is `node`.
    ///
    /// # Errors
    /// It is not admitted.
    pub async fn admit(&self, node: &str) -> anyhow::Result<RunId> {
        let run = RunId(Uuid::now_v7());
        let open = NewStep {
            node: node.into(),
            iteration: vec![],
            wait: Wait::Ready,
            delay: Duration::ZERO,
            until: None,
            block: None,
            container: None,
        };
        let admission = Admission {
            tenant: self.tenant,
            run,
            workflow: self.workflow,
            version: WorkflowVersionId(Uuid::now_v7()),
            start_key: format!("api:{run}"),
            trigger: Trigger::Api,
            record: None,
            dedup: DedupMode::EveryTime,
            event: Value::Null,
            input: json!({}),
            inline: vec![],
            open: vec![open],
            end: None,
        };
        let admitted = self.store.admit(&admission).await?;
        ensure!(admitted == Admitted::Started(run), "{admitted:?}");
        Ok(run)
    }

    /// Claims one due step for a new host.
    ///
    /// # Errors
    /// None is due.
    pub async fn claim(&self, lease: Duration) -> anyhow::Result<Claimed> {
        let lines = self.store.due_of(&[self.tenant]).await?;
        let due = lines.iter().find(|line| line.due_since.is_some()).context("no step is due")?;
        let request = ClaimRequest {
            host: HostId(Uuid::now_v7()),
            lease,
            takes: vec![Take::of(due.queue, 1)],
            without: vec![],
        };
        self.store.claim(&request).await?.pop().context("no step is due")
    }

    /// Ends every lease and every wait now, as if their time had come.
    ///
    /// # Errors
    /// The database cannot be reached.
    pub async fn let_time_pass(&self) -> anyhow::Result<()> {
        self.execute("UPDATE open_steps SET vt = now() - interval '1 second' WHERE vt <> 'infinity'").await?;
        self.execute(
            "UPDATE verifications SET due_at = now() - interval '1 second' WHERE due_at <> 'infinity'",
        )
        .await
    }

    /// Changes what no host would.
    ///
    /// # Errors
    /// The database refuses.
    pub async fn execute(&self, statement: &'static str) -> anyhow::Result<()> {
        let mut connection = self.database.connect().await;
        sqlx::query(statement).execute(&mut connection).await?;
        Ok(())
    }

    /// The one number that a statement gives.
    ///
    /// # Errors
    /// The database refuses.
    pub async fn count(&self, statement: &'static str) -> anyhow::Result<i64> {
        let mut connection = self.database.connect().await;
        Ok(sqlx::query_scalar(statement).fetch_one(&mut connection).await?)
    }

    /// The receipts' states, in the order of calls and dispatches: `label:number state`.
    ///
    /// # Errors
    /// The database cannot be reached.
    pub async fn receipts(&self) -> anyhow::Result<Vec<String>> {
        let mut connection = self.database.connect().await;
        let rows = sqlx::query_scalar(
            "SELECT coalesce(slot_label, '#' || slot_ordinal) || ':' || dispatch_number || ' ' || state
             FROM receipts ORDER BY position, dispatch_number",
        )
        .fetch_all(&mut connection)
        .await?;
        Ok(rows)
    }
}
