//! What an error of the runtime means for the step, and its text, bounded and safe to show.

use std::fmt::{self, Write};

use counterfoil_domain::code::Code;
use counterfoil_domain::limits::{BACKTRACE_FRAMES_MAX, ERROR_TEXT_BYTES_MAX, StepLimits, bounded_text};
use counterfoil_domain::ports::{StepEnd, VerifyEnd};
use wasmtime::{Trap, WasmBacktrace};

use crate::engine::WASM_STACK_BYTES_MAX;
use crate::host::Abort;
use crate::limiter::Limiter;

/// Longer names are shown as they are: taking one apart may cost the host more than it tells.
const DEMANGLED_NAME_BYTES_MAX: usize = 1 << 10;
/// One name must not push the other frames out of the text.
const FRAME_BYTES_MAX: usize = 160;

/// How far an execution had come when it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Start functions of the guest may have run.
    Instantiating,
    /// The types of the exports are compared with the contract.
    Linking,
    Calling,
}

/// An execution that ended without an answer of the guest.
#[derive(Debug)]
pub(crate) enum Ended {
    /// The time for the whole of it was over.
    Wall,
    Error {
        phase: Phase,
        error: wasmtime::Error,
    },
}

/// What an end without an answer means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The effect port ended it.
    Stopped,
    /// The guest is at fault, or met a limit.
    Trapped { code: Code, message: String },
    /// This host could not give it its place.
    Unavailable { message: String },
}

impl From<Verdict> for StepEnd {
    fn from(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Stopped => Self::Stopped,
            Verdict::Trapped { code, message } => Self::Trapped { code, message },
            Verdict::Unavailable { message } => Self::Unavailable { message },
        }
    }
}

impl From<Verdict> for VerifyEnd {
    fn from(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Stopped => Self::Stopped,
            Verdict::Trapped { code, message } => Self::Trapped { code, message },
            Verdict::Unavailable { message } => Self::Unavailable { message },
        }
    }
}

/// Judges an end without an answer.
pub(crate) fn judge(ended: &Ended, limiter: &Limiter, limits: &StepLimits) -> Verdict {
    match ended {
        Ended::Wall => out_of_time(limits),
        Ended::Error { phase, error } => judge_error(error, *phase, limiter, limits),
    }
}

fn judge_error(error: &wasmtime::Error, phase: Phase, limiter: &Limiter, limits: &StepLimits) -> Verdict {
    let frames = error.downcast_ref::<WasmBacktrace>();
    let trapped = |code, reason: &str| Verdict::Trapped { code, message: text(reason, frames) };
    if let Some(abort) = error.downcast_ref::<Abort>() {
        return match abort {
            Abort::Stopped => Verdict::Stopped,
            abort => trapped(abort.code(), &abort.to_string()),
        };
    }
    let trap = error.downcast_ref::<Trap>();
    let in_guest = trap.is_some() || frames.is_some();
    let cause = error.root_cause().to_string();
    match (trap, limiter.refusal()) {
        (Some(Trap::Interrupt), _) => {
            trapped(Code::CpuLimit, &format!("it used more than its {} ms of CPU", limits.cpu_ms_max))
        }
        (Some(Trap::StackOverflow), _) => trapped(
            Code::StackLimit,
            &format!("its calls went deeper than {} KiB of stack", WASM_STACK_BYTES_MAX >> 10),
        ),
        // An allocator that is refused memory traps in its own words.
        (_, Some(refusal)) => trapped(Code::MemoryLimit, refusal),
        // No guest code failed, and no limit was met: this machine could not give it its place.
        _ if !in_guest && phase == Phase::Instantiating => {
            Verdict::Unavailable { message: bounded_text(&cause, ERROR_TEXT_BYTES_MAX) }
        }
        // Outside the guest only its output is copied.
        _ if !in_guest && is_copy_limit(&cause) => output_too_large(limits),
        _ => trapped(Code::GuestTrap, &cause),
    }
}

/// The verdict on an output beyond its limit.
pub(crate) fn output_too_large(limits: &StepLimits) -> Verdict {
    let reason = format!("its output is larger than {} bytes", limits.output_bytes_max);
    Verdict::Trapped { code: Code::OutputTooLarge, message: text(&reason, None) }
}

pub(crate) fn out_of_time(limits: &StepLimits) -> Verdict {
    let reason = format!("it took longer than its {} ms", limits.wall_ms_max);
    Verdict::Trapped { code: Code::WallLimit, message: text(&reason, None) }
}

/// The runtime's error for a copy beyond the host-call fuel has no public type, only a text.
fn is_copy_limit(cause: &str) -> bool {
    cause.contains("fuel allocated for hostcalls")
}

