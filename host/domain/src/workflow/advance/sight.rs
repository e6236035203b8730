//! What a step sees of the others: what had certainly come about before it began, and nothing that came about beside it,
//! so that it is given the same whenever it runs.

use serde_json::Value;

use crate::expression::Scope;
use crate::workflow::plan::{NodeKind, Plan};

/// Outputs of steps that succeeded: node, iteration, output.
pub type Outputs<'a> = Vec<(&'a str, &'a [u32], &'a Value)>;

impl Plan {
    /// Adds to `scope` what the step of `node` in `iteration` sees of `outputs`. Where the step itself has just succeeded,
    /// its output is among them, and what comes behind it is who looks.
    pub fn show<'a>(&self, scope: &mut Scope<'a>, outputs: &Outputs<'a>, node: &str, iteration: &[u32]) {
        if self.shape().is_linear() {
            for (seen, _, output) in outputs {
                scope.add_step(seen, output);
            }
            return;
        }
        let Some(reader) = self.position(node) else { return };
        for (seen, at, output) in outputs {
            if iteration.starts_with(at) && self.sees(reader, seen, outputs, iteration) {
                scope.add_step(seen, output);
            }
        }
    }

    fn sees(&self, reader: usize, seen: &str, outputs: &Outputs<'_>, iteration: &[u32]) -> bool {
        let Some(seen) = self.position(seen) else { return false };
        self.shape().ancestors(seen).all(|inside| {
            let container = &self.nodes()[inside.container];
            match (&container.kind, self.shape().part_in(reader, inside.container)) {
                (NodeKind::Parallel { .. }, Some(part)) => part == inside.part,
                (NodeKind::Parallel { .. }, None) => {
                    let joined = outputs
                        .iter()
                        .find(|(node, at, _)| *node == container.path && iteration.starts_with(at));
                    joined.is_some_and(|(_, _, output)| has_won(output, inside.part))
                }
                (NodeKind::Map { .. }, part) => part.is_some(),
                _ => true,
            }
        })
    }
}

/// Whether a `parallel` with this output had this branch when it went on.
fn has_won(output: &Value, branch: usize) -> bool {
    let succeeded = output.get("succeeded").and_then(Value::as_array);
    succeeded.is_some_and(|won| won.iter().any(|won| won.as_u64() == Some(branch as u64)))
}
