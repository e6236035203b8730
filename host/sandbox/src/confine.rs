//! What a child process gives up before it touches what a stranger sent.

use std::os::fd::RawFd;
use std::process;

use nix::errno::Errno;
use nix::libc;
use nix::sys::resource::{Resource, setrlimit};
use nix::unistd::{Pid, getppid};

#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfineError {
    #[error("the host that started this is gone")]
    Orphaned,
    #[error("{what} cannot be limited: {source}")]
    Limit { what: &'static str, source: Errno },
    #[cfg(target_os = "linux")]
    #[error("system calls cannot be forbidden: {0}")]
    Filter(String),
}

/// A resource that is limited: what it is, its soft and its hard limit.
pub(crate) type Limit = (&'static str, Resource, u64, u64);

/// A system call that is allowed where the argument at the index has the value.
pub(crate) type Allowed = (libc::c_long, u8, u64);

/// Closes what was inherited, limits what can be used, and ties this process to its parent.
pub(crate) fn limit(parent: Pid, limits: &[Limit]) -> Result<(), ConfineError> {
    close_inherited();
    tie_to_parent().map_err(|source| ConfineError::Limit { what: "its life", source })?;
    // A parent that died before the line above sends no signal any more.
    if getppid() != parent {
        return Err(ConfineError::Orphaned);
    }
    for (what, resource, soft, hard) in limits.iter().copied() {
        setrlimit(resource, soft, hard).map_err(|source| ConfineError::Limit { what, source })?;
    }
    Ok(())
}

/// Descriptors of the parent that are not closed by themselves: those that it inherited.
fn close_inherited() {
    let dir = if cfg!(target_os = "linux") { "/proc/self/fd" } else { "/dev/fd" };
    // Nothing is listed where there is no such directory.
    let open: Vec<RawFd> = std::fs::read_dir(dir)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    for descriptor in open.into_iter().filter(|descriptor| *descriptor > 2) {
        // One of them was the listing itself, which is closed by now.
        let _ = nix::unistd::close(descriptor);
    }
}

#[cfg(target_os = "linux")]
fn tie_to_parent() -> Result<(), Errno> {
    nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL)
}

/// Only Linux has such a signal. Elsewhere a child outlives a host that was killed until its CPU is used up.
#[cfg(not(target_os = "linux"))]
fn tie_to_parent() -> Result<(), Errno> {
    Ok(())
}

/// What every child needs: to compute, to allocate and to end. No file, no other process, and no further thread.
#[cfg(target_os = "linux")]
const FREE: &[libc::c_long] = &[
    libc::SYS_brk,
    libc::SYS_clock_gettime,
    libc::SYS_close,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_futex,
    libc::SYS_getpid,
    libc::SYS_getrandom,
    libc::SYS_gettid,
    libc::SYS_madvise,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_yield,
    libc::SYS_sigaltstack,
];

/// From here on no thread of this process makes another system call than those of every child, these `free` ones, and
/// these `allowed` ones.
#[cfg(target_os = "linux")]
pub(crate) fn forbid_system_calls_but(
    free: &[libc::c_long],
    allowed: &[Allowed],
) -> Result<(), ConfineError> {
    use seccompiler::{
        BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
        SeccompRule,
    };

    let filter = |error: seccompiler::Error| ConfineError::Filter(error.to_string());
    let mut rules: std::collections::BTreeMap<i64, Vec<SeccompRule>> =
        FREE.iter().chain(free).map(|call| (*call, Vec::new())).collect();
    // A signal to itself, which is how it aborts.
    let own_signal = (libc::SYS_tgkill, 0, u64::from(process::id()));
    for (call, index, value) in allowed.iter().copied().chain([own_signal]) {
        let rule = SeccompCondition::new(index, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value)
            .and_then(|condition| SeccompRule::new(vec![condition]))
            .map_err(|error| filter(error.into()))?;
        rules.entry(call).or_default().push(rule);
    }
    let arch =
        std::env::consts::ARCH.try_into().map_err(|error: seccompiler::BackendError| filter(error.into()))?;
    // Refused, not killed: a call that a later version of a library makes and can do without must not end the work.
    let refused = SeccompAction::Errno(libc::EPERM.cast_unsigned());
    let program: BpfProgram = SeccompFilter::new(rules, refused, SeccompAction::Allow, arch)
        .and_then(TryInto::try_into)
        .map_err(|error| filter(error.into()))?;
    match seccompiler::apply_filter_all_threads(&program) {
        Err(seccompiler::Error::Prctl(_) | seccompiler::Error::Seccomp(_)) if !can_forbid_system_calls() => {
            Ok(())
        }
        applied => applied.map_err(filter),
    }
}

/// Whether this kernel lets a process give up system calls; some are built without.
#[cfg(target_os = "linux")]
pub fn can_forbid_system_calls() -> bool {
    std::fs::read_to_string("/proc/self/status").is_ok_and(|status| status.contains("\nSeccomp:"))
}

/// Elsewhere there is no such filter that a program may put on itself.
#[cfg(not(target_os = "linux"))]
pub fn can_forbid_system_calls() -> bool {
    false
}

/// Elsewhere there is no such filter that a program may put on itself.
#[cfg(not(target_os = "linux"))]
pub(crate) fn forbid_system_calls_but(
    _free: &[libc::c_long],
    _allowed: &[Allowed],
) -> Result<(), ConfineError> {
    Ok(())
}
