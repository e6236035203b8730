//! What an execution came to, in the words of the ports.

use counterfoil_domain::code::Code;
use counterfoil_domain::limits::{ERROR_TEXT_BYTES_MAX, NAME_BYTES_MAX, StepLimits, bounded_text};
use counterfoil_domain::ports::{Refused, StepEnd, StepReport, VerifyEnd, VerifyReport};
use counterfoil_domain::receipt::verification::Verdict;

use crate::bindings::exports::counterfoil::block::{reconcile, step};
use crate::execution::Finished;
use crate::refusal::{refused, shown};
use crate::trap::{self, Ended, Phase};

/// A job's limits, none wider than the operator's.
pub(crate) fn narrowest(job: StepLimits, operator: StepLimits) -> StepLimits {
    StepLimits {
        memory_bytes_max: job.memory_bytes_max.min(operator.memory_bytes_max),
        table_elements_max: job.table_elements_max.min(operator.table_elements_max),
        cpu_ms_max: job.cpu_ms_max.min(operator.cpu_ms_max),
        wall_ms_max: job.wall_ms_max.min(operator.wall_ms_max),
        output_bytes_max: job.output_bytes_max.min(operator.output_bytes_max),
        log_bytes_max: job.log_bytes_max.min(operator.log_bytes_max),
        log_lines_max: job.log_lines_max.min(operator.log_lines_max),
    }
}

pub(crate) fn report(finished: Finished<Result<String, step::Failure>>, limits: &StepLimits) -> StepReport {
    let Finished { result, state, cpu_ms } = finished;
    let end = match result {
        Ok(Ok(output)) if output.len() as u64 > limits.output_bytes_max => {
            trap::output_too_large(limits).into()
        }
        Ok(Ok(output)) => StepEnd::Output(output),
        Ok(Err(failure)) => failed(failure),
        Err(ended) => trap::judge(&ended, &state.limiter, limits).into(),
    };
    let memory_bytes_peak = state.limiter.bytes_peak();
    let (logs, logs_truncated) = state.log.into_lines();
    StepReport { end, logs, logs_truncated, cpu_ms, memory_bytes_peak }
}

pub(crate) fn verdict(finished: Finished<Option<reconcile::Verdict>>, limits: &StepLimits) -> VerifyReport {
    let Finished { result, state, .. } = finished;
    let end = match result {
        Ok(Some(verdict)) => VerifyEnd::Said(verdict.into()),
        Ok(None) => VerifyEnd::Said(Verdict::Inconclusive("the block exports no `verify`".into())),
        Err(ended) => trap::judge(&ended, &state.limiter, limits).into(),
    };
    let (logs, _) = state.log.into_lines();
    VerifyReport { end, logs }
}

fn failed(failure: step::Failure) -> StepEnd {
    let (step::Reason { code, message }, retry_after_ms) = match failure {
        step::Failure::Transient((reason, retry_after_ms)) => (reason, Some(retry_after_ms.unwrap_or(0))),
        step::Failure::Permanent(reason) => (reason, None),
    };
    StepEnd::Failed {
        retry_after_ms,
        code: bounded_text(&code, NAME_BYTES_MAX),
        message: bounded_text(&message, ERROR_TEXT_BYTES_MAX),
    }
}

pub(crate) fn described(finished: Finished<String>, limits: &StepLimits) -> Result<String, Refused> {
    let verdict = match finished.result {
        Ok(text) if text.len() as u64 <= limits.output_bytes_max => return Ok(text),
        Ok(_) => trap::output_too_large(limits),
        Err(Ended::Error { phase: Phase::Linking, error }) => return Err(wrong_export(&error)),
        Err(ended) => trap::judge(&ended, &finished.state.limiter, limits),
    };
    let refusal = |code: Code, message: &str| {
        let once = "It runs once at upload and may only describe.";
        refused(Code::DescriptorInvalid, format!("`describe` did not return ({code}): {message}. {once}"))
    };
    Err(match verdict {
        trap::Verdict::Trapped { code, message } => refusal(code, &message),
        trap::Verdict::Stopped => refusal(Code::Stopped, "it asked for an effect"),
        trap::Verdict::Unavailable { message } => unready(&message),
    })
}

fn wrong_export(error: &wasmtime::Error) -> Refused {
    let reason = shown(&format!("{error:#}"));
    refused(
        Code::ExportMissing,
        format!(
            "a function that the host would call has other parameters or results than the contract says: {reason}"
        ),
    )
}

/// An upload that this host cannot judge.
pub(crate) fn unready(reason: &str) -> Refused {
    refused(Code::Unavailable, format!("this host cannot check the component now: {reason}. Try again."))
}
