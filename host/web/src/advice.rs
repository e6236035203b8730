//! What to do about each code: the pages of `docs/advice`, built into the program.

use axum::extract::Path;
use counterfoil_domain::code::Code;

use crate::pages::Page;
use crate::pages::advice::{AdviceIndex, AdvicePage};
use crate::problem::Problem;

macro_rules! pages {
    ($($code:ident = $name:literal,)*) => {
        /// The page of a code. A code without one does not compile.
        const fn markdown(code: Code) -> &'static str {
            match code {
                $(Code::$code => include_str!(concat!("../../../docs/advice/", $name, ".md")),)*
            }
        }

        #[cfg(test)]
        const NAMES: &[(Code, &str)] = &[$((Code::$code, $name),)*];
    };
}

pages! {
    Denied = "denied",
    NotSent = "not_sent",
    Rejected = "rejected",
    Unknown = "unknown",
    SlotReused = "slot_reused",
    EffectLimit = "effect_limit",
    Diverged = "diverged",
    Duplicate = "duplicate",
    Stale = "stale",
    BlockFailed = "block_failed",
    GuestTrap = "guest_trap",
    GuestExit = "guest_exit",
    MemoryLimit = "memory_limit",
    CpuLimit = "cpu_limit",
    WallLimit = "wall_limit",
    StackLimit = "stack_limit",
    OutputTooLarge = "output_too_large",
    OutputInvalid = "output_invalid",
    InputTooLarge = "input_too_large",
    InputInvalid = "input_invalid",
    HostLost = "host_lost",
    ExpressionFailed = "expression_failed",
    ExpressionTooCostly = "expression_too_costly",
    TimedOut = "timed_out",
    ChildFailed = "child_failed",
    WorkflowTooDeep = "workflow_too_deep",
    Stopped = "stopped",
    WorkerFailed = "worker_failed",
    HttpStatus = "http_status",
    ComponentInvalid = "component_invalid",
    ImportUnknown = "import_unknown",
    ExportMissing = "export_missing",
    ComponentTooLarge = "component_too_large",
    CompileBudgetExceeded = "compile_budget_exceeded",
    ManifestMissing = "manifest_missing",
    ManifestNeedless = "manifest_needless",
    DescriptorInvalid = "descriptor_invalid",
    DefinitionInvalid = "definition_invalid",
    Syntax = "syntax",
    Schema = "schema",
    Limit = "limit",
    NumberInexact = "number_inexact",
    NameInvalid = "name_invalid",
    NameTaken = "name_taken",
    NodeUnknown = "node_unknown",
    BlockUnknown = "block_unknown",
    ExpressionInvalid = "expression_invalid",
    StepNotReadable = "step_not_readable",
    WorkflowUnknown = "workflow_unknown",
    ConnectionUnknown = "connection_unknown",
    Cycle = "cycle",
    Unreachable = "unreachable",
    WorkflowNotActive = "workflow_not_active",
    SideEffectsChanged = "side_effects_changed",
    RuleNotMatched = "rule_not_matched",
    AlreadyRunning = "already_running",
    DuplicateTrigger = "duplicate_trigger",
    MissingRecordIdentity = "missing_record_identity",
    WorkflowPaused = "workflow_paused",
    BadRequest = "bad_request",
    Unauthenticated = "unauthenticated",
    Forbidden = "forbidden",
    NotFound = "not_found",
    Form = "form",
    AlreadyDecided = "already_decided",
    RunEnded = "run_ended",
    SignalLimit = "signal_limit",
    TaskNotOwned = "task_not_owned",
    TaskOver = "task_over",
    Conflict = "conflict",
    ConnectionInUse = "connection_in_use",
    TooLarge = "too_large",
    IdempotencyKeyReused = "idempotency_key_reused",
    EventIdReused = "event_id_reused",
    IdempotencyKeyBusy = "idempotency_key_busy",
    NotUnknown = "not_unknown",
    TooEarly = "too_early",
    Internal = "internal",
    Unavailable = "unavailable",
    SecretKeyMissing = "secret_key_missing",
}

/// Where a code's page is.
pub(crate) fn path(code: Code) -> String {
    format!("/advice/{code}")
}

/// The first line of a code's page: what it means, in words.
pub(crate) fn title(code: Code) -> &'static str {
    let first = markdown(code).lines().next().unwrap_or_default();
    first.trim_start_matches('#').trim()
}

/// `GET /advice/{code}`
pub(crate) async fn page(Path(name): Path<String>) -> Result<Page<AdvicePage>, Problem> {
    let code = Code::from_name(&name).ok_or_else(Problem::not_found)?;
    let mut html = String::new();
    pulldown_cmark::html::push_html(&mut html, pulldown_cmark::Parser::new(markdown(code)));
    Ok(Page(AdvicePage { code: code.name(), title: title(code), html }))
}

/// `GET /advice`
pub(crate) async fn index() -> Page<AdviceIndex> {
    Page(AdviceIndex { pages: Code::ALL.iter().map(|code| (code.name(), title(*code))).collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_its_own_page_and_each_reader_a_line() {
        assert_eq!(NAMES.len(), Code::ALL.len());
        for (code, name) in NAMES {
            assert_eq!(code.name(), *name, "the page of {code:?} is named after it");
            let page = markdown(*code);
            let (heading, body) = page.split_once('\n').expect("a heading and a body");
            assert!(heading.starts_with("# ") && heading.len() > 10, "{name}: {heading}");
            for reader in ["block author", "application developer", "operator"] {
                assert!(body.to_lowercase().contains(reader), "{name} has nothing for the {reader}");
            }
            assert!(page.lines().count() <= 15, "{name} is too long to be read");
        }
    }
}
