//! Answers that break off.

use counterfoil_domain::ports::NoFaults;
use counterfoil_effects::client::{Budget, LostKind};
use counterfoil_testkit::provider::{Call, Outcome, Provider, ProviderConfig};

use super::listener::Listener;
use super::{Came, client, config, exchange, open, post};

#[tokio::test]
async fn an_answer_that_breaks_off_at_any_byte_is_lost() {
    let provider = Provider::start(ProviderConfig::default()).await.expect("a provider starts");
    let client = client(config());
    let mut exchanges = 0;
    for (framing, end) in
        [("length", "reset_at"), ("length", "cut_at"), ("chunked", "reset_at"), ("chunked", "cut_at")]
    {
        for offset in 0.. {
            let url = format!("{}/charges?{framing}&{end}={offset}", provider.url());
            let came = client.exchange(post(&url), &Budget::DEFAULT, &open(), &NoFaults).await;
            exchanges += 1;
            let ended = |calls: &[Call]| calls.len() == exchanges && calls[exchanges - 1].outcome.is_some();
            let calls = provider.wait_until(ended).await.expect("one call for each exchange");
            if calls[exchanges - 1].outcome == Some(Outcome::Answered { status: 201 }) {
                assert_eq!(Came::from(&came), Came::Answered(201), "{framing} {end}={offset}: {came:?}");
                assert!(offset > 100, "the answer was not cut at all");
                break;
            }
            assert_eq!(Came::from(&came), Came::Lost(LostKind::Closed), "{framing} {end}={offset}: {came:?}");
        }
    }
}

#[tokio::test]
async fn an_answer_that_cannot_be_read_is_lost() {
    let many_headers = |count: usize| {
        format!("HTTP/1.1 200 OK\r\n{}content-length: 0\r\n\r\n", "x-a: b\r\n".repeat(count - 1))
    };
    let long_head = |bytes: usize| {
        let (begin, end) = ("HTTP/1.1 200 OK\r\nx-a: ", "\r\ncontent-length: 0\r\n\r\n");
        format!("{begin}{}{end}", "a".repeat(bytes - begin.len() - end.len()))
    };
    let informational = |count| {
        format!(
            "{}HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
            "HTTP/1.1 103 Early Hints\r\n\r\n".repeat(count)
        )
    };
    let malformed = Came::Lost(LostKind::Malformed);
    let too_large = Came::Lost(LostKind::HeadTooLarge);
    for (name, answer, expected) in [
        ("no HTTP", "220 mail.example.com ESMTP\r\n".to_owned(), malformed),
        ("an impossible status", "HTTP/1.1 999999 \r\n\r\n".to_owned(), malformed),
        ("HTTP/0.9", "<html>".to_owned(), malformed),
        (
            "two lengths",
            "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab".to_owned(),
            malformed,
        ),
        ("a length that is none", "HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n".to_owned(), malformed),
        (
            "a chunk size that is none",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n".to_owned(),
            malformed,
        ),
        (
            "an upgrade",
            "HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n".to_owned(),
            malformed,
        ),
        ("nothing", String::new(), Came::Lost(LostKind::Closed)),
        ("64 headers", many_headers(64), Came::Answered(200)),
        ("65 headers", many_headers(65), too_large),
        ("a head of 32 KiB", long_head(32 << 10), Came::Answered(200)),
        ("a head of 32 KiB and a byte", long_head((32 << 10) + 1), too_large),
        ("three informational answers", informational(3), Came::Answered(200)),
        ("four informational answers", informational(4), too_large),
        ("ten thousand informational answers", informational(10_000), too_large),
    ] {
        let listener = Listener::bind().await;
        let url = listener.url();
        listener.answer(answer);
        let came = exchange(post(&url)).await;
        assert_eq!(Came::from(&came), expected, "{name}: {came:?}");
    }
}
