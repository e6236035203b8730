//! A definition into a plan, with every check that a definition must pass.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::decode::{Decoded, decode};
mod containers;

use super::definition::{
    Branch, Definition, Delay, HttpNode, Node, Retry, Step, Stop, SwitchNode, Trigger, WorkerNode,
};
use super::plan::{
    NodeKind, Plan, PlanBranch, PlanHttp, PlanNode, PlanTask, PlanTrigger, TRIGGER_ROOTS, Then,
};
use super::problem::{Problem, Problems};
use super::source::Source;
use super::{DEFINITION_BYTES_MAX, Duration};
use crate::code::Code;
use crate::expression::{Compiled, Expression, ExpressionError, Pointer, Root, Template, child};
use crate::id::Digest;
use crate::limits::TASK_TIME_MS;
use crate::step::{Delays, RetryPolicy};

/// A definition whose text was read, and that may still be wrong.
#[derive(Debug)]
pub struct Authored {
    source: Source,
}

/// A definition that holds, and its plan: what is saved.
#[derive(Debug, Clone)]
pub struct Version {
    /// What the author wrote.
    pub definition: Definition,
    /// Canonical JSON (RFC 8785) of it.
    pub canonical: String,
    /// Hash of the canonical JSON: the version's identity.
    pub digest: Digest,
    /// What the engine follows.
    pub plan: Plan,
}

impl Authored {
    /// Reads YAML or JSON.
    ///
    /// # Errors
    /// If the text is neither, or too large.
    pub fn read(text: &str) -> Result<Self, Problem> {
        Source::read(text).map(|source| Self { source })
    }

    pub(super) fn source(&self) -> &Source {
        &self.source
    }

    /// The names of the blocks that it uses, as far as it can be read.
    pub fn blocks(&self) -> BTreeSet<String> {
        let mut problems = Problems::new(&self.source);
        let mut names = BTreeSet::new();
        collect_blocks(&decode(&self.source.value, &mut problems).definition.steps, &mut names);
        names
    }

    /// Checks all of it, and compiles it against the blocks that there are: the newest version of each, by name.
    ///
    /// # Errors
    /// Everything that is wrong with it, in the order of the text.
    pub fn compile(&self, blocks: &BTreeMap<String, Digest>) -> Result<Version, Vec<Problem>> {
        let mut problems = Problems::new(&self.source);
        let Decoded { definition, step_names } = decode(&self.source.value, &mut problems);
        let canonical = serde_json_canonicalizer::to_string(&self.source.value).unwrap_or_else(|error| {
            problems.at_value("", Code::Schema, format!("it has no canonical form: {error}"));
            String::new()
        });
        if canonical.len() > DEFINITION_BYTES_MAX {
            let message =
                format!("with its aliases expanded, a definition has at most {DEFINITION_BYTES_MAX} bytes");
            problems.at_value("", Code::Limit, message);
        }
        let mut compiler = Compiler {
            blocks,
            problems,
            step_names: &step_names,
            visible: BTreeSet::new(),
            maps: 0,
            nodes: vec![],
        };
        let triggers = compiler.triggers(&definition.triggers);
        compiler.list(&definition.steps, "", Then::End);
        let Compiler { mut problems, nodes, .. } = compiler;
        let digest = Digest::of(canonical.as_bytes());
        let (workflow, invariants) = (definition.name.clone(), definition.invariants.clone());
        let plan = Plan::new(workflow, digest, triggers, nodes, invariants);
        if let Err(error) = &plan {
            problems.at_value("", Code::Schema, error.to_string());
        }
        let problems = problems.into_list();
        match plan {
            Ok(plan) if problems.is_empty() => Ok(Version { definition, canonical, digest, plan }),
            _ => Err(problems),
        }
    }
}

fn collect_blocks(steps: &[Step], names: &mut BTreeSet<String>) {
    for step in steps {
        if let Node::Block(node) = &step.node {
            names.insert(node.block.clone());
        }
        for steps in step.node.lists() {
            collect_blocks(steps, names);
        }
    }
}

struct Compiler<'a> {
    blocks: &'a BTreeMap<String, Digest>,
    problems: Problems<'a>,
    /// All names, and where they were given.
    step_names: &'a BTreeMap<String, String>,
    /// Steps that may have run before the one at hand.
    visible: BTreeSet<&'a str>,
    /// Maps around the step at hand.
    maps: usize,
    nodes: Vec<PlanNode>,
}

impl<'a> Compiler<'a> {
    fn triggers(&mut self, triggers: &[Trigger]) -> Vec<PlanTrigger> {
        let compile = |(index, trigger): (usize, &Trigger)| {
            let pointer = format!("/triggers/{index}");
            PlanTrigger {
                event: trigger.event.clone(),
                when: trigger
                    .when
                    .as_ref()
                    .and_then(|when| self.event_expression(when, &child(&pointer, "when"))),
                record: trigger
                    .record
                    .as_ref()
                    .and_then(|text| self.event_expression(text, &child(&pointer, "record"))),
                dedup: trigger.dedup,
            }
        };
        triggers.iter().enumerate().map(compile).collect()
    }

