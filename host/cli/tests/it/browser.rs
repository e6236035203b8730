//! A person in a real browser: finds the run that is blocked, reads its timeline, and resolves the effect.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use counterfoil_testkit::browser::{Client, Driver, Locator};
use counterfoil_testkit::host::{Host, PATIENCE};
use counterfoil_testkit::provider::Act;
use serde_json::json;

use crate::world::World;

/// Long beside everything that the test does.
const LEASE_MS: u64 = 15_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_person_reads_a_timeline_and_resolves_an_effect() -> anyhow::Result<()> {
    let world = World::new("browser").await?;
    let host = Host::start(&world.host(LEASE_MS), &world.key).await?;
    world.provider.script("/charges", Act::dropped());
    let run = host.start_run("charge-card", &json!({ "order": "o-1", "cents": 500 })).await?;
    host.wait_for_run(&run, &["blocked"]).await?;

    let driver = Driver::start().await?;
    let browser = driver.browser(&world.directory.path().join("browser")).await?;
    let shown = async {
        shows_and_resolves(&browser, &host, &world, &run).await?;
        finds_why_nothing_ran(&browser, &host).await
    }
    .await;
    let source = browser.source().await.unwrap_or_default();
    browser.close().await?;
    shown.with_context(|| format!("the page was: {source:.4000}"))?;

    let ended = host.wait_for_run(&run, &["succeeded", "failed"]).await?;
    assert_eq!(
        ended["output"],
        json!({ "id": "ch_seen" }),
        "the block was handed the answer that the person gave"
    );
    assert_eq!(world.provider.calls().len(), 1, "nothing was sent again");
    host.kill().await
}

async fn shows_and_resolves(browser: &Client, host: &Host, world: &World, run: &str) -> anyhow::Result<()> {
    browser.goto(&format!("{}/runs/{run}", host.base())).await?;
    browser.find(Locator::Id("key")).await?.send_keys(&world.key).await?;
    browser.find(Locator::Css("form button[type=submit]")).await?.click().await?;

    let wait = || browser.wait().at_most(Duration::from_secs(20));
    wait().for_element(Locator::LinkText("charge-card")).await?;
    let timeline = browser.find(Locator::Css("main")).await?.text().await?;
    for expected in ["blocked", "charge-card", "unknown"] {
        anyhow::ensure!(
            timeline.to_lowercase().contains(expected),
            "`{expected}` is not on the timeline: {timeline}"
        );
    }
    let effect = browser.find(Locator::Css("a[href^='/effects/eff_']")).await?;
    let effect_page = effect.attr("href").await?.context("a link leads somewhere")?;
    effect.click().await?;

    wait().for_element(Locator::Id("evidence")).await?.send_keys("call 1 in the provider's log").await?;
    browser.find(Locator::Css("input[name=outcome][value=verified]")).await?.click().await?;
    for (field, value) in [
        ("input[name=status]", "201"),
        ("textarea[name=body]", r#"{"id":"ch_seen"}"#),
        ("input[name=content_type]", "application/json"),
    ] {
        let field = browser.find(Locator::Css(field)).await?;
        field.clear().await?;
        field.send_keys(value).await?;
    }
    browser.find(Locator::Css("button[value=preview]")).await?.click().await?;
    let confirm = wait().for_element(Locator::Css("button[value=confirm]")).await?;
    let preview = browser.find(Locator::Css("main")).await?.text().await?;
    anyhow::ensure!(preview.contains("Nothing is sent again"), "the consequence is not shown: {preview}");
    confirm.click().await?;
    wait().for_element(Locator::LinkText("charge-card")).await?;
    browser.goto(&format!("{}{effect_page}", host.base())).await?;
    let lead = wait().for_element(Locator::Css("main > p")).await?.text().await?;
    anyhow::ensure!(
        lead.starts_with("Resolved ") && lead.ends_with("call 1 in the provider's log"),
        "{lead}"
    );
    Ok(())
}

async fn finds_why_nothing_ran(browser: &Client, host: &Host) -> anyhow::Result<()> {
    let sent = host.call("POST", "/v1/events", &json!({ "type": "nobody.listens" })).await?;
    let event = sent["events"][0]["id"].as_str().context("an id")?.to_owned();
    let told = async || {
        browser.goto(&format!("{}/runs", host.base())).await?;
        browser.find(Locator::Css("input[name=q]")).await?.send_keys(&event).await?;
        browser.find(Locator::Css("form.filters button")).await?.click().await?;
        let page = browser.wait().at_most(PATIENCE).for_element(Locator::Css("main .notice")).await?;
        anyhow::Ok(page.text().await?)
    };
    // Until it is handed out, the page says that.
    let deadline = Instant::now() + PATIENCE;
    loop {
        let told = told().await?;
        if told.starts_with("It started nothing: no active workflow had a trigger for nobody.listens") {
            return Ok(());
        }
        anyhow::ensure!(Instant::now() < deadline, "{told}");
    }
}
