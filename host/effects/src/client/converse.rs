//! The HTTP conversation over a connection.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::{error::Error as _, io};

use bytes::Bytes;
use counterfoil_domain::effect::HttpResponse;
use counterfoil_domain::ports::Site;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout_at;

use super::wire::{RequestSide, Wire};
use super::{Budget, Deadline, Lost, LostKind, chain};

/// Writes the request and reads its answer.
pub(super) async fn converse<S: AsyncRead + AsyncWrite + Unpin>(
    stream: RequestSide<'_, S>,
    mut message: Request<Full<Bytes>>,
    budget: &Budget,
    deadline: &Deadline,
    wire: &Wire<'_>,
) -> Result<HttpResponse, Lost> {
    let informational = Arc::clone(&wire.informational);
    hyper::ext::on_informational(&mut message, move |_| {
        informational.fetch_add(1, Ordering::Relaxed);
    });
    let (mut sender, connection) = http1::Builder::new()
        .max_headers(budget.headers_max)
        .max_header_size(budget.head_bytes_max)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(|error| lost(&error))?;
    let answer = async move {
        let head = timeout_at(deadline.within(budget.first_byte_ms_max), sender.send_request(message))
            .await
            .map_err(|_| Lost::new(LostKind::Timeout, "the answer did not begin in time"))?
            .map_err(|error| lost(&error))?;
        if wire.is_flooded() {
            return Err(flooded());
        }
        if head.status() == StatusCode::SWITCHING_PROTOCOLS {
            return Err(Lost::new(
                LostKind::Malformed,
                "the server switched to a protocol that was not asked for",
            ));
        }
        wire.faults.reach(Site::MidAnswer);
        let (head, body) = head.into_parts();
        let (body, truncated) = timeout_at(deadline.0, read_body(body, budget.body_bytes_max))
            .await
            .map_err(|_| Lost::new(LostKind::Timeout, "the answer did not end in time"))?
            .map_err(|error| lost(&error))?;
        Ok(HttpResponse { status: head.status.as_u16(), headers: owned(&head.headers), body, truncated })
    };
    drive(connection, answer).await.map_err(|lost| if wire.is_flooded() { flooded() } else { lost })
}

/// Polls a connection for as long as its answer needs it. Neither is spawned: dropping the future drops both.
pub(super) async fn drive<A>(connection: impl Future, answer: impl Future<Output = A>) -> A {
    let (mut connection, mut answer) = (pin!(connection), pin!(answer));
    tokio::select! {
        biased;
        answer = &mut answer => return answer,
        // What the connection ended with reaches the answer as well.
        _ = &mut connection => {}
    }
    answer.await
}

/// Reads a body up to `bytes_max`, and says whether there was more.
async fn read_body(mut incoming: Incoming, bytes_max: usize) -> Result<(Vec<u8>, bool), hyper::Error> {
    let mut body = vec![];
    while let Some(frame) = incoming.frame().await {
        let Ok(data) = frame?.into_data() else { continue };
        let room = bytes_max - body.len();
        body.extend_from_slice(&data[..data.len().min(room)]);
        if data.len() > room {
            return Ok((body, true));
        }
    }
    Ok((body, false))
}

/// Header fields as text, names in lower case; bytes that are not UTF-8 are replaced.
pub(super) fn owned(headers: &HeaderMap) -> Vec<(String, String)> {
    let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect()
}

fn flooded() -> Lost {
    Lost::new(LostKind::HeadTooLarge, "too many informational answers")
}

fn lost(error: &hyper::Error) -> Lost {
    let io_kind = error.source().and_then(|source| source.downcast_ref::<io::Error>()).map(io::Error::kind);
    let kind = if error.is_parse_too_large() {
        LostKind::HeadTooLarge
    } else if matches!(io_kind, Some(io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput)) {
        // The body's framing, which is read as if it were input.
        LostKind::Malformed
    } else if error.is_incomplete_message() || error.is_canceled() || error.is_closed() || io_kind.is_some() {
        LostKind::Closed
    } else {
        LostKind::Malformed
    };
    Lost::new(kind, chain(error))
}
