//! The server's process, and the thread that it is tied to.

use std::future::Future;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::Child;
use tokio::sync::{oneshot, watch};
use tokio::time::timeout;

use super::error::ClusterError;

/// How a server ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shutdown {
    /// Open transactions are rolled back and everything is written; the next start has nothing to repair.
    Fast,
    /// At once, as if the server had crashed; the next start reads what was committed from the log.
    Immediate,
}

impl Shutdown {
    /// What is sent, and how long it may take before the next is sent; then the process is killed.
    fn signals(self) -> &'static [(Signal, Duration)] {
        // The checkpoint of a fast shutdown may have much to write.
        const FAST: (Signal, Duration) = (Signal::SIGINT, Duration::from_secs(30));
        // A server kills what has not ended after five seconds by itself.
        const IMMEDIATE: (Signal, Duration) = (Signal::SIGQUIT, Duration::from_secs(10));
        match self {
            Self::Fast => &[FAST, IMMEDIATE],
            Self::Immediate => &[IMMEDIATE],
        }
    }
}

/// A server that was started. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct Server {
    orders: Option<oneshot::Sender<Shutdown>>,
    exit: watch::Receiver<Option<ExitStatus>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Server {
    /// Starts `command` on a thread that lives as long as the server does: the kernel takes the death of the *thread*
    /// that started a process for the death of its parent.
    pub(super) fn launch(mut command: Command) -> Result<Self, ClusterError> {
        // In a group of its own, so that Ctrl-C at the terminal reaches the host, which then ends the server last.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let program = command.get_program().to_owned();
        let failed = || ClusterError::io("run", &program);

        let (orders, ordered) = oneshot::channel();
        let (exited, exit) = watch::channel(None);
        let (report, started) = std::sync::mpsc::sync_channel(1);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed())?;
        let thread = std::thread::Builder::new()
            .name("postgres".to_owned())
            .spawn(move || {
                runtime.block_on(async move {
                    match tokio::process::Command::from(command).spawn() {
                        Ok(child) => {
                            let _ = report.send(Ok(()));
                            let status = keep(child, ordered).await;
                            exited.send_replace(status.ok());
                        }
                        Err(error) => {
                            let _ = report.send(Err(error));
                        }
                    }
                });
            })
            .map_err(failed())?;
        let server = Self { orders: Some(orders), exit, thread: Some(thread) };
        started.recv().map_err(|lost| ClusterError::Internal(lost.into()))?.map_err(failed())?;
        Ok(server)
    }

    /// Resolves when the process has ended.
    pub(super) fn exited(&self) -> impl Future<Output = Result<ExitStatus, ClusterError>> + use<> {
        let mut exit = self.exit.clone();
        async move {
            let status = exit.wait_for(Option::is_some).await.map(|status| *status);
            match status {
                Ok(Some(status)) => Ok(status),
                Ok(None) => Err(ClusterError::Internal("an ended process without a status".into())),
                Err(lost) => Err(ClusterError::Internal(lost.into())),
            }
        }
    }

    /// Ends the process and waits for it.
    pub(super) async fn stop(mut self, how: Shutdown) -> Result<ExitStatus, ClusterError> {
        // If nobody takes the order, it has ended already.
        let _ = self.orders.take().map(|orders| orders.send(how));
        self.exited().await
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Without an order the thread ends the server as the kernel would.
        drop(self.orders.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Waits for the process, or for the order to end it. Only this reaps it, so its number is nobody else's.
async fn keep(mut child: Child, ordered: oneshot::Receiver<Shutdown>) -> std::io::Result<ExitStatus> {
    let how = tokio::select! {
        status = child.wait() => return status,
        how = ordered => how.unwrap_or(Shutdown::Fast),
    };
    for (signal, patience) in how.signals() {
        send(&child, *signal)?;
        if let Ok(status) = timeout(*patience, child.wait()).await {
            return status;
        }
    }
    child.kill().await?;
    child.wait().await
}

fn send(child: &Child, signal: Signal) -> std::io::Result<()> {
    let Some(pid) = child.id().and_then(|id| i32::try_from(id).ok()) else { return Ok(()) };
    match kill(Pid::from_raw(pid), signal) {
        Ok(()) | Err(Errno::ESRCH) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}
