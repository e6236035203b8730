//! Workers: programs outside the host that fetch work, and say what came of it.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use chrono::{DateTime, Utc};
use counterfoil_domain::code::Code;
use counterfoil_domain::id::{EffectId, RunId};
use counterfoil_domain::limits::{NAME_BYTES_MAX, is_key_text};
use counterfoil_domain::receipt::ReceiptState;
use counterfoil_domain::receipt::task::{Said, TookPlace};
use counterfoil_domain::workflow::is_name;
use counterfoil_store::worker::{self, Beat, Told};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::time::Instant;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use uuid::Uuid;

use super::events::check_payload;
use crate::auth::{Caller, Operator, Principal};
use crate::extract::{Json, JsonBody, Named};
use crate::idempotency::{Created, Creating, derived_id};
use crate::problem::Problem;
use crate::state::{App, Shared};

/// Queues that one worker serves: more of them want more workers.
const QUEUES_MAX: usize = 16;
/// Tasks that one poll takes: while a worker is at one, the leases of the others run.
const TASKS_MAX: u32 = 50;
/// Longest that a poll waits: shorter than any request may take.
const WAIT_MS_MAX: u64 = 20_000;
/// Longest lease: so long a worker may be gone before anybody knows.
const LEASE_MS_MAX: u64 = 900_000;
/// A minute: a few heartbeats may be lost.
const LEASE_MS: u64 = 60_000;
/// Between two looks when no wake-up comes: each may be lost.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Between two looks when wake-ups come one after the other.
const LOOKS_APART: Duration = Duration::from_millis(20);

pub(super) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(poll))
        .routes(routes!(heartbeat))
        .routes(routes!(complete))
        .routes(routes!(fail))
}

/// Which work a worker looks for.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = WorkerPoll)]
struct PollIn {
    /// What it calls itself: people read it.
    worker: String,
    /// The queues that it serves, 1 to 16.
    queues: Vec<String>,
    /// Tasks to take at most, 1 to 50.
    #[serde(default = "one")]
    tasks: u32,
    /// How long to wait for a task, at most 20,000 ms.
    #[serde(default = "wait_ms")]
    wait_ms: u64,
    /// How long a task is the worker's own without a heartbeat, 1 to 900,000 ms.
    #[serde(default = "lease_ms")]
    lease_ms: u64,
}

/// Tasks that a worker has taken; none if there were none in time.
#[derive(Debug, Serialize, ToSchema)]
struct WorkerTasks {
    tasks: Vec<WorkerTask>,
}

/// A task that a worker has taken.
#[derive(Debug, Serialize, ToSchema)]
struct WorkerTask {
    /// The effect that it is.
    #[schema(value_type = String)]
    id: EffectId,
    /// By which it is the worker's: to be sent with whatever is said of it. All tasks of one poll have the same.
    claim: Uuid,
    queue: String,
    input: Value,
    /// The key by which a repeat is recognised: a task that may have been done comes again under the same one, if its
    /// workflow says that workers recognise it.
    idempotency_key: String,
    #[schema(value_type = String)]
    run: RunId,
    /// The node that queued it.
    node: String,
    /// Indices of the map iterations around it.
    iteration: Vec<u32>,
    /// Until when it is the worker's without a heartbeat.
    lease_expires_at: DateTime<Utc>,
    /// Until when it is the worker's at all.
    deadline: DateTime<Utc>,
}

impl From<worker::Task> for WorkerTask {
    fn from(task: worker::Task) -> Self {
        Self {
            id: task.id,
            claim: task.claim,
            queue: task.queue,
            input: task.input,
            idempotency_key: task.idempotency_key,
            run: task.run,
            node: task.node,
            iteration: task.iteration,
            lease_expires_at: task.lease_until,
            deadline: task.deadline,
        }
    }
}

/// A worker that is still at a task.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Heartbeat {
    /// The task's `claim`.
    claim: Uuid,
    /// How long it is the worker's own without another, 1 to 900,000 ms.
    #[serde(default = "lease_ms")]
    lease_ms: u64,
}

/// A task that is still the worker's.
#[derive(Debug, Serialize, ToSchema)]
struct TaskKept {
    #[schema(value_type = String)]
    id: EffectId,
    lease_expires_at: DateTime<Utc>,
    deadline: DateTime<Utc>,
}

/// A task that is done.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Complete {
    /// The task's `claim`.
    claim: Uuid,
    /// What came of it.
    #[serde(default)]
    output: Value,
}

