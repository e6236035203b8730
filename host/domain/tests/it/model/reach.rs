//! Whether every state can still come to its end. The checker looks at states one at a time; this looks at what leads where.

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

use stateright::Model;

use super::house::House;
use super::state::{Step, World};

fn fingerprint(world: &World) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(world)
}

/// What was explored.
pub(crate) struct Reach {
    pub(crate) states: usize,
    /// A state from which no step can end any more.
    pub(crate) stuck: Option<World>,
}

/// Explores a configuration and looks for states from which its steps cannot end, whatever happens. What lies beyond the
/// boundary is taken to end.
pub(crate) fn reach(house: &House) -> Reach {
    let mut known: HashMap<_, usize> = HashMap::new();
    let mut led_from: Vec<Vec<usize>> = vec![];
    let mut queue = house.init_states();
    let mut next = 0;
    let mut ends = vec![];
    for world in &queue {
        known.insert(fingerprint(world), led_from.len());
        led_from.push(vec![]);
    }
    while let Some(world) = queue.get(next).cloned() {
        let is_over = world.places.iter().all(|place| !matches!(place.step, Step::Open { .. }));
        if is_over || !house.within_boundary(&world) {
            ends.push(next);
        } else {
            for after in house.next_states(&world) {
                let at = *known.entry(fingerprint(&after)).or_insert_with(|| {
                    queue.push(after);
                    led_from.push(vec![]);
                    led_from.len() - 1
                });
                led_from[at].push(next);
            }
        }
        next += 1;
    }
    let mut can_end = vec![false; queue.len()];
    while let Some(state) = ends.pop() {
        if !std::mem::replace(&mut can_end[state], true) {
            ends.extend(&led_from[state]);
        }
    }
    let stuck = can_end.iter().position(|can_end| !can_end).map(|at| queue[at].clone());
    Reach { states: queue.len(), stuck }
}
