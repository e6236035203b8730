//! Which node stands inside which container.

use super::node::{NodeKind, PlanNode, Then};
use super::{Plan, PlanError};

/// For each node, the innermost container around it, if there is one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::workflow) struct Shape {
    around: Vec<Option<Inside>>,
    /// No node is there once more than once, or beside others.
    is_linear: bool,
}

/// A place inside a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::workflow) struct Inside {
    /// Position of the container.
    pub(in crate::workflow) container: usize,
    /// Which of its parts.
    pub(in crate::workflow) part: usize,
}

impl Shape {
    /// The shape of these nodes, all of whose edges lead somewhere.
    pub(super) fn of(nodes: &[PlanNode]) -> Result<Self, PlanError> {
        let mut around = vec![None; nodes.len()];
        let mut is_linear = true;
        for (position, node) in nodes.iter().enumerate() {
            is_linear &= !matches!(node.kind, NodeKind::Parallel { .. } | NodeKind::Map { .. });
            let mut inner_end = position + 1;
            for (part, range) in node.kind.parts().into_iter().enumerate() {
                if range.start != inner_end || range.end < range.start || range.end > nodes.len() {
                    return Err(PlanError::EdgeInvalid { node: position });
                }
                // Containers further in come later, and overwrite this.
                around[range.clone()].fill(Some(Inside { container: position, part }));
                inner_end = range.end;
            }
            let leads_on = match node.then {
                Then::Node(next) => next == inner_end && next < nodes.len(),
                Then::Join(container) => {
                    container < position
                        && nodes[container].kind.parts().iter().any(|range| range.contains(&position))
                }
                Then::End => true,
            };
            if !leads_on {
                return Err(PlanError::EdgeInvalid { node: position });
            }
        }
        Ok(Self { around, is_linear })
    }

    pub(in crate::workflow) fn around(&self, position: usize) -> Option<Inside> {
        self.around.get(position).copied().flatten()
    }

    pub(in crate::workflow) fn is_linear(&self) -> bool {
        self.is_linear
    }

    /// The place inside `container` in which `position` is, however deep.
    pub(in crate::workflow) fn part_in(&self, position: usize, container: usize) -> Option<usize> {
        self.ancestors(position).find(|inside| inside.container == container).map(|inside| inside.part)
    }

    /// The containers around a node, from the innermost out.
    pub(in crate::workflow) fn ancestors(&self, position: usize) -> impl Iterator<Item = Inside> {
        std::iter::successors(self.around(position), |inside| self.around(inside.container))
    }
}

impl Plan {
    /// Path of the innermost `map` around a node.
    pub fn map_around(&self, node: &str) -> Option<&str> {
        let is_map = |inside: &Inside| matches!(self.nodes[inside.container].kind, NodeKind::Map { .. });
        let map = self.shape().ancestors(self.position(node)?).find(is_map)?;
        Some(&self.nodes[map.container].path)
    }

    /// The innermost container around a node that is open while the node is.
    pub(in crate::workflow) fn home(&self, position: usize) -> Option<Inside> {
        self.shape().ancestors(position).find(|inside| self.nodes[inside.container].kind.is_container())
    }
}
