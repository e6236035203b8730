//! The client for the product's own API.

use std::time::Duration;

use counterfoil_effects::client::api::{ApiClient, ApiError};
use counterfoil_testkit::provider::{Act, Provider, ProviderConfig};
use url::Url;

use super::listener::{Listener, converse};
use super::tls::{self, TlsListener};

fn client() -> ApiClient {
    ApiClient::new(Duration::from_secs(5), vec![]).expect("TLS can be set up")
}

#[tokio::test]
async fn every_status_is_an_answer() {
    let provider = Provider::start(ProviderConfig::default()).await.expect("a provider starts");
    let url = Url::parse(&format!("{}/v1/runs?limit=2", provider.url())).expect("a URL");
    for status in [200, 302, 404, 503] {
        provider.script("/v1/runs", Act { body: Some("{\"a\":1}".to_owned()), ..Act::status(status) });
        let answer = client()
            .request("POST", &url, &[("authorization", "Bearer k")], b"{}".to_vec())
            .await
            .expect("an answer");
        assert_eq!((answer.status, answer.body.as_slice()), (status, &b"{\"a\":1}"[..]));
        assert!(answer.headers.contains(&("content-type".to_owned(), "application/json".to_owned())));
    }
    let call = &provider.calls()[0];
    assert_eq!((call.path.as_str(), call.query.as_str(), call.body.as_str()), ("/v1/runs", "limit=2", "{}"));
    assert_eq!(call.header("authorization"), Some("Bearer k"));
}

#[tokio::test]
async fn failures_say_whether_anything_was_sent() {
    let nobody = Listener::bind().await.url();
    let error = client().request("GET", &Url::parse(&nobody).expect("a URL"), &[], vec![]).await;
    assert!(matches!(error, Err(ApiError::Connect { .. })), "{error:?}");

    let url = Url::parse("ftp://example.com/").expect("a URL");
    let error = client().request("GET", &url, &[], vec![]).await;
    assert!(matches!(error, Err(ApiError::Url(_))), "{error:?}");

    let provider = Provider::start(ProviderConfig::default()).await.expect("a provider starts");
    let url = Url::parse(&provider.url()).expect("a URL");
    let error = client().request("G T", &url, &[], vec![]).await;
    assert!(matches!(error, Err(ApiError::Request(_))), "{error:?}");
    assert_eq!(provider.calls(), []);

    provider.script("/", Act::dropped());
    let error = client().request("GET", &url, &[], vec![]).await;
    assert!(matches!(error, Err(ApiError::Lost(_))), "{error:?}");

    provider.script("/", Act { cut_at: Some(100), body_bytes: Some(100), ..Act::default() });
    let error = client().request("GET", &url, &[], vec![]).await;
    assert!(matches!(error, Err(ApiError::Body(_))), "{error:?}");

    provider.script("/", Act::held());
    let impatient = ApiClient::new(Duration::from_millis(50), vec![]).expect("TLS can be set up");
    let error = impatient.request("GET", &url, &[], vec![]).await;
    assert!(matches!(error, Err(ApiError::Timeout(_))), "{error:?}");
}

#[tokio::test]
async fn a_private_authority_can_be_trusted() {
    let authority = tls::authority();
    let listener = Listener::bind().await;
    let url = Url::parse(&format!("https://localhost:{}/", listener.address.port())).expect("a URL");
    let listener = TlsListener::new(listener, &authority.issue("localhost"));
    tokio::spawn(async move {
        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";
        converse(listener.accept().await.expect("a handshake"), answer).await
    });
    let client = ApiClient::new(Duration::from_secs(5), vec![authority.root()]).expect("TLS can be set up");
    let answer = client.request("GET", &url, &[], vec![]).await.expect("an answer");
    assert_eq!(answer.status, 200);
}
