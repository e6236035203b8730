//! Answers that arrive, and those that take too long.

use std::time::{Duration, Instant};

use counterfoil_effects::client::{Budget, LostKind};
use counterfoil_testkit::provider::{Act, Provider, ProviderConfig};

use super::listener::Listener;
use super::{Came, answered, exchange, exchange_within, get, post, request};

async fn provider() -> Provider {
    Provider::start(ProviderConfig::default()).await.expect("a provider starts")
}

#[tokio::test]
async fn an_answer_is_handed_back_as_it_came() {
    let listener = Listener::bind().await;
    let url = listener.url();
    listener.answer(
        &b"HTTP/1.1 201 Made\r\nX-B: 1\r\nx-a: 2\r\nSet-Cookie: c=1\r\nx-latin: \xe4\r\nset-cookie: d=2\r\ncontent-length: 3\r\n\r\n\0\xff!"[..],
    );
    let response = answered(exchange(post(&url)).await);
    assert_eq!(response.status, 201);
    assert_eq!(response.body, b"\0\xff!");
    assert!(!response.truncated);
    let headers: Vec<_> =
        response.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert_eq!(
        headers,
        [
            ("x-b", "1"),
            ("x-a", "2"),
            ("set-cookie", "c=1"),
            ("set-cookie", "d=2"),
            ("x-latin", "\u{fffd}"),
            ("content-length", "3"),
        ],
    );
}

#[tokio::test]
async fn compressed_bytes_stay_compressed() {
    // `gzip -n` of sixteen zeros.
    const GZIP: &[u8] =
        b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\x33\x30\x40\x02\x00\x0b\x4f\x8f\x2d\x10\x00\x00\x00";
    let listener = Listener::bind().await;
    let url = listener.url();
    let head = format!("HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: {}\r\n\r\n", GZIP.len());
    listener.answer([head.as_bytes(), GZIP].concat());
    let response = answered(exchange(get(&url)).await);
    assert_eq!(response.body, GZIP);
    assert!(response.headers.contains(&("content-encoding".to_owned(), "gzip".to_owned())));
}

#[tokio::test]
async fn redirects_are_handed_back() {
    let provider = provider().await;
    for status in [301, 302, 303, 307, 308] {
        let location = ("location".to_owned(), format!("{}/elsewhere", provider.url()));
        provider.script("/charges", Act { headers: vec![location.clone()], ..Act::status(status) });
        let response = answered(exchange(post(&format!("{}/charges", provider.url()))).await);
        assert_eq!(response.status, status);
        assert!(response.headers.contains(&location));
    }
    assert!(provider.calls().iter().all(|call| call.path == "/charges"));
    assert_eq!(provider.calls().len(), 5);
}

#[tokio::test]
async fn bodies_are_kept_up_to_the_cap() {
    let provider = provider().await;
    let budget = Budget { body_bytes_max: 1000, ..Budget::DEFAULT };
    for (query, expected, kept) in [
        ("body_bytes=0", Came::Answered(201), 0),
        ("body_bytes=1000", Came::Answered(201), 1000),
        ("body_bytes=1001", Came::Truncated(201), 1000),
        ("body_bytes=1001&chunked", Came::Truncated(201), 1000),
        ("body_bytes=16777216", Came::Truncated(201), 1000),
        // What comes after the cap does not matter any more.
        ("body_bytes=16777216&reset_at=70000", Came::Truncated(201), 1000),
    ] {
        let came = exchange_within(&budget, post(&format!("{}/charges?{query}", provider.url()))).await;
        assert_eq!(Came::from(&came), expected, "{query}");
        assert_eq!(answered(came).body.len(), kept, "{query}");
    }
}

#[tokio::test]
async fn answers_without_a_body_or_without_a_length_are_complete() {
    for (method, answer, expected) in [
        ("HEAD", "HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n", ""),
        ("POST", "HTTP/1.1 204 No Content\r\n\r\n", ""),
        ("GET", "HTTP/1.1 304 Not Modified\r\ncontent-length: 1000\r\n\r\n", ""),
        ("GET", "HTTP/1.1 200 OK\r\n\r\nto the end", "to the end"),
        ("GET", "HTTP/1.0 200 OK\r\n\r\nto the end", "to the end"),
        ("GET", "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nonly this", "only"),
    ] {
        let listener = Listener::bind().await;
        let url = listener.url();
        listener.answer(answer);
        let response = answered(exchange(request(method, &url, &[], "")).await);
        assert_eq!(String::from_utf8_lossy(&response.body), expected, "{answer:?}");
    }
}

#[tokio::test]
async fn an_answer_before_the_request_is_whole_is_an_answer() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    let listener = Listener::bind().await;
    let url = listener.url();
    let answering = tokio::spawn(async move {
        let mut stream = listener.accept().await;
        stream.read_u8().await.expect("the request begins");
        stream.write_all(b"HTTP/1.1 413 Too Large\r\ncontent-length: 0\r\n\r\n").await.expect("it is read");
        stream
    });
    let body: &'static str = "x".repeat(16 << 20).leak();
    let came = exchange(request("POST", &url, &[], body)).await;
    assert_eq!(Came::from(&came), Came::Answered(413), "{came:?}");
    drop(answering.await.expect("it answers"));
}

#[tokio::test]
async fn nothing_outlasts_its_budget() {
    let provider = provider().await;
    let budget = Budget { first_byte_ms_max: 150, total_ms_max: 400, ..Budget::DEFAULT };
    let timeout = Came::Lost(LostKind::Timeout);
    for (query, expected) in [
        ("hold", timeout),
        ("drip_ms=20&body_bytes=10000", timeout),
        ("drip_ms=20&body_bytes=10000&chunked", timeout),
        ("drip_ms=1&body_bytes=20", Came::Answered(201)),
        ("endless_headers", Came::Lost(LostKind::HeadTooLarge)),
    ] {
        let begun = Instant::now();
        let came = exchange_within(&budget, post(&format!("{}/charges?{query}", provider.url()))).await;
        assert_eq!(Came::from(&came), expected, "{query}: {came:?}");
        assert!(begun.elapsed() < Duration::from_secs(5), "{query} took {:?}", begun.elapsed());
    }
}

#[tokio::test]
async fn a_head_that_drips_is_cut_off_in_time_and_informational_answers_at_the_fourth() {
    use tokio::io::AsyncWriteExt as _;

    for (begin, piece, expected) in [
        ("HTTP/1.1 200 OK\r\nx-a: ", "x", LostKind::Timeout),
        ("", "HTTP/1.1 103 Early Hints\r\n\r\n", LostKind::HeadTooLarge),
    ] {
        let listener = Listener::bind().await;
        let url = listener.url();
        let answering = tokio::spawn(async move {
            let mut stream = listener.accept().await;
            let mut pieces = 0;
            let mut sent = stream.write_all(begin.as_bytes()).await;
            while sent.is_ok() {
                sent = stream.write_all(piece.as_bytes()).await;
                pieces += 1;
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            pieces
        });
        // Long enough for a hundred informational answers.
        let budget = Budget { first_byte_ms_max: 500, ..Budget::DEFAULT };
        let came = exchange_within(&budget, post(&url)).await;
        assert_eq!(Came::from(&came), Came::Lost(expected), "{piece:?}: {came:?}");
        let pieces = answering.await.expect("it does not panic");
        assert!(expected == LostKind::Timeout || pieces < 20, "the client hung up after {pieces}");
    }
}
