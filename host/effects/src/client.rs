//! One exchange over one fresh connection, to an address that was judged, so that "not sent" can be proved.
//!
//! Nothing here is kept from one exchange to the next but names (for as long as DNS says) and TLS tickets. There is
//! no pool, no redirect, no proxy, no decompression and no second try: each of them would send, or reach, something
//! that the guard did not decide.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use counterfoil_domain::outbound::{AddressPolicy, Destination};
use counterfoil_domain::ports::{Faults, Site};
use secrecy::SecretString;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::CertificateDer;

pub mod api;
mod connect;
mod converse;
mod exchange;
mod names;
mod request;
mod smtp;
mod window;
mod wire;

pub use exchange::{Budget, Exchange, Lost, LostKind, NotSent, NotSentKind};
pub use names::NameServers;
pub use smtp::{MailExchange, Reply, WireMail};
pub use window::SendWindow;

use names::Names;
use wire::Wire;

/// What the client is made of.
#[derive(Debug, Clone, Default)]
pub struct ClientConfig {
    /// Which addresses may be called.
    pub policy: AddressPolicy,
    /// Whom to ask for names.
    pub name_servers: NameServers,
    /// Certificates to trust beside those of the web.
    pub extra_roots: Vec<CertificateDer<'static>>,
    /// Write the first byte of a request by itself, so that a crash behind it leaves a provider with half a request.
    /// It costs a packet an exchange, and is for tests.
    pub first_byte_alone: bool,
}

/// Why a client could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The system's name servers cannot be read.
    #[error("the system's name servers cannot be read")]
    NameServers(#[source] hickory_resolver::net::NetError),
    /// TLS cannot be set up.
    #[error("TLS cannot be set up")]
    Tls(#[source] tokio_rustls::rustls::Error),
}

/// A request as it goes on the wire. Its headers may hold secrets, so it has no `Debug`.
pub struct WireRequest {
    /// Method, judged again before it is sent.
    pub method: String,
    /// Where to.
    pub destination: Destination,
    /// Header fields, each judged again before it is sent. Framing, `Host` and `User-Agent` are added.
    pub headers: Vec<(String, String)>,
    /// Header fields whose values nobody may see but the receiver, judged and sent like the others.
    pub secret_headers: Vec<(String, SecretString)>,
    /// Body, sent with its length.
    pub body: Bytes,
}

/// Sends requests. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    policy: Arc<AddressPolicy>,
    names: Names,
    tls: TlsConnector,
    mail_tls: TlsConnector,
    first_byte_alone: bool,
}

impl Client {
    /// Reads the system's name servers where those are asked for.
    ///
    /// # Errors
    /// [`ClientError`]; both are faults of the machine or of its configuration.
    pub fn new(config: ClientConfig) -> Result<Self, ClientError> {
        Ok(Self {
            policy: Arc::new(config.policy),
            names: Names::new(&config.name_servers)?,
            tls: connect::tls(config.extra_roots.clone(), &[connect::HTTP_1_1])?,
            mail_tls: connect::tls(config.extra_roots, &[])?,
            first_byte_alone: config.first_byte_alone,
        })
    }

    /// Which addresses it may call.
    pub fn policy(&self) -> &AddressPolicy {
        &self.policy
    }

    /// Sends one request and reads its answer, within `budget`; the first byte leaves only while `window` is open.
    ///
    /// May be dropped at any await: the connection is then closed, and whether a byte had left is not known.
    pub async fn exchange(
        &self,
        request: WireRequest,
        budget: &Budget,
        window: &SendWindow,
        faults: &dyn Faults,
    ) -> Exchange {
        let wire = Wire::new(*window, faults, self.first_byte_alone, budget.informational_max);
        match self.attempt(request, budget, &wire).await {
            Ok(exchange) => exchange,
            Err(not_sent) => Exchange::NotSent(not_sent),
        }
    }

    async fn attempt(
        &self,
        request: WireRequest,
        budget: &Budget,
        wire: &Wire<'_>,
    ) -> Result<Exchange, NotSent> {
        let deadline = Deadline(after(budget.total_ms_max));
        let message = request::message(&request)?;
        let destination = &request.destination;

        let addresses = self
            .names
            .resolve(destination.target(), &self.policy, deadline.within(budget.dns_ms_max))
            .await?;
        let connected =
            connect::tcp(&addresses, destination.port(), deadline.within(budget.connect_ms_max)).await?;
        let kernel_side = wire.kernel_side(connected);
        let conversed = if destination.is_tls() {
            let until = deadline.within(budget.tls_ms_max);
            let encrypted =
                connect::handshake(&self.tls, destination.target(), destination.host(), kernel_side, until)
                    .await?;
            wire.faults.reach(Site::AfterConnect);
            converse::converse(wire.request_side(encrypted), message, budget, &deadline, wire).await
        } else {
            wire.faults.reach(Site::AfterConnect);
            converse::converse(wire.request_side(kernel_side), message, budget, &deadline, wire).await
        };
        match conversed {
            Ok(response) => Ok(Exchange::Answered(response)),
            Err(lost) if wire.is_sent() => Ok(Exchange::Lost(lost)),
            Err(lost) => Err(NotSent {
                kind: if wire.is_window_closed() { NotSentKind::WindowClosed } else { NotSentKind::Connect },
                detail: lost.detail,
            }),
        }
    }
}

/// The end of the whole exchange, that every part of it ends by.
struct Deadline(Instant);

impl Deadline {
    fn within(&self, part_ms_max: u64) -> Instant {
        self.0.min(after(part_ms_max))
    }
}

fn after(ms: u64) -> Instant {
    // Longer than any exchange, and short enough for the clock's arithmetic.
    const DAY_MS: u64 = 24 * 60 * 60 * 1000;
    Instant::now() + Duration::from_millis(ms.min(DAY_MS))
}

/// An error and its sources in one line, for the operator.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
