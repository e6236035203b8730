//! A socket that keeps what it is sent and answers with given bytes.

use std::net::{Ipv4Addr, SocketAddr};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// Listens on loopback for one connection.
pub(super) struct Listener {
    pub(super) address: SocketAddr,
    listener: TcpListener,
}

impl Listener {
    pub(super) async fn bind() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port is free");
        Self { address: listener.local_addr().expect("it is bound"), listener }
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(super) async fn accept(&self) -> TcpStream {
        self.listener.accept().await.expect("a connection arrives").0
    }

    /// Takes one request, answers it, and gives back everything that was sent until the other side closed.
    pub(super) fn answer(self, answer: impl Into<Vec<u8>>) -> JoinHandle<Vec<u8>> {
        let answer = answer.into();
        tokio::spawn(async move { converse(self.accept().await, &answer).await })
    }

    /// Gives back everything that is sent until the other side closes, and answers nothing.
    pub(super) fn listen(self) -> JoinHandle<Vec<u8>> {
        tokio::spawn(async move { read_rest(&mut self.accept().await).await })
    }

    /// Whether somebody connected.
    pub(super) async fn is_untouched(&self) -> bool {
        tokio::select! {
            biased;
            _ = self.listener.accept() => false,
            () = std::future::ready(()) => true,
        }
    }
}

/// Reads a request with a length (or without a body), answers it, closes, and gives back what was sent.
pub(super) async fn converse(mut stream: impl AsyncRead + AsyncWrite + Unpin, answer: &[u8]) -> Vec<u8> {
    let mut sent = vec![];
    while !is_whole(&sent) {
        if stream.read_buf(&mut sent).await.unwrap_or(0) == 0 {
            return sent;
        }
    }
    // Whoever has seen enough may hang up before the last byte.
    if stream.write_all(answer).await.is_ok() && stream.shutdown().await.is_ok() {
        sent.extend(read_rest(&mut stream).await);
    }
    sent
}

pub(super) async fn read_rest(stream: &mut (impl AsyncRead + Unpin)) -> Vec<u8> {
    let mut rest = vec![];
    // A reset ends the stream as well.
    let _ = stream.read_to_end(&mut rest).await;
    rest
}

fn is_whole(sent: &[u8]) -> bool {
    let Some(end) = sent.windows(4).position(|bytes| bytes == b"\r\n\r\n") else { return false };
    let (head, body) = (String::from_utf8_lossy(&sent[..end]), &sent[end + 4..]);
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    body.len() >= length.map_or(0, |length| length.parse().expect("a number"))
}
