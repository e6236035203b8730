//! A tenant with a workflow on a database of its own, and short ways to what the tests are about.

use std::sync::Arc;
use std::time::Duration;

use counterfoil_domain::effect::{Answer, EffectFailure, HttpResponse, Safety};
use counterfoil_domain::fair_share::Queue;
use counterfoil_domain::id::{
    HostId, Place, RunId, StepId, TenantId, WorkflowId, WorkflowVersionId, step_id,
};
use counterfoil_domain::ports::NoFaults;
use counterfoil_domain::receipt::identity::{EPOCH, Slot};
use counterfoil_domain::receipt::resolution::{Outcome, Resolution, resolve};
use counterfoil_domain::receipt::{
    Actor, Move, Receipt, ReceiptState, Recorded, RequestFacts, SlotKey, Standing, Transition,
};
use counterfoil_store::admission::{Admission, Admitted, Dedup};
use counterfoil_store::container::Containers;
use counterfoil_store::receipt::{Dispatch, DispatchVerdict, Resolved};
use counterfoil_store::run::Trigger;
use counterfoil_store::settle::{
    Blocking, NewStep, OwnWrite, RetryLater, RunEnd, RunEndState, SettledState, SettledStep, Settlement,
};
use counterfoil_store::step::{ClaimRequest, Claimed, Take, Wait};
use counterfoil_store::timeline::TimelineRows;
use counterfoil_store::workflow::{Activation, NewVersion};
use counterfoil_store::{Page, Store, StoreConfig};
use counterfoil_testkit::postgres::TestDatabase;
use serde_json::json;
use sqlx::{AssertSqlSafe, PgPool, Row};
use uuid::Uuid;

/// Longer than any test.
pub(crate) const LEASE: Duration = Duration::from_mins(10);

pub(crate) struct World {
    pub(crate) store: Store,
    pub(crate) tenant: TenantId,
    pub(crate) workflow: WorkflowId,
    pub(crate) version: WorkflowVersionId,
    /// Beside the store's connections.
    pub(crate) pool: PgPool,
    pub(crate) database: TestDatabase,
}

impl World {
    pub(crate) async fn new() -> Self {
        let database = TestDatabase::new().await;
        let pool = database.pool().await;
        let store = open(&database).await;
        let (tenant, workflow, version) = tenant(&store, "acme").await;
        Self { store, tenant, workflow, version, pool, database }
    }

    /// Another host's store.
    pub(crate) async fn other_store(&self) -> Store {
        open(&self.database).await
    }

    /// An admission of a run with these steps, all of them ready.
    pub(crate) fn admission(&self, nodes: &[&str]) -> Admission {
        let run = RunId(Uuid::now_v7());
        Admission {
            tenant: self.tenant,
            run,
            workflow: self.workflow,
            version: self.version,
            start_key: format!("test:{run}"),
            trigger: Trigger::Api,
            record: None,
            dedup: Dedup::EveryTime,
            event: json!({ "data": { "id": 1 } }),
            input: json!({ "order": "o-1" }),
            inline: vec![],
            open: nodes.iter().map(|node| ready(node)).collect(),
            end: None,
        }
    }

    /// Starts a run with these steps.
    pub(crate) async fn start(&self, nodes: &[&str]) -> RunId {
        let admission = self.admission(nodes);
        let admitted = self.store.admit(&admission).await.expect("admits");
        assert_eq!(admitted, Admitted::Started(admission.run));
        admission.run
    }

    /// Where its steps wait.
    pub(crate) fn queue(&self) -> Queue {
        Queue { tenant: self.tenant, workflow: self.workflow }
    }

    pub(crate) fn request(&self, lease: Duration) -> ClaimRequest {
        ClaimRequest {
            host: HostId(Uuid::now_v7()),
            lease,
            takes: vec![Take::of(self.queue(), 100)],
            without: vec![],
        }
    }

    /// Claims what is due.
    pub(crate) async fn claim(&self, lease: Duration) -> Vec<Claimed> {
        self.store.claim(&self.request(lease)).await.expect("claims")
    }

