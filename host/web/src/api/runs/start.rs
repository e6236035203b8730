//! Starting a run by call.

use axum::http::StatusCode;
use chrono::{DateTime, Utc};
use counterfoil_domain::code::Code;
use counterfoil_domain::expression::Scope;
use counterfoil_domain::id::{LineageId, RunId};
use counterfoil_domain::limits::{NAME_BYTES_MAX, is_key_text};
use counterfoil_domain::workflow::advance::{Event, about_run, advance};
use counterfoil_domain::workflow::is_name;
use counterfoil_store::admission::{Admission, Admitted, Dedup};
use counterfoil_store::run::{RunState, Trigger};
use counterfoil_store::settle::SettledStep;
use counterfoil_store::workflow::ActiveVersion;
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::{Run, read_plan};
use crate::api::events::check_payload;
use crate::auth::{Principal, Starter};
use crate::idempotency::{Created, Creating};
use crate::problem::Problem;
use crate::state::App;

/// A run to start.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewRun)]
pub(super) struct RunIn {
    /// What expressions read as `input`; `{}` if absent.
    #[serde(default)]
    input: Option<Value>,
    /// The record that the run is about.
    record: Option<String>,
}

/// Starts a run of the active version.
pub(super) async fn start(
    app: &App,
    starter: Starter,
    creating: &Creating,
    body: RunIn,
) -> Result<Created, Problem> {
    let Starter { caller, workflow: name, active } = starter;
    let input = body.input.unwrap_or_else(|| json!({}));
    check_payload(&input, "/input")?;
    if body.record.as_deref().is_some_and(|record| !is_key_text(record)) {
        let detail = format!("a record has 1 to {NAME_BYTES_MAX} bytes, without control characters");
        return Err(Problem::bad_field("/record", detail));
    }
    let active = startable(app, &caller, &name, active).await?;
    let run = RunId(app.new_id());
    let start_key = match creating.key() {
        // Whatever becomes of the kept answer, one key starts one run.
        Some(key) => format!("api:{key}"),
        None => format!("run:{run}"),
    };
    let admission = admission(&caller, run, start_key, &active, input, body.record)?;
    let (run, status) = match app.store.admit(&admission).await? {
        Admitted::Begun { run: id, at } => {
            let record = admission.record;
            return Created::new(StatusCode::CREATED, &begun(id, name, active.number, record, at));
        }
        Admitted::Started(run) => (run, StatusCode::CREATED),
        Admitted::Exists(run) => (run, StatusCode::OK),
        Admitted::Refused { code, detail } => return Err(Problem::new(code, detail)),
    };
    let row = app.store.run_row(caller.tenant, run).await?.ok_or_else(Problem::not_found)?;
    Created::new(status, &Run::from(row))
}

/// A run as it is shown when its first step has just begun.
fn begun(id: RunId, workflow: String, version: u32, record: Option<String>, at: DateTime<Utc>) -> Run {
    Run {
        id,
        workflow,
        version,
        state: RunState::Running.name(),
        record,
        trigger: "api",
        event_id: None,
        admitted_at: at,
        ended_at: None,
    }
}

/// What new runs of the workflow are pinned to, if it may start any.
async fn startable(
    app: &App,
    who: &Principal,
    name: &str,
    active: Option<ActiveVersion>,
) -> Result<ActiveVersion, Problem> {
    match active {
        Some(active) if active.paused => {
            Err(Problem::new(Code::WorkflowPaused, format!("`{name}` is paused")))
        }
        Some(active) => Ok(active),
        None if is_name(name) && app.store.workflow(who.tenant, name).await?.is_some() => {
            Err(Problem::new(Code::WorkflowNotActive, format!("no version of `{name}` is active")))
        }
        None => Err(Problem::not_found()),
    }
}

fn admission(
    who: &Principal,
    run: RunId,
    start_key: String,
    active: &ActiveVersion,
    input: Value,
    record: Option<String>,
) -> Result<Admission, Problem> {
    let plan = read_plan(&active.plan)?;
    let about = about_run(LineageId(run.0));
    let first = advance(&plan, &Scope::new(&Value::Null, &input, &about), Event::Started);
    Ok(Admission {
        tenant: who.tenant,
        run,
        workflow: active.workflow,
        version: active.version,
        start_key,
        trigger: Trigger::Api,
        record,
        dedup: Dedup::EveryTime,
        inline: first.settled.into_iter().map(|settled| SettledStep::inline(run, settled)).collect(),
        open: first.open.into_iter().map(Into::into).collect(),
        end: first.end.map(Into::into),
        event: Value::Null,
        input,
    })
}
