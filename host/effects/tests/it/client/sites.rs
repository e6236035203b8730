//! The crash points, and what a provider has of a request that died at each.

use std::pin::pin;
use std::sync::Mutex;
use std::task::{Context, Poll};

use counterfoil_domain::ports::{Faults, NoFaults, Site};
use counterfoil_effects::client::{Budget, ClientConfig};
use counterfoil_testkit::provider::{Provider, ProviderConfig};

use super::listener::{Listener, converse};
use super::tls::{self, TlsListener};
use super::{Came, client, config, open, post, request};

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";

/// Writes down the sites that it passes, and dies at one.
struct DiesAt(Option<Site>, Mutex<Vec<Site>>);

impl Faults for DiesAt {
    fn reach(&self, site: Site) {
        self.1.lock().expect("one at a time").push(site);
        assert!(self.0 != Some(site), "died at {}", site.name());
    }
}

#[tokio::test]
async fn a_request_passes_every_site_in_order() {
    for body in ["", "x"] {
        let listener = Listener::bind().await;
        let request = request("POST", &listener.url(), &[], body);
        let listening = listener.answer(ANSWER);
        let passed = DiesAt(None, Mutex::default());
        let came = client(config()).exchange(request, &Budget::DEFAULT, &open(), &passed).await;
        assert_eq!(Came::from(&came), Came::Answered(200));
        assert_eq!(
            passed.1.into_inner().expect("nobody panicked"),
            [Site::AfterConnect, Site::AfterFirstByte, Site::AfterLastByte, Site::MidAnswer],
        );
        listening.await.expect("the listener ends");
    }
}

#[tokio::test]
async fn a_crash_leaves_a_provider_with_what_its_site_says() {
    // More than the buffers on the way hold.
    let body: &'static str = format!("{}end", "x".repeat(8 << 20)).leak();
    let authority = tls::authority();
    let config = ClientConfig { first_byte_alone: true, extra_roots: vec![authority.root()], ..config() };
    for is_tls in [false, true] {
        for (site, expected) in [
            (Site::AfterConnect, "nothing"),
            (Site::AfterFirstByte, "one byte"),
            (Site::AfterLastByte, "all"),
            (Site::MidAnswer, "all"),
        ] {
            let listener = Listener::bind().await;
            let port = listener.address.port();
            let (url, listening) = if is_tls {
                let listener = TlsListener::new(listener, &authority.issue("localhost"));
                let seen = tokio::spawn(async move {
                    converse(listener.accept().await.expect("a handshake"), ANSWER).await
                });
                (format!("https://localhost:{port}/"), seen)
            } else {
                (listener.url(), listener.answer(ANSWER))
            };
            let client = client(config.clone());
            let died = tokio::spawn(async move {
                let faults = DiesAt(Some(site), Mutex::default());
                client.exchange(request("POST", &url, &[], body), &Budget::DEFAULT, &open(), &faults).await
            });
            assert!(died.await.is_err_and(|error| error.is_panic()), "tls: {is_tls}, {site:?} is reached");
            let seen = listening.await.expect("the listener ends");
            let has = match seen.as_slice() {
                [] => "nothing",
                b"P" => "one byte",
                whole if whole.len() > body.len() && whole.ends_with(b"xend") => "all",
                _ => "a part",
            };
            assert_eq!(has, expected, "tls: {is_tls}, {site:?}: {} bytes", seen.len());
        }
    }
}

#[tokio::test]
async fn an_exchange_may_be_dropped_at_any_await() {
    let provider = Provider::start(ProviderConfig::default()).await.expect("a provider starts");
    let client = client(config());
    for polls in 0.. {
        let (window, url) = (open(), format!("{}/charges?polls={polls}", provider.url()));
        let mut exchange = pin!(client.exchange(post(&url), &Budget::DEFAULT, &window, &NoFaults));
        let mut came = None;
        for _ in 0..polls {
            let polled =
                std::future::poll_fn(|cx: &mut Context<'_>| Poll::Ready(exchange.as_mut().poll(cx))).await;
            if let Poll::Ready(exchange) = polled {
                came = Some(Came::from(&exchange));
                break;
            }
            // Polled without being woken: let the sockets move.
            tokio::task::yield_now().await;
        }
        if let Some(came) = came {
            assert_eq!(came, Came::Answered(201));
            break;
        }
    }
    let calls = provider.calls();
    let mut queries: Vec<_> = calls.iter().map(|call| call.query.as_str()).collect();
    queries.dedup();
    assert_eq!(queries.len(), calls.len(), "no exchange calls twice");
}
