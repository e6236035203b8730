//! Connections: read a call, log it, answer it as told.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use serde::Deserialize;
use serde_json::json;
use tokio::io::{AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::act::Act;
use super::log::Outcome;
use super::request::{self, Request};
use super::{State, demo, is_gone};

const INFORMATIONAL: &[u8] = b"HTTP/1.1 103 Early Hints\r\nlink: </style.css>; rel=preload\r\n\r\n";

/// Accepts until dropped, and drops its connections with itself.
pub(super) async fn accept(listener: TcpListener, state: Arc<State>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => { connections.spawn(serve(stream, Arc::clone(&state))); }
                Err(error) => eprintln!("provider: accepting: {error}"),
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn serve(stream: TcpStream, state: Arc<State>) {
    if let Err(error) = converse(stream, &state).await
        && !error.downcast_ref::<io::Error>().is_some_and(is_gone)
    {
        eprintln!("provider: {error:#}");
    }
}

async fn converse(stream: TcpStream, state: &State) -> anyhow::Result<()> {
    stream.set_nodelay(true)?;
    let mut stream = BufReader::new(stream);
    while let Some(request) = request::read(&mut stream).await? {
        if let Some(command) = request.path.strip_prefix("/__") {
            let (status, body) = control(command, &request, state)?;
            let (head, body) = message(status, &Act::default(), body, request.keep_alive);
            stream.write_all(&[head, body].concat()).await?;
        } else if !answer(&mut stream, &request, state).await? {
            return Ok(());
        }
        if !request.keep_alive {
            return Ok(());
        }
    }
    Ok(())
}

#[derive(Deserialize)]
struct Script {
    path: String,
    act: Act,
    #[serde(default = "once")]
    times: usize,
}

const fn once() -> usize {
    1
}

fn control(command: &str, request: &Request, state: &State) -> anyhow::Result<(u16, Vec<u8>)> {
    let body = match (request.method.as_str(), command) {
        ("POST", "script") => {
            let script: Script = serde_json::from_slice(&request.body).context("reading a script")?;
            state.script(&script.path, script.act, script.times);
            json!({})
        }
        ("POST", "release") => {
            state.release();
            json!({})
        }
        ("GET", "calls") => json!({ "calls": state.log.calls() }),
        _ => return Ok((404, vec![])),
    };
    Ok((200, serde_json::to_vec(&body)?))
}

/// Answers one call; `false` when the connection is spent.
async fn answer(stream: &mut BufReader<TcpStream>, request: &Request, state: &State) -> anyhow::Result<bool> {
    let act = match state.take_script(&request.path) {
        Some(act) => act,
        None => Act::from_query(&request.query)?.unwrap_or_else(|| state.take_habit()),
    };
    let mut released = state.released.subscribe();
    let seq = state.log.received(request, &act)?;
    if act.hold {
        released.changed().await?;
    }
    // A sleep of nothing would still last until the timer's next tick.
    if act.delay_ms > 0 {
        tokio::time::sleep(Duration::from_millis(act.delay_ms)).await;
    }
    let outcome = match perform(stream.get_mut(), request, &act, seq, state).await {
        Err(error) if is_gone(&error) => Outcome::CallerGone,
        performed => performed?,
    };
    let goes_on = matches!(outcome, Outcome::Answered { .. });
    state.log.ended(seq, outcome)?;
    Ok(goes_on)
}

async fn perform(
    stream: &mut TcpStream,
    request: &Request,
    act: &Act,
    seq: u64,
    state: &State,
) -> io::Result<Outcome> {
    if act.drop {
        return Ok(Outcome::Withheld { sent_bytes: 0 });
    }
    if act.endless_headers {
        return endless_headers(stream).await;
    }
    let charged = |key: &str| state.log.find(|call| demo::is_charge(call, key));
    let (status, body) = demo::answer(seq, request, charged);
    let status = act.status.unwrap_or(status);
    let body = match (&act.body, act.body_bytes) {
        (Some(body), _) => body.clone().into_bytes(),
        (None, Some(bytes)) => vec![b'x'; bytes],
        (None, None) => body.to_string().into_bytes(),
    };
    let body = if request.method == "HEAD" || matches!(status, 204 | 304) { vec![] } else { body };
    let mut head = INFORMATIONAL.repeat(act.informational);
    let (own_head, body) = message(status, act, body, request.keep_alive);
    head.extend(own_head);
    if let Some(sent_bytes) = act.reset_at.or(act.cut_at)
        && sent_bytes < head.len() + body.len()
    {
        let bytes = [head, body].concat();
        stream.write_all(&bytes[..sent_bytes]).await?;
        if act.reset_at.is_some() {
            stream.set_zero_linger()?;
        }
        return Ok(Outcome::Withheld { sent_bytes });
    }
    if let Some(pause_ms) = act.drip_ms {
        stream.write_all(&head).await?;
        for byte in body {
            tokio::time::sleep(Duration::from_millis(pause_ms)).await;
            stream.write_all(&[byte]).await?;
        }
    } else {
        stream.write_all(&[head, body].concat()).await?;
    }
    Ok(Outcome::Answered { status })
}

async fn endless_headers(stream: &mut TcpStream) -> io::Result<Outcome> {
    stream.write_all(b"HTTP/1.1 200 OK\r\n").await?;
    loop {
        stream.write_all(&b"x-more: more\r\n".repeat(64)).await?;
    }
}

/// Head and body of an answer as bytes. The reason phrase is left empty: nobody reads it.
fn message(status: u16, act: &Act, body: Vec<u8>, keep_alive: bool) -> (Vec<u8>, Vec<u8>) {
    let mut fields = vec![("content-type", "application/json".to_owned())];
    fields.extend(act.headers.iter().map(|(name, value)| (name.as_str(), value.clone())));
    fields.extend(act.retry_after.map(|seconds| ("retry-after", seconds.to_string())));
    if !keep_alive {
        fields.push(("connection", "close".to_owned()));
    }
    let body = if act.chunked {
        fields.push(("transfer-encoding", "chunked".to_owned()));
        [format!("{:x}\r\n", body.len()).as_bytes(), &body, b"\r\n0\r\n\r\n"].concat()
    } else {
        fields.push(("content-length", body.len().to_string()));
        body
    };
    let mut head = format!("HTTP/1.1 {status} \r\n");
    for (name, value) in fields {
        head.extend([name, ": ", &value, "\r\n"]);
    }
    head.push_str("\r\n");
    (head.into_bytes(), body)
}
