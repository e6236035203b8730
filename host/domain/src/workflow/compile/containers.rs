//! Nodes that hold steps: each stands before its parts, which stand one behind the other.

use std::collections::BTreeSet;
use std::ops::Range;

use super::Compiler;
use crate::expression::child;
use crate::workflow::definition::{ApprovalNode, ListenNode, MapNode, Node, ParallelNode, Step, TryNode};
use crate::workflow::plan::{Listened, NodeKind, PlanApproval, PlanListen, PlanNode, PlanStage, Then};

impl<'a> Compiler<'a> {
    pub(super) fn container(&mut self, step: &'a Step, path: &str, then: Then) {
        // Its place comes before those of its parts.
        let position = self.nodes.len();
        self.nodes.push(PlanNode {
            path: path.to_owned(),
            kind: NodeKind::Switch { branches: vec![] },
            then,
        });
        let kind = match &step.node {
            Node::Parallel(node) => self.parallel(node, path, position),
            Node::Map(node) => self.map(node, &step.pointer, path, position),
            Node::Try(node) => self.attempt(node, path, position),
            Node::Switch(node) => {
                NodeKind::Switch { branches: self.branches(node, &step.pointer, path, position) }
            }
            Node::Listen(node) => self.listen(node, &step.pointer, path, position),
            Node::Approval(node) => self.approval(node, &step.pointer, path, position),
            _ => return,
        };
        self.nodes[position].kind = kind;
    }

    fn parallel(&mut self, node: &'a ParallelNode, path: &str, position: usize) -> NodeKind {
        let before = self.visible.clone();
        let mut inside = BTreeSet::new();
        let mut branches = Vec::new();
        for lane in &node.parallel {
            let start = self.nodes.len();
            self.list(&lane.steps, path, Then::Join(position));
            branches.push(start..self.nodes.len());
            // Branches do not see each other; steps behind them may see each that succeeded in time.
            inside.append(&mut std::mem::replace(&mut self.visible, before.clone()));
        }
        self.visible.append(&mut inside);
        NodeKind::Parallel { needed: node.join.needed(branches.len()), branches, losers: node.losers }
    }

    fn map(&mut self, node: &'a MapNode, pointer: &str, path: &str, position: usize) -> NodeKind {
        let map = &node.map;
        let items = self.template(&map.items, &child(&child(pointer, "map"), "items"));
        let before = self.visible.clone();
        self.maps += 1;
        self.list(&map.steps, path, Then::Join(position));
        self.maps -= 1;
        // Its steps have as many outputs as there are items: what is seen from behind is the map's own.
        self.visible = before;
        NodeKind::Map {
            items,
            body: position + 1..self.nodes.len(),
            concurrency: map.concurrency,
            on_failure: map.on_failure,
        }
    }

    fn attempt(&mut self, node: &'a TryNode, path: &str, position: usize) -> NodeKind {
        let end = Then::Join(position);
        let mut done = Vec::new();
        for stage in &node.stages {
            let start = self.nodes.len();
            self.list(&stage.steps, path, end);
            done.push(start..self.nodes.len());
        }
        self.chain(&done, end);
        let after = self.visible.clone();
        let mut undone = Vec::new();
        for stage in node.stages.iter().rev() {
            let start = self.nodes.len();
            self.list(&stage.undo, path, end);
            undone.push(start..self.nodes.len());
        }
        self.chain(&undone, end);
        // What undoes the stages has not run where the steps behind them do.
        self.visible = after;
        let stages = done.into_iter().zip(undone.into_iter().rev());
        let stages = stages.map(|(nodes, undo)| PlanStage { nodes, undo }).collect();
        NodeKind::Try { stages, on_failure: node.on_failure }
    }

    fn listen(&mut self, node: &'a ListenNode, pointer: &str, path: &str, position: usize) -> NodeKind {
        let listen = &node.listen;
        let at = |field: &str| child(&child(pointer, "listen"), field);
        let what = match (&listen.signal, &listen.event) {
            (Some(signal), _) => Listened::Signal(signal.clone()),
            (None, event) => Listened::Event(event.clone().unwrap_or_default()),
        };
        let plan = PlanListen {
            what,
            record: listen.record.as_ref().map(|record| self.text(record, &at("record"))),
            matches: listen.matches.as_ref().and_then(|matches| self.condition(matches, &at("match"))),
            timeout_ms: listen.timeout.map(|timeout| timeout.ms),
        };
        let on_timeout = self.on_timeout(node.on_timeout.as_deref(), path, position);
        NodeKind::Listen { listen: Box::new(plan), on_timeout }
    }

    fn approval(&mut self, node: &'a ApprovalNode, pointer: &str, path: &str, position: usize) -> NodeKind {
        let approval = &node.approval;
        let at = |field: &str| child(&child(pointer, "approval"), field);
        let plan = PlanApproval {
            title: self.text(&approval.title, &at("title")),
            detail: approval.detail.as_ref().map(|detail| self.template(detail, &at("detail"))),
            form: approval.form.clone(),
            deadline_ms: approval.deadline.map(|deadline| deadline.ms),
        };
        let on_timeout = self.on_timeout(node.on_timeout.as_deref(), path, position);
        NodeKind::Approval { approval: Box::new(plan), on_timeout }
    }

    fn on_timeout(&mut self, steps: Option<&'a [Step]>, path: &str, position: usize) -> Option<Range<usize>> {
        let start = self.nodes.len();
        self.list(steps?, path, Then::Join(position));
        Some(start..self.nodes.len())
    }

    /// Leads from the end of each list to the beginning of the next one.
    fn chain(&mut self, lists: &[Range<usize>], end: Then) {
        let lists: Vec<_> = lists.iter().filter(|list| !list.is_empty()).collect();
        for pair in lists.windows(2) {
            for node in self.nodes[pair[0].clone()].iter_mut().filter(|node| node.then == end) {
                node.then = Then::Node(pair[1].start);
            }
        }
    }
}
