//! Where a call may go, and in what form: pure judgements over parsed values.
//!
//! A [`Destination`] is a URL that was judged; nothing else can be sent to. [`Reach`] makes one from what a block
//! asked for, within a connection or a grant. [`AddressPolicy`] judges every address that a name resolves to.

use std::net::IpAddr;

mod address;
mod destination;
mod header;
mod host;
mod mail;
mod network;
mod reach;
mod work;

pub use address::AddressPolicy;
pub use destination::{Destination, Target, URL_BYTES_MAX};
pub use header::{HEADER_BYTES_MAX, HEADERS_MAX, is_host_field, is_token, judge_headers, judge_method};
pub use host::{AllowedHosts, HostPattern};
pub use mail::{MailSecurity, MailServer, is_mail_url, judge_message};
pub use network::{Network, NetworkFault, PrivateNetwork};
pub use reach::Reach;
pub use work::{Work, judge_work};

/// Why a call may not be made. `Display` is for the operator; a guest gets [`Refusal::GUEST_TEXT`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// An address that no call may reach from here.
    #[error("address {address} is refused: {why}")]
    Address {
        /// The address that was judged.
        address: IpAddr,
        /// The class that it falls into.
        why: &'static str,
    },
    /// The URL's form.
    #[error("the URL is refused: {why}")]
    Url {
        /// The rule that it breaks.
        why: &'static str,
    },
    /// A host name that names nothing on the public internet, or is not one.
    #[error("host {host} is refused: {why}")]
    Host {
        /// The host as parsed.
        host: String,
        /// The rule that it breaks.
        why: &'static str,
    },
    /// A port that belongs to another protocol.
    #[error("port {port} is refused: of the ports below 1024 only 80 and 443 may be called")]
    Port {
        /// The port.
        port: u16,
    },
    /// A port that is no mail server's.
    #[error("port {port} is refused: of the ports below 1024 only 25, 465 and 587 are those of mail servers")]
    MailPort {
        /// The port.
        port: u16,
    },
    /// A server without TLS that is out in the open.
    #[error("address {address} is refused: without TLS, mail goes to the operator's own networks only")]
    PlainMail {
        /// The address.
        address: IpAddr,
    },
    /// The host is not among those that the connection, or the block's grant, allows.
    #[error("{host}:{port} is not an allowed host")]
    NotAllowed {
        /// The host as parsed.
        host: String,
        /// The port, the scheme's own where the URL names none.
        port: u16,
    },
    /// An entry of a list of allowed hosts that cannot be read.
    #[error("allowed host {pattern:?} is not valid: {why}")]
    Pattern {
        /// The entry.
        pattern: String,
        /// The rule that it breaks.
        why: &'static str,
    },
    /// The request's method.
    #[error("method {method:?} is refused: {why}")]
    Method {
        /// The method as given.
        method: String,
        /// The rule that it breaks.
        why: &'static str,
    },
    /// One header field, or all of them together.
    #[error("header {name:?} is refused: {why}")]
    Header {
        /// The field's name as given.
        name: String,
        /// The rule that it breaks.
        why: &'static str,
    },
}

/// Judges where a connection leads, to a web service or a mail server, and gives the hosts that it allows: its base URL's
/// where none are given. `plain_mail` is the tenant's word that a mail server has no TLS.
///
/// # Errors
/// The first rule that is broken.
pub fn judge_connection(
    base_url: &str,
    allowed_hosts: Option<Vec<String>>,
    plain_mail: bool,
    policy: &AddressPolicy,
) -> Result<Vec<String>, Refusal> {
    let scheme = base_url.split_once("://").map_or("", |(scheme, _)| scheme).to_ascii_lowercase();
    if !["http", "https", "smtp", "smtps"].contains(&scheme.as_str()) {
        return Err(Refusal::Url {
            why: "a connection's begins with https://, http://, smtps:// or smtp://",
        });
    }
    if is_mail_url(base_url) {
        let hosts = match allowed_hosts {
            Some(hosts) => hosts,
            None => vec![MailServer::parse(base_url, plain_mail, policy)?.authority().to_owned()],
        };
        MailServer::of_connection(base_url, &hosts, plain_mail, policy)?;
        return Ok(hosts);
    }
    let hosts = match allowed_hosts {
        Some(hosts) => hosts,
        None => vec![Destination::parse(base_url, policy)?.authority().to_owned()],
    };
    Reach::of_connection(base_url, &hosts, policy)?;
    Ok(hosts)
}

impl Refusal {
    /// The only thing that a guest is told: were the reasons told apart, a block could map the network around it.
    pub const GUEST_TEXT: &'static str = "this call is not allowed";
}
