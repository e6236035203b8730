//! The start page: what needs a person.

use askama::Template;
use axum::extract::State;
use counterfoil_domain::receipt::ReceiptState;
use counterfoil_store::receipt::EffectFilter;
use counterfoil_store::run::RunState;

use super::{Chrome, Page, show};
use crate::api::approvals::{Approval, approvals};
use crate::api::effects::{Effect, effects};
use crate::api::runs::{Run, Wanted, runs};
use crate::list::ListParams;
use crate::problem::Problem;
use crate::session::Visitor;
use crate::state::{App, Shared};

/// Rows of each kind: what needs more than a screen has a list of its own.
const ROWS_MAX: u32 = 10;

#[derive(Debug, Template)]
#[template(path = "attention.html")]
pub(super) struct AttentionPage {
    chrome: Chrome,
    unknown: Vec<Effect>,
    /// How long ago the oldest was sent.
    oldest_age: Option<String>,
    more_unknown: bool,
    approvals: Vec<Approval>,
    blocked: Vec<Run>,
    failed: Vec<Run>,
}

/// `GET /`
pub(super) async fn page(State(app): Shared, visitor: Visitor) -> Result<Page<AttentionPage>, Problem> {
    let filter = EffectFilter { state: Some(ReceiptState::Unknown), run: None };
    let unknown = effects(&app, &visitor.principal, filter, first()).await?;
    let now = app.store.ping().await?;
    let oldest = unknown.items.first().and_then(|effect| effect.dispatched_at);
    Ok(Page(AttentionPage {
        chrome: Chrome::of(&visitor),
        oldest_age: oldest.map(|at| show::length(&(now - at).num_milliseconds())),
        more_unknown: unknown.next.is_some(),
        unknown: unknown.items,
        approvals: approvals(&app, &visitor.principal, true, first()).await?.items,
        blocked: in_state(&app, &visitor, RunState::Blocked).await?,
        failed: in_state(&app, &visitor, RunState::Failed).await?,
    }))
}

fn first() -> ListParams {
    ListParams { limit: Some(ROWS_MAX), after: None }
}

async fn in_state(app: &App, visitor: &Visitor, state: RunState) -> Result<Vec<Run>, Problem> {
    let wanted = Wanted { state: Some(state), ..Wanted::default() };
    Ok(runs(app, &visitor.principal, wanted, first()).await?.items)
}
