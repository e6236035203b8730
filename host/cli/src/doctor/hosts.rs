//! Who answers where a host should.

use std::time::Duration;

use counterfoil_effects::client::api::{ApiClient, ApiError};
use url::Url;

use super::{Check, fault, fine, note};
use crate::config::Config;
use crate::data::DevFile;

/// A host on this machine answers at once.
const PROBE_TIME_MAX: Duration = Duration::from_secs(3);

/// Which host it is that all of this is about.
pub(super) async fn host(config: &Config, dev: Option<&DevFile>) -> Check {
    let program = if dev.is_some() { "counterfoil dev" } else { "counterfoil serve" };
    let settings = format!("the settings here are those that `{program}` would read if it were started now");
    let mut check = if let Some(url) = host_url(config, dev) {
        listener(&url).await.check("host", &url)
    } else {
        let any = format!("{} is any free port, so that none is looked for", config.server.listen);
        note("host", format!("server.listen = {any}"))
    };
    check.detail = format!("{}; {settings}", check.detail);
    check
}

/// Where that one is.
pub(super) fn host_url(config: &Config, dev: Option<&DevFile>) -> Option<Url> {
    let listen = config.server.listen;
    match dev {
        Some(dev) => dev.url.parse().ok(),
        None if listen.port() == 0 => None,
        None => format!("http://{listen}/").parse().ok(),
    }
}

/// The host that the commands go to, where it is another one.
pub(super) async fn commands_host(url: &Url) -> Check {
    let mut check = listener(url).await.check("host of commands", url);
    check.detail = format!("{}; commands go there (--url, COUNTERFOIL_URL)", check.detail);
    check
}

/// Who listens at an address.
enum Listener {
    Nobody,
    Silent,
    BreaksOff,
    Stranger,
    Ready,
    NotReady(String),
}

impl Listener {
    fn check(self, subject: &'static str, url: &Url) -> Check {
        match self {
            Self::Ready => fine(subject, format!("one answers at {url}, and is ready")),
            Self::NotReady(why) => fault(subject, format!("one answers at {url}, and is not ready: {why}")),
            Self::Stranger => fault(subject, format!("what answers at {url} is no Counterfoil host")),
            Self::Silent => {
                let seconds = PROBE_TIME_MAX.as_secs();
                fault(
                    subject,
                    format!(
                        "something listens at {url} and says nothing for {seconds} s: a host that is frozen or overloaded, \
                         whose steps others take over when its leases run out, or another program"
                    ),
                )
            }
            Self::BreaksOff => fault(
                subject,
                format!(
                    "something at {url} took the connection and broke it off: a host that is stopping, or another program"
                ),
            ),
            Self::Nobody => note(subject, format!("none answers at {url}")),
        }
    }
}

async fn listener(url: &Url) -> Listener {
    let Ok(client) = ApiClient::new(PROBE_TIME_MAX, vec![]) else { return Listener::Nobody };
    let Ok(url) = url.join("readyz") else { return Listener::Nobody };
    let answer = match client.request("GET", &url, &[], vec![]).await {
        Ok(answer) => answer,
        Err(ApiError::Timeout(_)) => return Listener::Silent,
        Err(ApiError::Lost(error)) if !error.is_parse() => return Listener::BreaksOff,
        Err(ApiError::Lost(_) | ApiError::Body(_)) => return Listener::Stranger,
        Err(_) => return Listener::Nobody,
    };
    let said: serde_json::Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    match (answer.status, &said["status"], said["detail"].as_str()) {
        (200, status, _) if status == "ready" => Listener::Ready,
        (503, _, Some(why)) => Listener::NotReady(why.to_owned()),
        _ => Listener::Stranger,
    }
}
