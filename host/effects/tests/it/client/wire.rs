//! What is on the wire, whole.

use counterfoil_effects::client::NotSentKind;

use super::listener::Listener;
use super::{Came, exchange, request};

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";

#[tokio::test]
async fn a_request_is_what_was_asked_for_and_the_frame_around_it() {
    for (method, path, headers, body, expected) in [
        (
            "POST",
            "/charges?a=b#c",
            &[("content-type", "application/json"), ("Idempotency-Key", "k 1")][..],
            r#"{"amount":100}"#,
            "POST /charges?a=b HTTP/1.1\r\nhost: HOST\r\ncontent-type: application/json\r\nidempotency-key: k 1\r\n\
             user-agent: counterfoil\r\nconnection: close\r\ncontent-length: 14\r\n\r\n{\"amount\":100}",
        ),
        (
            "GET",
            "",
            &[("accept", "text/a"), ("accept", "text/b"), ("user-agent", "mine")],
            "",
            "GET / HTTP/1.1\r\nhost: HOST\r\naccept: text/a\r\naccept: text/b\r\nuser-agent: mine\r\n\
             connection: close\r\n\r\n",
        ),
        (
            "POST",
            "/empty",
            &[],
            "",
            "POST /empty HTTP/1.1\r\nhost: HOST\r\nuser-agent: counterfoil\r\nconnection: close\r\n\
             content-length: 0\r\n\r\n",
        ),
        (
            "DELETE",
            "/with/body",
            &[],
            "x",
            "DELETE /with/body HTTP/1.1\r\nhost: HOST\r\nuser-agent: counterfoil\r\nconnection: close\r\n\
             content-length: 1\r\n\r\nx",
        ),
        (
            "HEAD",
            "/ä b",
            &[],
            "",
            "HEAD /%C3%A4%20b HTTP/1.1\r\nhost: HOST\r\nuser-agent: counterfoil\r\nconnection: close\r\n\r\n",
        ),
        (
            "PROPFIND",
            "/%0d%0ahost:%20evil",
            &[],
            "",
            "PROPFIND /%0d%0ahost:%20evil HTTP/1.1\r\nhost: HOST\r\nuser-agent: counterfoil\r\n\
             connection: close\r\n\r\n",
        ),
    ] {
        let listener = Listener::bind().await;
        let (url, host) = (format!("{}{path}", listener.url()), listener.address.to_string());
        let sent = listener.answer(OK);
        assert_eq!(Came::from(&exchange(request(method, &url, headers, body)).await), Came::Answered(200));
        let sent = String::from_utf8(sent.await.expect("the listener ends")).expect("text");
        assert_eq!(sent, expected.replace("HOST", &host), "{method} {path}");
    }
}

#[tokio::test]
async fn a_large_body_arrives_whole() {
    let body: &'static str = "0123456789abcdef".repeat(1 << 16).leak();
    let listener = Listener::bind().await;
    let url = listener.url();
    let sent = listener.answer(OK);
    assert_eq!(Came::from(&exchange(request("PUT", &url, &[], body)).await), Came::Answered(200));
    assert!(sent.await.expect("the listener ends").ends_with(body.as_bytes()));
}

#[tokio::test]
async fn what_could_smuggle_another_request_is_not_sent() {
    let listener = Listener::bind().await;
    for (method, name, value) in [
        ("POST", "host", "evil.example.com"),
        ("POST", "Content-Length", "0"),
        ("POST", "transfer-encoding", "chunked"),
        ("POST", "connection", "keep-alive"),
        ("POST", "Proxy-Authorization", "x"),
        ("POST", "expect", "100-continue"),
        ("POST", "content_length", "0"),
        ("POST", "x-a", "1\r\ntransfer-encoding: chunked"),
        ("POST", "x-a\r\nhost", "evil.example.com"),
        ("POST", "x-a", "1\0"),
        ("GET / HTTP/1.1\r\n", "x-a", "1"),
        ("CONNECT", "x-a", "1"),
        ("TRACE", "x-a", "1"),
    ] {
        let came = exchange(request(method, &listener.url(), &[(name, value)], "x")).await;
        assert_eq!(Came::from(&came), Came::NotSent(NotSentKind::Refused), "{method} {name}: {came:?}");
    }
    assert!(listener.is_untouched().await);
}
