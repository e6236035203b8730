//! From addresses to a connection.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use counterfoil_domain::outbound::Target;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::{ClientError, NotSent, chain};

/// Addresses of a name that are tried: beyond a few, a name that answers nowhere would only use up the budget.
const ADDRESSES_TRIED_MAX: usize = 4;

/// Connects to the first address that answers. Each is given an equal share of the time that is left, so that one
/// that swallows packets does not hide the next.
pub(super) async fn tcp(addresses: &[IpAddr], port: u16, until: Instant) -> Result<TcpStream, NotSent> {
    let tried = &addresses[..addresses.len().min(ADDRESSES_TRIED_MAX)];
    let mut failures = vec![];
    for (position, address) in tried.iter().enumerate() {
        let now = Instant::now();
        let shares = u32::try_from(tried.len() - position).unwrap_or(1);
        let share = now + until.saturating_duration_since(now) / shares;
        let address = SocketAddr::new(*address, port);
        match timeout_at(share, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => {
                // Without it a request of two writes waits for the receiver's delayed acknowledgement.
                stream.set_nodelay(true).map_err(|error| NotSent::connect(format!("{address}: {error}")))?;
                return Ok(stream);
            }
            Ok(Err(error)) => failures.push(format!("{address}: {error}")),
            Err(_) => failures.push(format!("{address}: no answer in time")),
        }
    }
    Err(NotSent::connect(format!("connecting to {}", failures.join(", "))))
}

/// What is spoken within TLS, as it is negotiated (RFC 7301).
pub(super) const HTTP_1_1: &[u8] = b"http/1.1";

/// TLS that trusts the web's roots and `extra_roots`, and offers these protocols.
pub(super) fn tls(
    extra_roots: Vec<CertificateDer<'static>>,
    protocols: &[&[u8]],
) -> Result<TlsConnector, ClientError> {
    let mut roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    for root in extra_roots {
        roots.add(root).map_err(ClientError::Tls)?;
    }
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(ClientError::Tls)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    // Early data is off by default, and must stay so: its bytes can be replayed by whoever sees them.
    config.enable_early_data = false;
    Ok(TlsConnector::from(Arc::new(config)))
}

/// Proves that the connection ends at the host. The name that is asked for is the URL's.
pub(super) async fn handshake<S: AsyncRead + AsyncWrite + Unpin>(
    connector: &TlsConnector,
    target: Target<'_>,
    host: &str,
    stream: S,
    until: Instant,
) -> Result<TlsStream<S>, NotSent> {
    let name = match target {
        Target::Address(address) => ServerName::IpAddress(address.into()),
        Target::Loopback | Target::Name(_) => {
            ServerName::try_from(host.to_owned()).map_err(|error| NotSent::tls(format!("{host}: {error}")))?
        }
    };
    let stream = timeout_at(until, connector.connect(name, stream))
        .await
        .map_err(|_| NotSent::tls("the TLS handshake took too long"))?
        .map_err(|error| NotSent::tls(format!("the TLS handshake failed: {}", chain(&error))))?;
    match stream.get_ref().1.alpn_protocol() {
        None | Some(HTTP_1_1) => Ok(stream),
        Some(_) => Err(NotSent::tls("the server chose a protocol that was not offered")),
    }
}
