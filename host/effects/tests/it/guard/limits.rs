//! What a call may not be: each refusal reaches the guest as such, and nothing is sent.

use counterfoil_domain::effect::{EffectCall, EffectRequest, HttpRequest, Safety};
use counterfoil_domain::limits::EFFECTS_PER_STEP_MAX;

use super::{Desk, call, told};

fn changed(change: impl FnOnce(&mut EffectCall, &mut HttpRequest)) -> EffectCall {
    let mut changed = call("POST", "/charges", Some("charge"), None);
    let EffectRequest::Http(mut request) = changed.request.clone() else { unreachable!("it is http") };
    change(&mut changed, &mut request);
    changed.request = EffectRequest::Http(request);
    changed
}

#[tokio::test]
async fn a_call_out_of_bounds_is_denied_and_journaled() -> anyhow::Result<()> {
    let header = |name: &str, value: &str| {
        let (name, value) = (name.to_owned(), value.to_owned());
        changed(move |_, request| request.headers.push((name, value)))
    };
    let cases: Vec<(&str, EffectCall)> = vec![
        ("another connection", changed(|call, _| call.connection = Some("elsewhere".into()))),
        (
            "no connection",
            changed(|call, request| {
                call.connection = None;
                request.url = "https://example.com/".into();
            }),
        ),
        ("another host", changed(|_, request| request.url = "https://example.com/charges".into())),
        ("out of the base", changed(|_, request| request.url = "//example.com/charges".into())),
        ("Host", header("Host", "example.com")),
        ("Transfer-Encoding", header("Transfer-Encoding", "chunked")),
        ("a header split in two", header("x-a", "b\r\nhost: example.com")),
        ("a method that is none", changed(|_, request| request.method = "PO ST".into())),
        ("a body over the limit", changed(|_, request| request.body = vec![b'x'; (1 << 20) + 1])),
        ("an empty idempotency key", changed(|call, _| call.idempotency_key = Some(String::new()))),
    ];
    for (name, call) in cases {
        let desk = Desk::new().await?;
        desk.work.admit("charge").await?;
        let claimed = desk.begin().await?;
        assert_eq!(told(&desk.perform(&claimed, call).await), "denied", "{name}");
        assert_eq!(desk.end(&claimed).await?, "settled", "{name}");
        assert_eq!(desk.work.receipts().await?, ["charge:0 rejected"], "{name}");
        assert_eq!(desk.provider.calls(), vec![], "{name}");
    }
    Ok(())
}

#[tokio::test]
async fn what_this_host_does_not_offer_is_denied() -> anyhow::Result<()> {
    let desk = Desk::new().await?;
    desk.work.admit("charge").await?;
    let claimed = desk.begin().await?;
    let mut model = call("POST", "/charges", Some("a"), None);
    model.request = EffectRequest::Model("{}".into());
    let mut extra = call("POST", "/charges", Some("b"), None);
    extra.extra.push(("priority".into(), "high".into()));
    let mut nameless = call("POST", "/charges", Some("c"), None);
    nameless.connection = Some("p\0".into());
    for call in [model, extra, nameless] {
        assert_eq!(told(&desk.perform(&claimed, call).await), "denied");
    }
    assert_eq!(desk.provider.calls(), vec![]);
    Ok(())
}

#[tokio::test]
async fn a_label_names_one_effect_of_an_execution() -> anyhow::Result<()> {
    let desk = Desk::new().await?;
    desk.work.admit("charge").await?;
    let claimed = desk.begin().await?;
    let long = "k".repeat(256);
    for (label, expected) in [
        ("a", "answer 201"),
        ("a", "limit slot_reused"),
        ("", "limit slot_label"),
        (&long, "limit slot_label"),
    ] {
        let reply = desk.perform(&claimed, call("POST", "/charges", Some(label), None)).await;
        assert_eq!(told(&reply), expected, "{label:.3}");
    }
    assert_eq!(desk.provider.calls().len(), 1);
    Ok(())
}

/// At the limit, and one over.
#[tokio::test]
async fn a_step_makes_so_many_effects_and_no_more() -> anyhow::Result<()> {
    let desk = Desk::new().await?;
    desk.work.admit("charge").await?;
    let claimed = desk.begin().await?;
    for count in 1..=EFFECTS_PER_STEP_MAX + 1 {
        let reply =
            desk.perform(&claimed, call("GET", "/companies/acme", None, Some(Safety::ReadOnly))).await;
        let expected = if count <= EFFECTS_PER_STEP_MAX { "answer 200" } else { "limit effect_limit" };
        assert_eq!(told(&reply), expected, "{count}");
    }
    assert_eq!(desk.end(&claimed).await?, "settled");
    assert_eq!(desk.work.receipts().await?.len() as u64, EFFECTS_PER_STEP_MAX);
    Ok(())
}
