//! Which steps have effects, and which of those come behind another step.

use super::Grants;
use crate::effect::Safety;
use crate::workflow::definition::Losers;
use crate::workflow::plan::{NodeKind, Plan};

/// A plan, and the steps of it that change something elsewhere.
pub(super) struct Reach<'a> {
    pub(super) plan: &'a Plan,
    effects: Vec<usize>,
}

impl<'a> Reach<'a> {
    pub(super) fn of(plan: &'a Plan, grants: &Grants) -> Self {
        let nodes = plan.nodes().iter().enumerate();
        let effects = nodes.filter(|(_, node)| has_effects(&node.kind, grants)).map(|(position, _)| position);
        Self { plan, effects: effects.collect() }
    }

    pub(super) fn has_any(&self) -> bool {
        !self.effects.is_empty()
    }

    pub(super) fn has_effects(&self, position: usize) -> bool {
        self.effects.contains(&position)
    }

    /// Path of the first step with effects that may yet come, or be kept from it, when the step at `position` is done.
    pub(super) fn behind(&self, position: usize) -> Option<&'a str> {
        let effect = self.effects.iter().find(|effect| self.is_behind(**effect, position))?;
        Some(&self.plan.nodes()[*effect].path)
    }

    fn is_behind(&self, effect: usize, position: usize) -> bool {
        let (nodes, shape) = (self.plan.nodes(), self.plan.shape());
        // Inside the step itself, or left running beside everything that follows its container.
        let around_effect = |inside: crate::workflow::plan::Inside| {
            let container = inside.container;
            let is_left = matches!(&nodes[container].kind, NodeKind::Parallel { losers: Losers::Leave, .. });
            container == position || (is_left && container < position)
        };
        if shape.ancestors(effect).any(around_effect) {
            return true;
        }
        let mut is_alternative = false;
        for inside in shape.ancestors(position) {
            let Some(part) = shape.part_in(effect, inside.container) else { continue };
            match &nodes[inside.container].kind {
                // Beside each other, or once more.
                NodeKind::Parallel { .. } | NodeKind::Map { .. } => return true,
                NodeKind::Switch { .. } => is_alternative |= part != inside.part,
                _ => {}
            }
        }
        !is_alternative && effect > position
    }
}

/// Whether a step changes something at another system, or starts something that may.
fn has_effects(kind: &NodeKind, grants: &Grants) -> bool {
    match kind {
        NodeKind::Block { digest, .. } => match grants.get(digest) {
            Some(grants) => grants.iter().any(|grant| grant.safety != Safety::ReadOnly),
            None => true,
        },
        NodeKind::Http { call, .. } => match call.safety {
            Some(safety) => safety != Safety::ReadOnly,
            None => !matches!(call.method.as_str(), "GET" | "HEAD"),
        },
        NodeKind::Emit { .. } | NodeKind::Workflow { .. } | NodeKind::Worker { .. } => true,
        NodeKind::Delay { .. }
        | NodeKind::Until { .. }
        | NodeKind::Switch { .. }
        | NodeKind::Parallel { .. }
        | NodeKind::Map { .. }
        | NodeKind::Try { .. }
        | NodeKind::Listen { .. }
        | NodeKind::Approval { .. }
        | NodeKind::Set { .. }
        | NodeKind::Stop { .. } => false,
    }
}
