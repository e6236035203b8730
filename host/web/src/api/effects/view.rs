//! An effect as the API shows it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use chrono::{DateTime, Utc};
use counterfoil_domain::effect::{Answer, EffectFailure, HttpResponse, Safety};
use counterfoil_domain::id::{EffectId, RunId};
use counterfoil_domain::limits::bounded_text;
use counterfoil_domain::receipt::resolution::{Outcome, Sequel};
use counterfoil_domain::receipt::{ReceiptState, Recorded, Standing};
use counterfoil_store::receipt::{EffectRow, HistoryEntry, ReceiptView};
use counterfoil_store::verification::Verification;
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

/// Of the one line that says what an effect is.
const SUMMARY_BYTES_MAX: usize = 200;

/// An effect in a list.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct Effect {
    #[schema(value_type = String)]
    pub(crate) id: EffectId,
    #[schema(value_type = String)]
    pub(crate) run: RunId,
    pub(crate) workflow: String,
    /// The node that sent it.
    pub(crate) node: String,
    /// Indices of the map iterations around it.
    pub(crate) iteration: Vec<u32>,
    /// Which effect of the step: the block's label, or `#` and a number.
    pub(crate) slot: String,
    /// 0 for the first dispatch of the slot.
    pub(crate) dispatch_number: u64,
    /// `http`, `emit`, `storage`, `mail`, `model` or `worker`.
    pub(crate) kind: String,
    /// `at-most-once`, `idempotent` or `read-only`.
    pub(crate) safety: String,
    pub(crate) connection: Option<String>,
    #[schema(value_type = String)]
    pub(crate) state: ReceiptState,
    /// What it is, in a line.
    pub(crate) summary: String,
    /// What its answer, or the lack of one, was taken to mean; once it is resolved, the evidence for that.
    pub(crate) reason: Option<String>,
    /// When its intent became durable.
    pub(crate) prepared_at: DateTime<Utc>,
    /// When it was sent, or was about to be.
    pub(crate) dispatched_at: Option<DateTime<Utc>>,
    /// When its own answer was recorded.
    pub(crate) answered_at: Option<DateTime<Utc>>,
    /// When a person, its block's `verify` or another effect of its slot established what became of it, where no answer had.
    pub(crate) resolved_at: Option<DateTime<Utc>>,
    /// From when on the request can no longer arrive.
    pub(crate) absence_known_at: Option<DateTime<Utc>>,
}

impl From<EffectRow> for Effect {
    fn from(row: EffectRow) -> Self {
        Self {
            id: row.id,
            run: row.run,
            workflow: row.workflow,
            node: row.node,
            iteration: row.iteration,
            slot: row.slot.to_string(),
            dispatch_number: row.dispatch_number,
            summary: summary(&row.kind, &row.preview),
            kind: row.kind,
            safety: row.safety.name().into(),
            connection: row.connection,
            state: row.state,
            reason: row.reason,
            prepared_at: row.prepared_at,
            dispatched_at: row.dispatched_at,
            answered_at: row.answered_at,
            resolved_at: row.resolved_at,
            absence_known_at: row.absence_known_at,
        }
    }
}

impl From<&ReceiptView> for Effect {
    fn from(view: &ReceiptView) -> Self {
        let receipt = &view.receipt;
        let request = &receipt.request;
        Self {
            id: receipt.id,
            run: receipt.run,
            workflow: view.workflow.clone(),
            node: receipt.place.node.clone(),
            iteration: receipt.place.iteration.clone(),
            slot: receipt.slot.to_string(),
            dispatch_number: receipt.dispatch_number,
            kind: request.kind.clone(),
            safety: request.safety.name().into(),
            connection: request.connection.clone(),
            state: receipt.standing.state(),
            summary: summary(&request.kind, &request.preview),
            reason: view.reason.clone(),
            prepared_at: view.prepared_at,
            dispatched_at: view.dispatched_at,
            answered_at: view.answered_at,
            resolved_at: view.resolved_at,
            absence_known_at: view.absence_known_at,
        }
    }
}

/// What an effect is, in a line: what its kind calls it, or of an HTTP call its method and URL.
pub(crate) fn summary(kind: &str, preview: &Value) -> String {
    let line = match (preview["summary"].as_str(), preview["method"].as_str(), preview["url"].as_str()) {
        (Some(line), ..) => line.to_owned(),
        (None, Some(method), Some(url)) => format!("{method} {url}"),
        _ => kind.to_owned(),
    };
    bounded_text(&line, SUMMARY_BYTES_MAX)
}

