//! One host's connection.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};

use super::super::plan::{Committing, Severed};
use super::Wires;
use super::message::{Message, Opening, take_opening};

/// Read at once.
const CHUNK_BYTES: usize = 16 << 10;

pub(super) struct Session {
    wires: Arc<Wires>,
    /// Nothing more goes back to the host: what comes next is the answer to a commit that it shall not see.
    swallow: Arc<AtomicBool>,
    /// What the prepared statements commit, where they commit by themselves.
    statements: HashMap<Bytes, Committing>,
    /// What was bound and not yet synced.
    bound: Option<Committing>,
    in_transaction: bool,
}

impl Session {
    pub(super) fn new(wires: Arc<Wires>) -> Self {
        Self {
            wires,
            swallow: Arc::default(),
            statements: HashMap::new(),
            bound: None,
            in_transaction: false,
        }
    }

    /// Passes everything on until one side goes away, or the wire is cut.
    pub(super) async fn carry(mut self, client: TcpStream, server: UnixStream) -> io::Result<()> {
        let (mut from_client, mut to_client) = client.into_split();
        let (mut from_server, mut to_server) = server.into_split();
        let mut buffer = BytesMut::with_capacity(CHUNK_BYTES);
        loop {
            match take_opening(&mut buffer) {
                // A host that may do without it goes on.
                Some(Opening::Encryption) => to_client.write_all(b"N").await?,
                Some(Opening::Other(message)) => {
                    to_server.write_all(&message).await?;
                    break;
                }
                None if from_client.read_buf(&mut buffer).await? == 0 => return Ok(()),
                None => {}
            }
        }
        let swallow = Arc::clone(&self.swallow);
        tokio::select! {
            ended = self.upstream(&mut from_client, &mut to_server, buffer) => ended,
            ended = downstream(&mut from_server, &mut to_client, &swallow) => ended,
        }
    }

    async fn upstream(
        &mut self,
        client: &mut (impl AsyncRead + Unpin),
        server: &mut (impl AsyncWrite + Unpin),
        mut buffer: BytesMut,
    ) -> io::Result<()> {
        let mut out = BytesMut::with_capacity(CHUNK_BYTES);
        loop {
            while let Some(message) = Message::take(&mut buffer) {
                let message = self.rewritten(message);
                let severed = self.commits(&message).and_then(|what| self.wires.take_cut(what));
                if severed == Some(Severed::Before) {
                    return Ok(());
                }
                message.put(&mut out);
                if let Some(how) = severed {
                    self.swallow.store(true, Ordering::Relaxed);
                    server.write_all(&out).await?;
                    if how == Severed::Blind {
                        return Ok(());
                    }
                    // The other direction ends this one when the answer comes.
                    return std::future::pending().await;
                }
            }
            if !out.is_empty() {
                server.write_all(&out).await?;
                out.clear();
            }
            if client.read_buf(&mut buffer).await? == 0 {
                return Ok(());
            }
        }
    }

    fn rewritten(&self, message: Message) -> Message {
        if message.kind != b'P' || self.wires.rewrites.is_empty() {
            return message;
        }
        let Some(statement) = message.text(1) else { return message };
        let mut changed = None;
        for rewrite in &self.wires.rewrites {
            changed = rewrite.apply(changed.as_deref().unwrap_or(statement)).or(changed);
        }
        changed.and_then(|statement| message.with_statement(&statement)).unwrap_or(message)
    }

    /// What commits when this message is carried out, if something does that can be cut.
    fn commits(&mut self, message: &Message) -> Option<Committing> {
        match message.kind {
            b'Q' => {
                let statement = message.text(0)?.trim_start();
                let is = |word: &str| {
                    statement.get(..word.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(word))
                };
                if is("BEGIN") {
                    self.in_transaction = true;
                } else if is("COMMIT") || is("ROLLBACK") {
                    self.in_transaction = false;
                }
                is("COMMIT").then_some(Committing::Transaction)
            }
            b'P' => {
                let name = Bytes::copy_from_slice(message.text(0)?.as_bytes());
                let statement = message.text(1)?;
                if statement.contains("INSERT INTO receipts") {
                    self.statements.insert(name, Committing::Dispatch);
                } else if statement.contains("SET lease_id = gen_random_uuid()") {
                    self.statements.insert(name, Committing::Claim);
                }
                None
            }
            b'B' => {
                self.bound = self.statements.get(message.text(1)?.as_bytes()).copied();
                None
            }
            b'S' => self.bound.take().filter(|_| !self.in_transaction),
            _ => None,
        }
    }
}

async fn downstream(
    server: &mut (impl AsyncRead + Unpin),
    client: &mut (impl AsyncWrite + Unpin),
    swallow: &AtomicBool,
) -> io::Result<()> {
    let mut buffer = BytesMut::with_capacity(CHUNK_BYTES);
    loop {
        if server.read_buf(&mut buffer).await? == 0 || swallow.load(Ordering::Relaxed) {
            return Ok(());
        }
        client.write_all(&buffer).await?;
        buffer.clear();
    }
}
