//! What is different between two versions, for people.

use serde_json::Value;

use crate::output::{one_line, plain};

/// Signs of a value that stand in a line.
const VALUE_SIGNS_MAX: usize = 100;

/// A line for each change, `!` before those that touch side effects, and beneath it what it was and what it is.
pub(super) fn text(diff: &Value) -> String {
    let [name, from, to] = ["name", "from", "to"].map(|field| plain(&diff[field]));
    let changes = diff["changes"].as_array().map_or(&[][..], Vec::as_slice);
    if changes.is_empty() {
        return format!("{name}: v{to} does what v{from} does");
    }
    let mut lines = vec![format!("{name}: v{from} to v{to}")];
    for change in changes {
        let risk = change["risk"].as_str();
        let sign = if risk.is_some() { '!' } else { ' ' };
        let [subject, name, how] = ["subject", "name", "how"].map(|field| plain(&change[field]));
        let why = risk.map(|risk| format!("  ({})", one_line(risk))).unwrap_or_default();
        lines.push(format!("{sign} {subject} {} {how}{why}", one_line(&name)));
        for field in change["fields"].as_array().into_iter().flatten() {
            let [from, to] = ["from", "to"].map(|side| short(&field[side]));
            lines.push(format!("      {}: {from} -> {to}", one_line(&plain(&field["field"]))));
        }
    }
    lines.join("\n")
}

fn short(value: &Value) -> String {
    let text = one_line(&value.to_string());
    let mut signs = text.chars();
    let short: String = signs.by_ref().take(VALUE_SIGNS_MAX).collect();
    if signs.next().is_some() { format!("{short}…") } else { short }
}
