//! What a connection adds to a call: its secrets, its declarations, and the wait for its rate.

use std::time::Duration;

use counterfoil_domain::connection::{Rate, SecretName};
use counterfoil_domain::effect::{Answer, EffectCall, EffectReply, EffectRequest, Safety};
use counterfoil_domain::ports::SecretSealer as _;
use counterfoil_domain::step::Stop;
use counterfoil_effects::secrets::{KeyRing, Secrets};
use counterfoil_store::connection::{NewConnection, SecretChanges};
use counterfoil_store::settle::HandBack;
use counterfoil_testkit::provider::{Act, Provider, ProviderConfig};
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::json;

use super::{Desk, call, told};

const CANARY: &str = "Bearer canary-5a1c";

/// A desk whose connection `p` sends the canary, sealed under a key of `home`.
async fn desk(home: &tempfile::TempDir) -> anyhow::Result<Desk> {
    let file = home.path().join("keys");
    std::fs::write(&file, KeyRing::with_new(None, random).to_text().expose_secret())?;
    let secrets = Secrets::new(file, random);
    let mut desk = Desk::new().await?;
    desk.guard = super::guard_with(&desk.work, Duration::from_hours(1), secrets.clone(), super::LEASE)?;
    let secret = (SecretName::Header("authorization".into()), SecretString::from(CANARY));
    let set = secrets.seal(desk.work.tenant, "p", vec![secret]).await?;
    desk.work.set_connection(&connection(&desk, None, SecretChanges { set, ..Default::default() })).await?;
    Ok(desk)
}

pub(super) fn connection(desk: &Desk, rate: Option<Rate>, secrets: SecretChanges) -> NewConnection {
    NewConnection {
        name: "p".into(),
        base_url: desk.provider.url(),
        allowed_hosts: vec![desk.provider.address().to_string()],
        abilities: json!({ "idempotency_header": "X-Once", "receipt_id_header": "X-Receipt" }),
        rate,
        in_flight_max: None,
        secrets,
    }
}

fn random(bytes: &mut [u8]) {
    for byte in bytes {
        *byte = uuid::Uuid::now_v7().as_bytes()[15];
    }
}

#[tokio::test]
async fn a_secret_reaches_the_receiver_and_nobody_else() -> anyhow::Result<()> {
    let home = tempfile::tempdir()?;
    let desk = desk(&home).await?;
    let echo = json!({ "you_sent": CANARY, "token": "canary-5a1c" }).to_string();
    let headers = vec![("x-request-id".into(), CANARY.into()), ("x-receipt".into(), "r-canary-5a1c".into())];
    for (key, act, expected) in [
        (
            "answered",
            Act { body: Some(echo.clone()), headers: headers.clone(), ..Act::default() },
            "answer 201",
        ),
        ("refused", Act { body: Some(echo.clone()), headers, ..Act::status(400) }, "rejected 400"),
    ] {
        desk.provider.script("/charges", act);
        desk.work.admit(key).await?;
        let claimed = desk.begin().await?;
        let reply = desk.perform(&claimed, call("POST", "/charges", Some(key), None)).await;
        assert_eq!(told(&reply), expected);
        assert!(!format!("{reply:?}").contains("canary"), "{reply:?}");
        if let EffectReply::Answered(Answer::Http(response)) = reply {
            let text = String::from_utf8(response.body)?;
            assert_eq!(
                text,
                echo.replace(CANARY, &"*".repeat(CANARY.len())).replace("canary-5a1c", "***********")
            );
        }
        assert_eq!(desk.end(&claimed).await?, "settled");
    }
    for call in desk.provider.calls() {
        assert_eq!(call.header("authorization"), Some(CANARY));
        assert!(call.header("x-once").is_some() && call.idempotency_key().is_none(), "{call:?}");
    }
    let dump = desk.work.database.dump().await;
    assert!(dump.iter().any(|line| line == "receipts.provider_receipt_id: r-***********"), "{dump:#?}");
    assert!(dump.iter().all(|line| !line.contains("canary")), "{dump:#?}");
    Ok(())
}

#[tokio::test]
async fn a_call_goes_where_its_connection_leads_when_it_is_made() -> anyhow::Result<()> {
    let desk = Desk::new().await?;
    let other = Provider::start(ProviderConfig::default()).await?;
    let there = NewConnection {
        base_url: other.url(),
        allowed_hosts: vec![other.address().to_string()],
        ..connection(&desk, None, SecretChanges::default())
    };
    let here = connection(&desk, None, SecretChanges::default());
    desk.work.admit("charge").await?;
    let claimed = desk.begin().await?;
    let mut went = vec![];
    // Read and sent in turns: a look and a dispatch come to know of a change in different ways.
    for (n, leads) in [&here, &there, &there, &here].into_iter().enumerate() {
        desk.work.set_connection(leads).await?;
        for method in if n % 2 == 0 { ["POST", "GET"] } else { ["GET", "POST"] } {
            let label = format!("{method}-{n}");
            let before = (desk.provider.calls().len(), other.calls().len());
            let reply = desk.perform(&claimed, call(method, "/charges", Some(&label), None)).await;
            assert!(told(&reply).starts_with("answer"), "{label}: {}", told(&reply));
            went.push((desk.provider.calls().len() - before.0, other.calls().len() - before.1));
        }
    }
    assert_eq!(went, [(1, 0), (1, 0), (0, 1), (0, 1), (0, 1), (0, 1), (1, 0), (1, 0)]);
    assert_eq!(desk.end(&claimed).await?, "settled");
    Ok(())
}