    /// A run with one step, claimed.
    pub(crate) async fn step(&self) -> Claimed {
        self.start(&["a"]).await;
        one(self.claim(LEASE).await)
    }

    /// A step whose receipt is dispatched.
    pub(crate) async fn dispatched(&self) -> (Claimed, Receipt) {
        let step = self.step().await;
        let receipt = receipt(&step, 0, Safety::AtMostOnce);
        let receipt = self.send(&step, receipt).await;
        (step, receipt)
    }

    /// A step that is blocked on its one receipt.
    pub(crate) async fn blocked(&self) -> (Claimed, Receipt) {
        let (step, receipt) = self.dispatched().await;
        let lose = vec![lose(&receipt)];
        self.store.block(&Blocking { lose, ..blocking(&step) }).await.expect("blocks");
        (step, receipt)
    }

    /// Dispatches a receipt, and returns it as dispatched.
    pub(crate) async fn send(&self, step: &Claimed, mut receipt: Receipt) -> Receipt {
        match self.store.dispatch(&first(step, &receipt)).await.expect("dispatches") {
            DispatchVerdict::Dispatched { at } => {
                receipt.standing = Standing::Dispatched { lease: step.fence.lease, at };
                receipt
            }
            other => panic!("not dispatched: {other:?}"),
        }
    }

    pub(crate) async fn resolve(&self, receipt: &Receipt, outcome: Outcome, resume: bool) -> Resolved {
        let by = person();
        let decide = |receipt: &Receipt, now| resolve(receipt, resolution(outcome), person(), now);
        self.store.resolve(self.tenant, receipt.id, decide, resume, &by).await.expect("answers")
    }

    /// Where a receipt stands.
    pub(crate) async fn state(&self, receipt: &Receipt) -> ReceiptState {
        let view = self.store.receipt(self.tenant, receipt.id).await.expect("reads").expect("exists");
        view.receipt.standing.state()
    }

    /// The wait of an open step; none if it is not open.
    pub(crate) async fn wait(&self, step: &Claimed) -> Option<String> {
        let query = "SELECT wait FROM open_steps WHERE id = $1";
        sqlx::query_scalar(query).bind(step.fence.step.0).fetch_optional(&self.pool).await.expect("reads")
    }

    /// The timeline of a run, whole, in the order of the names of its nodes; none if there is no such run.
    pub(crate) async fn timeline(&self, run: RunId) -> Option<TimelineRows> {
        let head = self.store.timeline_head(self.tenant, run).await.expect("reads")?;
        let query = "SELECT node FROM settled_steps WHERE run_id = $1
                     UNION SELECT node FROM open_steps WHERE run_id = $1 ORDER BY node";
        let nodes: Vec<String> =
            sqlx::query_scalar(query).bind(run.0).fetch_all(&self.pool).await.expect("reads");
        let page = Page { after: None, limit: 1_000 };
        Some(self.store.timeline(self.tenant, head, &nodes, &page).await.expect("reads"))
    }

    /// The first column of the first row.
    pub(crate) async fn number(&self, query: &str) -> i64 {
        let row = sqlx::query(AssertSqlSafe(query.to_owned())).fetch_one(&self.pool).await.expect("reads");
        row.get(0)
    }

