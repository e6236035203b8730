//! Between the model's rows and the domain's receipts. Nothing is decided here.

use std::sync::OnceLock;

use chrono::{DateTime, Duration, Utc};
use counterfoil_domain::effect::{Answer, EffectFailure, HttpResponse, Safety};
use counterfoil_domain::id::{self, EffectId, LeaseId, LineageId, RunId, StepId, TenantId};
use counterfoil_domain::receipt::answer::Exchanged;
use counterfoil_domain::receipt::identity::{EPOCH, Slot};
use counterfoil_domain::receipt::{
    Actor, Move, Receipt, ReceiptState, Recorded, RequestFacts, SlotKey, Standing, Transition,
};
use uuid::Uuid;

use super::state::{Id, Lease, NUMBERS, PLACES, Row, SLOTS, Said, Stand};

const TENANT: TenantId = TenantId(Uuid::from_u128(1));
const NODE: &str = "n";
/// When everything was dispatched, and when it is judged.
const EARLY: DateTime<Utc> = DateTime::UNIX_EPOCH;

/// The time at which resolutions are judged.
pub(crate) fn now() -> DateTime<Utc> {
    EARLY + Duration::hours(1)
}

/// From when on a request can no longer arrive: before or after that time.
fn absence_known_at(row: &Row) -> DateTime<Utc> {
    now() + Duration::seconds(i64::from(!row.absence_known))
}

pub(crate) fn lease(lease: Lease) -> LeaseId {
    LeaseId(Uuid::from_u128(u128::from(lease) + 1))
}

pub(crate) fn run(place: u8, run: u8) -> RunId {
    RunId(Uuid::from_u128(u128::from(place) * 100 + u128::from(run) + 1))
}

pub(crate) fn slot_key(slot: u8) -> SlotKey {
    SlotKey::Ordinal(slot.into())
}

fn place(place: u8) -> id::Place {
    let lineage = LineageId(Uuid::from_u128(u128::from(place) + 1));
    id::Place { lineage, node: NODE.into(), iteration: vec![] }
}

/// Ids as the domain computes them, once.
fn ids() -> &'static [[[EffectId; NUMBERS]; SLOTS]; PLACES] {
    static IDS: OnceLock<[[[EffectId; NUMBERS]; SLOTS]; PLACES]> = OnceLock::new();
    IDS.get_or_init(|| {
        let id = |at: usize, slot: usize, number: usize| {
            let (place, key) = (place(at as u8), slot_key(slot as u8));
            Slot { tenant: TENANT, epoch: EPOCH, place: &place, key: &key }.receipt_id(number as u64)
        };
        std::array::from_fn(|at| {
            std::array::from_fn(|slot| std::array::from_fn(|number| id(at, slot, number)))
        })
    })
}

pub(crate) fn effect_id(id: Id) -> EffectId {
    ids()[usize::from(id.place)][usize::from(id.slot)][usize::from(id.number)]
}

/// The inverse of [`effect_id`].
pub(crate) fn id(effect: EffectId) -> Id {
    for place in 0..PLACES as u8 {
        for slot in 0..SLOTS as u8 {
            for number in 0..NUMBERS as u8 {
                let id = Id { place, slot, number };
                if effect_id(id) == effect {
                    return id;
                }
            }
        }
    }
    unreachable!("the model names every receipt that it writes")
}

fn response(status: u16, body: &[u8]) -> HttpResponse {
    HttpResponse { status, headers: vec![], body: body.into(), truncated: false }
}

pub(crate) fn recorded(said: Said) -> Recorded {
    let answer = |body| Recorded::Answer(Answer::Http(response(200, body)));
    match said {
        Said::Acted => answer(b"acted"),
        Said::Established => answer(b"established"),
        Said::Read(0) => answer(b"0"),
        Said::Read(_) => answer(b"1"),
        Said::Refused => Recorded::Failure(EffectFailure::Rejected(response(402, b""))),
        Said::Busy => Recorded::Failure(EffectFailure::Rejected(response(429, b""))),
        Said::NotSent => Recorded::Failure(EffectFailure::NotSent(String::new())),
        Said::Denied => Recorded::Failure(EffectFailure::Denied(String::new())),
        Said::NoAnswer => Recorded::Failure(EffectFailure::NoAnswer(String::new())),
    }
}

