//! What a block's `verify` may say of an unknown receipt, what follows from it, and when it is asked.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::answer::{Recorded, provider_receipt_id};
use super::resolution::{Outcome, Resolution, Unresolvable};
use super::{Receipt, Standing};
use crate::effect::Answer;
use crate::limits::{ERROR_TEXT_BYTES_MAX, bounded_text};
use crate::outbound::{HEADER_BYTES_MAX, HEADERS_MAX};
use crate::ports::{VerifyEnd, VerifyReport};
use crate::step::Stop;

/// An unknown receipt, as its block is asked about it: the owned twin of `reconcile.receipt` in `wit/block.wit`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnknownReceipt {
    /// `eff_…`.
    pub id: String,
    /// `http`, `mail`, ….
    pub kind: String,
    /// The node that sent it.
    pub node: String,
    /// The slot: the block's label, or `#` and a number.
    pub key: String,
    /// The key by which the receiver recognises a repeat.
    pub idempotency_key: Option<String>,
    /// UTF-8 JSON of what a person may read of the request.
    pub request: String,
    /// When it was dispatched, in milliseconds since the Unix epoch.
    pub sent_at_ms: u64,
}

impl UnknownReceipt {
    /// What the block is told of `receipt`; `None` unless it is unknown.
    pub fn of(receipt: &Receipt) -> Option<Self> {
        let Standing::Unknown { dispatched_at, .. } = &receipt.standing else { return None };
        Some(Self {
            id: receipt.id.to_string(),
            kind: receipt.request.kind.clone(),
            node: receipt.place.node.clone(),
            key: receipt.slot.to_string(),
            idempotency_key: Some(receipt.request.idempotency_key.clone()),
            request: receipt.request.preview.to_string(),
            sent_at_ms: u64::try_from(dispatched_at.timestamp_millis()).unwrap_or(0),
        })
    }
}

/// What a block says of an unknown receipt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// It took place, and this is the answer that was lost.
    Applied(Answer),
    /// It did not take place.
    NotApplied,
    /// Nothing can be said now, for this reason.
    Inconclusive(String),
}

/// The waits before a block is asked, in seconds. The first lets a late answer come; together they outlast what a
/// provider's own records lag behind, and end before the person who is needed then has gone home.
const DELAYS_S: [u64; 6] = [1, 5, 30, 2 * 60, 10 * 60, 30 * 60];

/// Wait before a host that could not ask is followed by another try.
const HAND_BACK_DELAY: Duration = Duration::from_secs(5);

/// When a block is asked next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Once more, after this time.
    After(Duration),
    /// At this time; what it said now came too early and does not count.
    At(DateTime<Utc>),
    /// After this time; it could not be asked now, which does not count.
    HandBack(Duration),
    /// Not again: it is a person's turn.
    Person,
}

impl Next {
    /// After it was asked `asked` times in vain.
    fn after(asked: u32) -> Self {
        match DELAYS_S.get(asked as usize) {
            Some(seconds) => Self::After(Duration::from_secs(*seconds)),
            None => Self::Person,
        }
    }

    const fn hand_back() -> Self {
        Self::HandBack(HAND_BACK_DELAY)
    }
}

/// Nothing is settled by what a question came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Again {
    /// When the next one is put.
    pub next: Next,
    /// What there is to say to the person whose turn it may be.
    pub said: String,
}

impl Again {
    /// After a question that came to nothing and was the `asked`th.
    pub fn in_vain(asked: u32, said: impl Into<String>) -> Self {
        Self { next: Next::after(asked), said: said.into() }
    }

    /// After a host could not ask.
    pub fn hand_back(why: impl Into<String>) -> Self {
        Self { next: Next::hand_back(), said: why.into() }
    }

    /// After what the block said was refused as a resolution. `None` if there is nothing to ask any more.
    pub fn refused(why: &Unresolvable, asked: u32) -> Option<Self> {
        match why {
            Unresolvable::NotUnknown(_) => None,
            Unresolvable::TooEarly(known_at) => {
                Some(Self { next: Next::At(*known_at), said: format!("not applied; but {why}") })
            }
            _ => Some(Self::in_vain(asked, why.to_string())),
        }
    }
}

/// Time until a block is asked for the first time.
pub const fn first_delay() -> Duration {
    Duration::from_secs(DELAYS_S[0])
}

/// Whether a block that is being asked for the `asked`th time has lost its hosts so often that it is not asked.
pub const fn is_over(asked: u32) -> bool {
    asked as usize > DELAYS_S.len()
}

