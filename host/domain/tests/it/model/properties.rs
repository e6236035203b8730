//! What must hold in every state, and what must be reachable for that to mean anything.

use counterfoil_domain::effect::Safety;
use counterfoil_domain::receipt::ReceiptState;
use stateright::Property;

use super::house::House;
use super::state::{PLACES, SLOTS, Stand, Step, Wait, World};

pub(crate) const NEVER_TWICE: &str = "no effect stands twice";
pub(crate) const ONE_ALTERNATIVE: &str = "of two alternatives at most one stands";
pub(crate) const COMMITTED_ONCE: &str = "what is committed or verified stands once";
pub(crate) const ANSWERED_ONCE: &str = "an answered slot is not sent again";
pub(crate) const SAME_ANSWERS: &str = "what has happened rests on the same answers for ever";
pub(crate) const BLOCKED_UNKNOWN: &str = "nothing is blocked with nothing unknown";
pub(crate) const CLOSED: &str = "no step ends with a receipt dispatched";
pub(crate) const ONE_ANSWER: &str = "a slot that has an answer has nothing open";
pub(crate) const GUARDED: &str = "guarded content stands at most once";

/// Every property.
pub(crate) fn all() -> Vec<Property<House>> {
    vec![
        Property::always(NEVER_TWICE, |_, world| never_twice(world)),
        Property::always(ONE_ALTERNATIVE, one_alternative),
        Property::always(COMMITTED_ONCE, committed_once),
        Property::always(ANSWERED_ONCE, |_, world: &World| !world.sent_after_answer),
        Property::always(SAME_ANSWERS, |_, world: &World| !world.contradicted),
        Property::always(BLOCKED_UNKNOWN, |_, world| blocked_unknown(world)),
        Property::always(CLOSED, |_, world| closed(world)),
        Property::always(ONE_ANSWER, |_, world| one_answer(world)),
        Property::always(GUARDED, |house: &House, world: &World| {
            let stand = (0..PLACES).flat_map(|place| (0..SLOTS).map(move |slot| world.net(place, slot)));
            !house.config.guarded || stand.sum::<u8>() <= 1
        }),
        Property::sometimes("a step succeeds", |_, world: &World| {
            world.places.iter().any(|place| place.step == Step::Succeeded)
        }),
        Property::sometimes("a step is blocked", |_, world: &World| {
            world.places.iter().any(|place| is_blocked(place.step))
        }),
    ]
}

fn is_blocked(step: Step) -> bool {
    matches!(step, Step::Open { wait: Wait::Blocked, lease: None, .. })
}

fn never_twice(world: &World) -> bool {
    (0..PLACES).all(|place| (0..SLOTS).all(|slot| world.net(place, slot) <= 1))
}

fn one_alternative(house: &House, world: &World) -> bool {
    house.config.guest.alternatives().is_none_or(|(one, other)| {
        (0..PLACES).all(|place| world.net(place, one) == 0 || world.net(place, other) == 0)
    })
}

fn committed_once(house: &House, world: &World) -> bool {
    world.rows.iter().all(|row| {
        let answered = matches!(row.stand, Stand::Committed(_) | Stand::Verified(_));
        let is_read = house.config.guest.safety(row.id.place, row.id.slot) == Safety::ReadOnly;
        !answered || is_read || world.book(row.id, row.key).net() == 1
    })
}

fn blocked_unknown(world: &World) -> bool {
    (0..).zip(&world.places).all(|(nth, place)| {
        let is_declined = matches!(place.step, Step::Open { declined: true, .. });
        !is_blocked(place.step) || is_declined || world.at(nth).any(|row| row.stand == Stand::Unknown)
    })
}

fn closed(world: &World) -> bool {
    (0..).zip(&world.places).all(|(nth, place)| {
        matches!(place.step, Step::Open { .. })
            || world.at(nth).all(|row| row.stand.state() != ReceiptState::Dispatched)
    })
}

fn one_answer(world: &World) -> bool {
    world.rows.iter().all(|row| {
        !matches!(row.stand, Stand::Committed(_) | Stand::Verified(_))
            || world.slot(row.id).all(|other| !other.stand.is_open())
    })
}
