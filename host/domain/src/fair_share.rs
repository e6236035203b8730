//! How one host shares its room among the tenants that have work due.
//!
//! Max-min fairness over what each has in flight: a place goes to whoever has fewest, so that a tenant that comes late
//! gets the next place that is free, however much the others have due.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::id::TenantId;

/// A tenant that has work due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Due {
    /// Who.
    pub tenant: TenantId,
    /// Its steps that this host has in flight.
    pub in_flight: u32,
}

/// Who may take how many places.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Grants {
    /// Tenants, and how many places each was granted; at least one.
    pub places: Vec<(TenantId, u32)>,
    /// Who was granted the last place.
    pub last: Option<TenantId>,
}

/// Grants `room` places, one after the other. Of tenants that have equally few in flight, those with an id behind `after`
/// come first, so that with the last of one round as `after` of the next they take turns.
///
/// A tenant may be granted more places than it has work; they are free again at the next look.
pub fn grants(due: &[Due], room: u32, after: Option<TenantId>) -> Grants {
    let mut last = after;
    let mut granted: Vec<(TenantId, u32)> = due.iter().map(|due| (due.tenant, 0)).collect();
    let is_next = |tenant: TenantId| after.is_some_and(|after| tenant.0 <= after.0);
    let mut queue: BinaryHeap<_> = due
        .iter()
        .enumerate()
        .map(|(index, due)| Reverse((due.in_flight, is_next(due.tenant), due.tenant.0, index)))
        .collect();
    for _ in 0..room {
        let Some(mut first) = queue.peek_mut() else { break };
        let Reverse((in_flight, _, _, index)) = &mut *first;
        *in_flight += 1;
        granted[*index].1 += 1;
        last = Some(due[*index].tenant);
    }
    granted.retain(|(_, places)| *places > 0);
    Grants { places: granted, last }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use uuid::Uuid;

    use super::*;

    fn tenant(n: u128) -> TenantId {
        TenantId(Uuid::from_u128(n))
    }

    #[test]
    fn a_place_goes_to_whoever_has_fewest() {
        let due = |of: &[u32]| -> Vec<Due> {
            (1..).zip(of).map(|(n, in_flight)| Due { tenant: tenant(n), in_flight: *in_flight }).collect()
        };
        for (in_flight, room, after, expected) in [
            (&[][..], 5, None, &[][..]),
            (&[0], 5, None, &[(1, 5)]),
            (&[0, 0], 5, None, &[(1, 3), (2, 2)]),
            (&[100, 0], 1, None, &[(2, 1)]),
            (&[100, 98], 4, None, &[(1, 1), (2, 3)]),
            (&[0, 0, 0], 2, None, &[(1, 1), (2, 1)]),
            (&[0, 0, 0], 2, Some(2), &[(1, 1), (3, 1)]),
            (&[0, 0, 0], 1, Some(1), &[(2, 1)]),
            (&[0, 0, 0], 1, Some(3), &[(1, 1)]),
        ] {
            let granted = grants(&due(in_flight), room, after.map(tenant)).places;
            let expected: Vec<_> = expected.iter().map(|(n, places)| (tenant(*n), *places)).collect();
            assert_eq!(granted, expected, "{in_flight:?} {room} {after:?}");
        }
    }

    proptest! {
        /// Nobody could be given one more place without it being taken from somebody who has no more.
        #[test]
        fn no_share_is_unfair(in_flight in prop::collection::vec(0_u32..20, 1..12), room in 0_u32..60) {
            let due: Vec<Due> = (0..).zip(&in_flight).map(|(n, count)| Due { tenant: tenant(n), in_flight: *count }).collect();
            let granted = grants(&due, room, None).places;
            prop_assert_eq!(granted.iter().map(|(_, places)| places).sum::<u32>(), room);
            let of = |due: &Due| granted.iter().find(|(tenant, _)| *tenant == due.tenant).map_or(0, |(_, places)| *places);
            let fewest = due.iter().map(|due| due.in_flight + of(due)).min().unwrap_or(0);
            for due in due.iter().filter(|due| of(due) > 0) {
                prop_assert!(due.in_flight + of(due) <= fewest + 1);
            }
        }

        /// However little room there is, nobody has a second turn before everybody has had a first.
        #[test]
        fn turns_go_round(count in 1_u32..10, room in 1_u32..10, rounds in 1_u32..8) {
            let due: Vec<Due> = (0..count).map(|n| Due { tenant: tenant(n.into()), in_flight: 0 }).collect();
            let (mut after, mut served) = (None, vec![0; count as usize]);
            for _ in 0..rounds {
                let granted = grants(&due, room, after);
                after = granted.last;
                for (tenant, places) in granted.places {
                    served[usize::try_from(tenant.0.as_u128()).expect("small")] += places;
                }
            }
            let (least, most) = (served.iter().min(), served.iter().max());
            prop_assert!(most.zip(least).is_some_and(|(most, least)| most - least <= 1), "{served:?}");
        }
    }
}
