//! TLS: proved for the URL's host, and no byte of the request before.

use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use counterfoil_domain::ports::{Faults, NoFaults, Site};
use counterfoil_effects::client::{
    Budget, Client, ClientConfig, LostKind, NameServers, NotSentKind, SendWindow,
};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::server::TlsStream;

use super::dns::{Entry, NameServer};
use super::listener::{Listener, converse, read_rest};
use super::{Came, client, config, loopback, open, post};

const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";

/// Issues certificates that a test may trust.
pub(super) struct Authority {
    certificate: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
}

pub(super) fn authority() -> Authority {
    let mut params = CertificateParams::new(vec![]).expect("no names");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().expect("a key");
    let certificate = params.self_signed(&key).expect("a certificate").der().clone();
    Authority { certificate, issuer: Issuer::new(params, key) }
}

impl Authority {
    pub(super) fn root(&self) -> CertificateDer<'static> {
        self.certificate.clone()
    }

    pub(super) fn issue(&self, name: &str) -> TlsAcceptor {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate").der().clone();
        let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .expect("a certificate and its key");
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        TlsAcceptor::from(Arc::new(config))
    }
}

pub(super) struct TlsListener {
    listener: Listener,
    acceptor: TlsAcceptor,
}

impl TlsListener {
    pub(super) fn new(listener: Listener, acceptor: &TlsAcceptor) -> Self {
        Self { listener, acceptor: acceptor.clone() }
    }

    pub(super) async fn accept(&self) -> std::io::Result<TlsStream<TcpStream>> {
        self.acceptor.accept(self.listener.accept().await).await
    }
}

fn trusting(authority: &Authority) -> Client {
    client(ClientConfig { extra_roots: vec![authority.root()], ..config() })
}

#[tokio::test]
async fn the_handshake_proves_the_urls_host() {
    let name_server =
        NameServer::start(&[("pay.example.com.", Entry::Addresses(vec![[127, 0, 0, 1].into()]))]).await;
    let (trusted, other) = (authority(), authority());
    let client = client(ClientConfig {
        policy: loopback(),
        name_servers: NameServers::Fixed(vec![name_server.address]),
        extra_roots: vec![trusted.root()],
        first_byte_alone: false,
    });
    let refused = Came::NotSent(NotSentKind::Tls);
    for (issuer, certified, host, expected) in [
        (&trusted, "pay.example.com", "pay.example.com", Came::Answered(200)),
        (&trusted, "127.0.0.1", "127.0.0.1", Came::Answered(200)),
        (&trusted, "localhost", "localhost", Came::Answered(200)),
        (&trusted, "other.example.com", "pay.example.com", refused),
        (&trusted, "pay.example.com", "127.0.0.1", refused),
        (&other, "pay.example.com", "pay.example.com", refused),
    ] {
        let listener = Listener::bind().await;
        let url = format!("https://{host}:{}/", listener.address.port());
        let listener = TlsListener::new(listener, &issuer.issue(certified));
        let serving = tokio::spawn(async move {
            let stream = listener.accept().await.ok()?;
            let session = stream.get_ref().1;
            let named = session.server_name().map(str::to_owned);
            let protocol = session.alpn_protocol().map(<[u8]>::to_vec);
            Some((named, protocol, converse(stream, OK).await))
        });
        let came = client.exchange(post(&url), &Budget::DEFAULT, &open(), &NoFaults).await;
        assert_eq!(Came::from(&came), expected, "{certified} for {host}: {came:?}");
        let served = serving.await.expect("the listener ends");
        if expected == Came::Answered(200) {
            let (named, protocol, sent) = served.expect("a handshake");
            assert_eq!(
                named.as_deref(),
                Some(host).filter(|host| *host != "127.0.0.1"),
                "SNI names hosts only"
            );
            assert_eq!(protocol.as_deref(), Some(&b"http/1.1"[..]));
            assert!(String::from_utf8_lossy(&sent).contains(&format!("host: {}", &url[8..url.len() - 1])));
        } else {
            assert!(served.is_none_or(|(_, _, sent)| sent.is_empty()), "nothing is sent to {certified}");
        }
    }
}

