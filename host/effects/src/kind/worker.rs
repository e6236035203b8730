//! Effects of the kind `worker`: work that lies in a queue until a worker outside the host fetches it.

use std::time::Duration;

use counterfoil_domain::connection::Abilities;
use counterfoil_domain::outbound::{Work, judge_work};
use counterfoil_domain::receipt::request::work_facts;

use super::{Act, Ask, Prepared, Task, grants, scope};

/// Judges work by the block's grants and its form.
pub(super) fn prepare(ask: Ask<'_>, queue: &str, input: &str) -> Prepared {
    let work = granted(&ask).and_then(|()| judge_work(ask.call, queue, input));
    let total = work.as_ref().map_or(Duration::ZERO, Work::total);
    let act = work.map(|work| Act::Queue(Task { queue: queue.to_owned(), work }));
    let facts = work_facts(ask.call, (queue, input), ask.default_key, scope(ask.context, "worker"));
    Prepared { facts, act, abilities: Abilities::default(), total }
}

fn granted(ask: &Ask<'_>) -> Result<(), String> {
    if grants(ask, ask.call.effective_safety()).is_some_and(|mut grants| grants.next().is_none()) {
        return Err("the block's descriptor declares no `worker` effect that allows it".into());
    }
    Ok(())
}
