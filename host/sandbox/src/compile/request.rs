//! What the parent asks of the child, on its command line.

use std::ffi::{OsStr, OsString};
use std::process;
use std::time::Duration;

use nix::unistd::Pid;

use super::Effort;

/// The first argument of a child that compiles.
pub(crate) const COMMAND: &str = "__compile";

/// What compiling one component may take; a second attempt, without optimisation, may take it once more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// CPU of the child, in whole seconds.
    pub cpu_s: u32,
    /// Address space of the child.
    pub memory_bytes: u64,
    /// From the start of the child to its end.
    pub wall: Duration,
}

impl Budget {
    /// Twice what the largest runtimes of scripting languages need: 9 s of CPU and 0.5 GB.
    pub const DEFAULT: Self = Self { cpu_s: 20, memory_bytes: 2 << 30, wall: Duration::from_mins(1) };
}

/// One child's task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) parent: Pid,
    pub(super) cpu_s: u32,
    pub(super) memory_bytes: u64,
    pub(super) effort: Effort,
}

const OPTIMISED: &str = "optimised";
const UNOPTIMISED: &str = "unoptimised";

impl Request {
    /// Of this process.
    pub(super) fn new(budget: &Budget, effort: Effort) -> Self {
        let Budget { cpu_s, memory_bytes, .. } = *budget;
        let parent = Pid::from_raw(process::id().cast_signed());
        Self { parent, cpu_s, memory_bytes, effort }
    }

    pub(super) fn to_args(self) -> [String; 5] {
        let effort = match self.effort {
            Effort::Optimised => OPTIMISED,
            Effort::Unoptimised => UNOPTIMISED,
        };
        let numbers = [self.parent.to_string(), self.cpu_s.to_string(), self.memory_bytes.to_string()];
        let [parent, cpu_s, memory_bytes] = numbers;
        [COMMAND.into(), parent, cpu_s, memory_bytes, effort.into()]
    }

    /// Reads what follows [`COMMAND`].
    pub(super) fn parse(args: impl IntoIterator<Item = OsString>) -> Option<Self> {
        let args: Vec<OsString> = args.into_iter().collect();
        let [parent, cpu_s, memory_bytes, effort] = args.as_slice() else { return None };
        let effort = match effort.to_str()? {
            OPTIMISED => Effort::Optimised,
            UNOPTIMISED => Effort::Unoptimised,
            _ => return None,
        };
        let parent = Pid::from_raw(number(parent)?);
        Some(Self { parent, cpu_s: number(cpu_s)?, memory_bytes: number(memory_bytes)?, effort })
    }
}

fn number<T: std::str::FromStr>(arg: &OsStr) -> Option<T> {
    arg.to_str()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_read_as_it_was_written_and_otherwise_not_at_all() {
        let parse = |line: &str| Request::parse(line.split_whitespace().map(OsString::from));
        for effort in [Effort::Optimised, Effort::Unoptimised] {
            let request = Request::new(&Budget::DEFAULT, effort);
            assert_eq!(parse(&request.to_args()[1..].join(" ")), Some(request));
        }
        for line in ["", "7 20 1000", "7 20 1000 fast", "x 20 1000 optimised", "7 20 1000 optimised more"] {
            assert_eq!(parse(line), None, "{line:?}");
        }
    }
}
