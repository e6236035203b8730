//! A run that is gone through in an order that a test chooses, as any number of hosts might.

use std::collections::BTreeMap;

use super::*;
use crate::workflow::advance::{Container, Joined, Outputs, Part, PartStanding, PartStart, Progress, joined};

type Key = (String, Vec<u32>);

#[derive(Debug, Default)]
pub(super) struct Simulation {
    open: BTreeMap<Key, Wait>,
    containers: BTreeMap<Key, Container>,
    outputs: Vec<(String, Vec<u32>, Value)>,
    /// What happened, a line each.
    pub(super) lines: Vec<String>,
    /// What was undone, a node each.
    pub(super) undone: Vec<String>,
    pub(super) end: Option<RunEnd>,
    /// The most steps that were open at once, containers not counted.
    pub(super) open_max: usize,
}

fn shown((node, iteration): &Key) -> String {
    iteration.iter().fold(node.clone(), |shown, index| format!("{shown}[{index}]"))
}

impl Simulation {
    /// Goes through a run to its end. `choose` says which of so many steps goes on, `answer` what comes of it.
    pub(super) fn run(
        plan: &Plan,
        input: &Value,
        mut choose: impl FnMut(usize) -> usize,
        answer: impl Fn(&str, &[u32]) -> Result<Value, StepError>,
    ) -> Self {
        let mut run = Self::default();
        let nothing = Value::Null;
        run.take(advance(plan, &Scope::new(&nothing, input, &nothing), Event::Started));
        // Far more than any of these runs has steps.
        for _ in 0..20_000 {
            if run.end.is_some() {
                return run;
            }
            let ready: Vec<Key> = run.open.keys().filter(|key| run.is_ready(key)).cloned().collect();
            assert!(!ready.is_empty(), "stuck: {run:#?}");
            let key = ready[choose(ready.len()) % ready.len()].clone();
            if run.containers.contains_key(&key) {
                run.join(plan, input, &key);
            } else {
                run.settle(plan, input, &key, answer(&key.0, &key.1));
            }
        }
        panic!("the run does not end: {:#?}", run.lines);
    }

    fn is_ready(&self, key: &Key) -> bool {
        let Some(container) = self.containers.get(key) else { return true };
        let waiting = container.parts.iter().any(|part| part.standing == PartStanding::Waiting);
        container.awaits <= 0 || container.tolerates < 0 || (waiting && container.room > 0)
    }

