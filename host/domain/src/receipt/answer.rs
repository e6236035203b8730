//! What an answer means: the table that decides between committed, rejected and unknown.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::effect::{Answer, EffectFailure, EffectReply, HttpResponse, Safety};

/// What is stored of an outcome, which is what the guest is handed, now and on every re-run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Recorded {
    /// It took place.
    Answer(Answer),
    /// It did not (or its answer was too large to keep).
    Failure(EffectFailure),
}

impl Recorded {
    /// As the guest gets it.
    pub fn into_reply(self) -> EffectReply {
        match self {
            Self::Answer(answer) => EffectReply::Answered(answer),
            Self::Failure(failure) => EffectReply::Failed(failure),
        }
    }

    /// Size of the stored body in bytes.
    pub fn body_bytes_len(&self) -> u64 {
        let length = match self {
            Self::Answer(Answer::Http(response))
            | Self::Failure(EffectFailure::Rejected(response) | EffectFailure::ResponseTooLarge(response)) => {
                response.body.len()
            }
            Self::Answer(Answer::Stored(Some(bytes))) => bytes.len(),
            Self::Answer(Answer::Mailed(text) | Answer::Model(text) | Answer::Worker(text)) => text.len(),
            Self::Answer(Answer::Emitted | Answer::Stored(None)) | Self::Failure(_) => 0,
        };
        length as u64
    }
}

/// What a connection says that a status of its provider means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StatusMeaning {
    /// The provider acted.
    Applied,
    /// The provider did not act; trying again is worth it.
    NotApplied,
    /// The provider refused for good.
    Refused,
    /// The provider may have acted.
    Unknown,
}

/// Declared meanings by status code.
pub type StatusMeanings = BTreeMap<u16, StatusMeaning>;

/// What came of an exchange.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Exchanged {
    /// No byte of the request was written.
    NotSent {
        /// Policy or address refused it, rather than the network.
        denied: bool,
        /// What the guest is told.
        message: String,
    },
    /// A complete answer, its body possibly cut at the cap.
    Answered(HttpResponse),
    /// The receiver took it, and said so in the words of a protocol that is not HTTP.
    Accepted(Answer),
    /// The receiver refused it, with a code of a protocol that is not HTTP.
    Refused {
        /// The code in place of a status, and its text in place of a body.
        response: HttpResponse,
        /// Trying again later is worth it.
        transient: bool,
    },
    /// At least one byte may have been written, and no complete answer came.
    Lost {
        /// Why not.
        reason: String,
    },
}

/// What an outcome means for the receipt and for the step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Meaning {
    /// Record it as taken place, and hand it over.
    Committed {
        /// What is stored and handed over.
        recorded: Recorded,
        /// Which row of the table decided, for people.
        reason: String,
    },
    /// Record it as not taken place; what then, says `then`.
    Rejected {
        /// What is stored.
        recorded: Recorded,
        /// Which row of the table decided, for people.
        reason: String,
        /// Whether the guest is told.
        then: AfterRefusal,
    },
    /// The receipt is unknown and the sandbox is dropped.
    Unknown {
        /// Which row of the table decided, for people.
        reason: String,
        /// The step waits for retry and sends again with the same key; otherwise it is blocked.
        resend: bool,
        /// The provider's lower bound on the wait.
        retry_after_ms: Option<u64>,
    },
}

/// What follows a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterRefusal {
    /// The guest is handed it.
    HandOver,
    /// An older dispatch is unknown, so the guest must not learn of it: the step waits for retry.
    Wait {
        /// The provider's lower bound on the wait.
        retry_after_ms: Option<u64>,
    },
    /// An older dispatch is unknown, and trying again will not help: the step is blocked.
    Block,
}

#[derive(Clone, Copy)]
enum Row {
    Applied,
    /// Refused; worth trying again.
    Transient,
    Refused,
    Unclear,
    /// Nothing that the table knows.
    Unlisted,
}

/// Judges the outcome of an effect with this safety.
///
/// `declared` are the connection's own meanings, which move a status between rows. `older_unknown` says that an earlier
/// dispatch of the same slot is unknown, so that this one is a re-send with its key.
pub fn meaning(
    exchanged: Exchanged,
    safety: Safety,
    declared: &StatusMeanings,
    older_unknown: bool,
) -> Meaning {
    match exchanged {
        Exchanged::NotSent { denied, message } => {
            let reason = format!("nothing was sent: {message}");
            let failure =
                if denied { EffectFailure::Denied(message) } else { EffectFailure::NotSent(message) };
            let then = match (older_unknown, denied) {
                (false, _) => AfterRefusal::HandOver,
                (true, false) => AfterRefusal::Wait { retry_after_ms: None },
                (true, true) => AfterRefusal::Block,
            };
            Meaning::Rejected { recorded: Recorded::Failure(failure), reason, then }
        }
        Exchanged::Accepted(answer) => Meaning::Committed {
            recorded: Recorded::Answer(answer),
            reason: "the receiver says that it took it".into(),
        },
        Exchanged::Refused { response, transient } => {
            let reason = format!("code {} means not applied", response.status);
            refused(response, reason, transient, older_unknown, None)
        }
        Exchanged::Lost { reason } if safety == Safety::ReadOnly => Meaning::Rejected {
            recorded: Recorded::Failure(EffectFailure::NoAnswer(reason.clone())),
            reason,
            then: AfterRefusal::HandOver,
        },
        Exchanged::Lost { reason } => {
            Meaning::Unknown { reason, resend: safety == Safety::Idempotent, retry_after_ms: None }
        }
        Exchanged::Answered(response) => answered(response, safety, declared, older_unknown),
    }
}

