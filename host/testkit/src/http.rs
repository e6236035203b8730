//! One request at a time, over a connection of its own: what tests need to speak to a host.

use anyhow::Context as _;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

/// An answer, read whole.
#[derive(Debug, Clone)]
pub struct Reply {
    /// Status code.
    pub status: u16,
    /// Content type, empty without one.
    pub content_type: String,
    /// The cookie that it sets, as a browser sends it back; empty without one.
    pub cookie: String,
    /// Body.
    pub body: Bytes,
}

impl Reply {
    /// The body as JSON.
    ///
    /// # Errors
    /// It is not JSON.
    pub fn json(&self) -> anyhow::Result<Value> {
        serde_json::from_slice(&self.body)
            .with_context(|| format!("status {}: {}", self.status, String::from_utf8_lossy(&self.body)))
    }
}

/// Sends one request to `http://127.0.0.1:port` or the like. Its `host` is that of the URL, unless the headers have one.
///
/// # Errors
/// The host is not there, or hangs up.
pub async fn send(
    base: &str,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: impl Into<Bytes>,
) -> anyhow::Result<Reply> {
    let authority = base.trim_start_matches("http://");
    let stream = TcpStream::connect(authority).await.with_context(|| format!("connecting to {base}"))?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let driving = tokio::spawn(connection);
    let mut request = http::Request::builder().method(method).uri(path);
    if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
        request = request.header("host", authority);
    }
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let response = sender.send_request(request.body(Full::new(body.into()))?).await?;
    let status = response.status().as_u16();
    let header = |name: &str| {
        let value = response.headers().get(name).and_then(|value| value.to_str().ok());
        value.unwrap_or_default().to_owned()
    };
    let content_type = header("content-type");
    let cookie = header("set-cookie").split(';').next().unwrap_or_default().to_owned();
    let body = response.into_body().collect().await?.to_bytes();
    driving.abort();
    Ok(Reply { status, content_type, cookie, body })
}
