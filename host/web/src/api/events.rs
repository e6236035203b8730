//! Events in, and what became of them.

mod read;

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use chrono::{DateTime, Utc};
use counterfoil_domain::code::Code;
use counterfoil_domain::id::{EventId, RunId};
use counterfoil_store::event::{EventView, NewEvent, Outcome, Recorded};
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(crate) use self::read::check_payload;
use self::read::{CloudEvent, Event, EventIn, read};
use crate::auth::{Caller, Operator, Principal, Viewer};
use crate::extract::{Json, Named, Raw};
use crate::idempotency::{Created, Creating};
use crate::problem::{FieldError, Problem};
use crate::state::{App, Shared};

/// Bytes of one request: a full batch of ordinary events, or a dozen of the largest.
const BATCH_BYTES_MAX: u64 = 4 << 20;

pub(super) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(record)).routes(routes!(outcomes))
}

/// One event or several.
#[derive(Debug, ToSchema)]
#[schema(as = Events)]
#[serde(untagged)]
#[expect(dead_code, reason = "describes the body")]
enum EventsIn {
    One(EventIn),
    Batch(Vec<EventIn>),
}

/// What was recorded.
#[derive(Debug, Serialize, ToSchema)]
struct EventsRecorded {
    /// In the order given.
    events: Vec<EventRecorded>,
    /// What was not taken, since events of the same ids had been recorded before; absent if there is none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<FieldError>,
}

/// An event that is recorded.
#[derive(Debug, Serialize, ToSchema)]
struct EventRecorded {
    #[schema(value_type = String)]
    id: EventId,
    r#type: String,
    /// It was recorded by this request. If not, an event of this id had been before, and that one stands.
    new: bool,
}

/// An event, and what became of it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct EventOutcomes {
    #[schema(value_type = String)]
    pub(crate) id: EventId,
    pub(crate) r#type: String,
    /// The record that it is about.
    pub(crate) record: Option<String>,
    pub(crate) recorded_at: DateTime<Utc>,
    /// When every workflow that it met had started a run or refused to; null until then.
    pub(crate) published_at: Option<DateTime<Utc>>,
    /// One entry for each workflow that it met; empty until it is published, and where no active one has a trigger for it.
    pub(crate) outcomes: Vec<EventOutcome>,
}

/// What an event came to for one workflow.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct EventOutcome {
    pub(crate) workflow: String,
    /// The run that it started.
    #[schema(value_type = Option<String>)]
    pub(crate) run: Option<RunId>,
    /// Why it started none.
    pub(crate) refusal: Option<Refusal>,
    pub(crate) at: DateTime<Utc>,
}

/// Why no run was started.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Refusal {
    /// The reason's stable name.
    pub(crate) code: String,
    /// In words.
    pub(crate) detail: String,
}

impl From<Outcome> for EventOutcome {
    fn from(outcome: Outcome) -> Self {
        let Outcome { workflow, run, refusal, at } = outcome;
        Self { workflow, run, refusal: refusal.map(|(code, detail)| Refusal { code, detail }), at }
    }
}

/// Record events
///
/// One event or an array of up to 100, or one or a batch in the structured form of `CloudEvents` 1.0. They are durable
/// when this answers; the runs that they start are admitted after that. An event is recorded once: if one of its id is
/// known already, that one stands, and a warning says what of this one was not taken.
#[utoipa::path(post, path = "/v1/events", tag = "events",
    params(("Idempotency-Key" = Option<String>, Header, description = "A repeat gets the first answer")),
    request_body(content(
        (EventsIn = "application/json"),
        (CloudEvent = "application/cloudevents+json"),
        (Vec<CloudEvent> = "application/cloudevents-batch+json"),
    )),
    responses((status = 202, body = EventsRecorded)), security(("key" = ["operator"])))]
async fn record(
    State(app): Shared,
    caller: Caller<Operator>,
    creating: Creating,
    headers: HeaderMap,
    Raw(body): Raw<BATCH_BYTES_MAX>,
) -> Result<Response, Problem> {
    let events = read(&headers, &body)?;
    let work = async {
        let new: Vec<NewEvent> = events
            .iter()
            .enumerate()
            .map(|(n, event)| NewEvent {
                id: event.identity.id(&app, caller.tenant, creating.key(), n),
                event_type: event.kind.clone(),
                record: event.record.clone(),
                data: event.data.clone(),
            })
            .collect();
        let recorded = app.store.record_events(caller.tenant, &new).await?;
        let warnings =
            events.iter().zip(&recorded).filter_map(|(event, recorded)| not_taken(event, recorded));
        let warnings = warnings.collect();
        let events = new.into_iter().zip(&recorded).map(|(event, recorded)| EventRecorded {
            id: event.id,
            r#type: event.event_type,
            new: *recorded == Recorded::New,
        });
        Created::new(StatusCode::ACCEPTED, &EventsRecorded { events: events.collect(), warnings })
    };
    creating.once(&app, caller.tenant, &body, work).await
}

/// Show what became of an event
#[utoipa::path(get, path = "/v1/events/{id}/outcomes", tag = "events", params(("id" = String, Path)),
    responses((status = 200, body = EventOutcomes)), security(("key" = ["viewer"])))]
async fn outcomes(
    State(app): Shared,
    caller: Caller<Viewer>,
    Named(id): Named<EventId>,
) -> Result<Json<EventOutcomes>, Problem> {
    event_outcomes(&app, &caller, id).await?.map(Json).ok_or_else(Problem::not_found)
}

/// What became of an event, if there is one of this id.
pub(crate) async fn event_outcomes(
    app: &App,
    who: &Principal,
    id: EventId,
) -> Result<Option<EventOutcomes>, Problem> {
    let Some(event) = app.store.event(who.tenant, id).await? else { return Ok(None) };
    let EventView { event_type, record, recorded_at, published_at, outcomes } = event;
    let outcomes = outcomes.into_iter().map(EventOutcome::from).collect();
    Ok(Some(EventOutcomes { id, r#type: event_type, record, recorded_at, published_at, outcomes }))
}

/// What the sender must know, where an event of the same id stands in place of this one.
fn not_taken(event: &Event, recorded: &Recorded) -> Option<FieldError> {
    let Recorded::Differs(parts) = recorded else { return None };
    let parts = parts.join(", another ");
    let detail = format!(
        "an event of this id was recorded before with another {parts}: that one stands, and this was not taken"
    );
    Some(FieldError::new(Code::EventIdReused, event.place.as_str(), detail))
}
