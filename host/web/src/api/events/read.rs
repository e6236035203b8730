//! Events as they come: in two forms, one or several.

use axum::http::{HeaderMap, header};
use counterfoil_domain::code::Code;
use counterfoil_domain::id::{EventId, TenantId};
use counterfoil_domain::limits::{
    NAME_BYTES_MAX, PAYLOAD_BYTES_MAX, PAYLOAD_DEPTH_MAX, is_key_text, is_too_deep,
};
use counterfoil_domain::step::holds_nul;
use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::extract::{from_json, from_value};
use crate::idempotency::derived_id;
use crate::problem::Problem;
use crate::state::App;

/// Events of one request: one statement records them.
const BATCH_LEN_MAX: usize = 100;

/// An event to record.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct EventIn {
    /// What happened, dotted.
    #[schema(example = "crm.lead.created")]
    r#type: String,
    /// What there is to say about it.
    #[serde(default)]
    data: Value,
    /// The record that it is about.
    record: Option<String>,
    /// Its id, if a repeat is to be the same event.
    #[schema(value_type = Option<String>)]
    id: Option<EventId>,
}

/// An event in the structured form of `CloudEvents` 1.0. Extension attributes are not kept.
#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct CloudEvent {
    #[schema(example = "1.0")]
    specversion: String,
    /// With `source`, what makes a repeat the same event.
    id: String,
    source: String,
    r#type: String,
    /// The record that it is about.
    subject: Option<String>,
    datacontenttype: Option<String>,
    #[serde(default)]
    data: Value,
    data_base64: Option<String>,
}

/// What makes a repeat the same event.
#[derive(Debug)]
pub(super) enum Identity {
    Given(EventId),
    CloudEvent { source: String, id: String },
    Request,
}

impl Identity {
    pub(super) fn id(&self, app: &App, tenant: TenantId, request_key: Option<&str>, n: usize) -> EventId {
        match (self, request_key) {
            (Self::Given(id), _) => *id,
            (Self::CloudEvent { source, id }, _) => derived_id("cloud-event", tenant, &[source, id]).into(),
            (Self::Request, Some(key)) => derived_id("event", tenant, &[key, &n.to_string()]).into(),
            (Self::Request, None) => app.new_id().into(),
        }
    }
}

/// An event that was read and found good.
#[derive(Debug)]
pub(super) struct Event {
    /// Where it stands in the body.
    pub(super) place: String,
    pub(super) identity: Identity,
    /// Its type.
    pub(super) kind: String,
    pub(super) record: Option<String>,
    pub(super) data: Value,
}

/// Reads the events of a request, in any of the forms that they may have.
pub(super) fn read(headers: &HeaderMap, body: &[u8]) -> Result<Vec<Event>, Problem> {
    let content_type =
        headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let is_cloud_event = essence.starts_with("application/cloudevents");
    let items: Vec<(String, Value)> = match from_json(body)? {
        Value::Array(items) => {
            items.into_iter().enumerate().map(|(n, item)| (format!("/{n}"), item)).collect()
        }
        one => vec![(String::new(), one)],
    };
    if !(1..=BATCH_LEN_MAX).contains(&items.len()) {
        return Err(Problem::bad_field("", format!("a request has 1 to {BATCH_LEN_MAX} events")));
    }
    let event = |(place, item): (String, Value)| {
        let event = if is_cloud_event { cloud_event(item, &place)? } else { own_event(item, &place)? };
        check(&event, &place)?;
        Ok(event)
    };
    items.into_iter().map(event).collect()
}

