//! A house to test in: a tenant, a provider, workflows, and hosts that are engines in this process.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use async_trait::async_trait;
use counterfoil_domain::effect::{Answer, EffectCall, EffectReply, EffectRequest, HttpRequest};
use counterfoil_domain::id::{Digest, EventId, HostId, RunId, TenantId, WorkflowId, WorkflowVersionId};
use counterfoil_domain::limits::StepLimits;
use counterfoil_domain::outbound::AddressPolicy;
use counterfoil_domain::ports::{
    EffectPort as _, NoFaults, StepEnd, StepJob, StepReport, StepRunner, Unprepared, VerifyEnd, VerifyJob,
    VerifyReport,
};
use counterfoil_domain::receipt::Actor;
use counterfoil_domain::workflow::Authored;
use counterfoil_domain::workflow::advance::{Event, advance};
use counterfoil_domain::workflow::definition::DedupMode;
use counterfoil_domain::workflow::plan::Plan;
use counterfoil_effects::client::{Client, ClientConfig, NameServers};
use counterfoil_effects::secrets::Secrets;
use counterfoil_effects::{Guard, GuardConfig};
use counterfoil_engine::{Engine, EngineConfig};
use counterfoil_store::Page;
use counterfoil_store::admission::{Admission, Admitted};
use counterfoil_store::block::NewBlock;
use counterfoil_store::event::NewEvent;
use counterfoil_store::retention::KeepFor;
use counterfoil_store::run::{RunState, RunView, Trigger};
use counterfoil_store::settle::SettledStep;
use counterfoil_store::timeline::TimelineRows;
use counterfoil_store::workflow::{Activation, NewVersion};
use counterfoil_testkit::provider::{Provider, ProviderConfig};
use counterfoil_testkit::work::Work;
use futures::future::BoxFuture;
use serde_json::{Value, json};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// How long a test waits for something before it fails.
const PATIENCE: Duration = Duration::from_secs(30);

/// What a scripted block does with its input.
pub(crate) type Script = fn(&StepJob) -> StepEnd;

/// What a scripted block does when it is asked what became of its effect.
pub(crate) type Asked = for<'a> fn(&'a Guard, &'a VerifyJob) -> BoxFuture<'a, VerifyEnd>;

/// What a block does.
#[derive(Clone, Copy)]
enum Does {
    Script(Script),
    /// Charges, and may be asked about it.
    Charges(Option<Asked>),
}

/// A runner whose blocks are scripts, by digest. A digest without a script cannot be run here.
pub(crate) struct Scripts {
    guard: Arc<Guard>,
    blocks: HashMap<Digest, Does>,
    pub(crate) ran: Mutex<Vec<Digest>>,
    /// How its blocks are made ready, where they are not from the start.
    making: Option<Making>,
}

/// Blocks that have to be made ready first.
pub(crate) struct Making {
    /// A permit lets one be made.
    pub(crate) gate: Arc<Semaphore>,
    /// What comes of it.
    pub(crate) outcome: Result<(), Unprepared>,
    made: Mutex<HashSet<Digest>>,
    pub(crate) begun: Arc<AtomicUsize>,
}

impl Making {
    pub(crate) fn new(outcome: Result<(), Unprepared>) -> Self {
        let gate = Arc::new(Semaphore::new(0));
        Self { gate, outcome, made: Mutex::default(), begun: Arc::default() }
    }
}