    fn scope<'a>(&'a self, plan: &Plan, input: &'a Value, key: &Key, own: Option<&'a Value>) -> Scope<'a> {
        let mut scope = Scope::new(&Value::Null, input, &Value::Null);
        let mut outputs: Outputs<'_> =
            self.outputs.iter().map(|(node, at, output)| (node.as_str(), at.as_slice(), output)).collect();
        // The names live as long as the outputs do.
        let path = self.open.get_key_value(key).map(|(key, _)| key);
        if let (Some((node, iteration)), Some(own)) = (path, own) {
            outputs.push((node, iteration, own));
        }
        plan.show(&mut scope, &outputs, &key.0, &key.1);
        if let Some((index, around)) = key.1.split_last() {
            let item = self.containers.iter().find_map(|((_, at), container)| {
                let part = container.parts.iter().find(|part| part.index == *index)?;
                (at == around).then(|| part.item.clone()).flatten()
            });
            scope.set_item(*index, item.unwrap_or_default());
        }
        scope
    }

    fn settle(&mut self, plan: &Plan, input: &Value, key: &Key, result: Result<Value, StepError>) {
        let event = match &result {
            Ok(output) => Event::Succeeded { node: &key.0, iteration: &key.1, output },
            Err(error) => Event::Failed { node: &key.0, iteration: &key.1, error },
        };
        let next = advance(plan, &self.scope(plan, input, key, result.as_ref().ok()), event);
        self.open.remove(key);
        self.containers.remove(key);
        match result {
            Ok(output) => {
                self.lines.push(format!("{} = {output}", shown(key)));
                self.outputs.push((key.0.clone(), key.1.clone(), output));
            }
            Err(error) => self.lines.push(format!("{} failed: {}", shown(key), error.message)),
        }
        self.take(next);
    }

    fn join(&mut self, plan: &Plan, input: &Value, key: &Key) {
        let container = &self.containers[key];
        let of = |standing: &PartStanding| {
            container.parts.iter().filter(|part| part.standing == *standing).collect::<Vec<_>>()
        };
        let done = container.parts.iter().filter_map(|part| match &part.standing {
            PartStanding::Done(result) => Some((part.index, result.clone())),
            _ => None,
        });
        let waiting = of(&PartStanding::Waiting).into_iter().take(100);
        let progress = Progress {
            awaits: container.awaits,
            tolerates: container.tolerates,
            room: container.room,
            waiting: waiting.map(|part| (part.index, part.item.clone().expect("an item"))).collect(),
            done: done.collect(),
        };
        match joined(plan, &self.scope(plan, input, key, None), (&key.0, &key.1), &progress) {
            Joined::Over { result, leaves } => {
                if !leaves {
                    let inside = format!("{}/", key.0);
                    let is_inside = |other: &Key| other.0.starts_with(&inside) && other.1.starts_with(&key.1);
                    let cancelled: Vec<Key> =
                        self.open.keys().filter(|other| is_inside(other)).cloned().collect();
                    for other in cancelled {
                        self.lines.push(format!("{} cancelled", shown(&other)));
                        self.open.remove(&other);
                        self.containers.remove(&other);
                    }
                }
                self.settle(plan, input, key, result);
            }
            Joined::Continues(more) => {
                let done: Vec<Part> = more.parts.iter().filter_map(|part| part.done(plan, &key.0)).collect();
                let container = self.containers.get_mut(key).expect("it is open");
                container.tolerates += more.tolerates;
                for part in more.parts {
                    container.parts.retain(|other| other.index != part.index);
                    let is_done = matches!(part.standing, PartStanding::Done(_));
                    container.room -= 1;
                    container.parts.push(PartStart {
                        standing: if is_done { PartStanding::Running } else { part.standing },
                        ..part
                    });
                    container.parts.sort_by_key(|part| part.index);
                }
                for part in done {
                    self.part(key, part);
                }
                self.take(Advance {
                    settled: more.settled,
                    open: more.open,
                    join: None,
                    undone: more.undone,
                    end: None,
                });
            }
            Joined::Ended { settled, end } => {
                self.take(Advance { settled, open: vec![], join: None, undone: vec![], end: Some(end) });
            }
        }
    }

    fn part(&mut self, key: &Key, part: Part) {
        // The container may have gone on without it.
        let Some(container) = self.containers.get_mut(key) else { return };
        let known = container.parts.iter_mut().find(|known| known.index == part.index).expect("a known part");
        assert_eq!(known.standing, PartStanding::Running, "a part ends once: {key:?} {part:?}");
        known.standing = PartStanding::Done(part.result);
        container.room += 1;
        if part.counts { container.awaits -= 1 } else { container.tolerates -= 1 }
    }

    fn take(&mut self, advance: Advance) {
        for step in advance.settled {
            let key = (step.node, step.iteration);
            self.lines.push(match step.outcome {
                Outcome::Succeeded { output, .. } => {
                    let line = format!("{} = {output}", shown(&key));
                    self.outputs.push((key.0, key.1, output));
                    line
                }
                Outcome::Skipped => format!("{} skipped", shown(&key)),
                Outcome::Failed(error) => format!("{} failed: {}", shown(&key), error.message),
            });
        }
        for step in advance.open {
            let key = (step.node, step.iteration);
            if let Some(container) = step.container {
                self.containers.insert(key.clone(), container);
            }
            assert!(self.open.insert(key.clone(), step.wait).is_none(), "{key:?} is open already");
        }
        self.open_max = self.open_max.max(self.open.len() - self.containers.len());
        self.undone.extend(advance.undone.into_iter().flat_map(|undone| undone.nodes));
        if let Some(join) = advance.join {
            self.part(&(join.node, join.iteration), join.part);
        }
        if let Some(end) = advance.end {
            self.end = Some(end);
        }
    }

    /// How it ended, in words.
    pub(super) fn ended(&self) -> String {
        match &self.end {
            Some(RunEnd::Succeeded { output }) => format!("succeeded: {output}"),
            Some(RunEnd::Failed { node, error }) => {
                format!("failed at {node}: {} ({})", error.message, error.code)
            }
            None => "not ended".into(),
        }
    }
}
