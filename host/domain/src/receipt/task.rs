//! Work for a worker outside the host: what its worker says of it means for its receipt, and so does saying nothing.

use serde_json::{Value, json};

use super::answer::Recorded;
use super::state::{Actor, Move, ReceiptState, Transition};
use super::{Receipt, Standing};
use crate::effect::{Answer, EffectFailure, HttpResponse};
use crate::limits::{ERROR_TEXT_BYTES_MAX, NAME_BYTES_MAX, bounded_text};

/// In place of the status of a provider that refuses: it understood, and did not act.
const REFUSED_STATUS: u16 = 422;

/// What a worker says of its work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Said {
    /// It is done.
    Done {
        /// What came of it.
        output: Value,
    },
    /// It is not, or not wholly.
    Failed {
        /// The worker's own name for what went wrong.
        code: String,
        /// In words.
        message: String,
        /// What it knows of the work.
        took_place: TookPlace,
    },
}

/// What a worker that failed knows of its work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TookPlace {
    /// Some of it may have been done.
    Maybe,
    /// Nothing of it was done.
    Nothing {
        /// Trying again is worth it.
        again: bool,
    },
}

/// Why what a worker says changes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("what became of this task is settled: it is {0}")]
pub struct TaskOver(pub ReceiptState);

/// What follows from what the worker says that took the task; none if it has said so before.
///
/// # Errors
/// [`TaskOver`] if something else is settled.
pub fn answer(receipt: &Receipt, worker: &str, said: Said) -> Result<Option<Transition>, TaskOver> {
    let state = receipt.standing.state();
    let what = meaning(worker, said);
    match (&receipt.standing, &what) {
        (Standing::Unknown { .. }, Move::Lose { .. }) => return Ok(None),
        (Standing::Dispatched { .. } | Standing::Unknown { .. }, _) => {}
        (Standing::Committed(known), Move::Commit { recorded, .. })
        | (Standing::Rejected(known), Move::Reject { recorded, .. })
            if known == recorded =>
        {
            return Ok(None);
        }
        _ => return Err(TaskOver(state)),
    }
    Transition::new(receipt.tenant, receipt.id, state, Actor::Host, what)
        .map(Some)
        .map_err(|illegal| TaskOver(illegal.from))
}

/// What it means for the receipt of a task that is under way.
pub fn meaning(worker: &str, said: Said) -> Move {
    match said {
        Said::Done { output } => Move::Commit {
            recorded: Recorded::Answer(Answer::Worker(output.to_string())),
            provider_receipt_id: None,
            reason: format!("worker `{worker}` says that it is done"),
        },
        Said::Failed { code, message, took_place } => {
            let code = bounded_text(&code, NAME_BYTES_MAX);
            let message = bounded_text(&message, ERROR_TEXT_BYTES_MAX);
            let told = format!("worker `{worker}` failed: {message} ({code})");
            match took_place {
                TookPlace::Maybe => Move::Lose { reason: told },
                TookPlace::Nothing { again } => {
                    let failure = if again {
                        EffectFailure::NotSent(format!("{message} ({code})"))
                    } else {
                        let body = json!({ "code": code, "message": message }).to_string().into_bytes();
                        let headers = vec![("content-type".to_owned(), "application/json".to_owned())];
                        let status = REFUSED_STATUS;
                        EffectFailure::Rejected(HttpResponse { status, headers, body, truncated: false })
                    };
                    let reason = format!("{told}, and nothing of it took place");
                    Move::Reject { recorded: Recorded::Failure(failure), reason }
                }
            }
        }
    }
}

/// What becomes of a task whose time is over: nothing took place if no worker took it; if one did, nobody knows.
pub fn expired(queue: &str, worker: Option<&str>) -> Move {
    match worker {
        None => not_taken(format!("no worker took it from the queue `{queue}` in time")),
        Some(worker) => Move::Lose {
            reason: format!("worker `{worker}` took it, and its time ran out before it said what came of it"),
        },
    }
}

/// What becomes of a task that lay in its queue when its step was cancelled.
pub fn withdrawn(queue: &str) -> Move {
    not_taken(format!("its step was cancelled while it lay in the queue `{queue}`"))
}

fn not_taken(reason: String) -> Move {
    Move::Reject { recorded: Recorded::Failure(EffectFailure::NotSent(reason.clone())), reason }
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;
    use uuid::Uuid;

    use super::*;
    use crate::effect::Safety;
    use crate::id::{EffectId, LeaseId, LineageId, Place, RunId, StepId, TenantId};
    use crate::receipt::{RequestFacts, SlotKey};

    fn receipt(standing: Standing) -> Receipt {
        Receipt {
            id: EffectId(Uuid::nil()),
            tenant: TenantId(Uuid::nil()),
            run: RunId(Uuid::nil()),
            step: StepId(Uuid::nil()),
            place: Place { lineage: LineageId(Uuid::nil()), node: "n".into(), iteration: vec![] },
            slot: SlotKey::Ordinal(0),
            dispatch_number: 0,
            position: 0,
            attempt: 1,
            request: RequestFacts {
                kind: "worker".into(),
                safety: Safety::AtMostOnce,
                connection: None,
                destination: [0; 32],
                request_hash: [0; 32],
                content_key: [0; 16],
                idempotency_key: "k".into(),
                preview: Value::Null,
            },
            standing,
        }
    }

    /// Whatever a worker says, wherever its receipt stands.
    #[test]
    fn a_worker_settles_its_own_task_once() {
        let failed = |took_place| Said::Failed { code: "c".into(), message: "m".into(), took_place };
        let said = [
            Said::Done { output: json!(1) },
            failed(TookPlace::Maybe),
            failed(TookPlace::Nothing { again: true }),
            failed(TookPlace::Nothing { again: false }),
        ];
        let recorded = |said: &Said| match meaning("w", said.clone()) {
            Move::Commit { recorded, .. } | Move::Reject { recorded, .. } => recorded,
            other => panic!("{other:?}"),
        };
        let (at, lease) = (DateTime::UNIX_EPOCH, LeaseId(Uuid::nil()));
        let unknown = Standing::Unknown { reason: String::new(), dispatched_at: at, absence_known_at: at };
        let table = [
            (Standing::Dispatched { lease, at }, ["committed", "unknown", "rejected", "rejected"]),
            (unknown, ["committed", "-", "rejected", "rejected"]),
            (Standing::Committed(recorded(&said[0])), ["-", "over", "over", "over"]),
            (Standing::Committed(Recorded::Answer(Answer::Worker("2".into()))), ["over"; 4]),
            (Standing::Rejected(recorded(&said[2])), ["over", "over", "-", "over"]),
            (Standing::Verified(recorded(&said[0])), ["over"; 4]),
            (Standing::Abandoned, ["over"; 4]),
            (Standing::Compensated, ["over"; 4]),
        ];
        for (standing, expected) in table {
            let receipt = receipt(standing);
            let found = said.clone().map(|said| match answer(&receipt, "w", said) {
                Ok(Some(transition)) => transition.to().name(),
                Ok(None) => "-",
                Err(TaskOver(_)) => "over",
            });
            assert_eq!(found, expected, "{:?}", receipt.standing);
        }
    }
}
