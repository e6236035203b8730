use proptest::prelude::*;
use uuid::Uuid;

use super::*;

fn tenant(n: u128) -> TenantId {
    TenantId(Uuid::from_u128(n))
}

fn workflow(n: u128) -> WorkflowId {
    WorkflowId(Uuid::from_u128(n))
}

fn share(weight: u32) -> Share {
    Share { weight, in_flight_max: None }
}

/// A tenant with one workflow.
fn due(n: u128, in_flight: u32, share: Share) -> Due {
    let tenant = Contender { key: tenant(n), in_flight, share };
    Due { tenant, workflows: vec![Contender { key: workflow(n), in_flight, share: Share::default() }] }
}

/// The places that each of the tenants was granted, in the order of `due`.
fn grant(turns: &mut Turns, due: &[Due], room: u32) -> Vec<u32> {
    let granted = turns.grant(due.to_vec(), room);
    let of = |due: &Due| {
        granted.iter().filter(|(queue, _)| queue.tenant == due.tenant.key).map(|(_, places)| places).sum()
    };
    due.iter().map(of).collect()
}

#[test]
fn a_place_goes_to_whoever_has_least() {
    for (in_flight, room, expected) in [
        (&[][..], 5, &[][..]),
        (&[0], 5, &[5]),
        (&[0, 0], 5, &[3, 2]),
        (&[100, 0], 1, &[0, 1]),
        (&[100, 98], 4, &[1, 3]),
        (&[0, 0, 0], 2, &[1, 1, 0]),
    ] {
        let due: Vec<Due> =
            (1..).zip(in_flight).map(|(n, in_flight)| due(n, *in_flight, Share::default())).collect();
        assert_eq!(grant(&mut Turns::default(), &due, room), expected, "{in_flight:?} {room}");
    }
}

#[test]
fn weights_divide_the_room_and_the_turns() {
    let due = [due(1, 0, share(3)), due(2, 0, share(1))];
    assert_eq!(grant(&mut Turns::default(), &due, 100), [75, 25]);

    // One place at a time, and each step ends before the next place is granted.
    let mut turns = Turns::default();
    let mut served = [0, 0];
    for _ in 0..100 {
        for (served, places) in served.iter_mut().zip(grant(&mut turns, &due, 1)) {
            *served += places;
        }
    }
    assert_eq!(served, [75, 25]);
}

#[test]
fn a_tenant_that_comes_back_is_owed_nothing_for_the_time_without_work() {
    let both = [due(1, 0, share(1)), due(2, 0, share(1))];
    let mut turns = Turns::default();
    for _ in 0..50 {
        assert_eq!(grant(&mut turns, &both[..1], 1), [1]);
    }
    let mut served = vec![];
    for _ in 0..6 {
        served.push(grant(&mut turns, &both, 1));
    }
    assert_eq!(served.iter().filter(|places| places[1] == 1).count(), 3, "{served:?}");
}

#[test]
fn workflows_share_the_places_of_their_tenant() {
    let contender = |n, in_flight, share| Contender { key: workflow(n), in_flight, share };
    let of = |most, first: Share, second: Share| Due {
        tenant: Contender { key: tenant(1), in_flight: 2, share: Share { weight: 1, in_flight_max: most } },
        workflows: vec![contender(1, 2, first), contender(2, 0, second)],
    };
    let capped = |most| Share { weight: 1, in_flight_max: Some(most) };
    for (case, due, room, expected) in [
        ("whoever has least", of(None, share(1), share(1)), 1, &[(2, 1)][..]),
        ("by weight", of(None, share(1), share(2)), 7, &[(1, 1), (2, 6)]),
        ("the tenant's cap", of(Some(4), share(1), share(1)), 9, &[(2, 2)]),
        ("at its cap", of(None, capped(2), share(1)), 5, &[(2, 5)]),
        ("both at their caps", of(None, capped(2), capped(0)), 5, &[]),
        ("room is left", of(None, capped(3), capped(2)), 9, &[(1, 1), (2, 2)]),
    ] {
        let expected: Vec<_> = expected
            .iter()
            .map(|(n, places)| (Queue { tenant: tenant(1), workflow: workflow(*n) }, *places))
            .collect();
        assert_eq!(Turns::default().grant(vec![due], room), expected, "{case}");
    }
}

