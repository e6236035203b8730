use counterfoil_domain::fair_share::Turns;
use counterfoil_domain::id::WorkflowId;
use uuid::Uuid;

use super::*;

fn queue() -> Queue {
    Queue { tenant: TenantId(Uuid::now_v7()), workflow: WorkflowId(Uuid::now_v7()) }
}

fn fence(queue: Queue) -> Fence {
    Fence { tenant: queue.tenant, step: Uuid::now_v7().into(), lease: Uuid::now_v7().into() }
}

/// Places that are granted, and which.
fn granted<'a>(grant: &'a Grant<'_>) -> Option<&'a [(Queue, u32)]> {
    match grant {
        Grant::Places(granted) => Some(&granted.places),
        _ => None,
    }
}

#[test]
fn a_place_that_is_taken_in_any_way_is_nobody_elses() {
    const ONE: u32 = 1;
    let (held, queue) = (Held::default(), queue());
    let fence = fence(queue);
    let is_free = || {
        let is_free = held.reserve(queue, ONE);
        if is_free {
            held.give_back(queue);
        }
        is_free
    };
    assert!(is_free());
    let claiming = held.grant([queue].into_iter(), &mut Turns::default(), ONE);
    assert_eq!(granted(&claiming), Some(&[(queue, 1)][..]));
    assert!(!is_free(), "a claim is about to fill it");
    held.add(fence, queue);
    drop(claiming);
    assert!(!is_free(), "its lease stands for it");
    held.remove(&fence);
    assert!(held.reserve(queue, ONE) && !is_free(), "it is reserved");
    held.give_back(queue);
    assert!(is_free() && held.len() == 0);
}

#[test]
fn whose_tenant_has_nothing_in_flight_comes_before_those_who_wait() {
    let (held, busy, quiet) = (Held::default(), queue(), queue());
    let claiming = held.grant([busy].into_iter(), &mut Turns::default(), 3);
    assert_eq!(granted(&claiming), Some(&[(busy, 3)][..]));
    held.wait_with([busy].into_iter());
    assert!(!held.reserve(quiet, 3), "there is no room");
    assert!(held.reserve(quiet, 5));
    for queue in [quiet, busy] {
        assert!(!held.reserve(queue, 5), "somebody waits, and it has something in flight");
    }
}

#[test]
fn a_lease_that_is_gone_ends_its_execution_but_not_one_that_is_being_written() {
    let (held, queue) = (Held::default(), queue());
    let fences: [Fence; 3] = std::array::from_fn(|_| fence(queue));
    let [held_still, gone, written] = fences.map(|fence| held.add(fence, queue));
    held.ends(&fences[2]);
    held.lose_all_but(&fences, &[fences[0].lease]);
    assert_eq!([held_still, gone, written].map(|lost| lost.is_cancelled()), [false, true, false]);
    assert_eq!(held.len(), 2);
}
