//! One event, and what each workflow made of it.

use askama::Template;
use axum::extract::State;
use counterfoil_domain::id::EventId;

use super::{Chrome, Page, show};
use crate::api::events::{EventOutcomes, event_outcomes};
use crate::extract::Named;
use crate::problem::Problem;
use crate::session::Visitor;
use crate::state::Shared;

#[derive(Debug, Template)]
#[template(path = "event.html")]
pub(super) struct EventPage {
    chrome: Chrome,
    event: EventOutcomes,
}

/// `GET /events/{id}`
pub(super) async fn page(
    State(app): Shared,
    visitor: Visitor,
    Named(id): Named<EventId>,
) -> Result<Page<EventPage>, Problem> {
    let event = event_outcomes(&app, &visitor.principal, id).await?.ok_or_else(Problem::not_found)?;
    Ok(Page(EventPage { chrome: Chrome::of(&visitor), event }))
}