/// The inverse of [`recorded`].
pub(crate) fn said(recorded: &Recorded) -> Said {
    match recorded {
        Recorded::Answer(Answer::Http(response)) => match response.body.as_slice() {
            b"acted" => Said::Acted,
            b"established" => Said::Established,
            b"0" => Said::Read(0),
            _ => Said::Read(1),
        },
        Recorded::Failure(EffectFailure::Rejected(response)) if response.status == 402 => Said::Refused,
        Recorded::Failure(EffectFailure::Rejected(_)) => Said::Busy,
        Recorded::Failure(EffectFailure::NotSent(_)) => Said::NotSent,
        Recorded::Failure(EffectFailure::Denied(_)) => Said::Denied,
        Recorded::Failure(EffectFailure::NoAnswer(_)) => Said::NoAnswer,
        other => unreachable!("the model records no {other:?}"),
    }
}

/// What the exchange looks like in which the provider said so.
pub(crate) fn exchanged(said: Said) -> Exchanged {
    match (said, recorded(said)) {
        (
            _,
            Recorded::Answer(Answer::Http(response)) | Recorded::Failure(EffectFailure::Rejected(response)),
        ) => Exchanged::Answered(response),
        (Said::NotSent, _) => Exchanged::NotSent { denied: false, message: String::new() },
        _ => Exchanged::Lost { reason: String::new() },
    }
}

fn standing(row: &Row) -> Standing {
    match row.stand {
        Stand::Dispatched(by) => Standing::Dispatched { lease: lease(by), at: EARLY },
        Stand::Committed(said) => Standing::Committed(recorded(said)),
        Stand::Rejected(said) => Standing::Rejected(recorded(said)),
        Stand::Unknown => Standing::Unknown {
            reason: String::new(),
            dispatched_at: EARLY,
            absence_known_at: absence_known_at(row),
        },
        Stand::Verified(said) => Standing::Verified(recorded(said)),
        Stand::Compensated => Standing::Compensated,
        Stand::Abandoned => Standing::Abandoned,
    }
}

/// The receipt that a row holds.
pub(crate) fn receipt(row: &Row, safety: Safety) -> Receipt {
    Receipt {
        id: effect_id(row.id),
        tenant: TENANT,
        run: run(row.id.place, row.run),
        step: StepId(Uuid::nil()),
        place: place(row.id.place),
        slot: slot_key(row.id.slot),
        dispatch_number: row.id.number.into(),
        position: row.position.into(),
        attempt: row.attempt.into(),
        request: RequestFacts {
            kind: String::new(),
            safety,
            connection: None,
            destination: [0; 32],
            request_hash: [row.id.slot; 32],
            content_key: [0; 16],
            idempotency_key: effect_id(Id { number: row.key, ..row.id }).to_string(),
            preview: serde_json::Value::Null,
        },
        standing: standing(row),
    }
}

/// A host's move, if the domain's machine has it.
fn host_moves(id: Id, from: ReceiptState, what: Move) -> Option<Transition> {
    Transition::new(TENANT, effect_id(id), from, Actor::Host, what).ok()
}

pub(crate) fn lose(id: Id) -> Option<Transition> {
    host_moves(id, ReceiptState::Dispatched, Move::Lose { reason: String::new() })
}

/// The move by which an answer or a refusal is recorded.
pub(crate) fn answer(id: Id, from: ReceiptState, said: Said) -> Option<Transition> {
    let what = if said.is_answer() {
        Move::Commit { recorded: recorded(said), provider_receipt_id: None, reason: String::new() }
    } else {
        Move::Reject { recorded: recorded(said), reason: String::new() }
    };
    host_moves(id, from, what)
}

pub(crate) fn by_sibling(id: Id, from: ReceiptState, of: Id, said: Said) -> Option<Transition> {
    let what = Move::VerifyBySibling { sibling: effect_id(of), recorded: recorded(said) };
    host_moves(id, from, what)
}

/// Where a receipt stands after a move.
pub(crate) fn stand_after(transition: &Transition) -> Stand {
    let said = transition.recorded().map(said);
    match (transition.to(), said) {
        (ReceiptState::Committed, Some(said)) => Stand::Committed(said),
        (ReceiptState::Rejected, Some(said)) => Stand::Rejected(said),
        (ReceiptState::Verified, Some(said)) => Stand::Verified(said),
        (ReceiptState::Compensated, _) => Stand::Compensated,
        (ReceiptState::Abandoned, _) => Stand::Abandoned,
        (ReceiptState::Unknown, _) => Stand::Unknown,
        (state, said) => unreachable!("no move of the domain leads to {state} with {said:?}"),
    }
}