/// An effect with its evidence.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct EffectDetail {
    #[serde(flatten)]
    pub(crate) effect: Effect,
    /// Place in the step's order of calls, from 0.
    pub(crate) position: u32,
    /// The attempt that wrote it.
    pub(crate) attempt: u32,
    /// The key by which the receiver recognises a repeat; null for a read, which is sent without.
    pub(crate) idempotency_key: Option<String>,
    /// SHA-256 of the canonical request.
    pub(crate) request_hash: String,
    /// SHA-256 over kind, connection and destination.
    pub(crate) destination: String,
    /// The receiver's own name for what it did.
    pub(crate) provider_receipt_id: Option<String>,
    /// What a person may read of the request.
    pub(crate) preview: Value,
    /// What the block was handed, or is.
    pub(crate) answer: Option<AnswerShown>,
    /// Its moves from the first that began or ended at unknown, oldest first.
    pub(crate) history: Vec<Moved>,
    /// What its block was asked about it; null unless it is unknown and its block can be asked.
    pub(crate) verification: Option<VerificationShown>,
    /// What may be said of it; empty unless it is unknown.
    pub(crate) resolutions: Vec<Resolution>,
}

impl EffectDetail {
    /// When its answer came, and where that led at once, if the history does not tell of it.
    pub(crate) fn answered(&self) -> Option<(DateTime<Utc>, ReceiptState)> {
        let state = self.history.first().map_or(self.effect.state, |moved| moved.from);
        let is_outcome = !matches!(state, ReceiptState::Dispatched | ReceiptState::Unknown);
        self.effect.answered_at.filter(|_| is_outcome).map(|at| (at, state))
    }
}

/// An answer that is kept.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(crate) struct AnswerShown {
    /// `answer` if it took place, `failure` if not.
    pub(crate) kind: String,
    pub(crate) status: Option<u16>,
    /// Pairs of name and value.
    pub(crate) headers: Vec<(String, String)>,
    /// The body, where it is text.
    pub(crate) body: Option<String>,
    /// The body, where it is not.
    pub(crate) body_base64: Option<String>,
    /// The body was longer than what is kept.
    pub(crate) truncated: bool,
    /// What there is to say where there is no HTTP answer.
    pub(crate) text: Option<String>,
}

/// What a block was asked about an effect whose outcome is unknown. It is asked before a person is.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Verification)]
pub(crate) struct VerificationShown {
    /// How often.
    pub(crate) asked: u32,
    /// When it was asked last.
    pub(crate) asked_at: Option<DateTime<Utc>>,
    /// What it said last.
    pub(crate) said: Option<String>,
    /// A host asks it now.
    pub(crate) being_asked: bool,
    /// When it is asked next; null while it is being asked, and if it is asked no more, so that it is a person's turn.
    pub(crate) next_at: Option<DateTime<Utc>>,
}

impl VerificationShown {
    /// How it stands, in a line.
    pub(crate) fn standing(&self) -> String {
        let asked = match self.asked {
            0 => "not asked yet".to_owned(),
            1 => "asked once".to_owned(),
            times => format!("asked {times} times"),
        };
        match self.next_at {
            _ if self.being_asked => format!("{asked}, and being asked now"),
            Some(_) => asked,
            None => format!("{asked}, and not again: a person must say"),
        }
    }
}

impl From<Verification> for VerificationShown {
    fn from(verification: Verification) -> Self {
        let Verification { asked, asked_at, said, is_being_asked, next_at } = verification;
        Self { asked, asked_at, said, being_asked: is_being_asked, next_at }
    }
}

/// A move of a receipt.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Moved {
    pub(crate) at: DateTime<Utc>,
    #[schema(value_type = String)]
    pub(crate) from: ReceiptState,
    #[schema(value_type = String)]
    pub(crate) to: ReceiptState,
    pub(crate) actor: String,
    pub(crate) evidence: String,
}

