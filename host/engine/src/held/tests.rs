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
    const ONE: Most = Most { in_flight: 1, at_work: 8 };
    let (held, queue, now) = (Held::default(), queue(), Instant::now());
    let fence = fence(queue);
    let is_free = || {
        let is_free = held.reserve(queue, ONE, now);
        if is_free {
            held.give_back(queue);
        }
        is_free
    };
    assert!(is_free());
    let claiming = held.grant([queue].into_iter(), &mut Turns::default(), ONE, now);
    assert_eq!(granted(&claiming), Some(&[(queue, 1)][..]));
    assert!(!is_free(), "a claim is about to fill it");
    held.add(fence, queue, now);
    drop(claiming);
    assert!(!is_free(), "its lease stands for it");
    held.remove(&fence);
    assert!(held.reserve(queue, ONE, now) && !is_free(), "it is reserved");
    held.give_back(queue);
    assert!(is_free() && held.len() == 0);
}

#[test]
fn a_busy_host_takes_on_more_of_those_only_who_have_nothing_in_flight() {
    const MOST: Most = Most { in_flight: 100, at_work: 8 };
    let (held, mut turns, now) = (Held::default(), Turns::default(), Instant::now());
    let (burst, quiet) = (queue(), queue());
    let first = held.grant([burst].into_iter(), &mut turns, MOST, now);
    assert_eq!(
        granted(&first),
        Some(&[(burst, 8)][..]),
        "as many as keep the host busy, of all that are due"
    );
    for _ in 0..8 {
        held.add(fence(burst), burst, now);
    }
    drop(first);
    assert!(held.is_busy(MOST, now));
    assert!(matches!(held.grant([burst].into_iter(), &mut turns, MOST, now), Grant::Busy));
    assert!(!held.reserve(burst, MOST, now));
    let both = [burst, quiet];
    let next = held.grant(both.into_iter(), &mut turns, MOST, now);
    assert_eq!(granted(&next), Some(&[(quiet, 1)][..]));
    assert!(!held.reserve(quiet, MOST, now), "it has something in flight now");
    drop(next);
    assert!(held.reserve(quiet, MOST, now));
    held.give_back(quiet);

    let later = now + MOVED_LATELY;
    assert!(!held.is_busy(MOST, later), "what takes long holds nobody up");
    let more = held.grant(both.into_iter(), &mut turns, MOST, later);
    let places = granted(&more).map(|places| places.iter().map(|(_, places)| places).sum());
    assert_eq!(places, Some(8_u32));
}

#[test]
fn a_host_that_is_busy_with_newcomers_takes_on_no_more_of_them() {
    const MOST: Most = Most { in_flight: 100, at_work: 4 };
    let (held, now) = (Held::default(), Instant::now());
    let begun = (0..100).filter(|_| held.reserve(queue(), MOST, now)).count();
    assert_eq!(begun, 8, "twice what keeps it busy");
    let late = queue();
    assert!(matches!(held.grant([late].into_iter(), &mut Turns::default(), MOST, now), Grant::Busy));
}

#[test]
fn a_lease_that_is_gone_ends_its_execution_but_not_one_that_is_being_written() {
    let (held, queue, now) = (Held::default(), queue(), Instant::now());
    let fences: [Fence; 3] = std::array::from_fn(|_| fence(queue));
    let [held_still, gone, written] = fences.map(|fence| held.add(fence, queue, now).lost);
    held.ends(&fences[2]);
    held.lose_all_but(&fences, &[fences[0].lease]);
    assert_eq!([held_still, gone, written].map(|lost| lost.is_cancelled()), [false, true, false]);
    assert_eq!(held.len(), 2);
}
