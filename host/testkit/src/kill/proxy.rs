//! A wire between hosts and Postgres that can be cut at a commit, and that can take a guard out of a statement.
//!
//! It follows the client's side of the protocol message by message. Of the server's side it needs to know only when an
//! answer begins: a host asks one thing at a time, so that the first bytes after a commit was sent are the commit's.
//!
//! Source: documentation of Postgres, "Frontend/Backend Protocol", "Message Formats".

mod message;
mod rewrite;
mod session;

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, ensure};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::task::{JoinHandle, JoinSet};

pub(super) use self::rewrite::Rewrite;

use self::session::Session;
use super::plan::{Committing, Cut, Severed};

/// A listening proxy; dropping it cuts every connection.
#[derive(Debug)]
pub(super) struct Proxy {
    address: SocketAddr,
    wires: Arc<Wires>,
    listening: JoinHandle<()>,
}

/// What all connections share.
#[derive(Debug, Default)]
struct Wires {
    /// Cuts that wait for their commit.
    cuts: Mutex<VecDeque<Cut>>,
    /// Cuts made, by where: answer, blind, before.
    made: [AtomicU64; 3],
    rewrites: Vec<Rewrite>,
}

impl Proxy {
    /// Listens on a free port, and passes everything on to the server's socket.
    ///
    /// # Errors
    /// There is no port.
    pub(super) async fn start(server: PathBuf, rewrites: Vec<Rewrite>) -> anyhow::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("listening for hosts")?;
        let address = listener.local_addr()?;
        let wires = Arc::new(Wires { rewrites, ..Wires::default() });
        let listening = tokio::spawn(accept(listener, server, Arc::clone(&wires)));
        Ok(Self { address, wires, listening })
    }

    /// Where hosts connect to.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Makes a cut at the next commit of its kind.
    pub(super) fn cut(&self, cut: Cut) {
        self.wires.cuts().push_back(cut);
    }

    /// Makes no cut that has not been made.
    pub(super) fn heal(&self) {
        self.wires.cuts().clear();
    }

    /// Cuts made: after the commit, on its way, before it.
    pub(super) fn cuts_made(&self) -> [u64; 3] {
        [0, 1, 2].map(|index: usize| self.wires.made[index].load(Ordering::Relaxed))
    }

    /// # Errors
    /// A rewrite's statement was never met, so that whatever came of it shows nothing.
    pub(super) fn check_rewrites(&self) -> anyhow::Result<()> {
        for rewrite in &self.wires.rewrites {
            ensure!(rewrite.is_met(), "no statement held `{}`", rewrite.from());
        }
        Ok(())
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

impl Wires {
    fn cuts(&self) -> std::sync::MutexGuard<'_, VecDeque<Cut>> {
        self.cuts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first cut that waits for this commit, which is made now.
    fn take_cut(&self, what: Committing) -> Option<Severed> {
        let mut cuts = self.cuts();
        let index = cuts.iter().position(|cut| cut.what == what)?;
        let how = cuts.remove(index)?.how;
        let made = match how {
            Severed::Answer => &self.made[0],
            Severed::Blind => &self.made[1],
            Severed::Before => &self.made[2],
        };
        made.fetch_add(1, Ordering::Relaxed);
        Some(how)
    }
}

async fn accept(listener: TcpListener, server: PathBuf, wires: Arc<Wires>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((client, _)) => { connections.spawn(connect(client, server.clone(), Arc::clone(&wires))); }
                Err(error) => eprintln!("proxy: accepting: {error}"),
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

/// One connection. However it ends, both of its sides see the other go away.
async fn connect(client: TcpStream, server: PathBuf, wires: Arc<Wires>) {
    // No delay between a message and its answer; where it cannot be had, only time is lost.
    let _ = client.set_nodelay(true);
    // A server that is down is seen by the host as a connection that closes.
    let Ok(server) = UnixStream::connect(&server).await else { return };
    let _ = Session::new(wires).carry(client, server).await;
}
