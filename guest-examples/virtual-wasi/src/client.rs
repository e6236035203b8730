//! A client of `wasi:http`.

use std::io::{Read as _, Write as _};

use counterfoil_sdk::prelude::*;
use wasip2::http::outgoing_handler;
use wasip2::http::types::{
    ErrorCode, Fields, Method, OutgoingBody, OutgoingRequest, OutgoingResponse, RequestOptions, Scheme,
};

#[derive(Deserialize, JsonSchema)]
pub struct Wanted {
    method: Option<String>,
    authority: Option<String>,
    path: Option<String>,
    #[serde(default)]
    headers: Vec<(String, String)>,
    /// Sent in pieces, `body-times` times; without one, the body is not asked for.
    body: Option<String>,
    #[serde(default)]
    body_times: usize,
    timeout_ms: Option<u64>,
    /// The body is finished before the request is handed over, rather than after.
    #[serde(default)]
    early: bool,
    /// The body is dropped in place of being finished.
    #[serde(default)]
    dropped: bool,
}

pub fn request(wanted: Wanted) -> Value {
    let headers: Vec<_> =
        wanted.headers.iter().map(|(name, value)| (name.clone(), value.clone().into_bytes())).collect();
    let headers = match Fields::from_list(&headers) {
        Ok(headers) => headers,
        Err(error) => return json!({ "header": format!("{error:?}") }),
    };
    let request = OutgoingRequest::new(headers);
    let method = match wanted.method.as_deref() {
        None | Some("GET") => Method::Get,
        Some("HEAD") => Method::Head,
        Some("POST") => Method::Post,
        Some("DELETE") => Method::Delete,
        Some(other) => Method::Other(other.into()),
    };
    request.set_method(&method).expect("a method");
    request.set_scheme(Some(&Scheme::Https)).expect("a scheme");
    if request.set_authority(wanted.authority.as_deref()).is_err() {
        return json!("no authority");
    }
    request.set_path_with_query(wanted.path.as_deref()).expect("a path");
    let options = wanted.timeout_ms.map(|ms| {
        let options = RequestOptions::new();
        options.set_first_byte_timeout(Some(ms * 1_000_000)).expect("a timeout");
        options
    });
    let body = wanted.body.as_ref().map(|_| request.body().expect("not taken yet"));
    assert!(wanted.body.is_none() || request.body().is_err());
    let mut finished = Ok(());
    let send = |body: Option<OutgoingBody>| -> Result<(), ErrorCode> {
        let (Some(body), Some(text)) = (body, &wanted.body) else { return Ok(()) };
        let mut stream = body.write().expect("not taken yet");
        // A stream that closes is told of at the end.
        let _ = (0..wanted.body_times.max(1)).try_for_each(|_| stream.write_all(text.as_bytes()));
        drop(stream);
        if wanted.dropped { Ok(drop(body)) } else { OutgoingBody::finish(body, None) }
    };
    let handled = if wanted.early {
        finished = send(body);
        outgoing_handler::handle(request, options)
    } else {
        let handled = outgoing_handler::handle(request, options);
        if handled.is_ok() {
            finished = send(body);
        }
        handled
    };
    let answer = match handled {
        Ok(answer) => answer,
        Err(code) => return json!({ "handled": format!("{code:?}") }),
    };
    answer.subscribe().block();
    let response = match answer.get().expect("it is ready").expect("not taken yet") {
        Ok(response) => response,
        Err(code) => return json!({ "error": format!("{code:?}"), "finished": finished.is_ok() }),
    };
    assert!(answer.get().expect("it is ready").is_err());
    let headers: Vec<_> = response
        .headers()
        .entries()
        .into_iter()
        .map(|(name, value)| (name, String::from_utf8_lossy(&value).into_owned()))
        .collect();
    assert!(response.headers().append("x-mine", b"1").is_err());
    let body = response.consume().expect("not taken yet");
    let mut text = String::new();
    body.stream().expect("not taken yet").read_to_string(&mut text).expect("text");
    json!({ "status": response.status(), "headers": headers, "body": text })
}

pub fn wait_for_myself() -> Value {
    let request = OutgoingRequest::new(Fields::new());
    request.set_authority(Some("a.example")).expect("an authority");
    let _body = request.body().expect("not taken yet");
    let answer = outgoing_handler::handle(request, None).expect("handed over");
    answer.subscribe().block();
    Value::Null
}

pub fn hold_bodies(count: u32) -> Value {
    let mut held = vec![];
    for _ in 0..count {
        let request = OutgoingRequest::new(Fields::new());
        let body = request.body().expect("not taken yet");
        body.write().expect("not taken yet").write_all(&vec![b'x'; 1 << 20]).expect("room");
        held.push((request, body));
    }
    json!(held.len())
}

pub fn answer() -> Value {
    json!(OutgoingResponse::new(Fields::new()).status_code())
}
