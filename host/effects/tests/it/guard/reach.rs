//! Where a call may go, by each of its ways: through a connection, by the block's own grant, by the workflow's author.

use std::sync::Arc;
use std::time::Duration;

use counterfoil_domain::effect::{EffectCall, EffectRequest, Safety};
use counterfoil_domain::outbound::AddressPolicy;
use counterfoil_domain::ports::{EffectPort as _, NoFaults};
use counterfoil_effects::client::{Client, ClientConfig, NameServers};
use counterfoil_effects::secrets::Secrets;
use counterfoil_effects::{Guard, GuardConfig};
use serde_json::json;

use super::{Desk, LEASE, call, grant, told};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Connection,
    Grant,
    Author,
}

/// What `guard` tells a step that posts to `base` and `path`, of which `host` is allowed.
async fn post(
    desk: &Desk,
    guard: &Guard,
    way: Way,
    base: &str,
    host: &str,
    path: &str,
) -> anyhow::Result<String> {
    desk.work.admit("charge").await?;
    let claimed = desk.work.claim(LEASE).await?;
    let mut context = desk.context(&claimed);
    let mut call = call("POST", path, None, None);
    match way {
        Way::Connection => desk.work.connect("p", base, json!({})).await?,
        Way::Grant => {
            let mut grant = grant("http", Safety::AtMostOnce);
            grant.hosts = vec![host.to_owned()];
            context.grants = Some(vec![grant]);
            to(&mut call, format!("{base}{path}"));
        }
        Way::Author => {
            context.grants = None;
            to(&mut call, format!("{base}{path}"));
        }
    }
    guard.begin(context);
    let told = told(&guard.perform(claimed.fence.lease, call).await);
    guard.finish(claimed.fence.lease).await;
    desk.work.store.hand_back(&claimed.fence, Duration::from_hours(1)).await?;
    Ok(told)
}

/// No connection, and another URL.
fn to(call: &mut EffectCall, url: String) {
    call.connection = None;
    if let EffectRequest::Http(request) = &mut call.request {
        request.url = url;
    }
}

/// 31: the list of allowed hosts is asked by both ways that have one, whatever the reference looks like.
#[tokio::test]
async fn each_way_with_a_list_of_hosts_is_held_to_it() -> anyhow::Result<()> {
    let desk = Desk::new().await?;
    let base = desk.provider.url();
    let host = base.trim_start_matches("http://").to_owned();
    for way in [Way::Connection, Way::Grant] {
        let calls = desk.provider.calls_count();
        assert_eq!(post(&desk, &desk.guard, way, &base, &host, "/charges").await?, "answer 201", "{way:?}");
        assert_eq!(desk.provider.calls_count(), calls + 1, "{way:?}");
    }
    let port = desk.provider.address().port();
    let calls = desk.provider.calls_count();
    for other in [
        format!("http://localhost:{port}"),
        format!("http://[::1]:{port}"),
        format!("http://[::ffff:127.0.0.1]:{port}"),
        format!("http://127.0.0.2:{port}"),
        format!("http://{host}@127.0.0.3:{port}"),
        format!("http://{host}.example.com"),
        "http://127.0.0.1:1".to_owned(),
        "https://example.com".to_owned(),
    ] {
        let by_grant = post(&desk, &desk.guard, Way::Grant, &other, &host, "/charges").await?;
        assert_eq!(by_grant, "denied", "{other}");
        // Behind a connection, what the guest gives is a reference, and must not lead away from the base.
        let path = format!("{other}/charges");
        let by_connection = post(&desk, &desk.guard, Way::Connection, &base, &host, &path).await?;
        assert_eq!(by_connection, "denied", "{other}");
    }
    assert_eq!(desk.provider.calls_count(), calls, "nothing has arrived");
    Ok(())
}

/// 32: an address is judged as an address, however it is spelled; nothing falls open because no name was looked up.
#[tokio::test]
async fn no_spelling_of_an_address_skips_the_policy_on_any_way() -> anyhow::Result<()> {
    let desk = Desk::new().await?;
    let guard = strict(&desk)?;
    let port = desk.provider.address().port();
    for host in [
        format!("127.0.0.1:{port}"),
        format!("127.1:{port}"),
        format!("2130706433:{port}"),
        format!("0x7f000001:{port}"),
        format!("0177.0.0.1:{port}"),
        format!("0.0.0.0:{port}"),
        format!("localhost:{port}"),
        format!("[::1]:{port}"),
        format!("[::ffff:127.0.0.1]:{port}"),
        format!("[::ffff:7f00:1]:{port}"),
        format!("[64:ff9b::127.0.0.1]:{port}"),
        // A host and a port that are not told apart.
        format!("::1:{port}"),
        format!("::ffff:127.0.0.1:{port}"),
        format!("127.0.0.1:{port}:{port}"),
        "169.254.169.254".to_owned(),
        "[fe80::1]".to_owned(),
    ] {
        for way in [Way::Connection, Way::Grant, Way::Author] {
            let told = post(&desk, &guard, way, &format!("http://{host}"), &host, "/charges").await?;
            assert_eq!(told, "denied", "{way:?} {host}");
        }
    }
    assert_eq!(desk.provider.calls(), vec![], "nothing has arrived");
    Ok(())
}

/// A guard as it is where nobody has opened a network.
fn strict(desk: &Desk) -> anyhow::Result<Guard> {
    let client = Client::new(ClientConfig {
        policy: AddressPolicy::default(),
        name_servers: NameServers::System,
        extra_roots: vec![],
        first_byte_alone: false,
    })?;
    let config = GuardConfig {
        lease: LEASE,
        timeout: Duration::from_secs(5),
        answer_wait: Duration::from_hours(1),
        absence_margin: Duration::ZERO,
        record_for: Duration::from_mins(1),
        receipts: true,
    };
    let keyless = Secrets::new("/nowhere".into(), |_| {});
    Ok(Guard::new(desk.work.store.clone(), client, keyless, config, Arc::new(NoFaults)))
}
