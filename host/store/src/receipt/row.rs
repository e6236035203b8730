//! A receipt as columns.

use chrono::{DateTime, Utc};
use counterfoil_domain::effect::{Answer, EffectFailure, HttpResponse, Safety};
use counterfoil_domain::id::{EffectId, Place};
use counterfoil_domain::receipt::{Receipt, ReceiptState, Recorded, RequestFacts, SlotKey, Standing};
use serde_json::Value;
use uuid::Uuid;

use super::ReceiptView;
use crate::StoreError;
use crate::error::Row;
use crate::value;

/// Every column of `receipts`.
pub(crate) struct ReceiptRow {
    pub(crate) tenant_id: Uuid,
    pub(crate) id: Uuid,
    pub(crate) lineage: Uuid,
    pub(crate) run_id: Uuid,
    pub(crate) step_id: Uuid,
    #[expect(dead_code, reason = "of use when runs move between databases")]
    pub(crate) epoch: i64,
    pub(crate) node: String,
    pub(crate) iteration: Vec<i32>,
    pub(crate) slot_label: Option<String>,
    pub(crate) slot_ordinal: Option<i64>,
    pub(crate) dispatch_number: i64,
    pub(crate) position: i32,
    pub(crate) attempt: i32,
    pub(crate) kind: String,
    pub(crate) safety: String,
    pub(crate) connection: Option<String>,
    pub(crate) destination: Vec<u8>,
    pub(crate) request_hash: Vec<u8>,
    pub(crate) content_key: Vec<u8>,
    pub(crate) idempotency_key: String,
    pub(crate) preview: Value,
    pub(crate) state: String,
    pub(crate) lease_id: Option<Uuid>,
    #[expect(dead_code, reason = "only the statements look at it")]
    pub(crate) guarded: bool,
    #[expect(dead_code, reason = "only the statements look at it")]
    pub(crate) released: bool,
    #[expect(dead_code, reason = "only the statements look at it")]
    pub(crate) unresolved: bool,
    pub(crate) prepared_at: DateTime<Utc>,
    pub(crate) dispatched_at: Option<DateTime<Utc>>,
    pub(crate) absence_known_at: Option<DateTime<Utc>>,
    pub(crate) answered_at: Option<DateTime<Utc>>,
    pub(crate) answer_kind: Option<String>,
    pub(crate) answer_status: Option<i32>,
    pub(crate) answer_headers: Option<Value>,
    pub(crate) answer_body: Option<Vec<u8>>,
    pub(crate) answer_truncated: Option<bool>,
    pub(crate) reason: Option<String>,
    pub(crate) provider_receipt_id: Option<String>,
}

type ThisRow = Row<EffectId>;

impl TryFrom<ReceiptRow> for Receipt {
    type Error = StoreError;

    fn try_from(columns: ReceiptRow) -> Result<Self, StoreError> {
        let id = EffectId(columns.id);
        let row = Row { table: "receipts", id };
        let standing = standing(&row, &columns)?;
        let slot = match (columns.slot_label, columns.slot_ordinal) {
            (Some(label), _) => SlotKey::Label(label),
            (None, ordinal) => SlotKey::Ordinal(row.need("slot_ordinal", ordinal)?.cast_unsigned()),
        };
        Ok(Self {
            id,
            tenant: columns.tenant_id.into(),
            run: columns.run_id.into(),
            step: columns.step_id.into(),
            place: Place {
                lineage: columns.lineage.into(),
                node: columns.node,
                iteration: value::path_in(&columns.iteration),
            },
            slot,
            dispatch_number: columns.dispatch_number.cast_unsigned(),
            position: value::count(&row, "position", columns.position)?,
            attempt: value::count(&row, "attempt", columns.attempt)?,
            request: RequestFacts {
                kind: columns.kind,
                safety: row.need("safety", Safety::from_name(&columns.safety))?,
                connection: columns.connection,
                destination: row.read("destination", columns.destination.as_slice().try_into())?,
                request_hash: row.read("request_hash", columns.request_hash.as_slice().try_into())?,
                content_key: row.read("content_key", columns.content_key.as_slice().try_into())?,
                idempotency_key: columns.idempotency_key,
                preview: columns.preview,
            },
            standing,
        })
    }
}

fn standing(row: &ThisRow, columns: &ReceiptRow) -> Result<Standing, StoreError> {
    let dispatched_at = || row.need("dispatched_at", columns.dispatched_at);
    Ok(match row.need("state", ReceiptState::from_name(&columns.state))? {
        ReceiptState::Planned => Standing::Planned,
        ReceiptState::Prepared => Standing::Prepared,
        ReceiptState::Dispatched => Standing::Dispatched {
            lease: row.need("lease_id", columns.lease_id)?.into(),
            at: dispatched_at()?,
        },
        ReceiptState::Committed => Standing::Committed(recorded(row, columns)?),
        ReceiptState::Rejected => Standing::Rejected(recorded(row, columns)?),
        ReceiptState::Unknown => Standing::Unknown {
            reason: columns.reason.clone().unwrap_or_default(),
            dispatched_at: dispatched_at()?,
            absence_known_at: row.need("absence_known_at", columns.absence_known_at)?,
        },
        ReceiptState::Verified => Standing::Verified(recorded(row, columns)?),
        ReceiptState::Compensated => Standing::Compensated,
        ReceiptState::Abandoned => Standing::Abandoned,
    })
}