fn own_event(item: Value, place: &str) -> Result<Event, Problem> {
    let EventIn { r#type, data, record, id } = from_value(item, place)?;
    let identity = id.map_or(Identity::Request, Identity::Given);
    Ok(Event { place: place.into(), identity, kind: r#type, record, data })
}

fn cloud_event(item: Value, place: &str) -> Result<Event, Problem> {
    let event: CloudEvent = from_value(item, place)?;
    if event.specversion != "1.0" {
        return Err(Problem::bad_field(
            &format!("{place}/specversion"),
            "only CloudEvents 1.0 are known here",
        ));
    }
    let is_json = event.datacontenttype.as_deref().is_none_or(|text| {
        let essence = text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        essence == "application/json" || essence.ends_with("+json")
    });
    if event.data_base64.is_some() || !is_json {
        return Err(Problem::bad_field(&format!("{place}/data"), "the data of an event is JSON"));
    }
    let identity = Identity::CloudEvent { source: event.source, id: event.id };
    Ok(Event { place: place.into(), identity, kind: event.r#type, record: event.subject, data: event.data })
}

/// Whether an event can be kept as it is.
fn check(event: &Event, place: &str) -> Result<(), Problem> {
    if !is_key_text(&event.kind) {
        let detail = format!("a type has 1 to {NAME_BYTES_MAX} bytes, without control characters");
        return Err(Problem::bad_field(&format!("{place}/type"), detail));
    }
    if event.record.as_deref().is_some_and(|record| !is_key_text(record)) {
        let detail = format!("a record has 1 to {NAME_BYTES_MAX} bytes, without control characters");
        return Err(Problem::bad_field(&format!("{place}/record"), detail));
    }
    check_payload(&event.data, &format!("{place}/data"))
}

/// Whether a payload can be kept.
pub(crate) fn check_payload(payload: &Value, place: &str) -> Result<(), Problem> {
    if holds_nul(payload) {
        return Err(Problem::bad_field(place, "a NUL character cannot be kept"));
    }
    if is_too_deep(payload) {
        let what = format!("it has over {PAYLOAD_DEPTH_MAX} levels of objects and arrays");
        return Err(Problem::bad_field(place, what));
    }
    if payload.to_string().len() as u64 > PAYLOAD_BYTES_MAX {
        return Err(Problem::new(
            Code::InputTooLarge,
            format!("{place} is over {PAYLOAD_BYTES_MAX} bytes of JSON"),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(content_type: &str, body: &str) -> String {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, content_type.parse().expect("a header"));
        match read(&headers, body.as_bytes()) {
            Ok(events) => format!("{events:?}"),
            Err(problem) => {
                let body = problem.body(problem.status(), "r");
                let pointers: Vec<String> = body.errors.into_iter().map(|error| error.pointer).collect();
                format!("{} {pointers:?} {}", body.code, body.detail)
            }
        }
    }

    #[test]
    fn events_are_read_in_every_form_and_refused_with_their_place() {
        let (own, cloud) = ("application/json", "application/cloudevents+json");
        let long = format!(r#"{{"type":"{}"}}"#, "t".repeat(256));
        let large = format!(r#"{{"type":"t","data":"{}"}}"#, "d".repeat(262_144));
        let cases = [
            (own, r#"{"type":"t"}"#),
            (own, r#"[{"type":"t","data":{"a":1},"record":"r"},{"type":"u"}]"#),
            (own, r#"{"type":"t","id":"evt_01h455vb4pex5vsknk084sn02q"}"#),
            (own, r#"[{"type":"t"},{"type":"t","id":"run_01h455vb4pex5vsknk084sn02q"}]"#),
            (own, r#"{"type":"t","extra":1}"#),
            (own, r#"{"type":""}"#),
            (own, r#"{"type":"a\u0000"}"#),
            (own, r#"{"type":"t","record":"a\nb"}"#),
            (own, r#"[{"type":"t","data":{"a":["\u0000"]}}]"#),
            (own, "[]"),
            (own, "7"),
            (own, ""),
            (own, &long),
            (own, &large),
            (
                cloud,
                r#"{"specversion":"1.0","id":"1","source":"/s","type":"t","subject":"r","data":[1],"x":"y"}"#,
            ),
            (
                cloud,
                r#"[{"specversion":"1.0","id":"1","source":"/s","type":"t","datacontenttype":"text/plain"}]"#,
            ),
            (cloud, r#"{"specversion":"1.0","id":"1","source":"/s","type":"t","data_base64":"AA=="}"#),
            (cloud, r#"{"specversion":"0.3","id":"1","source":"/s","type":"t"}"#),
            (cloud, r#"{"specversion":"1.0","id":"1","type":"t"}"#),
        ];
        let table: Vec<String> =
            cases.iter().map(|(kind, body)| format!("{body:.90}\n  {}", told(kind, body))).collect();
        insta::assert_snapshot!(table.join("\n"), @r#"
        {"type":"t"}
          [Event { place: "", identity: Request, kind: "t", record: None, data: Null }]
        [{"type":"t","data":{"a":1},"record":"r"},{"type":"u"}]
          [Event { place: "/0", identity: Request, kind: "t", record: Some("r"), data: Object {"a": Number(1)} }, Event { place: "/1", identity: Request, kind: "u", record: None, data: Null }]
        {"type":"t","id":"evt_01h455vb4pex5vsknk084sn02q"}
          [Event { place: "", identity: Given(evt_01h455vb4pex5vsknk084sn02q), kind: "t", record: None, data: Null }]
        [{"type":"t"},{"type":"t","id":"run_01h455vb4pex5vsknk084sn02q"}]
          bad_request ["/1/id"] the body cannot be read: `run_01h455vb4pex5vsknk084sn02q` is not an id of the form `evt_…` (26 characters of base32 after the prefix), nor a UUID
        {"type":"t","extra":1}
          bad_request ["/extra"] the body cannot be read: there is no `extra` here; what there is: `type`, `data`, `record`, `id`
        {"type":""}
          bad_request ["/type"] a type has 1 to 255 bytes, without control characters
        {"type":"a\u0000"}
          bad_request ["/type"] a type has 1 to 255 bytes, without control characters
        {"type":"t","record":"a\nb"}
          bad_request ["/record"] a record has 1 to 255 bytes, without control characters
        [{"type":"t","data":{"a":["\u0000"]}}]
          bad_request ["/0/data"] a NUL character cannot be kept
        []
          bad_request [""] a request has 1 to 100 events
        7
          bad_request [""] the body cannot be read: a map is expected here, and this is `7`

          bad_request [""] the body cannot be read: EOF while parsing a value at line 1 column 0
        {"type":"ttttttttttttttttttttttttttttttttttttttttttttttttttttttttttttttttttttttttttttttttt
          bad_request ["/type"] a type has 1 to 255 bytes, without control characters
        {"type":"t","data":"dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd
          input_too_large [] /data is over 262144 bytes of JSON
        {"specversion":"1.0","id":"1","source":"/s","type":"t","subject":"r","data":[1],"x":"y"}
          [Event { place: "", identity: CloudEvent { source: "/s", id: "1" }, kind: "t", record: Some("r"), data: Array [Number(1)] }]
        [{"specversion":"1.0","id":"1","source":"/s","type":"t","datacontenttype":"text/plain"}]
          bad_request ["/0/data"] the data of an event is JSON
        {"specversion":"1.0","id":"1","source":"/s","type":"t","data_base64":"AA=="}
          bad_request ["/data"] the data of an event is JSON
        {"specversion":"0.3","id":"1","source":"/s","type":"t"}
          bad_request ["/specversion"] only CloudEvents 1.0 are known here
        {"specversion":"1.0","id":"1","type":"t"}
          bad_request [""] the body cannot be read: `source` is missing
        "#);
    }
}