prop_compose! {
    fn any_share()(weight in 1_u32..6, capped in any::<bool>(), most in 0_u32..9) -> Share {
        Share { weight, in_flight_max: capped.then_some(most) }
    }
}

prop_compose! {
    /// Tenants with some workflows each, and what all of them have in flight.
    fn any_due()(tenants in prop::collection::vec(
        (any_share(), prop::collection::vec((any_share(), 0_u32..6), 1..5)), 1..7,
    )) -> Vec<Due> {
        (1_u128..).zip(tenants).map(|(n, (share, of))| {
            let workflows: Vec<_> = (1_u128..).zip(of)
                .map(|(w, (share, in_flight))| Contender { key: workflow(n * 100 + w), in_flight, share })
                .collect();
            let in_flight = workflows.iter().map(|one| one.in_flight).sum();
            Due { tenant: Contender { key: tenant(n), in_flight, share }, workflows }
        }).collect()
    }
}

proptest! {
    /// No cap is exceeded, and no place is left that somebody could have.
    #[test]
    fn caps_hold_and_no_place_is_wasted(before in any_due(), room in 0_u32..60) {
        let granted = Turns::default().grant(before.clone(), room);
        prop_assert!(granted.iter().map(|(_, places)| places).sum::<u32>() <= room);
        let mut could_have_more = false;
        for due in before {
            let places = |one: WorkflowId| granted.iter()
                .find(|(queue, _)| queue.tenant == due.tenant.key && queue.workflow == one)
                .map_or(0, |(_, places)| *places);
            let given: u32 = due.workflows.iter().map(|one| places(one.key)).sum();
            prop_assert!(given <= due.tenant.share.room(due.tenant.in_flight));
            let mut has_room = false;
            for one in &due.workflows {
                prop_assert!(places(one.key) <= one.share.room(one.in_flight));
                has_room |= one.share.room(one.in_flight) > places(one.key);
            }
            could_have_more |= has_room && due.tenant.share.room(due.tenant.in_flight) > given;
        }
        let total = granted.iter().map(|(_, places)| places).sum::<u32>();
        prop_assert!(total == room || !could_have_more, "{total} of {room}");
    }

    /// Nobody was given a place while another one, who could have had it, had less for its weight before as the first
    /// without its last place.
    #[test]
    fn no_share_is_unfair(tenants in prop::collection::vec((1_u32..6, 0_u32..20), 1..12), room in 0_u32..60) {
        let before: Vec<Due> = (1..).zip(&tenants).map(|(n, (weight, count))| due(n, *count, share(*weight))).collect();
        let granted = grant(&mut Turns::default(), &before, room);
        prop_assert_eq!(granted.iter().sum::<u32>(), room);
        let load = |n: usize, less: u32| before[n].tenant.share.load(before[n].tenant.in_flight + granted[n] - less);
        for n in (0..before.len()).filter(|n| granted[*n] > 0) {
            for other in 0..before.len() {
                prop_assert!(load(n, 1) <= load(other, 0), "{} before {}: {:?}", n, other, granted);
            }
        }
    }

    /// However little room there is, nobody is two turns behind what its weight entitles it to.
    #[test]
    fn turns_go_round(weights in prop::collection::vec(1_u32..5, 1..8), room in 1_u32..10, rounds in 1_u32..40) {
        let all: Vec<Due> = (1..).zip(&weights).map(|(n, weight)| due(n, 0, share(*weight))).collect();
        let (mut turns, mut served) = (Turns::default(), vec![0_u32; all.len()]);
        for _ in 0..rounds {
            // One place at a time: what was granted has ended before the next is.
            for _ in 0..room {
                for (served, places) in served.iter_mut().zip(grant(&mut turns, &all, 1)) {
                    *served += places;
                }
            }
        }
        let total = f64::from(room * rounds);
        let of_all = f64::from(weights.iter().sum::<u32>());
        for (served, weight) in served.iter().zip(&weights) {
            let due = total * f64::from(*weight) / of_all;
            prop_assert!(f64::from(*served) > due - 2.0, "{} of {}", served, due);
        }
    }
}
