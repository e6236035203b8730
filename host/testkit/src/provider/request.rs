//! Reading a request off a connection, strictly enough to count: half a request is no call.

use std::io;

use tokio::io::{AsyncBufRead, AsyncBufReadExt as _, AsyncReadExt as _};

/// A request that arrived whole.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) method: String,
    pub(super) path: String,
    pub(super) query: String,
    /// Names in lower case.
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
    pub(super) keep_alive: bool,
}

/// Reads the next request; `None` when the caller closed between two.
pub(super) async fn read(reader: &mut (impl AsyncBufRead + Unpin)) -> io::Result<Option<Request>> {
    let Some(request_line) = read_line(reader).await? else { return Ok(None) };
    let mut words = request_line.split(' ');
    let (Some(method), Some(target), Some(version), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(malformed("the request line"));
    };
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let mut request = Request {
        method: method.to_owned(),
        path: path.to_owned(),
        query: query.to_owned(),
        headers: vec![],
        body: vec![],
        keep_alive: version == "HTTP/1.1",
    };
    loop {
        let line = read_line(reader).await?.ok_or(io::ErrorKind::UnexpectedEof)?;
        if line.is_empty() {
            break;
        }
        let (name, value) = line.split_once(':').ok_or_else(|| malformed("a header field"))?;
        request.headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    if request.header("connection").is_some_and(|value| value.eq_ignore_ascii_case("close")) {
        request.keep_alive = false;
    }
    request.body = read_body(reader, &request).await?;
    Ok(Some(request))
}

impl Request {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(field, _)| field == name).map(|(_, value)| value.as_str())
    }
}

async fn read_body(reader: &mut (impl AsyncBufRead + Unpin), request: &Request) -> io::Result<Vec<u8>> {
    let mut body = vec![];
    if request.header("transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case("chunked")) {
        loop {
            let line = read_line(reader).await?.ok_or(io::ErrorKind::UnexpectedEof)?;
            let size = usize::from_str_radix(&line, 16).map_err(|_| malformed("a chunk size"))?;
            let begin = body.len();
            body.resize(begin + size, 0);
            reader.read_exact(&mut body[begin..]).await?;
            if read_line(reader).await?.is_none_or(|line| !line.is_empty()) {
                return Err(malformed("a chunk's end"));
            }
            if size == 0 {
                return Ok(body);
            }
        }
    }
    if let Some(length) = request.header("content-length") {
        body.resize(length.parse().map_err(|_| malformed("the content length"))?, 0);
        reader.read_exact(&mut body).await?;
    }
    Ok(body)
}

/// A line without its end; `None` at the end of the stream.
async fn read_line(reader: &mut (impl AsyncBufRead + Unpin)) -> io::Result<Option<String>> {
    let mut line = String::new();
    if reader.read_line(&mut line).await? == 0 {
        return Ok(None);
    }
    let line = line.strip_suffix("\r\n").ok_or(io::ErrorKind::UnexpectedEof)?;
    Ok(Some(line.to_owned()))
}

fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{what} cannot be read"))
}