/// The reason, and the guest's innermost frames.
fn text(reason: &str, frames: Option<&WasmBacktrace>) -> String {
    let mut text = format!("the block was ended: {reason}");
    for frame in frames.into_iter().flat_map(WasmBacktrace::frames).take(BACKTRACE_FRAMES_MAX) {
        let mut line = Bounded { text: String::new(), bytes_left: FRAME_BYTES_MAX };
        // A full line is an error of the writer, and as much of the name as is shown.
        let _ = match frame.func_name() {
            Some(name) => write_name(&mut line, name),
            None => write!(line, "function {}", frame.func_index()),
        };
        text.push_str("\n  at ");
        text.push_str(&line.text);
    }
    bounded_text(&text, ERROR_TEXT_BYTES_MAX)
}

fn write_name(line: &mut Bounded, name: &str) -> fmt::Result {
    let demangled =
        (name.len() <= DEMANGLED_NAME_BYTES_MAX).then(|| rustc_demangle::try_demangle(name).ok()).flatten();
    match demangled {
        // The alternate form leaves out the hash.
        Some(name) => write!(line, "{name:#}"),
        None => line.write_str(name),
    }
}

/// Takes what fits and then fails, so that whoever writes stops.
struct Bounded {
    text: String,
    bytes_left: usize,
}

impl Write for Bounded {
    fn write_str(&mut self, piece: &str) -> fmt::Result {
        for character in piece.chars() {
            let bytes = character.len_utf8();
            if bytes > self.bytes_left {
                self.text.push('…');
                self.bytes_left = 0;
                return Err(fmt::Error);
            }
            self.bytes_left -= bytes;
            // A name is one line.
            self.text.push(if character == '\n' { ' ' } else { character });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Phase::{Calling, Instantiating};
    use super::*;

    #[test]
    fn a_frame_shows_a_name_for_people_and_never_more_than_its_share() {
        let long = "x".repeat(72_000);
        let cut = format!("{}…", "x".repeat(FRAME_BYTES_MAX));
        for (name, expected) in [
            ("run", "run"),
            ("_ZN11charge_card3run17h0123456789abcdefE", "charge_card::run"),
            ("two\nlines", "two lines"),
            (&long, &cut),
        ] {
            let mut line = Bounded { text: String::new(), bytes_left: FRAME_BYTES_MAX };
            let _ = write_name(&mut line, name);
            assert_eq!(line.text, expected);
        }
    }

    #[test]
    fn every_error_has_its_code() {
        let limits = StepLimits::DEFAULT;
        let mut refusing = Limiter::new(&StepLimits { memory_bytes_max: 0, ..limits });
        let _ = wasmtime::ResourceLimiter::memory_growing(&mut refusing, 0, 1, None);
        let granting = Limiter::new(&limits);
        let end = |error, phase, limiter| judge(&Ended::Error { phase, error }, limiter, &limits);
        let code = |error: wasmtime::Error, phase, limiter| match end(error, phase, limiter) {
            Verdict::Trapped { code, .. } => Some(code),
            _ => None,
        };
        for (error, phase, limiter, expected) in [
            (Trap::UnreachableCodeReached.into(), Calling, &granting, Some(Code::GuestTrap)),
            (Trap::UnreachableCodeReached.into(), Calling, &refusing, Some(Code::MemoryLimit)),
            (Trap::Interrupt.into(), Calling, &refusing, Some(Code::CpuLimit)),
            (Trap::StackOverflow.into(), Instantiating, &granting, Some(Code::StackLimit)),
            (Abort::RandomTooLong(9).into(), Calling, &granting, Some(Code::GuestTrap)),
            (Abort::EffectInDescribe.into(), Instantiating, &granting, Some(Code::GuestTrap)),
            (Abort::Exit(3).into(), Calling, &granting, Some(Code::GuestExit)),
            (wasmtime::Error::msg("no more mappings"), Instantiating, &granting, None),
            (
                wasmtime::Error::msg("memory minimum exceeds limits"),
                Instantiating,
                &refusing,
                Some(Code::MemoryLimit),
            ),
            (wasmtime::Error::msg("invalid utf-8"), Calling, &granting, Some(Code::GuestTrap)),
            (Abort::Stopped.into(), Calling, &refusing, None),
        ] {
            let shown = error.to_string();
            assert_eq!(code(error, phase, limiter), expected, "{shown}");
        }
        assert_eq!(end(Abort::Stopped.into(), Calling, &refusing), Verdict::Stopped);
    }
}