/// A task that is not done.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Fail {
    /// The task's `claim`.
    claim: Uuid,
    /// The worker's own name for what went wrong.
    #[serde(default = "failed")]
    code: String,
    /// In words.
    message: String,
    /// It is certain that nothing of the task took place. Without it, the outcome is unknown.
    #[serde(default)]
    nothing_took_place: bool,
    /// With `nothing_took_place`: another try is worth it.
    #[serde(default)]
    retry: bool,
}

/// What became of a task.
#[derive(Debug, Serialize, ToSchema)]
struct TaskTold {
    #[schema(value_type = String)]
    id: EffectId,
    /// Where the effect stands now.
    #[schema(value_type = String)]
    state: ReceiptState,
}

/// Take tasks
///
/// Waits until there is one, or until the time is over. Each task is given to one worker, once. A worker that lost the answer
/// gets it again if it repeats the poll with the same `Idempotency-Key`: the same tasks under the same claim, or none if it had
/// found none, so that each poll that is no repeat has a key of its own. Without one, nobody can speak for what was taken, and its
/// outcome is unknown once the lease has run out.
#[utoipa::path(post, path = "/v1/workers/poll", tag = "workers", request_body = PollIn,
    responses((status = 200, body = WorkerTasks)), security(("key" = ["operator"])))]
async fn poll(
    State(app): Shared,
    caller: Caller<Operator>,
    creating: Creating,
    body: JsonBody<PollIn>,
) -> Result<Response, Problem> {
    let wanted = body.value;
    check(&wanted)?;
    let claim = match creating.key() {
        Some(key) => derived_id("poll", caller.tenant, &[&wanted.worker, key]),
        None => app.new_id(),
    };
    let work = async {
        let tasks = look_until(&app, &caller, &wanted, claim).await?;
        Created::new(StatusCode::OK, &WorkerTasks { tasks })
    };
    creating.once(&app, caller.tenant, &body.bytes, work).await
}

fn check(wanted: &PollIn) -> Result<(), Problem> {
    if !is_key_text(&wanted.worker) {
        let rule = format!("a worker is called by 1 to {NAME_BYTES_MAX} bytes, without control characters");
        return Err(Problem::bad_field("/worker", rule));
    }
    if !(1..=QUEUES_MAX).contains(&wanted.queues.len()) {
        return Err(Problem::bad_field("/queues", format!("a worker serves 1 to {QUEUES_MAX} queues")));
    }
    if let Some(index) = wanted.queues.iter().position(|queue| !is_name(queue)) {
        let rule = "a queue's name is a lowercase letter, then letters, digits and hyphens";
        return Err(Problem::bad_field(&format!("/queues/{index}"), rule));
    }
    if !(1..=TASKS_MAX).contains(&wanted.tasks) {
        return Err(Problem::bad_field("/tasks", format!("a poll takes 1 to {TASKS_MAX} tasks")));
    }
    if wanted.wait_ms > WAIT_MS_MAX {
        return Err(Problem::bad_field("/wait_ms", format!("a poll waits at most {WAIT_MS_MAX} ms")));
    }
    lease(wanted.lease_ms).map(drop)
}

fn lease(ms: u64) -> Result<Duration, Problem> {
    if (1..=LEASE_MS_MAX).contains(&ms) {
        return Ok(Duration::from_millis(ms));
    }
    Err(Problem::bad_field("/lease_ms", format!("a lease lasts 1 to {LEASE_MS_MAX} ms")))
}

/// Looks for tasks until there are any, the time is over, or the host stops. A wake-up only shortens the wait.
async fn look_until(
    app: &App,
    who: &Principal,
    wanted: &PollIn,
    claim: Uuid,
) -> Result<Vec<WorkerTask>, Problem> {
    let poll = worker::Poll {
        worker: &wanted.worker,
        queues: &wanted.queues,
        claim,
        tasks_max: wanted.tasks,
        lease: lease(wanted.lease_ms)?,
    };
    let room = app.polls.try_acquire().ok();
    let wait = if room.is_some() { Duration::from_millis(wanted.wait_ms) } else { Duration::ZERO };
    let until = Instant::now() + wait;
    let (mut marks, mut stopping) = (app.store.marks(), app.stopping.subscribe());
    loop {
        let looked_at = Instant::now();
        let tasks = app.store.poll_tasks(who.tenant, &poll).await?;
        if !tasks.is_empty() || looked_at >= until || *stopping.borrow() {
            return Ok(tasks.into_iter().map(WorkerTask::from).collect());
        }
        let woken = async {
            marks.of(who.tenant).await;
            tokio::time::sleep_until(looked_at + LOOKS_APART).await;
        };
        tokio::select! {
            () = woken => {}
            _ = stopping.changed() => {}
            () = tokio::time::sleep_until(until.min(looked_at + LOOK_EVERY)) => {}
        }
    }
}