/// What follows from the `asked`th question about `receipt`: a resolution that the block proposes, or another question.
/// What the guard says goes before what the sandbox says.
///
/// # Errors
/// [`Again`] if nothing is proposed.
pub fn conclude(
    receipt: &Receipt,
    report: VerifyReport,
    stop: Option<Stop>,
    asked: u32,
) -> Result<Resolution, Again> {
    match (report.end, stop) {
        (_, Some(Stop::Database { message })) | (VerifyEnd::Unavailable { message }, _) => {
            Err(Again::hand_back(message))
        }
        (_, Some(Stop::NoRoom { .. })) => {
            Err(Again::in_vain(asked, "the rate of its connection had no room for it soon enough"))
        }
        (_, Some(stop)) => Err(Again::in_vain(asked, format!("the host stopped it: {stop:?}"))),
        (VerifyEnd::Stopped, None) => Err(Again::in_vain(asked, "the host stopped it")),
        (VerifyEnd::Trapped { message, .. }, None) => {
            // A panic leaves its words there.
            let last = report.logs.last().map(|line| format!("\nits last words: {}", line.message));
            let said = format!("{message}{}", last.unwrap_or_default());
            Err(Again::in_vain(asked, bounded_text(&said, ERROR_TEXT_BYTES_MAX)))
        }
        (VerifyEnd::Said(verdict), None) => {
            resolution(receipt, verdict, asked).map_err(|said| Again::in_vain(asked, said))
        }
    }
}

fn resolution(receipt: &Receipt, verdict: Verdict, asked: u32) -> Result<Resolution, String> {
    let evidence = |found: &str| format!("the block's own verify, asked {}, said: {found}", times(asked));
    match verdict {
        Verdict::Applied(answer) => {
            judge_answer(&receipt.request.kind, &answer)?;
            let provider_receipt_id = match &answer {
                Answer::Http(response) => provider_receipt_id(response, None),
                _ => None,
            };
            Ok(Resolution {
                outcome: Outcome::Verified,
                evidence: evidence("applied"),
                recorded: Some(Recorded::Answer(answer)),
                provider_receipt_id,
            })
        }
        Verdict::NotApplied => Ok(Resolution {
            outcome: Outcome::Abandoned,
            evidence: evidence("not applied"),
            recorded: None,
            provider_receipt_id: None,
        }),
        Verdict::Inconclusive(why) => Err(bounded_text(&why, ERROR_TEXT_BYTES_MAX)),
    }
}

fn times(count: u32) -> String {
    if count == 1 { "once".into() } else { format!("{count} times") }
}

