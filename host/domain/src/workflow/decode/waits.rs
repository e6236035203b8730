//! The nodes that wait for somebody else.

use serde_json::{Map, Value};

use super::Decoder;
use crate::code::Code;
use crate::effect::Safety;
use crate::expression::child;
use crate::limits::TASK_TIME_MS_MAX;
use crate::schema::Schema;
use crate::workflow::definition::{
    Approval, ApprovalNode, Listen, ListenNode, Step, Worker, WorkerNode, WorkflowNode,
};

impl Decoder<'_, '_> {
    pub(super) fn listen(
        &mut self,
        fields: &Map<String, Value>,
        pointer: &str,
        depth: usize,
    ) -> Option<ListenNode> {
        self.check_fields(fields, pointer, &["listen", "on_timeout"]);
        let own = child(pointer, "listen");
        let listen: Option<Listen> = self.leaf(&fields["listen"], &own);
        let has_time = listen.as_ref().is_none_or(|listen| listen.timeout.is_some());
        let on_timeout = self.on_timeout(fields, pointer, depth, ("timeout", has_time));
        let listen = listen?;
        match (&listen.signal, &listen.event) {
            (Some(signal), None) => {
                self.check_name(signal, &child(&own, "signal"), "a signal");
                if listen.record.is_some() {
                    let message = "a signal is sent to its run: only an event has a `record`";
                    self.problems.at_value(&child(&own, "record"), Code::Schema, message);
                }
            }
            (None, Some(event)) => self.check_event_type(event, &child(&own, "event")),
            _ => {
                let message = "a `listen` has either a `signal` or an `event`";
                self.problems.at_value(&own, Code::Schema, message);
            }
        }
        Some(ListenNode { listen, on_timeout })
    }

    pub(super) fn approval(
        &mut self,
        fields: &Map<String, Value>,
        pointer: &str,
        depth: usize,
    ) -> Option<ApprovalNode> {
        self.check_fields(fields, pointer, &["approval", "on_timeout"]);
        let own = child(pointer, "approval");
        let approval: Option<Approval> = self.leaf(&fields["approval"], &own);
        let has_time = approval.as_ref().is_none_or(|approval| approval.deadline.is_some());
        let on_timeout = self.on_timeout(fields, pointer, depth, ("deadline", has_time));
        let approval = approval?;
        if let Some(Err(unusable)) = approval.form.as_ref().map(Schema::new) {
            let place = format!("{}{}", child(&own, "form"), unusable.place);
            let why = format!("this is no JSON Schema that can be used: {}", unusable.why);
            self.problems.at_value(&place, Code::Schema, why);
        }
        Some(ApprovalNode { approval, on_timeout })
    }

    pub(super) fn workflow(&mut self, value: &Value, pointer: &str) -> Option<WorkflowNode> {
        let node = self.leaf::<WorkflowNode>(value, pointer)?;
        self.check_name(&node.workflow, &child(pointer, "workflow"), "a workflow");
        Some(node)
    }

    pub(super) fn worker(&mut self, value: &Value, pointer: &str) -> Option<WorkerNode> {
        let node = self.leaf::<WorkerNode>(value, pointer)?;
        let own = child(pointer, "worker");
        let Worker { queue, safety, claim_within, timeout, .. } = &node.worker;
        self.check_name(queue, &child(&own, "queue"), "a queue");
        if *safety == Some(Safety::ReadOnly) {
            let message = "work for a worker is `at-most-once` or `idempotent`";
            self.problems.at_value(&child(&own, "safety"), Code::Schema, message);
        }
        for (field, time) in [("claim_within", claim_within), ("timeout", timeout)] {
            if time.is_some_and(|time| time.ms == 0 || time.ms > TASK_TIME_MS_MAX) {
                let message = format!("`{field}` is between 1ms and {}d", TASK_TIME_MS_MAX / 86_400_000);
                self.problems.at_value(&child(&own, field), Code::Limit, message);
            }
        }
        self.check_retry(node.retry.as_ref(), pointer);
        Some(node)
    }

    fn on_timeout(
        &mut self,
        fields: &Map<String, Value>,
        pointer: &str,
        depth: usize,
        (limit, has_limit): (&str, bool),
    ) -> Option<Vec<Step>> {
        let steps = fields.get("on_timeout")?;
        if !has_limit {
            let message = format!("without a `{limit}`, there is no time that could be over");
            self.problems.at_key(&child(pointer, "on_timeout"), Code::Unreachable, message);
        }
        Some(self.step_list(steps, &child(pointer, "on_timeout"), depth + 1))
    }
}
