//! A sandbox of this process, with the bounds of a host and no host around it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use counterfoil_domain::limits::StepLimits;
use counterfoil_domain::ports::{EffectPort, Refused};
use counterfoil_domain::schema::Fault;
use counterfoil_sandbox::{Allocation, Budget, Guests, Program, Sandbox, SandboxConfig};
use serde_json::{Value, json};

use crate::exit::{Exit, Failure};

/// Compiled components of one author's blocks.
const CACHE_BYTES_MAX: u64 = 1 << 30;

/// The bounds that a host's operator sets and who runs one block after another in a sandbox by itself.
pub(super) fn sandbox(cache_dir: PathBuf, effects: Arc<dyn EffectPort>) -> anyhow::Result<Sandbox> {
    let config = SandboxConfig {
        cache_dir,
        cache_bytes_max: CACHE_BYTES_MAX,
        allocation: Allocation::OnDemand,
        slots: 1,
        limits: StepLimits::DEFAULT,
        // It is the author's own block, and there is nothing here to keep from it.
        guests: Guests::Here,
        program: Program::this()?,
        compile_budget: Budget::DEFAULT,
        heard_on: None,
    };
    Ok(Sandbox::new(config, effects)?)
}

/// The refusal of an upload, in the words of the API.
pub(super) fn refusal(refused: &Refused, manifest: Option<&Path>) -> (Value, Failure) {
    let Refused { code, message, details } = refused;
    let failure =
        Failure::new(Exit::Refused, format!("a host would refuse the component ({code}): {message}"))
            .details(details.iter().map(told))
            .details([format!("advice: docs/advice/{code}.md")]);
    let failure = placed(failure, code.name(), manifest);
    let details: Vec<String> = details.iter().map(told).collect();
    (json!({ "accepted": false, "code": code, "message": message, "details": details }), failure)
}

/// A fault, with its place where it has one.
fn told(Fault { place, why }: &Fault) -> String {
    if place.is_empty() { why.clone() } else { format!("{place}: {why}") }
}

/// What is wrong with a component, at the place where it can be put right.
pub(super) fn placed(failure: Failure, code: &str, manifest: Option<&Path>) -> Failure {
    match (code, manifest) {
        ("descriptor_invalid", Some(manifest)) => {
            let next = format!("correct {}, and the same again", manifest.display());
            failure.at(manifest).next(next)
        }
        ("manifest_needless", _) => failure.next("the same without --manifest"),
        ("manifest_missing", _) => failure.next("the same with --manifest FILE"),
        ("component_invalid" | "import_unknown" | "export_missing" | "descriptor_invalid", _) => {
            failure.next("counterfoil block build DIR")
        }
        _ => failure,
    }
}