/// The block will be handed this in place of what it waits for, so it must be of the same kind.
fn judge_answer(kind: &str, answer: &Answer) -> Result<(), String> {
    let of_kind = match answer {
        Answer::Http(_) => "http",
        Answer::Emitted => "emit",
        Answer::Stored(_) => "storage",
        Answer::Mailed(_) => "mail",
        Answer::Model(_) => "model",
        Answer::Worker(_) => "worker",
    };
    if of_kind != kind {
        return Err(format!("it gave an answer of the kind `{of_kind}` for an effect of the kind `{kind}`"));
    }
    let Answer::Http(response) = answer else { return Ok(()) };
    let is_field = |text: &String| !text.chars().any(char::is_control);
    if !response.headers.iter().all(|(name, value)| !name.is_empty() && is_field(name) && is_field(value)) {
        return Err("a header field of the answer that it gave has no name, or a control character".into());
    }
    let bytes: usize = response.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
    if response.headers.len() > HEADERS_MAX || bytes > HEADER_BYTES_MAX {
        return Err(format!(
            "the answer that it gave has over {HEADERS_MAX} header fields, or {HEADER_BYTES_MAX} bytes of them"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use uuid::Uuid;

    use super::*;
    use crate::code::Code;
    use crate::effect::{HttpResponse, Safety};
    use crate::id::{EffectId, LineageId, Place, RunId, StepId, TenantId};
    use crate::ports::{LogLevel, LogLine};
    use crate::receipt::resolution::resolve;
    use crate::receipt::{Actor, ReceiptState, RequestFacts, SlotKey};

    fn receipt(kind: &str) -> Receipt {
        let place = Place { lineage: LineageId(Uuid::nil()), node: "pay".into(), iteration: vec![] };
        Receipt {
            id: EffectId(Uuid::nil()),
            tenant: TenantId(Uuid::nil()),
            run: RunId(Uuid::nil()),
            step: StepId(Uuid::nil()),
            place,
            slot: SlotKey::Label("charge".into()),
            dispatch_number: 0,
            position: 0,
            attempt: 1,
            request: RequestFacts {
                kind: kind.into(),
                safety: Safety::AtMostOnce,
                connection: None,
                destination: [0; 32],
                request_hash: [0; 32],
                content_key: [0; 16],
                idempotency_key: "key".into(),
                preview: json!({ "method": "POST" }),
            },
            standing: Standing::Unknown {
                reason: "reset".into(),
                dispatched_at: DateTime::UNIX_EPOCH + Duration::from_millis(1_500),
                absence_known_at: known_at(),
            },
        }
    }

    fn known_at() -> DateTime<Utc> {
        DateTime::UNIX_EPOCH + Duration::from_mins(1)
    }

    fn http(status: u16, headers: &[(&str, &str)], body: &str) -> Verdict {
        let headers = headers.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        Verdict::Applied(Answer::Http(HttpResponse { status, headers, body: body.into(), truncated: false }))
    }

    #[test]
    fn a_block_is_told_what_a_person_may_read_and_only_while_it_is_unknown() {
        let mut receipt = receipt("http");
        let told = UnknownReceipt::of(&receipt).expect("it is unknown");
        assert_eq!(
            told,
            UnknownReceipt {
                id: receipt.id.to_string(),
                kind: "http".into(),
                node: "pay".into(),
                key: "charge".into(),
                idempotency_key: Some("key".into()),
                request: r#"{"method":"POST"}"#.into(),
                sent_at_ms: 1_500,
            }
        );
        receipt.standing = Standing::Abandoned;
        assert_eq!(UnknownReceipt::of(&receipt), None);
    }

    #[test]
    fn a_block_is_asked_six_times_over_three_quarters_of_an_hour() {
        let waits: Vec<Next> = (0..8).map(Next::after).collect();
        let after = |seconds| Next::After(Duration::from_secs(seconds));
        let (one, other) = (Next::Person, Next::Person);
        assert_eq!(waits, [after(1), after(5), after(30), after(120), after(600), after(1_800), one, other]);
        assert_eq!(after(first_delay().as_secs()), waits[0]);
        assert_eq!([6, 7].map(is_over), [false, true]);
    }

    fn said(verdict: Verdict) -> VerifyReport {
        VerifyReport { end: VerifyEnd::Said(verdict), logs: vec![] }
    }

    /// Each verdict, before and after its absence can be known: what becomes of the receipt, or when it is asked again.
    #[test]
    fn a_verdict_is_judged_as_a_person_would_be() {
        let json_type = [("content-type", "application/json")];
        let large = "x".repeat((1 << 20) + 1);
        let (early, late) = (DateTime::UNIX_EPOCH, known_at());
        let after = Next::after(2);
        let verified = Ok(ReceiptState::Verified);
        for (what, verdict, asked_at, expected) in [
            ("applied", http(201, &json_type, "{}"), early, verified),
            ("not applied, too early", Verdict::NotApplied, early, Err(Next::At(late))),
            ("not applied", Verdict::NotApplied, late, Ok(ReceiptState::Abandoned)),
            ("inconclusive", Verdict::Inconclusive("later".into()), late, Err(after)),
            ("a refusal", http(402, &[], ""), late, Err(after)),
            ("broken JSON", http(200, &json_type, "{"), late, Err(after)),
            ("too large", http(200, &[], &large), late, Err(after)),
            ("a header without a name", http(200, &[("", "x")], ""), late, Err(after)),
            ("a header that breaks", http(200, &[("a", "b\r\nc: d")], ""), late, Err(after)),
            ("too many headers", http(200, &[("a", "b"); HEADERS_MAX + 1], ""), late, Err(after)),
            ("too long a header", http(200, &[("a", &large)], ""), late, Err(after)),
            ("another kind", Verdict::Applied(Answer::Mailed("250".into())), late, Err(after)),
        ] {
            let receipt = receipt("http");
            let found = conclude(&receipt, said(verdict), None, 2)
                .and_then(|resolution| {
                    resolve(&receipt, resolution, Actor::Verifier, asked_at)
                        .map_err(|why| Again::refused(&why, 2).expect("it is unknown still"))
                })
                .map(|transition| transition.to())
                .map_err(|again| again.next);
            assert_eq!(found, expected, "{what}");
        }
        let mail = said(Verdict::Applied(Answer::Mailed("250 OK".into())));
        let evidence = conclude(&receipt("mail"), mail, None, 1).map(|resolution| resolution.evidence);
        assert_eq!(evidence.as_deref(), Ok("the block's own verify, asked once, said: applied"));
        assert_eq!(Again::refused(&Unresolvable::NotUnknown(ReceiptState::Verified), 1), None);
    }

    #[test]
    fn what_is_no_verdict_is_told_to_people_and_counts_unless_the_host_is_at_fault() {
        let applied = || VerifyEnd::Said(http(201, &[], ""));
        let trapped = || VerifyEnd::Trapped { code: Code::GuestTrap, message: "unreachable".into() };
        let busy = || VerifyEnd::Unavailable { message: "no slot".into() };
        let database = || Stop::Database { message: "no connection".into() };
        let (counts, host) = (Next::after(3), Next::hand_back());
        for (end, stop, next, expected) in [
            (trapped(), None, counts, "unreachable\nits last words: panicked"),
            (VerifyEnd::Stopped, None, counts, "the host stopped it"),
            (applied(), Some(Stop::Stale), counts, "the host stopped it: Stale"),
            (VerifyEnd::Stopped, Some(database()), host, "no connection"),
            (busy(), None, host, "no slot"),
        ] {
            let logs = vec![LogLine { level: LogLevel::Error, message: "panicked".into() }];
            let again = conclude(&receipt("http"), VerifyReport { end, logs }, stop, 3).expect_err(expected);
            assert_eq!(again, Again { next, said: expected.into() });
        }
    }
}
