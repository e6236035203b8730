//! What the child gives up before it reads a byte.

use std::os::fd::RawFd;
use std::process;

use nix::errno::Errno;
use nix::sys::resource::{Resource, setrlimit};
use nix::unistd::getppid;

use super::request::Request;

/// Descriptors that may be open: the three that there are, and room for what the runtime looks up about the machine.
const DESCRIPTORS_MAX: u64 = 16;
/// Seconds that the child has left once it was told that its CPU is used up.
const CPU_GRACE_S: u64 = 1;
/// Steps that run come first, uploads second.
const NICENESS: i32 = 10;

#[derive(Debug, thiserror::Error)]
pub(super) enum ConfineError {
    #[error("the host that started this is gone")]
    Orphaned,
    #[error("{what} cannot be limited: {source}")]
    Limit { what: &'static str, source: Errno },
    #[error("the priority cannot be lowered: {0}")]
    Niceness(std::io::Error),
    #[cfg(target_os = "linux")]
    #[error("system calls cannot be forbidden: {0}")]
    Filter(String),
}

/// Closes what was inherited, limits what can be used, and ties this process to its parent.
pub(super) fn limit(request: &Request) -> Result<(), ConfineError> {
    close_inherited();
    tie_to_parent().map_err(|source| ConfineError::Limit { what: "its life", source })?;
    // A parent that died before the line above sends no signal any more.
    if getppid() != request.parent {
        return Err(ConfineError::Orphaned);
    }
    let cpu_s = u64::from(request.cpu_s);
    for (what, resource, soft, hard) in [
        ("CPU", Resource::RLIMIT_CPU, cpu_s, cpu_s + CPU_GRACE_S),
        ("memory", Resource::RLIMIT_AS, request.memory_bytes, request.memory_bytes),
        ("the size of files", Resource::RLIMIT_FSIZE, 0, 0),
        ("the number of descriptors", Resource::RLIMIT_NOFILE, DESCRIPTORS_MAX, DESCRIPTORS_MAX),
        ("core dumps", Resource::RLIMIT_CORE, 0, 0),
    ] {
        setrlimit(resource, soft, hard).map_err(|source| ConfineError::Limit { what, source })?;
    }
    rustix::process::nice(NICENESS).map_err(|error| ConfineError::Niceness(error.into()))?;
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

/// From here on the process computes, allocates, reads its input and writes its output: no file, no socket, no other
/// process, and no thread.
#[cfg(target_os = "linux")]
pub(super) fn forbid_system_calls() -> Result<(), ConfineError> {
    use nix::libc;
    use seccompiler::{
        BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
        SeccompRule,
    };

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
    let filter = |error: seccompiler::Error| ConfineError::Filter(error.to_string());
    let argument_is = |value: u64| {
        SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value)
            .and_then(|condition| SeccompRule::new(vec![condition]))
            .map_err(|error| filter(error.into()))
    };
    let mut rules: std::collections::BTreeMap<i64, Vec<SeccompRule>> =
        FREE.iter().map(|call| (*call, Vec::new())).collect();
    rules.insert(libc::SYS_read, vec![argument_is(0)?]);
    rules.insert(libc::SYS_write, vec![argument_is(1)?, argument_is(2)?]);
    // A signal to itself, which is how it aborts.
    rules.insert(libc::SYS_tgkill, vec![argument_is(u64::from(process::id()))?]);
    let arch =
        std::env::consts::ARCH.try_into().map_err(|error: seccompiler::BackendError| filter(error.into()))?;
    // Refused, not killed: a call that a later version of a library makes and can do without must not end the work.
    let refused = SeccompAction::Errno(libc::EPERM.cast_unsigned());
    let program: BpfProgram = SeccompFilter::new(rules, refused, SeccompAction::Allow, arch)
        .and_then(TryInto::try_into)
        .map_err(|error| filter(error.into()))?;
    match seccompiler::apply_filter(&program) {
        Err(seccompiler::Error::Prctl(_) | seccompiler::Error::Seccomp(_)) if !has_filters() => Ok(()),
        applied => applied.map_err(filter),
    }
}

/// Kernels may be built without.
#[cfg(target_os = "linux")]
fn has_filters() -> bool {
    std::fs::read_to_string("/proc/self/status").is_ok_and(|status| status.contains("\nSeccomp:"))
}

/// Elsewhere there is no such filter that a program may put on itself.
#[cfg(not(target_os = "linux"))]
pub(super) fn forbid_system_calls() -> Result<(), ConfineError> {
    Ok(())
}