impl Scripts {
    async fn charge(&self, job: &StepJob) -> StepEnd {
        let charge = call("POST", "/charges", &job.input);
        match self.guard.perform(job.execution, charge).await {
            EffectReply::Answered(Answer::Http(response)) => {
                StepEnd::Output(String::from_utf8_lossy(&response.body).into())
            }
            EffectReply::Stop => StepEnd::Stopped,
            other => StepEnd::Failed {
                retry_after_ms: None,
                code: "refused".into(),
                message: format!("{other:?}"),
            },
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A call through the connection `p`.
pub(crate) fn call(method: &str, url: &str, body: &str) -> EffectCall {
    EffectCall {
        request: EffectRequest::Http(HttpRequest {
            method: method.into(),
            url: url.into(),
            headers: vec![],
            body: body.into(),
        }),
        key: Some("charge".into()),
        connection: Some("p".into()),
        safety: None,
        idempotency_key: None,
        timeout_ms: None,
        extra: vec![],
    }
}

#[async_trait]
impl StepRunner for Scripts {
    async fn is_ready(&self, component: Digest) -> bool {
        let is_made = |making: &Making| locked(&making.made).contains(&component);
        self.blocks.contains_key(&component) && self.making.as_ref().is_none_or(is_made)
    }

    async fn prepare(&self, component: Digest, _bytes: Vec<u8>) -> Result<(), Unprepared> {
        let Some(making) = self.making.as_ref().filter(|_| self.blocks.contains_key(&component)) else {
            return Err(Unprepared::Unavailable { message: "this host has no script for it".into() });
        };
        making.begun.fetch_add(1, Ordering::Relaxed);
        making.gate.acquire().await.expect("it is never closed").forget();
        if making.outcome.is_ok() {
            locked(&making.made).insert(component);
        }
        making.outcome.clone()
    }

    async fn run(&self, job: StepJob) -> StepReport {
        locked(&self.ran).push(job.component);
        let end = match self.blocks.get(&job.component) {
            Some(Does::Script(script)) => script(&job),
            Some(Does::Charges(_)) => self.charge(&job).await,
            None => StepEnd::Stopped,
        };
        StepReport { end, logs: vec![], logs_truncated: false, cpu_ms: 0, memory_bytes_peak: 0 }
    }

    async fn verify(&self, job: VerifyJob) -> VerifyReport {
        let end = match self.blocks.get(&job.component) {
            Some(Does::Charges(Some(asked))) => asked(&self.guard, &job).await,
            _ => VerifyEnd::Unavailable { message: "this host has no script for it".into() },
        };
        VerifyReport { end, logs: vec![] }
    }
}

pub(crate) struct House {
    pub(crate) work: Work,
    pub(crate) provider: Provider,
    blocks: BTreeMap<String, (Digest, Does)>,
    /// As an engine is told when it is made.
    pub(crate) keep: KeepFor,
    pub(crate) quick: Option<Handle>,
}

/// An engine at work. Dropping it is a crash: nothing is handed back.
pub(crate) struct Host {
    pub(crate) runner: Arc<Scripts>,
    stop: CancellationToken,
    task: JoinHandle<bool>,
}

impl Drop for Host {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Host {
    /// Lets it finish what it holds.
    pub(crate) async fn stop(mut self) -> anyhow::Result<()> {
        self.stop.cancel();
        (&mut self.task).await?;
        Ok(())
    }
}

impl House {
    pub(crate) async fn new() -> anyhow::Result<Self> {
        let work = Work::new().await?;
        let provider = Provider::start(ProviderConfig::default()).await?;
        work.connect("p", &provider.url(), json!({})).await?;
        Ok(Self { work, provider, blocks: BTreeMap::new(), keep: KeepFor::default(), quick: None })
    }

    /// Uploads a block that is a script.
    pub(crate) async fn block(&mut self, name: &str, script: Script) -> anyhow::Result<Digest> {
        self.block_taking(name, json!(true), script).await
    }

    /// Uploads a block that is a script, and takes what this schema says.
    pub(crate) async fn block_taking(
        &mut self,
        name: &str,
        input: Value,
        script: Script,
    ) -> anyhow::Result<Digest> {
        self.upload(name, input, Does::Script(script)).await
    }

    /// Uploads a block that charges, and may be asked about it, and makes a workflow of it.
    pub(crate) async fn charging(&mut self, name: &str, asked: Option<Asked>) -> anyhow::Result<()> {
        self.upload(name, json!(true), Does::Charges(asked)).await?;
        self.workflow(&format!("name: {name}\nsteps:\n  - pay: {{ block: {name} }}\n")).await
    }

    async fn upload(&mut self, name: &str, input: Value, does: Does) -> anyhow::Result<Digest> {
        let bytes = name.as_bytes().to_vec();
        let digest = Digest::of(&bytes);
        let grant = json!({ "kind": "http", "safety": "at-most-once", "connections": ["p"] });
        let descriptor = json!({ "name": name, "input": input, "output": true, "effects": [grant] });
        let block = NewBlock {
            name,
            digest,
            bytes: &bytes,
            descriptor: &descriptor,
            imports: &[],
            verifies: matches!(does, Does::Charges(Some(_))),
        };
        self.work.store.put_block(self.work.tenant, &block).await?;
        self.blocks.insert(name.into(), (digest, does));
        Ok(digest)
    }

    /// Saves and activates a workflow.
    pub(crate) async fn workflow(&self, source: &str) -> anyhow::Result<()> {
        let digests = self.blocks.iter().map(|(name, (digest, _))| (name.clone(), *digest)).collect();
        let version = Authored::read(source)
            .and_then(|authored| authored.compile(&digests).map_err(|mut problems| problems.remove(0)))
            .map_err(|problem| anyhow::anyhow!("{problem:?}"))?;
        let new = NewVersion {
            workflow: WorkflowId(Uuid::now_v7()),
            version: WorkflowVersionId(Uuid::now_v7()),
            definition_hash: version.digest.0,
            definition: serde_json::from_str(&version.canonical)?,
            source: source.into(),
            plan: serde_json::to_value(&version.plan)?,
            listened: version.plan.listened(),
        };
        let (store, tenant, name) = (&self.work.store, self.work.tenant, &version.definition.name);
        store.save_workflow(tenant, name, &new).await?;
        let triggers: Vec<String> =
            version.plan.triggers().iter().map(|trigger| trigger.event.clone()).collect();
        let activation = Activation { triggers: &triggers, ..Activation::default() };
        store.activate(tenant, name, activation, &Actor::Host).await?;
        Ok(())
    }

    /// Makes whatever is done next another tenant's, with a connection of its own to the same provider.
    pub(crate) async fn change_tenant(&mut self, name: &str) -> anyhow::Result<()> {
        self.work.tenant = TenantId(Uuid::now_v7());
        self.work.store.create_tenant(self.work.tenant, name).await?;
        self.work.connect("p", &self.provider.url(), json!({})).await
    }

    /// Starts a run by call.
    pub(crate) async fn start(&self, workflow: &str, input: Value) -> anyhow::Result<RunId> {
        let active = self.work.store.active(self.work.tenant, workflow).await?.context("it is active")?;
        let plan: Plan = serde_json::from_value(active.plan)?;
        let run = RunId(Uuid::now_v7());
        let about = json!({ "lineage": run });
        let null = Value::Null;
        let scope = counterfoil_domain::expression::Scope::new(&null, &input, &about);
        let first = advance(&plan, &scope, Event::Started);
        let admission = Admission {
            tenant: self.work.tenant,
            run,
            workflow: active.workflow,
            version: active.version,
            start_key: format!("api:{run}"),
            trigger: Trigger::Api,
            record: None,
            dedup: DedupMode::EveryTime,
            event: Value::Null,
            inline: first.settled.into_iter().map(|settled| SettledStep::inline(run, settled)).collect(),
            open: first.open.into_iter().map(Into::into).collect(),
            end: first.end.map(Into::into),
            input,
        };
        let admitted = self.work.store.admit(&admission).await?;
        ensure!(matches!(admitted, Admitted::Started(_) | Admitted::Begun { .. }), "{admitted:?}");
        Ok(run)
    }

    /// Records an event.
    pub(crate) async fn event(
        &self,
        event_type: &str,
        record: Option<&str>,
        data: Value,
    ) -> anyhow::Result<EventId> {
        let id = EventId(Uuid::now_v7());
        let event = NewEvent { id, event_type: event_type.into(), record: record.map(Into::into), data };
        self.work.store.record_events(self.work.tenant, &[event]).await?;
        Ok(id)
    }

    /// A host that can run every block.
    pub(crate) fn host(&self) -> anyhow::Result<Host> {
        self.host_with(|_| true, Duration::from_secs(20))
    }

    /// A host that can run some blocks, with leases that long.
    pub(crate) fn host_with(&self, can_run: impl Fn(&str) -> bool, lease: Duration) -> anyhow::Result<Host> {
        self.host_of(can_run, lease, 64)
    }

    /// A host that has to make its blocks ready.
    pub(crate) fn host_making(&self, making: Making, lease: Duration) -> anyhow::Result<Host> {
        self.any_host(|_| true, lease, 64, Some(making))
    }

    /// A host that has room for so many steps.
    pub(crate) fn host_of(
        &self,
        can_run: impl Fn(&str) -> bool,
        lease: Duration,
        in_flight_max: u32,
    ) -> anyhow::Result<Host> {
        self.any_host(can_run, lease, in_flight_max, None)
    }

    fn any_host(
        &self,
        can_run: impl Fn(&str) -> bool,
        lease: Duration,
        in_flight_max: u32,
        making: Option<Making>,
    ) -> anyhow::Result<Host> {
        let client = Client::new(ClientConfig {
            policy: AddressPolicy { loopback: true, private: vec![] },
            name_servers: NameServers::System,
            extra_roots: vec![],
            first_byte_alone: false,
        })?;
        let config = GuardConfig {
            lease,
            timeout: Duration::from_secs(10),
            answer_wait: Duration::from_millis(1),
            absence_margin: Duration::ZERO,
            record_for: Duration::from_mins(1),
            receipts: true,
        };
        let secrets = Secrets::new("/nowhere".into(), |_| {});
        let store = self.work.store.clone();
        let guard = Arc::new(Guard::new(store.clone(), client, secrets, config, Arc::new(NoFaults)));
        let blocks =
            self.blocks.iter().filter(|(name, _)| can_run(name)).map(|(_, script)| *script).collect();
        let runner = Arc::new(Scripts { guard: Arc::clone(&guard), blocks, ran: Mutex::default(), making });
        let config = EngineConfig {
            host: HostId(Uuid::now_v7()),
            lease,
            renew_every: lease / 4,
            in_flight_max,
            poll_every: Duration::from_millis(100),
            drain_for: Duration::from_secs(10),
            limits: StepLimits::DEFAULT,
            keep: self.keep,
            quick: self.quick.clone(),
        };
        let engine = Engine::new(store, guard, Arc::clone(&runner) as _, Arc::new(NoFaults), config);
        let stop = CancellationToken::new();
        let task = tokio::spawn({
            let stop = stop.clone();
            async move { engine.run(stop).await }
        });
        Ok(Host { runner, stop, task })
    }

    pub(crate) async fn run(&self, run: RunId) -> anyhow::Result<RunView> {
        self.work.store.run(self.work.tenant, run).await?.context("the run is there")
    }

    /// Waits until a run has ended, or is blocked.
    pub(crate) async fn ended(&self, run: RunId) -> anyhow::Result<RunView> {
        let still = [RunState::Pending, RunState::Running, RunState::Waiting];
        let found = eventually(async || {
            let view = self.run(run).await?;
            Ok((!still.contains(&view.row.state)).then_some(view))
        });
        found.await.with_context(|| format!("waiting for {run}"))
    }

    /// The timeline of a run, as much as a test needs of it.
    pub(crate) async fn timeline(&self, run: RunId) -> anyhow::Result<TimelineRows> {
        let (store, tenant) = (&self.work.store, self.work.tenant);
        let head = store.timeline_head(tenant, run).await?.context("the run is there")?;
        let plan: Plan = serde_json::from_value(head.plan.clone())?;
        let nodes: Vec<String> = plan.nodes().iter().map(|node| node.path.clone()).collect();
        Ok(store.timeline(tenant, head, &nodes, &Page { after: None, limit: 1_000 }).await?)
    }

    /// The steps of a run as the timeline has them: `node state attempt`.
    pub(crate) async fn steps(&self, run: RunId) -> anyhow::Result<Vec<String>> {
        let timeline = self.timeline(run).await?;
        let mut steps: Vec<_> = timeline
            .settled
            .iter()
            .map(|step| (step.settled_at, format!("{} {} {}", step.node, step.state.name(), step.attempt)))
            .collect();
        steps.sort();
        Ok(steps.into_iter().map(|(_, step)| step).collect())
    }
}

/// Looks until there is something, with a bound.
pub(crate) async fn eventually<T, F>(look: impl Fn() -> F) -> anyhow::Result<T>
where
    F: Future<Output = anyhow::Result<Option<T>>>,
{
    let begun = Instant::now();
    loop {
        if let Some(found) = look().await? {
            return Ok(found);
        }
        ensure!(begun.elapsed() < PATIENCE, "it did not come about in {PATIENCE:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
