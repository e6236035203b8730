//! The nodes of a definition.

use serde_json::{Map, Value};

use super::{Decoder, listed};
use crate::code::Code;
use crate::expression::child;
use crate::workflow::BRANCHES_MAX;
use crate::workflow::definition::{
    BlockNode, Branch, Delay, DelayNode, EmitNode, HttpNode, Node, Retry, SetNode, StopNode, SwitchNode,
    Until,
};
use crate::workflow::time::{check_zone, moment_ms};

/// Time for one HTTP call: a step's whole execution may take no longer.
const TIMEOUT_MS_MAX: u64 = 120_000;
/// Tries of one step: beyond that, a person should look.
const ATTEMPTS_MAX: u32 = 20;

impl Decoder<'_, '_> {
    pub(super) fn node(&mut self, value: &Value, pointer: &str, depth: usize) -> Option<Node> {
        let nothing = Map::new();
        let fields = value.as_object().unwrap_or(&nothing);
        let kind = Node::KINDS.into_iter().find(|kind| fields.contains_key(*kind));
        match kind {
            Some("block") => self.block(value, pointer).map(Node::Block),
            Some("http") => self.http(value, pointer).map(Node::Http),
            Some("delay") => self.delay(value, pointer).map(Node::Delay),
            Some("switch") => self.switch(fields, pointer, depth).map(Node::Switch),
            Some("parallel") => Some(Node::Parallel(self.parallel(fields, pointer, depth))),
            Some("map") => self.map(fields, pointer, depth).map(Node::Map),
            Some("try") => Some(Node::Try(self.attempt(fields, pointer, depth))),
            Some("emit") => self.emit(value, pointer).map(Node::Emit),
            Some("listen") => self.listen(fields, pointer, depth).map(Node::Listen),
            Some("approval") => self.approval(fields, pointer, depth).map(Node::Approval),
            Some("workflow") => self.workflow(value, pointer).map(Node::Workflow),
            Some("worker") => self.worker(value, pointer).map(Node::Worker),
            Some("set") => self.leaf::<SetNode>(value, pointer).map(Node::Set),
            Some(_) => self.leaf::<StopNode>(value, pointer).map(Node::Stop),
            None => {
                let message = format!("what a step does is told by one of {}", listed(&Node::KINDS));
                self.problems.at_value(pointer, Code::NodeUnknown, message);
                None
            }
        }
    }

    fn delay(&mut self, value: &Value, pointer: &str) -> Option<DelayNode> {
        let node = self.leaf::<DelayNode>(value, pointer)?;
        let Delay::Until(Until { until, zone }) = &node.delay else { return Some(node) };
        let pointer = child(pointer, "delay");
        if let Some(Err(error)) = zone.as_deref().map(check_zone) {
            self.problems.at_value(&child(&pointer, "zone"), Code::Schema, error.to_string());
        } else if !until.starts_with('=')
            && let Err(error) = moment_ms(until, zone.as_deref())
        {
            self.problems.at_value(&child(&pointer, "until"), Code::Schema, error.to_string());
        }
        Some(node)
    }

    fn emit(&mut self, value: &Value, pointer: &str) -> Option<EmitNode> {
        let node = self.leaf::<EmitNode>(value, pointer)?;
        self.check_event_type(&node.emit.event, &child(&child(pointer, "emit"), "event"));
        Some(node)
    }

    fn block(&mut self, value: &Value, pointer: &str) -> Option<BlockNode> {
        let node = self.leaf::<BlockNode>(value, pointer)?;
        self.check_name(&node.block, &child(pointer, "block"), "a block");
        self.check_retry(node.retry.as_ref(), pointer);
        Some(node)
    }

    fn http(&mut self, value: &Value, pointer: &str) -> Option<HttpNode> {
        let node = self.leaf::<HttpNode>(value, pointer)?;
        let call = child(pointer, "http");
        if let Some(connection) = &node.http.connection {
            self.check_name(connection, &child(&call, "connection"), "a connection");
        }
        if node.http.timeout.is_some_and(|timeout| timeout.ms == 0 || timeout.ms > TIMEOUT_MS_MAX) {
            let message = format!("a call takes between 1ms and {}s", TIMEOUT_MS_MAX / 1_000);
            self.problems.at_value(&child(&call, "timeout"), Code::Limit, message);
        }
        self.check_retry(node.retry.as_ref(), pointer);
        Some(node)
    }

    pub(super) fn check_retry(&mut self, retry: Option<&Retry>, pointer: &str) {
        let Some(retry) = retry else { return };
        let pointer = child(pointer, "retry");
        if !(1..=ATTEMPTS_MAX).contains(&retry.attempts) {
            let message = format!("a step has between 1 and {ATTEMPTS_MAX} attempts");
            self.problems.at_value(&child(&pointer, "attempts"), Code::Limit, message);
        }
        if retry.delays.len() >= retry.attempts.max(1) as usize {
            let message = "there are fewer waits than attempts: one before each attempt after the first";
            self.problems.at_value(&child(&pointer, "delays"), Code::Limit, message);
        }
    }

    fn switch(&mut self, fields: &Map<String, Value>, pointer: &str, depth: usize) -> Option<SwitchNode> {
        self.check_fields(fields, pointer, &["switch"]);
        let pointer = child(pointer, "switch");
        let elements = self.list(fields.get("switch")?, &pointer);
        if !(1..=BRANCHES_MAX).contains(&elements.len()) {
            let message = format!("a switch has between 1 and {BRANCHES_MAX} branches");
            self.problems.at_value(&pointer, Code::Limit, message);
        }
        let last = elements.len().saturating_sub(1);
        let mut branches = Vec::new();
        for (index, (pointer, element)) in elements.into_iter().enumerate() {
            let branch = self.branch(element, &pointer, depth);
            if matches!(branch, Some(Branch::Else { .. })) && index != last {
                self.problems.at_value(&pointer, Code::Unreachable, "`else` is the last branch");
            }
            branches.push(branch.unwrap_or(Branch::Else { steps: vec![] }));
        }
        Some(SwitchNode { switch: branches })
    }

    fn branch(&mut self, value: &Value, pointer: &str, depth: usize) -> Option<Branch> {
        let fields = value.as_object();
        match (fields, fields.and_then(|fields| fields.get("else"))) {
            (Some(fields), Some(steps)) => {
                self.check_fields(fields, pointer, &["else"]);
                Some(Branch::Else { steps: self.step_list(steps, &child(pointer, "else"), depth + 1) })
            }
            (Some(fields), None) if fields.contains_key("when") && fields.contains_key("do") => {
                self.check_fields(fields, pointer, &["when", "do"]);
                let steps = self.step_list(&fields["do"], &child(pointer, "do"), depth + 1);
                let when = self.leaf::<String>(&fields["when"], &child(pointer, "when"))?;
                Some(Branch::When { when, steps })
            }
            _ => {
                let message = "a branch has `when` and `do`, or `else`";
                self.problems.at_value(pointer, Code::Schema, message);
                None
            }
        }
    }
}
