//! A plain client for the product's own API, for the command line. It goes where the person who runs it says.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, HOST};
use http::{HeaderName, HeaderValue, Method, Request, Uri};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::{CertificateDer, InvalidDnsNameError, ServerName};
use url::{Position, Url};

use super::{ClientError, connect, converse};

/// A host that does not accept in this time is not there.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// Largest answer: lists are paged far below it.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// Sends requests to the API, each over a connection of its own.
#[derive(Clone)]
pub struct ApiClient {
    tls: TlsConnector,
    timeout: Duration,
}

/// What the API answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiAnswer {
    /// Status code.
    pub status: u16,
    /// Header fields, names in lower case.
    pub headers: Vec<(String, String)>,
    /// Body.
    pub body: Vec<u8>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// The request cannot be written down.
    #[error("the request cannot be formed")]
    Request(#[source] http::Error),
    /// The URL is not one of HTTP.
    #[error("{0} is not an http or https URL")]
    Url(String),
    /// Nothing accepts connections there.
    #[error("{host} cannot be reached")]
    Connect {
        /// Host and port.
        host: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The server's name cannot be in a certificate.
    #[error("{host} is not a name that TLS can prove")]
    Name {
        /// The name.
        host: String,
        /// Why.
        #[source]
        source: InvalidDnsNameError,
    },
    /// The connection broke, or what came over it is not HTTP.
    #[error("the answer was lost")]
    Lost(#[source] hyper::Error),
    /// The body broke off, or is too large.
    #[error("the answer's body was lost")]
    Body(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// No answer in time.
    #[error("no answer within {} s", .0.as_secs())]
    Timeout(Duration),
}

impl ApiClient {
    /// A client that waits `timeout` for each answer, and trusts the web's certificates and `extra_roots`.
    ///
    /// # Errors
    /// [`ClientError::Tls`]: a root cannot be read.
    pub fn new(timeout: Duration, extra_roots: Vec<CertificateDer<'static>>) -> Result<Self, ClientError> {
        Ok(Self { tls: connect::tls(extra_roots, &[connect::HTTP_1_1])?, timeout })
    }

    /// Sends one request. Any status is an answer.
    ///
    /// # Errors
    /// [`ApiError`]; only [`ApiError::Url`], [`ApiError::Request`], [`ApiError::Name`] and [`ApiError::Connect`] mean
    /// that nothing was sent.
    pub async fn request(
        &self,
        method: &str,
        url: &Url,
        headers: &[(&str, &str)],
        body: Vec<u8>,
    ) -> Result<ApiAnswer, ApiError> {
        let message = message(method, url, headers, body)?;
        let (host, port) = match (url.scheme(), url.host_str(), url.port_or_known_default()) {
            ("http" | "https", Some(host), Some(port)) => (host.trim_matches(['[', ']']), port),
            _ => return Err(ApiError::Url(url.to_string())),
        };
        let unreachable = |source| ApiError::Connect { host: format!("{host}:{port}"), source };
        let stream = tokio::time::timeout(CONNECT_MAX, TcpStream::connect((host, port)))
            .await
            .unwrap_or_else(|elapsed| Err(elapsed.into()))
            .map_err(unreachable)?;
        let exchange = async {
            if url.scheme() == "https" {
                let name = ServerName::try_from(host.to_owned())
                    .map_err(|source| ApiError::Name { host: host.to_owned(), source })?;
                exchange(self.tls.connect(name, stream).await.map_err(unreachable)?, message).await
            } else {
                exchange(stream, message).await
            }
        };
        tokio::time::timeout(self.timeout, exchange).await.map_err(|_| ApiError::Timeout(self.timeout))?
    }
}

fn message(
    method: &str,
    url: &Url,
    headers: &[(&str, &str)],
    body: Vec<u8>,
) -> Result<Request<Full<Bytes>>, ApiError> {
    let form = || -> Result<_, http::Error> {
        let mut message = Request::new(Bytes::from(body));
        *message.method_mut() = Method::try_from(method)?;
        *message.uri_mut() = Uri::try_from(&url[Position::BeforePath..Position::AfterQuery])?;
        let length = message.body().len();
        let fields = message.headers_mut();
        fields.insert(HOST, HeaderValue::try_from(&url[Position::BeforeHost..Position::AfterPort])?);
        for (name, value) in headers {
            fields.append(HeaderName::try_from(*name)?, HeaderValue::try_from(*value)?);
        }
        fields.insert(CONTENT_LENGTH, HeaderValue::from(length));
        fields.insert(CONNECTION, HeaderValue::from_static("close"));
        Ok(message.map(Full::new))
    };
    form().map_err(ApiError::Request)
}

async fn exchange<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    message: Request<Full<Bytes>>,
) -> Result<ApiAnswer, ApiError> {
    let (mut sender, connection) =
        http1::Builder::new().handshake(TokioIo::new(stream)).await.map_err(ApiError::Lost)?;
    let answer = async move {
        let (head, body) = sender.send_request(message).await.map_err(ApiError::Lost)?.into_parts();
        let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await.map_err(ApiError::Body)?;
        Ok(ApiAnswer {
            status: head.status.as_u16(),
            headers: converse::owned(&head.headers),
            body: body.to_bytes().into(),
        })
    };
    converse::drive(connection, answer).await
}
