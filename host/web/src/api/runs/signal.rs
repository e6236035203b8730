//! Signals to a run.

use axum::http::StatusCode;
use counterfoil_domain::code::Code;
use counterfoil_domain::id::RunId;
use counterfoil_domain::workflow::is_name;
use counterfoil_store::waiting::{NewSignal, SIGNALS_PER_RUN_MAX, Signalled};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::api::events::check_payload;
use crate::auth::Principal;
use crate::idempotency::{Created, Creating, derived_id};
use crate::problem::Problem;
use crate::state::App;

/// A signal to send.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Signal)]
pub(super) struct SignalIn {
    /// What it says.
    #[serde(default)]
    data: Value,
}

/// A signal that was sent.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct SignalSent {
    #[schema(value_type = String)]
    run: RunId,
    name: String,
}

/// Sends a signal.
pub(super) async fn send(
    app: &App,
    who: &Principal,
    creating: &Creating,
    (run, name): (RunId, &str),
    body: SignalIn,
) -> Result<Created, Problem> {
    if !is_name(name) {
        return Err(Problem::bad_request(
            "a signal's name is a lowercase letter, then letters, digits and hyphens",
        ));
    }
    check_payload(&body.data, "/data")?;
    let id = match creating.key() {
        // Whatever becomes of the kept answer, one key sends one signal.
        Some(key) => derived_id("signal", who.tenant, &[&run.to_string(), name, key]),
        None => app.new_id(),
    };
    let signal = NewSignal { id, name: name.into(), data: body.data };
    match app.store.signal(who.tenant, run, &signal, &who.actor()).await? {
        Signalled::Kept => Created::new(StatusCode::ACCEPTED, &SignalSent { run, name: name.into() }),
        Signalled::Ended => Err(Problem::new(Code::RunEnded, "the run has ended, and listens to nothing")),
        Signalled::TooMany => {
            let detail = format!("{SIGNALS_PER_RUN_MAX} signals wait for this run already");
            Err(Problem::new(Code::SignalLimit, detail))
        }
        Signalled::NotFound => Err(Problem::not_found()),
    }
}
