use std::cell::RefCell;
use std::rc::Rc;

use serde_json::json;

use super::*;
use crate::Failure;
use crate::host::native::{Host, with};

/// Notes what is emitted, and says the same of everything.
struct Outbox {
    emitted: Rc<RefCell<Vec<EmitEffect>>>,
    reply: Result<(), EffectError>,
}

impl Host for Outbox {
    fn emit(&mut self, effect: EmitEffect) -> Result<(), EffectError> {
        self.emitted.borrow_mut().push(effect);
        self.reply.clone()
    }
}

fn send(event: Event, reply: Result<(), EffectError>) -> (Vec<EmitEffect>, Result<(), EffectError>) {
    let emitted = Rc::default();
    let result = with(Outbox { emitted: Rc::clone(&emitted), reply }, || event.send());
    (emitted.take(), result)
}

#[test]
fn an_event_crosses_as_it_was_built() -> Result<(), JsonError> {
    let plain =
        EmitEffect { event_type: "order.booked".into(), record: None, data: "null".into(), key: None };
    let whole = event("order.booked").record("o-1").key("booked").json(&json!({ "cents": 1200 }))?;
    for (event, expected) in [
        (event("order.booked"), plain.clone()),
        (
            whole,
            EmitEffect {
                record: Some("o-1".into()),
                data: r#"{"cents":1200}"#.into(),
                key: Some("booked".into()),
                ..plain
            },
        ),
    ] {
        assert_eq!(send(event, Ok(())), (vec![expected], Ok(())));
    }
    Ok(())
}

#[test]
fn an_event_that_is_refused_fails_the_step() {
    let denied = EffectError::Denied("the block declares no `emit`".into());
    let failure = Failure::from(send(event("a"), Err(denied)).1.expect_err("it was refused"));
    assert_eq!((failure.code(), failure.is_transient()), ("denied", false));
}