impl ReceiptRow {
    /// With the name of its workflow; no history, no verification, and no time at which it was resolved.
    pub(crate) fn view(self, workflow: String) -> Result<ReceiptView, StoreError> {
        Ok(ReceiptView {
            prepared_at: self.prepared_at,
            dispatched_at: self.dispatched_at,
            answered_at: self.answered_at,
            resolved_at: None,
            absence_known_at: self.absence_known_at,
            reason: self.reason.clone(),
            provider_receipt_id: self.provider_receipt_id.clone(),
            workflow,
            run_has_ended: false,
            history: vec![],
            verification: None,
            receipt: self.try_into()?,
        })
    }
}

/// What is recorded of an outcome, as columns.
#[derive(Debug, Default)]
pub(crate) struct AnswerColumns<'a> {
    pub(crate) kind: Option<&'static str>,
    pub(crate) status: Option<i32>,
    pub(crate) headers: Option<Value>,
    pub(crate) body: Option<&'a [u8]>,
    pub(crate) truncated: Option<bool>,
}

impl<'a> AnswerColumns<'a> {
    pub(crate) fn new(recorded: &'a Recorded) -> Self {
        let response = |kind, response: &'a HttpResponse| Self {
            kind: Some(kind),
            status: Some(response.status.into()),
            headers: Some(serde_json::json!(response.headers)),
            body: Some(&response.body),
            truncated: Some(response.truncated),
        };
        let bytes = |kind, body: Option<&'a [u8]>| Self { kind: Some(kind), body, ..Self::default() };
        let text = |kind, text: &'a str| bytes(kind, Some(text.as_bytes()));
        match recorded {
            Recorded::Answer(answer) => match answer {
                Answer::Http(answer) => response("http", answer),
                Answer::Emitted => bytes("emitted", None),
                Answer::Stored(value) => bytes("stored", value.as_deref()),
                Answer::Mailed(reply) => text("mailed", reply),
                Answer::Model(body) => text("model", body),
                Answer::Worker(output) => text("worker", output),
            },
            Recorded::Failure(failure) => match failure {
                EffectFailure::Denied(message) => text("denied", message),
                EffectFailure::NotSent(message) => text("not-sent", message),
                EffectFailure::Rejected(answer) => response("rejected", answer),
                EffectFailure::NoAnswer(message) => text("no-answer", message),
                EffectFailure::ResponseTooLarge(answer) => response("response-too-large", answer),
                EffectFailure::Limit(message) => text("limit", message),
            },
        }
    }
}

fn recorded(row: &ThisRow, columns: &ReceiptRow) -> Result<Recorded, StoreError> {
    let kind = row.need("answer_kind", columns.answer_kind.as_deref())?;
    let response = || -> Result<HttpResponse, StoreError> {
        let headers = row.need("answer_headers", columns.answer_headers.clone())?;
        Ok(HttpResponse {
            status: row
                .read("answer_status", u16::try_from(row.need("answer_status", columns.answer_status)?))?,
            headers: row.read("answer_headers", serde_json::from_value(headers))?,
            body: row.need("answer_body", columns.answer_body.clone())?,
            truncated: row.need("answer_truncated", columns.answer_truncated)?,
        })
    };
    let text = || row.read("answer_body", String::from_utf8(columns.answer_body.clone().unwrap_or_default()));
    Ok(match kind {
        "http" => Recorded::Answer(Answer::Http(response()?)),
        "emitted" => Recorded::Answer(Answer::Emitted),
        "stored" => Recorded::Answer(Answer::Stored(columns.answer_body.clone())),
        "mailed" => Recorded::Answer(Answer::Mailed(text()?)),
        "model" => Recorded::Answer(Answer::Model(text()?)),
        "worker" => Recorded::Answer(Answer::Worker(text()?)),
        "denied" => Recorded::Failure(EffectFailure::Denied(text()?)),
        "not-sent" => Recorded::Failure(EffectFailure::NotSent(text()?)),
        "rejected" => Recorded::Failure(EffectFailure::Rejected(response()?)),
        "no-answer" => Recorded::Failure(EffectFailure::NoAnswer(text()?)),
        "response-too-large" => Recorded::Failure(EffectFailure::ResponseTooLarge(response()?)),
        "limit" => Recorded::Failure(EffectFailure::Limit(text()?)),
        other => return row.read("answer_kind", Err(format!("no answer is called {other:?}"))),
    })
}

/// The two columns of a slot's key.
pub(super) fn slot_columns(slot: &SlotKey) -> (Option<&str>, Option<i64>) {
    match slot {
        SlotKey::Label(label) => (Some(label), None),
        SlotKey::Ordinal(ordinal) => (None, Some(ordinal.cast_signed())),
    }
}