    /// Compiles a list of steps. What comes behind the last of them is `then`.
    fn list(&mut self, steps: &'a [Step], prefix: &str, then: Then) {
        for (index, step) in steps.iter().enumerate() {
            let path = if prefix.is_empty() { step.name.clone() } else { format!("{prefix}/{}", step.name) };
            let position = self.nodes.len();
            match self.leaf(&step.node, &step.pointer) {
                Some(kind) => self.nodes.push(PlanNode { path, kind, then }),
                None => self.container(step, &path, then),
            }
            if index + 1 < steps.len() {
                self.nodes[position].then = Then::Node(self.nodes.len());
            }
            self.visible.insert(&step.name);
        }
    }

    /// Compiles a node, unless it holds steps.
    fn leaf(&mut self, node: &Node, pointer: &str) -> Option<NodeKind> {
        Some(match node {
            Node::Block(node) => NodeKind::Block {
                digest: self.block(&node.block, &child(pointer, "block")),
                block: node.block.clone(),
                input: self.template(&node.input, &child(pointer, "input")),
                retry: node.retry.as_ref().map(retry_policy),
            },
            Node::Http(node) => self.http(node, &child(pointer, "http")),
            Node::Delay(node) => match &node.delay {
                Delay::For(Duration { ms }) => NodeKind::Delay { ms: *ms },
                Delay::Until(until) => NodeKind::Until {
                    until: self.text(&until.until, &format!("{pointer}/delay/until")),
                    zone: until.zone.clone(),
                },
            },
            Node::Emit(node) => NodeKind::Emit {
                event: node.emit.event.clone(),
                record: node
                    .emit
                    .record
                    .as_ref()
                    .map(|record| self.text(record, &format!("{pointer}/emit/record"))),
                data: self.template(&node.emit.data, &format!("{pointer}/emit/data")),
            },
            Node::Workflow(node) => NodeKind::Workflow {
                workflow: node.workflow.clone(),
                input: self.template(&node.input, &child(pointer, "input")),
                wait: node.wait,
            },
            Node::Worker(node) => self.worker(node, &child(pointer, "worker")),
            Node::Stop(node) => self.stop(&node.stop, &child(pointer, "stop")),
            Node::Set(node) => NodeKind::Set { value: self.template(&node.set, &child(pointer, "set")) },
            Node::Switch(_)
            | Node::Parallel(_)
            | Node::Map(_)
            | Node::Try(_)
            | Node::Listen(_)
            | Node::Approval(_) => return None,
        })
    }

    fn branches(
        &mut self,
        switch: &'a SwitchNode,
        pointer: &str,
        path: &str,
        position: usize,
    ) -> Vec<PlanBranch> {
        let before = self.visible.clone();
        let mut inside = BTreeSet::new();
        let mut branches = Vec::new();
        for (index, branch) in switch.switch.iter().enumerate() {
            let (when, steps) = match branch {
                Branch::When { when, steps } => {
                    (self.expression(when, &format!("{pointer}/switch/{index}/when")), steps)
                }
                Branch::Else { steps } => (None, steps),
            };
            let start = self.nodes.len();
            self.list(steps, path, Then::Join(position));
            branches.push(PlanBranch { when, nodes: start..self.nodes.len() });
            // Steps of one branch cannot see those of another; steps behind the switch may see either.
            inside.append(&mut std::mem::replace(&mut self.visible, before.clone()));
        }
        self.visible.append(&mut inside);
        branches
    }

    fn block(&mut self, name: &str, pointer: &str) -> Digest {
        self.blocks.get(name).copied().unwrap_or_else(|| {
            self.problems.at_value(pointer, Code::BlockUnknown, format!("there is no block `{name}`"));
            Digest([0; 32])
        })
    }

    fn http(&mut self, node: &HttpNode, pointer: &str) -> NodeKind {
        let call = &node.http;
        let headers =
            call.headers.iter().map(|(name, value)| (name.clone(), Value::from(value.as_str()))).collect();
        let call = PlanHttp {
            method: call.method.name().to_owned(),
            url: self.template(&Value::from(call.url.as_str()), &child(pointer, "url")),
            headers: self.template(&Value::Object(headers), &child(pointer, "headers")),
            body: call.body.as_ref().map(|body| self.template(body, &child(pointer, "body"))),
            connection: call.connection.clone(),
            safety: call.safety,
            idempotency_key: call
                .idempotency_key
                .as_ref()
                .map(|key| self.template(&Value::from(key.as_str()), &child(pointer, "idempotency_key"))),
            timeout_ms: call.timeout.and_then(|timeout| u32::try_from(timeout.ms).ok()),
        };
        NodeKind::Http { call: Box::new(call), retry: node.retry.as_ref().map(retry_policy) }
    }

