//! The outbound client against real sockets.

mod answers;
mod api;
mod dns;
mod listener;
mod loss;
mod mail;
mod names;
mod not_sent;
mod proxy;
mod sites;
mod tls;
mod wire;

use std::time::Duration;

use bytes::Bytes;
use counterfoil_domain::effect::HttpResponse;
use counterfoil_domain::outbound::{AddressPolicy, Destination};
use counterfoil_domain::ports::NoFaults;
use counterfoil_effects::client::{
    Budget, Client, ClientConfig, Exchange, LostKind, NotSentKind, SendWindow, WireRequest,
};

/// The development setting, which every test on loopback needs.
fn loopback() -> AddressPolicy {
    AddressPolicy { loopback: true, private: vec![] }
}

fn config() -> ClientConfig {
    ClientConfig { policy: loopback(), ..ClientConfig::default() }
}

fn client(config: ClientConfig) -> Client {
    Client::new(config).expect("the machine has name servers")
}

fn request(method: &str, url: &str, headers: &[(&str, &str)], body: &'static str) -> WireRequest {
    WireRequest {
        method: method.to_owned(),
        destination: Destination::parse(url, &loopback()).expect(url),
        headers: headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
        secret_headers: vec![],
        body: Bytes::from_static(body.as_bytes()),
    }
}

fn post(url: &str) -> WireRequest {
    request("POST", url, &[("content-type", "application/json")], r#"{"amount":100}"#)
}

fn get(url: &str) -> WireRequest {
    request("GET", url, &[], "")
}

fn open() -> SendWindow {
    SendWindow::open(Duration::from_mins(1))
}

async fn exchange(request: WireRequest) -> Exchange {
    exchange_within(&Budget::DEFAULT, request).await
}

async fn exchange_within(budget: &Budget, request: WireRequest) -> Exchange {
    client(config()).exchange(request, budget, &open(), &NoFaults).await
}

/// What an exchange came to, in a form that is easily listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Came {
    NotSent(NotSentKind),
    Answered(u16),
    Truncated(u16),
    Lost(LostKind),
}

impl From<&Exchange> for Came {
    fn from(exchange: &Exchange) -> Self {
        match exchange {
            Exchange::NotSent(not_sent) => Self::NotSent(not_sent.kind),
            Exchange::Answered(HttpResponse { status, truncated: true, .. }) => Self::Truncated(*status),
            Exchange::Answered(response) => Self::Answered(response.status),
            Exchange::Lost(lost) => Self::Lost(lost.kind),
        }
    }
}

#[track_caller]
fn answered(exchange: Exchange) -> HttpResponse {
    match exchange {
        Exchange::Answered(response) => response,
        other => panic!("no answer: {other:?}"),
    }
}