fn answered(
    response: HttpResponse,
    safety: Safety,
    declared: &StatusMeanings,
    older_unknown: bool,
) -> Meaning {
    let status = response.status;
    let retry_after_ms = retry_after_ms(&response.headers);
    let (row, by) = match declared.get(&status) {
        Some(StatusMeaning::Applied) => (Row::Applied, " by the connection's declaration"),
        Some(StatusMeaning::NotApplied) => (Row::Transient, " by the connection's declaration"),
        Some(StatusMeaning::Refused) => (Row::Refused, " by the connection's declaration"),
        Some(StatusMeaning::Unknown) => (Row::Unclear, " by the connection's declaration"),
        None => (listed(status, retry_after_ms.is_some()), ""),
    };
    let reason = |what: &str| format!("status {status} means {what}{by}");
    match (row, safety) {
        (Row::Applied, _) => {
            let recorded = if response.truncated {
                Recorded::Failure(EffectFailure::ResponseTooLarge(response))
            } else {
                Recorded::Answer(Answer::Http(response))
            };
            Meaning::Committed { recorded, reason: reason("applied") }
        }
        (Row::Unclear | Row::Unlisted, Safety::AtMostOnce) => Meaning::Unknown {
            reason: reason("that it may have been applied"),
            resend: false,
            retry_after_ms: None,
        },
        (Row::Unclear, Safety::Idempotent) => {
            Meaning::Unknown { reason: reason("that it may have been applied"), resend: true, retry_after_ms }
        }
        (Row::Unlisted, Safety::Idempotent) => {
            Meaning::Unknown { reason: reason("nothing that is known"), resend: false, retry_after_ms: None }
        }
        (Row::Transient | Row::Refused | Row::Unclear | Row::Unlisted, _) => {
            // 409 is how a provider says that the first request with this key is still being worked on.
            let worth_waiting = matches!(row, Row::Transient) || status == 409;
            let reason = reason("not applied");
            refused(response, reason, worth_waiting, older_unknown, retry_after_ms)
        }
    }
}

fn refused(
    response: HttpResponse,
    reason: String,
    worth_waiting: bool,
    older_unknown: bool,
    retry_after_ms: Option<u64>,
) -> Meaning {
    let then = match (older_unknown, worth_waiting) {
        (false, _) => AfterRefusal::HandOver,
        (true, true) => AfterRefusal::Wait { retry_after_ms },
        (true, false) => AfterRefusal::Block,
    };
    Meaning::Rejected { recorded: Recorded::Failure(EffectFailure::Rejected(response)), reason, then }
}

/// The table for a status that no connection declared otherwise.
fn listed(status: u16, has_retry_after: bool) -> Row {
    match status {
        200..=399 => Row::Applied,
        425 | 429 => Row::Transient,
        503 if has_retry_after => Row::Transient,
        // Gateways answer 408 and 503 after passing a request on.
        408 | 500..=599 => Row::Unclear,
        400..=499 => Row::Refused,
        _ => Row::Unlisted,
    }
}

/// The wait that a `Retry-After` in seconds asks for, in milliseconds, at most a day. A date is taken as no bound.
///
/// Source: RFC 9110, section 10.2.3.
pub fn retry_after_ms(headers: &[(String, String)]) -> Option<u64> {
    const DAY_SECONDS: u64 = 86_400;
    let (_, value) = headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("retry-after"))?;
    let seconds: u64 = value.trim().parse().unwrap_or(0);
    Some(seconds.min(DAY_SECONDS) * 1_000)
}

