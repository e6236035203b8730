//! When it can be proved that nothing left.

use std::sync::Mutex;
use std::sync::mpsc;
use std::time::Duration;

use counterfoil_domain::outbound::AddressPolicy;
use counterfoil_domain::ports::{Faults, NoFaults, Site};
use counterfoil_effects::client::{Budget, ClientConfig, Exchange, NotSentKind, SendWindow};

use super::listener::Listener;
use super::{Came, client, config, exchange, open, post};

#[tokio::test]
async fn a_refused_connection_is_not_sent() {
    let url = Listener::bind().await.url();
    let came = exchange(post(&url)).await;
    assert_eq!(Came::from(&came), Came::NotSent(NotSentKind::Connect));
    let Exchange::NotSent(not_sent) = came else { unreachable!() };
    let host = url.trim_start_matches("http://");
    assert_eq!(
        not_sent.to_string(),
        format!("not sent: connecting to {host}: Connection refused (os error 111)"),
        "the operator reads why"
    );
}

#[tokio::test]
async fn an_address_that_the_client_may_not_call_is_not_even_connected_to() {
    let listener = Listener::bind().await;
    let strict = client(ClientConfig { policy: AddressPolicy::default(), ..ClientConfig::default() });
    let port = listener.address.port();
    for url in [listener.url(), format!("http://localhost:{port}"), format!("http://a.localhost:{port}")] {
        // The destination was made under the development setting; the client that sends has another.
        let came = strict.exchange(post(&url), &Budget::DEFAULT, &open(), &NoFaults).await;
        assert_eq!(Came::from(&came), Came::NotSent(NotSentKind::Refused), "{url}");
    }
    assert!(listener.is_untouched().await);
}

#[tokio::test]
async fn nothing_leaves_a_closed_window() {
    let listener = Listener::bind().await;
    let url = listener.url();
    let sent = listener.listen();
    let closed = SendWindow::open(Duration::ZERO);
    let came = client(config()).exchange(post(&url), &Budget::DEFAULT, &closed, &NoFaults).await;
    assert_eq!(Came::from(&came), Came::NotSent(NotSentKind::WindowClosed));
    assert_eq!(sent.await.expect("the listener ends"), b"");
}

/// Holds the exchange where it is connected, until told to go on.
struct HeldAfterConnect(Mutex<mpsc::Receiver<()>>);

impl Faults for HeldAfterConnect {
    fn reach(&self, site: Site) {
        if site == Site::AfterConnect {
            let held = self.0.lock().expect("one at a time");
            let released = tokio::task::block_in_place(|| held.recv_timeout(Duration::from_secs(10)));
            released.expect("it is released");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_window_that_closes_while_connecting_keeps_the_request_in() {
    let listener = Listener::bind().await;
    let url = listener.url();
    let sent = listener.listen();
    let window = SendWindow::open(Duration::from_millis(50));
    let (release, held) = mpsc::channel();
    let faults = HeldAfterConnect(Mutex::new(held));
    let exchanging = tokio::spawn(async move {
        client(config()).exchange(post(&url), &Budget::DEFAULT, &window, &faults).await
    });
    while window.is_open() {
        tokio::task::yield_now().await;
    }
    release.send(()).expect("the exchange waits");
    let came = exchanging.await.expect("it does not panic");
    assert_eq!(Came::from(&came), Came::NotSent(NotSentKind::WindowClosed));
    assert_eq!(sent.await.expect("the listener ends"), b"");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_is_reset_before_the_first_byte_is_not_sent() {
    let listener = Listener::bind().await;
    let url = listener.url();
    let (release, held) = mpsc::channel();
    let faults = HeldAfterConnect(Mutex::new(held));
    let exchanging = tokio::spawn(async move {
        client(config()).exchange(post(&url), &Budget::DEFAULT, &open(), &faults).await
    });
    let stream = listener.accept().await;
    stream.set_zero_linger().expect("the socket is open");
    drop(stream);
    release.send(()).expect("the exchange waits");
    let came = exchanging.await.expect("it does not panic");
    assert_eq!(Came::from(&came), Came::NotSent(NotSentKind::Connect), "{came:?}");
}