    fn worker(&mut self, node: &WorkerNode, pointer: &str) -> NodeKind {
        let task = &node.worker;
        let ms = |time: Option<Duration>| time.map_or(TASK_TIME_MS, |time| time.ms);
        let task = PlanTask {
            queue: task.queue.clone(),
            input: self.template(&task.input, &child(pointer, "input")),
            safety: task.safety,
            claim_within_ms: ms(task.claim_within),
            timeout_ms: ms(task.timeout),
        };
        NodeKind::Worker { task: Box::new(task), retry: node.retry.as_ref().map(retry_policy) }
    }

    fn stop(&mut self, stop: &Stop, pointer: &str) -> NodeKind {
        let message = stop.message.as_ref();
        NodeKind::Stop {
            outcome: stop.outcome,
            message: message
                .map(|text| self.template(&Value::from(text.as_str()), &child(pointer, "message"))),
            output: stop.output.as_ref().map(|output| self.template(output, &child(pointer, "output"))),
        }
    }

    fn text(&mut self, text: &str, pointer: &str) -> Compiled<Template> {
        self.template(&Value::from(text), pointer)
    }

    fn template(&mut self, source: &Value, pointer: &str) -> Compiled<Template> {
        let template = Template::compile_all(source).unwrap_or_else(|errors| {
            for error in errors {
                // The offset of the error does not count the `=`.
                let pointer = format!("{pointer}{}", error.pointer);
                self.problems.in_text(
                    &pointer,
                    1 + error.error.offset,
                    Code::ExpressionInvalid,
                    error.error.message,
                );
            }
            Template::null()
        });
        template.each_expression(&Pointer::At(pointer), &mut |at, expression| {
            self.check_steps_read(expression, 1, at);
        });
        Compiled::from_parts(source.clone(), template)
    }

    fn expression(&mut self, text: &str, pointer: &str) -> Option<Compiled<Expression>> {
        let compiled = self.checked(Expression::compile(text), pointer)?;
        self.check_steps_read(&compiled, 0, &Pointer::At(pointer));
        Some(Compiled::from_parts(text.to_owned(), compiled))
    }

    /// The condition of a `listen`.
    fn condition(&mut self, text: &str, pointer: &str) -> Option<Compiled<Expression>> {
        let compiled = self.checked(Expression::compile(text), pointer)?;
        self.check_read(&compiled, 0, &Pointer::At(pointer), &[]);
        Some(Compiled::from_parts(text.to_owned(), compiled))
    }

    fn event_expression(&mut self, text: &str, pointer: &str) -> Option<Compiled<Expression>> {
        let compiled = self.checked(Expression::compile_for(text, TRIGGER_ROOTS), pointer)?;
        Some(Compiled::from_parts(text.to_owned(), compiled))
    }

    fn checked(
        &mut self,
        compiled: Result<Expression, ExpressionError>,
        pointer: &str,
    ) -> Option<Expression> {
        let report = |error: ExpressionError| {
            self.problems.in_text(pointer, error.offset, Code::ExpressionInvalid, error.message);
        };
        compiled.map_err(report).ok()
    }

    /// A step can only read what may have run before it.
    fn check_steps_read(&mut self, expression: &Expression, text_offset: usize, pointer: &Pointer<'_>) {
        self.check_read(expression, text_offset, pointer, &[(Root::Signal, "the `match` of a `listen` has")]);
    }

    fn check_read(
        &mut self,
        expression: &Expression,
        text_offset: usize,
        pointer: &Pointer<'_>,
        missing: &[(Root, &str)],
    ) {
        let of_maps = [Root::Item, Root::Index].map(|root| (root, "the steps of a `map` have"));
        let of_maps = of_maps.iter().filter(|_| self.maps == 0);
        let missing: Vec<_> =
            of_maps.chain(missing).filter(|(root, _)| expression.reads(*root)).copied().collect();
        for (root, who) in missing {
            let message = format!("there is no `{}` here: only {who} one", root.name());
            let offset = text_offset + expression.source().find(root.name()).unwrap_or(0);
            self.problems.in_text(&pointer.to_string(), offset, Code::ExpressionInvalid, message);
        }
        for name in expression.steps_read().into_iter().flatten() {
            if self.visible.contains(name) {
                continue;
            }
            let message = match self.step_names.get(name) {
                Some(_) => format!("step `{name}` does not run before this one"),
                None => format!("there is no step `{name}`"),
            };
            let offset = text_offset + expression.source().find(name).unwrap_or(0);
            self.problems.in_text(&pointer.to_string(), offset, Code::StepNotReadable, message);
        }
    }
}

fn retry_policy(retry: &Retry) -> RetryPolicy {
    let delays = match retry.delays.as_slice() {
        [] => RetryPolicy::DEFAULT.delays,
        listed => Delays::Listed(listed.iter().map(|Duration { ms }| *ms).collect()),
    };
    RetryPolicy { retries_max: retry.attempts.saturating_sub(1), delays }
}