#[tokio::test]
async fn a_handshake_that_does_not_come_about_is_not_sent() {
    let authority = authority();
    for (name, answer) in [("plain HTTP", Some(OK)), ("silence", None)] {
        let listener = Listener::bind().await;
        let url = format!("https://localhost:{}/", listener.address.port());
        let serving = tokio::spawn(async move {
            let mut stream = listener.accept().await;
            if let Some(answer) = answer {
                tokio::io::AsyncWriteExt::write_all(&mut stream, answer).await.expect("the client reads");
            }
            read_rest(&mut stream).await
        });
        let budget = Budget { tls_ms_max: 200, ..Budget::DEFAULT };
        let came = trusting(&authority).exchange(post(&url), &budget, &open(), &NoFaults).await;
        assert_eq!(Came::from(&came), Came::NotSent(NotSentKind::Tls), "{name}: {came:?}");
        let sent = serving.await.expect("the listener ends");
        assert!(!String::from_utf8_lossy(&sent).contains("amount"), "{name}");
    }
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
async fn a_session_that_is_reset_before_the_first_byte_is_not_sent() {
    let authority = authority();
    let listener = Listener::bind().await;
    let url = format!("https://localhost:{}/", listener.address.port());
    let listener = TlsListener::new(listener, &authority.issue("localhost"));
    let client = trusting(&authority);
    let (release, held) = mpsc::channel();
    let exchanging = tokio::spawn(async move {
        client.exchange(post(&url), &Budget::DEFAULT, &open(), &HeldAfterConnect(Mutex::new(held))).await
    });
    let stream = listener.accept().await.expect("a handshake").into_inner().0;
    stream.set_zero_linger().expect("the socket is open");
    drop(stream);
    release.send(()).expect("the exchange waits");
    let came = exchanging.await.expect("it does not panic");
    assert_eq!(Came::from(&came), Came::NotSent(NotSentKind::Connect), "{came:?}");
}

#[tokio::test]
async fn nothing_of_a_request_leaves_a_closed_window() {
    let authority = authority();
    let listener = Listener::bind().await;
    let url = format!("https://localhost:{}/", listener.address.port());
    let listener = TlsListener::new(listener, &authority.issue("localhost"));
    let serving =
        tokio::spawn(async move { read_rest(&mut listener.accept().await.expect("a handshake")).await });
    let closed = SendWindow::open(Duration::ZERO);
    let came = trusting(&authority).exchange(post(&url), &Budget::DEFAULT, &closed, &NoFaults).await;
    assert_eq!(Came::from(&came), Came::NotSent(NotSentKind::WindowClosed), "{came:?}");
    assert_eq!(serving.await.expect("the listener ends"), b"");
}

#[tokio::test]
async fn a_body_without_a_length_ends_with_the_session_and_not_with_the_connection() {
    let authority = authority();
    for (in_order, expected) in [(true, Came::Answered(200)), (false, Came::Lost(LostKind::Closed))] {
        let listener = Listener::bind().await;
        let url = format!("https://localhost:{}/", listener.address.port());
        let listener = TlsListener::new(listener, &authority.issue("localhost"));
        let serving = tokio::spawn(async move {
            use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
            let mut stream = listener.accept().await.expect("a handshake");
            let mut sent = vec![];
            while !sent.ends_with(b"}") {
                stream.read_buf(&mut sent).await.expect("a request");
            }
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nto the end").await.expect("the client reads");
            stream.flush().await.expect("the client reads");
            if in_order {
                stream.shutdown().await.expect("the client reads");
            }
        });
        let came = trusting(&authority).exchange(post(&url), &Budget::DEFAULT, &open(), &NoFaults).await;
        assert_eq!(Came::from(&came), expected, "in order: {in_order}: {came:?}");
        serving.await.expect("the listener ends");
    }
}
