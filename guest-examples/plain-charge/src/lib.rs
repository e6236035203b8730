//! Charges a card: the order on standard input, the charge on standard output, and one request in between.

use std::io::{Read as _, Write as _};

use serde_json::{Value, json};
use wasip2::cli::{stderr, stdin, stdout};
use wasip2::http::outgoing_handler;
use wasip2::http::types::{ErrorCode, Fields, Method, OutgoingBody, OutgoingRequest, Scheme};

wasip2::cli::command::export!(Program);

struct Program;

impl wasip2::exports::cli::run::Guest for Program {
    fn run() -> Result<(), ()> {
        charge().map_err(|error| {
            // Where the log of a program belongs. Nobody can be told that this fails.
            let _ = writeln!(stderr::get_stderr(), "{error}");
        })
    }
}

fn charge() -> Result<(), Box<dyn std::error::Error>> {
    let mut input = String::new();
    stdin::get_stdin().read_to_string(&mut input)?;
    let order: Value = serde_json::from_str(&input)?;
    let body = json!({ "order": order["order"], "cents": order["cents"] });
    let (status, answer) = post("payments", "/charges", &body.to_string())?;
    if status >= 300 {
        return Err(format!("the provider answered {status}").into());
    }
    let answer: Value = serde_json::from_slice(&answer)?;
    writeln!(stdout::get_stdout(), "{}", json!({ "id": answer["id"] }))?;
    Ok(())
}

/// Through the connection whose name is the host's.
fn post(connection: &str, path: &str, json: &str) -> Result<(u16, Vec<u8>), ErrorCode> {
    let entries = [("content-type", "application/json"), ("counterfoil-connection", connection)];
    let headers = Fields::from_list(&entries.map(|(name, value)| (name.into(), value.into())))
        .expect("fields that a client may set");
    let request = OutgoingRequest::new(headers);
    request.set_method(&Method::Post).expect("a method");
    request.set_scheme(Some(&Scheme::Https)).expect("a scheme");
    request.set_authority(Some(connection)).expect("an authority");
    request.set_path_with_query(Some(path)).expect("a path");
    let body = request.body().expect("not taken yet");
    let answer = outgoing_handler::handle(request, None)?;
    let mut stream = body.write().expect("not taken yet");
    stream.write_all(json.as_bytes()).map_err(|_| ErrorCode::HttpRequestBodySize(None))?;
    drop(stream);
    OutgoingBody::finish(body, None)?;
    answer.subscribe().block();
    let response = answer.get().expect("it is ready").expect("not taken yet")?;
    let body = response.consume().expect("not taken yet");
    let mut bytes = vec![];
    body.stream()
        .expect("not taken yet")
        .read_to_end(&mut bytes)
        .map_err(|_| ErrorCode::HttpResponseIncomplete)?;
    Ok((response.status(), bytes))
}