#[tokio::test]
async fn a_block_does_not_set_a_header_that_its_connection_sets() -> anyhow::Result<()> {
    let home = tempfile::tempdir()?;
    let desk = desk(&home).await?;
    desk.work.admit("charge").await?;
    let claimed = desk.begin().await?;
    for (label, header) in [("a", "Authorization"), ("b", "AUTHORIZATION")] {
        let mut forged = call("POST", "/charges", Some(label), None);
        with_header(&mut forged, header, "Bearer mine");
        assert_eq!(told(&desk.perform(&claimed, forged).await), "denied", "{header}");
    }
    let mut other = call("POST", "/charges", Some("c"), None);
    with_header(&mut other, "x-authorization", "mine");
    assert_eq!(told(&desk.perform(&claimed, other).await), "answer 201");
    assert_eq!(desk.end(&claimed).await?, "settled");
    assert_eq!(desk.work.receipts().await?, ["a:0 rejected", "b:0 rejected", "c:0 committed"]);
    Ok(())
}

fn with_header(call: &mut EffectCall, name: &str, value: &str) {
    if let EffectRequest::Http(request) = &mut call.request {
        request.headers.push((name.into(), value.into()));
    }
}

#[tokio::test]
async fn without_its_secrets_a_call_waits_for_the_operator() -> anyhow::Result<()> {
    for spoil in [
        "UPDATE connection_secrets SET sealed = set_byte(sealed, 30, get_byte(sealed, 30) # 1)",
        "UPDATE connection_secrets SET key_id = 'other'",
        "UPDATE connection_secrets SET name = 'header:x-token'",
        "UPDATE connection_secrets SET name = 'password'",
    ] {
        let home = tempfile::tempdir()?;
        let desk = desk(&home).await?;
        desk.work.execute(spoil).await?;
        desk.work.admit("charge").await?;
        let claimed = desk.begin().await?;
        let reply = desk.perform(&claimed, call("POST", "/charges", Some("charge"), None)).await;
        assert_eq!(told(&reply), "nothing", "{spoil}");
        let finished = desk.guard.finish(claimed.fence.lease).await;
        let expected = Stop::Database { message: "the secrets of connection `p` do not open".into() };
        assert_eq!(finished.stop, Some(expected), "{spoil}");
        assert_eq!((desk.work.receipts().await?.len(), desk.provider.calls().len()), (0, 0), "{spoil}");
    }
    Ok(())
}

/// What was read before the wait is not read again after it: it would ask for room again, for ever.
#[tokio::test]
async fn a_step_that_waits_for_room_goes_on_where_it_was() -> anyhow::Result<()> {
    let desk = Desk::new().await?;
    let hourly = Rate { limit: 1, per_ms: 3_600_000, burst: Some(0) };
    desk.work.set_connection(&connection(&desk, Some(hourly), SecretChanges::default())).await?;
    desk.work.admit("charge").await?;
    let mut waits = vec![];
    for execution in 1..=3 {
        let claimed = desk.begin().await?;
        assert_eq!(claimed.attempt, 1, "waiting uses no attempt");
        let mut said = vec![];
        for (method, label) in [("GET", "first"), ("POST", "second"), ("GET", "third")] {
            let reply = desk.perform(&claimed, call(method, "/charges", Some(label), None)).await;
            said.push(told(&reply));
        }
        let finished = desk.guard.finish(claimed.fence.lease).await;
        let Some(Stop::NoRoom { wait_ms }) = finished.stop else {
            assert_eq!((execution, said.join(", ").as_str()), (3, "answer 200, answer 201, answer 200"));
            assert_eq!(desk.settle(&claimed, finished).await?, "settled");
            break;
        };
        waits.push(wait_ms);
        let back = HandBack {
            fence: claimed.fence,
            writes: finished.writes,
            delay: Duration::ZERO,
            why: None,
            lost: false,
        };
        desk.work.store.hand_back_with(&back).await?;
        desk.work
            .execute(
                "UPDATE connection_rates SET tat = tat - interval '1 hour', tail = tail - interval '1 hour'",
            )
            .await?;
        desk.work.execute("UPDATE open_steps SET turn_at = turn_at - interval '1 hour'").await?;
    }
    // Longer waits are looked at in between.
    assert_eq!(waits, [300_000, 300_000]);
    let methods: Vec<String> = desk.provider.calls().into_iter().map(|call| call.method).collect();
    assert_eq!(methods, ["GET", "POST", "GET"]);
    let receipts = desk.work.receipts().await?;
    assert_eq!(receipts, ["first:0 committed", "second:0 committed", "third:0 committed"]);
    Ok(())
}

#[tokio::test]
async fn the_declaration_that_decided_is_on_the_receipt() -> anyhow::Result<()> {
    for (status, meaning, state, reason) in [
        (500, "not-applied", "rejected", "status 500 means not applied by the connection's declaration"),
        (404, "applied", "committed", "status 404 means applied by the connection's declaration"),
        (
            400,
            "unknown",
            "unknown",
            "status 400 means that it may have been applied by the connection's declaration",
        ),
        (503, "refused", "rejected", "status 503 means not applied by the connection's declaration"),
        (402, "", "rejected", "status 402 means not applied"),
    ] {
        let statuses = if meaning.is_empty() { json!({}) } else { json!({ status.to_string(): meaning }) };
        let desk = Desk::with_abilities(json!({ "statuses": statuses })).await?;
        desk.provider.script("/charges", Act::status(status));
        desk.work.admit("charge").await?;
        let claimed = desk.begin().await?;
        desk.perform(&claimed, call("POST", "/charges", Some("charge"), Some(Safety::AtMostOnce))).await;
        desk.end(&claimed).await?;
        let dump = desk.work.database.dump().await;
        for line in [format!("receipts.state: {state}"), format!("receipts.reason: {reason}")] {
            assert!(dump.contains(&line), "{line} is not in {dump:#?}");
        }
    }
    Ok(())
}