/// Something that may be said of an unknown effect.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Resolution {
    /// `committed`, `verified`, `compensated` or `abandoned`.
    #[schema(value_type = String)]
    pub(crate) outcome: Outcome,
    /// Whether the answer that the block is handed must be given.
    pub(crate) needs_answer: bool,
    /// What happens then.
    pub(crate) consequence: &'static str,
    /// From when on it may be said; null if now.
    pub(crate) allowed_from: Option<DateTime<Utc>>,
}

const OUTCOMES: [Outcome; 4] =
    [Outcome::Verified, Outcome::Committed, Outcome::Abandoned, Outcome::Compensated];

impl From<ReceiptView> for EffectDetail {
    fn from(view: ReceiptView) -> Self {
        let effect = Effect::from(&view);
        let receipt = view.receipt;
        let resolutions = match &receipt.standing {
            Standing::Unknown { absence_known_at, .. } => {
                let sequel = if view.run_has_ended { Sequel::RunEnded } else { Sequel::Resumes };
                resolutions(*absence_known_at, sequel)
            }
            _ => Vec::new(),
        };
        let answer = match receipt.standing {
            Standing::Committed(recorded) | Standing::Rejected(recorded) | Standing::Verified(recorded) => {
                Some(AnswerShown::from(recorded))
            }
            _ => None,
        };
        Self {
            effect,
            position: receipt.position,
            attempt: receipt.attempt,
            request_hash: hex::encode(receipt.request.request_hash),
            destination: hex::encode(receipt.request.destination),
            idempotency_key: (receipt.request.safety != Safety::ReadOnly)
                .then_some(receipt.request.idempotency_key),
            provider_receipt_id: view.provider_receipt_id,
            preview: receipt.request.preview,
            answer,
            history: view.history.into_iter().map(Moved::from).collect(),
            verification: view.verification.map(VerificationShown::from),
            resolutions,
        }
    }
}

fn resolutions(absence_known_at: DateTime<Utc>, sequel: Sequel) -> Vec<Resolution> {
    let resolution = |outcome: Outcome| Resolution {
        outcome,
        needs_answer: outcome.needs_answer(),
        consequence: outcome.consequence(sequel),
        allowed_from: (!outcome.needs_answer()).then_some(absence_known_at),
    };
    OUTCOMES.into_iter().map(resolution).collect()
}

impl From<Recorded> for AnswerShown {
    fn from(recorded: Recorded) -> Self {
        let text = |kind: &str, text: String| Self { kind: kind.into(), text: Some(text), ..Self::default() };
        match recorded {
            Recorded::Answer(answer) => match answer {
                Answer::Http(response) => Self::of_http("answer", response),
                Answer::Emitted => text("answer", "emitted".into()),
                Answer::Stored(None) => text("answer", "nothing was stored there".into()),
                Answer::Stored(Some(bytes)) => Self::of_body("answer", bytes),
                Answer::Mailed(reply) => text("answer", reply),
                Answer::Model(json) | Answer::Worker(json) => Self::of_body("answer", json.into_bytes()),
            },
            Recorded::Failure(failure) => match failure {
                EffectFailure::Rejected(response) => Self::of_http("failure", response),
                EffectFailure::ResponseTooLarge(response) => Self::of_http("answer", response),
                EffectFailure::Denied(message) => text("failure", format!("denied: {message}")),
                EffectFailure::NotSent(message) => text("failure", format!("not sent: {message}")),
                EffectFailure::NoAnswer(message) => text("failure", format!("no answer: {message}")),
                EffectFailure::Limit(message) => text("failure", format!("limit: {message}")),
            },
        }
    }
}

impl AnswerShown {
    fn of_http(kind: &str, response: HttpResponse) -> Self {
        let HttpResponse { status, headers, body, truncated } = response;
        Self { status: Some(status), headers, truncated, ..Self::of_body(kind, body) }
    }

    fn of_body(kind: &str, body: Vec<u8>) -> Self {
        let (body, body_base64) = match String::from_utf8(body) {
            Ok(text) => (Some(text), None),
            Err(bytes) => (None, Some(STANDARD.encode(bytes.as_bytes()))),
        };
        Self { kind: kind.into(), body, body_base64, ..Self::default() }
    }
}

impl From<HistoryEntry> for Moved {
    fn from(entry: HistoryEntry) -> Self {
        let HistoryEntry { at, from, to, actor, evidence } = entry;
        Self { at, from, to, actor, evidence }
    }
}
