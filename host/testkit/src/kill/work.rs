//! The work that the hosts are given: connections, blocks, and a workflow for each shape of effects.

use std::path::Path;

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};

use crate::host::Caller;

/// The blocks that the workflows run.
const BLOCKS: [&str; 6] =
    ["charge-card", "charge-card-verified", "count-order", "enrich-lead", "place-order", "two-effects"];

/// The workflows by name; those with effects of their own kind come once, charges twice.
pub(super) const WORKFLOWS: &[&str] =
    &["charge", "charge", "two", "order", "lead", "hook", "once", "twice", "claims", "verified", "counted"];

/// How long the workflow `lead` waits in its middle.
pub(super) const DELAY_MS: i64 = 300;

/// How long the two timers of the workflow `claims` wait.
pub(super) const PAUSE_MS: i64 = 10;

/// Uploads the blocks and activates the workflows for one tenant, whose calls go to `provider_url`.
///
/// # Errors
/// A block has not been built, or the host refuses something.
pub(super) async fn furnish(host: Caller<'_>, blocks: &Path, provider_url: &str) -> anyhow::Result<()> {
    for name in ["payments", "crm"] {
        host.call("PUT", &format!("/v1/connections/{name}"), &json!({ "base_url": provider_url })).await?;
    }
    for block in BLOCKS {
        let file = blocks.join(format!("{block}.wasm"));
        ensure!(file.exists(), "{} is not there: run scripts/guests first", file.display());
        host.push_block(block, &file).await?;
    }
    for workflow in workflows() {
        host.activate(&workflow).await.with_context(|| workflow["name"].to_string())?;
    }
    Ok(())
}

fn block(name: &str) -> Value {
    json!({ "block": name, "input": "=input", "retry": retry() })
}

fn retry() -> Value {
    json!({ "attempts": 4, "delays": ["200ms", "500ms", "1s"] })
}

fn post(path: &str, safety: &str) -> Value {
    let call = json!({
        "method": "POST", "url": path, "connection": "payments", "safety": safety,
        "body": { "order": "=input.order", "cents": "=input.cents" },
    });
    json!({ "http": call, "retry": retry() })
}

fn workflows() -> [Value; 10] {
    let invariant = |scope: &str| json!([{ "id": "charged-once", "kind": "http", "rule": "effect_at_most_once", "scope": scope }]);
    [
        json!({ "name": "charge", "steps": [{ "charge": block("charge-card") }] }),
        // Two at-most-once effects in one step, of which the second may be refused for now or for good.
        json!({ "name": "two", "steps": [{ "both": block("two-effects") }] }),
        // All three safeties in one step.
        json!({ "name": "order", "steps": [{ "place": block("place-order") }] }),
        // A read, a timer, a charge.
        json!({ "name": "lead", "steps": [
            { "enrich": block("enrich-lead") },
            { "wait": { "delay": format!("{DELAY_MS}ms") } },
            { "charge": block("charge-card") },
        ] }),
        // Calls without a block.
        json!({ "name": "hook", "steps": [
            { "first": post("/hooks/first", "at-most-once") },
            { "second": post("/hooks/second", "idempotent") },
        ] }),
        // The same order, of many runs, is charged once.
        json!({ "name": "once", "steps": [{ "charge": block("charge-card") }], "invariants": invariant("workflow") }),
        // The same order, of two steps of a run, is charged once: the second step fails.
        json!({ "name": "twice", "steps": [
            { "charge": block("charge-card") }, { "again": block("charge-card") },
        ], "invariants": invariant("lineage") }),
        // What is unknown, the block itself can ask for.
        json!({ "name": "verified", "steps": [{ "charge": block("charge-card-verified") }] }),
        // Effects on the host's own database, and one on the provider.
        json!({ "name": "counted", "steps": [{ "count": block("count-order") }, { "charge": block("charge-card") }] }),
        // Steps that have no effect at all beside one that has.
        json!({ "name": "claims", "steps": [
            { "a": { "delay": format!("{PAUSE_MS}ms") } }, { "b": { "delay": format!("{PAUSE_MS}ms") } }, { "charge": block("charge-card") },
        ] }),
    ]
}