    /// Waits until a query says true.
    pub(crate) async fn until(&self, query: &str) {
        const PATIENCE: Duration = Duration::from_secs(20);
        let said = tokio::time::timeout(PATIENCE, async {
            loop {
                let row =
                    sqlx::query(AssertSqlSafe(query.to_owned())).fetch_one(&self.pool).await.expect("reads");
                if row.get(0) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        });
        said.await.unwrap_or_else(|_| panic!("never: {query}"));
    }

    /// Waits until a statement waits for a lock.
    pub(crate) async fn until_somebody_waits(&self) {
        self.until(
            "SELECT count(*) > 0 FROM pg_stat_activity
             WHERE datname = current_database() AND wait_event_type = 'Lock'",
        )
        .await;
    }

    /// Carries out a statement behind the store's back.
    pub(crate) async fn execute(&self, statement: &str) -> Result<u64, sqlx::Error> {
        let done = sqlx::query(AssertSqlSafe(statement.to_owned())).execute(&self.pool).await?;
        Ok(done.rows_affected())
    }

    /// Every row of every table that an execution may change.
    pub(crate) async fn dump(&self) -> Vec<String> {
        let mut rows = vec![];
        for table in [
            "runs",
            "open_runs",
            "open_steps",
            "settled_steps",
            "step_attempts",
            "receipts",
            "receipt_history",
            "invariant_results",
            "events",
            "stored_values",
            "verifications",
            "containers",
            "waits",
            "signals",
            "approvals",
            "due_cancels",
            "container_parts",
        ] {
            let query = format!("SELECT '{table}: ' || t::text FROM {table} t ORDER BY 1");
            let found: Vec<String> =
                sqlx::query_scalar(AssertSqlSafe(query)).fetch_all(&self.pool).await.expect("reads");
            rows.extend(found);
        }
        rows
    }
}

/// A store on a database.
pub(crate) async fn open(database: &TestDatabase) -> Store {
    let config = StoreConfig { url: database.url(), connections_max: 12 };
    Store::connect(config, Arc::new(NoFaults)).await.expect("connects")
}

/// A tenant with one workflow, whose first version is active.
pub(crate) async fn tenant(store: &Store, name: &str) -> (TenantId, WorkflowId, WorkflowVersionId) {
    let tenant = TenantId(Uuid::now_v7());
    store.create_tenant(tenant, name).await.expect("creates");
    let saved = store.save_workflow(tenant, "flow", &version(1)).await.expect("saves");
    let triggers = ["lead.created".to_owned()];
    let activation = Activation { triggers: &triggers, ..Activation::default() };
    store.activate(tenant, "flow", activation, &person()).await.expect("activates");
    (tenant, saved.workflow, saved.version)
}

/// A version whose definition is `n`.
pub(crate) fn version(n: u8) -> NewVersion {
    NewVersion {
        workflow: WorkflowId(Uuid::now_v7()),
        version: WorkflowVersionId(Uuid::now_v7()),
        definition_hash: [n; 32],
        definition: json!({ "n": n }),
        source: format!("n: {n}"),
        plan: json!({ "plan": n }),
        listened: vec![],
    }
}

pub(crate) fn person() -> Actor {
    Actor::Person("ada".into())
}

pub(crate) fn one<T: std::fmt::Debug>(mut found: Vec<T>) -> T {
    assert_eq!(found.len(), 1, "{found:?}");
    found.pop().expect("one")
}

pub(crate) fn ready(node: &str) -> NewStep {
    NewStep {
        node: node.into(),
        iteration: vec![],
        wait: Wait::Ready,
        delay: Duration::ZERO,
        until: None,
        block: None,
        container: None,
    }
}

pub(crate) fn settled(run: RunId, node: &str, state: SettledState) -> SettledStep {
    SettledStep {
        step: step_id(run, node, &[]),
        node: node.into(),
        iteration: vec![],
        state,
        output: (state == SettledState::Succeeded).then(|| json!({ "done": node })),
        error: (state == SettledState::Failed).then(|| json!({ "code": "block_failed" })),
        choice: None,
    }
}

/// The success of a step, with nothing to follow.
pub(crate) fn settlement(step: &Claimed) -> Settlement {
    Settlement {
        fence: step.fence,
        run: step.run,
        lineage: step.place.lineage,
        writes: vec![],
        own: vec![],
        settled: settled(step.run, &step.place.node, SettledState::Succeeded),
        logs: None,
        inline: vec![],
        containers: Containers::default(),
        open: vec![],
        keep: None,
        end: None,
    }
}

pub(crate) fn run_end(state: RunEndState) -> RunEnd {
    RunEnd {
        state,
        output: (state == RunEndState::Succeeded).then(|| json!("out")),
        error: (state == RunEndState::Failed).then(|| json!({ "code": "stopped" })),
    }
}

pub(crate) fn blocking(step: &Claimed) -> Blocking {
    Blocking {
        fence: step.fence,
        run: step.run,
        writes: vec![],
        lose: vec![],
        error: json!({ "code": "unknown" }),
        logs: None,
    }
}

pub(crate) fn retry(step: &Claimed, delay: Duration) -> RetryLater {
    RetryLater {
        fence: step.fence,
        run: step.run,
        writes: vec![],
        lose: vec![],
        delay,
        error: json!({ "code": "rejected" }),
        logs: None,
        next_attempt: true,
    }
}

/// The first receipt of an unlabelled slot of a step.
pub(crate) fn receipt(step: &Claimed, ordinal: u64, safety: Safety) -> Receipt {
    numbered(step, ordinal, 0, safety)
}

/// A receipt of an unlabelled slot of a step. What it sends is its slot's own.
pub(crate) fn numbered(step: &Claimed, ordinal: u64, dispatch_number: u64, safety: Safety) -> Receipt {
    let (tenant, key) = (step.fence.tenant, SlotKey::Ordinal(ordinal));
    let id = Slot { tenant, epoch: EPOCH, place: &step.place, key: &key }.receipt_id(dispatch_number);
    let mut content_key = *id.0.as_bytes();
    content_key[0] ^= 1;
    Receipt {
        id,
        tenant,
        run: step.run,
        step: step.fence.step,
        place: Place { ..step.place.clone() },
        slot: key,
        dispatch_number,
        position: u32::try_from(ordinal).expect("few"),
        attempt: step.attempt,
        request: RequestFacts {
            kind: "http".into(),
            safety,
            connection: Some("payments".into()),
            destination: [1; 32],
            request_hash: [2; 32],
            content_key,
            idempotency_key: id.to_string(),
            preview: json!({ "method": "POST", "body": "a\u{0}b", "headers": [["z", "1"], ["a", "-0.0"]] }),
        },
        standing: Standing::Planned,
    }
}

/// A receipt that is dispatched first of its slot.
pub(crate) fn first<'a>(step: &'a Claimed, receipt: &'a Receipt) -> Dispatch<'a> {
    Dispatch {
        fence: &step.fence,
        receipt,
        expected: &[],
        lose: &[],
        guard: None,
        connection_set_at: None,
        absence_known_after: Duration::from_mins(1),
        writes: &[],
    }
}

pub(crate) fn accepted() -> Recorded {
    Recorded::Answer(Answer::Http(response(201)))
}

pub(crate) fn refused() -> Recorded {
    Recorded::Failure(EffectFailure::Rejected(response(422)))
}

pub(crate) fn response(status: u16) -> HttpResponse {
    HttpResponse {
        status,
        headers: vec![("x-b".into(), "2".into()), ("x-a".into(), "1".into())],
        body: vec![0, 159, 255],
        truncated: false,
    }
}

pub(crate) fn commit(receipt: &Receipt, from: ReceiptState) -> Transition {
    let what = Move::Commit {
        recorded: accepted(),
        provider_receipt_id: Some("ch_1".into()),
        reason: "status 201 means applied".into(),
    };
    Transition::new(receipt.tenant, receipt.id, from, Actor::Host, what).expect("legal")
}

pub(crate) fn reject(receipt: &Receipt, from: ReceiptState) -> Transition {
    let what = Move::Reject { recorded: refused(), reason: "status 422 means not applied".into() };
    Transition::new(receipt.tenant, receipt.id, from, Actor::Host, what).expect("legal")
}

pub(crate) fn lose(receipt: &Receipt) -> Transition {
    let what = Move::Lose { reason: "the connection was reset".into() };
    Transition::new(receipt.tenant, receipt.id, ReceiptState::Dispatched, Actor::Host, what).expect("legal")
}

pub(crate) fn answer(receipt: &Receipt) -> Vec<OwnWrite> {
    vec![OwnWrite::Answer(commit(receipt, ReceiptState::Dispatched))]
}

pub(crate) fn resolution(outcome: Outcome) -> Resolution {
    Resolution {
        outcome,
        evidence: "seen in the provider's own list".into(),
        recorded: outcome.needs_answer().then(accepted),
        provider_receipt_id: None,
    }
}

/// A step's id by its node.
pub(crate) fn id(run: RunId, node: &str) -> StepId {
    step_id(run, node, &[])
}