/// Keep a task
///
/// Says that the worker is still at it, which does not move the `deadline`. A task whose lease has run out cannot be kept any
/// more: what came of it can still be said with `complete` or `fail`.
#[utoipa::path(post, path = "/v1/workers/tasks/{id}/heartbeat", tag = "workers", params(("id" = String, Path)),
    request_body = Heartbeat, responses((status = 200, body = TaskKept)), security(("key" = ["operator"])))]
async fn heartbeat(
    State(app): Shared,
    caller: Caller<Operator>,
    Named(id): Named<EffectId>,
    body: JsonBody<Heartbeat>,
) -> Result<Json<TaskKept>, Problem> {
    let Heartbeat { claim, lease_ms } = body.value;
    match app.store.keep_task(caller.tenant, id, claim, lease(lease_ms)?).await? {
        Beat::Kept { lease_until, deadline } => {
            Ok(Json(TaskKept { id, lease_expires_at: lease_until, deadline }))
        }
        Beat::NotOwned => Err(not_owned()),
        Beat::Over => {
            Err(Problem::new(Code::TaskOver, "the time for this task is over, or it has an outcome"))
        }
        Beat::NotFound => Err(Problem::not_found()),
    }
}

/// Complete a task
///
/// Once: to say the same again changes nothing. Also after the lease has run out, as long as nothing else is known.
#[utoipa::path(post, path = "/v1/workers/tasks/{id}/complete", tag = "workers", params(("id" = String, Path)),
    request_body = Complete, responses((status = 200, body = TaskTold)), security(("key" = ["operator"])))]
async fn complete(
    State(app): Shared,
    caller: Caller<Operator>,
    Named(id): Named<EffectId>,
    body: JsonBody<Complete>,
) -> Result<Json<TaskTold>, Problem> {
    let Complete { claim, output } = body.value;
    check_payload(&output, "/output")?;
    tell(&app, &caller, id, claim, Said::Done { output }).await
}

/// Fail a task
///
/// Unless it is certain that nothing of it took place, its outcome is unknown then.
#[utoipa::path(post, path = "/v1/workers/tasks/{id}/fail", tag = "workers", params(("id" = String, Path)),
    request_body = Fail, responses((status = 200, body = TaskTold)), security(("key" = ["operator"])))]
async fn fail(
    State(app): Shared,
    caller: Caller<Operator>,
    Named(id): Named<EffectId>,
    body: JsonBody<Fail>,
) -> Result<Json<TaskTold>, Problem> {
    let Fail { claim, code, message, nothing_took_place, retry } = body.value;
    if !is_key_text(&code) {
        let rule = format!("a code has 1 to {NAME_BYTES_MAX} bytes, without control characters");
        return Err(Problem::bad_field("/code", rule));
    }
    if retry && !nothing_took_place {
        let rule = "only what certainly did not take place is tried again";
        return Err(Problem::bad_field("/retry", rule));
    }
    let took_place = if nothing_took_place { TookPlace::Nothing { again: retry } } else { TookPlace::Maybe };
    tell(&app, &caller, id, claim, Said::Failed { code, message, took_place }).await
}

async fn tell(
    app: &App,
    who: &Principal,
    id: EffectId,
    claim: Uuid,
    said: Said,
) -> Result<Json<TaskTold>, Problem> {
    match app.store.answer_task(who.tenant, id, claim, said).await? {
        Told::Recorded { state } => Ok(Json(TaskTold { id, state })),
        Told::NotOwned => Err(not_owned()),
        Told::Over { state } => {
            Err(Problem::new(Code::TaskOver, format!("what became of this task is settled: it is {state}")))
        }
        Told::NotFound => Err(Problem::not_found()),
    }
}

fn not_owned() -> Problem {
    Problem::new(
        Code::TaskNotOwned,
        "this `claim` is not the one under which the task was taken, or nobody has taken it",
    )
}

fn one() -> u32 {
    1
}

fn wait_ms() -> u64 {
    WAIT_MS_MAX
}

fn lease_ms() -> u64 {
    LEASE_MS
}

fn failed() -> String {
    "failed".into()
}