/// The receiver's own name for what it did: the declared header, else the first of `provider_receipt_id`, `receipt_id` and
/// `request_id` in a JSON body.
pub fn provider_receipt_id(response: &HttpResponse, declared_header: Option<&str>) -> Option<String> {
    let from_header = declared_header.and_then(|wanted| {
        response
            .headers
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(wanted))
            .map(|(_, value)| value.clone())
    });
    let id = from_header.or_else(|| {
        let body: serde_json::Value = serde_json::from_slice(&response.body).ok()?;
        ["provider_receipt_id", "receipt_id", "request_id"].iter().find_map(|name| match body.get(name)? {
            serde_json::Value::String(text) => Some(text.clone()),
            serde_json::Value::Number(number) => Some(number.to_string()),
            _ => None,
        })
    })?;
    (!id.is_empty() && id.len() <= crate::limits::NAME_BYTES_MAX && !id.contains('\0')).then_some(id)
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;

    fn response(status: u16, headers: &[(&str, &str)], truncated: bool) -> Exchanged {
        let headers = headers.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        Exchanged::Answered(HttpResponse { status, headers, body: vec![], truncated })
    }

    fn reply(code: u16) -> Exchanged {
        let response = HttpResponse { status: code, headers: vec![], body: vec![], truncated: false };
        Exchanged::Refused { response, transient: code < 500 }
    }

    fn summary(meaning: &Meaning) -> String {
        match meaning {
            Meaning::Committed { recorded: Recorded::Answer(_), .. } => "committed".into(),
            Meaning::Committed { recorded: Recorded::Failure(_), .. } => "committed, too large".into(),
            Meaning::Rejected { recorded, then, .. } => {
                let told = match recorded {
                    Recorded::Failure(EffectFailure::Denied(_)) => "denied",
                    Recorded::Failure(EffectFailure::NotSent(_)) => "not-sent",
                    Recorded::Failure(EffectFailure::NoAnswer(_)) => "no-answer",
                    Recorded::Failure(EffectFailure::Rejected(_)) => "rejected",
                    other => panic!("a refusal stored as {other:?}"),
                };
                match then {
                    AfterRefusal::HandOver => told.into(),
                    AfterRefusal::Wait { retry_after_ms } => {
                        format!("{told}, hidden, waits {retry_after_ms:?}")
                    }
                    AfterRefusal::Block => format!("{told}, hidden, blocks"),
                }
            }
            Meaning::Unknown { resend: true, retry_after_ms, .. } => {
                format!("unknown, re-sent after {retry_after_ms:?}")
            }
            Meaning::Unknown { resend: false, .. } => "unknown, blocks".into(),
        }
    }

    /// Every row of the table, by every column, and the idempotent column once more behind an unknown dispatch.
    #[test]
    fn every_outcome_means_what_the_table_says() {
        let rows: Vec<(&str, Exchanged)> = vec![
            ("refused by policy", Exchanged::NotSent { denied: true, message: "no".into() }),
            ("connection refused", Exchanged::NotSent { denied: false, message: "no".into() }),
            ("200", response(200, &[], false)),
            ("200 over the cap", response(200, &[], true)),
            ("302", response(302, &[("location", "http://elsewhere/")], false)),
            ("400", response(400, &[], false)),
            ("409", response(409, &[], false)),
            ("408", response(408, &[], false)),
            ("425", response(425, &[], false)),
            ("429 Retry-After 7", response(429, &[("Retry-After", "7")], false)),
            ("503 Retry-After 7", response(503, &[("retry-after", "7")], false)),
            ("503", response(503, &[], false)),
            ("500", response(500, &[], false)),
            ("504", response(504, &[], false)),
            ("599", response(599, &[], false)),
            ("600", response(600, &[], false)),
            ("101", response(101, &[], false)),
            ("reset", Exchanged::Lost { reason: "reset".into() }),
            ("250 of a mail server", Exchanged::Accepted(Answer::Mailed("2.0.0 queued".into()))),
            ("450 of a mail server", reply(450)),
            ("550 of a mail server", reply(550)),
        ];
        let columns = [
            ("at-most-once", Safety::AtMostOnce, false),
            ("idempotent", Safety::Idempotent, false),
            ("re-sent", Safety::Idempotent, true),
            ("read-only", Safety::ReadOnly, false),
        ];
        let mut table = String::new();
        for (name, exchanged) in &rows {
            writeln!(table, "{name}").expect("a string takes it");
            for (column, safety, older_unknown) in columns {
                let meaning = meaning(exchanged.clone(), safety, &StatusMeanings::new(), older_unknown);
                writeln!(table, "  {column}: {}", summary(&meaning)).expect("a string takes it");
            }
        }
        insta::assert_snapshot!(table);
    }

    #[test]
    fn a_connection_moves_a_status_between_rows() {
        let cases = [
            (500, StatusMeaning::NotApplied, "rejected"),
            (503, StatusMeaning::NotApplied, "rejected"),
            (404, StatusMeaning::Unknown, "unknown, blocks"),
            (409, StatusMeaning::Applied, "committed"),
            (429, StatusMeaning::Refused, "rejected"),
        ];
        for (status, declared, expected) in cases {
            let declared = StatusMeanings::from([(status, declared)]);
            let meaning = meaning(response(status, &[], false), Safety::AtMostOnce, &declared, false);
            assert_eq!(summary(&meaning), expected, "{status}");
        }
    }

    #[test]
    fn the_provider_names_its_receipt() {
        let cases = [
            (r#"{"receipt_id":"r1","request_id":"q1"}"#, None, Some("r1")),
            (r#"{"request_id":7}"#, None, Some("7")),
            (r#"{"id":"x"}"#, None, None),
            (r#"{"receipt_id":"r1"}"#, Some("x-receipt"), Some("h1")),
            ("not json", None, None),
        ];
        for (body, declared, expected) in cases {
            let Exchanged::Answered(mut response) = response(200, &[("X-Receipt", "h1")], false) else {
                unreachable!()
            };
            response.body = body.as_bytes().to_vec();
            assert_eq!(provider_receipt_id(&response, declared).as_deref(), expected, "{body}");
        }
    }
}
