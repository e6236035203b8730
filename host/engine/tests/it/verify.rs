//! Blocks that are asked what became of their effects: what they say, when they are asked, and who comes first.

use anyhow::Context as _;
use counterfoil_domain::effect::{Answer, EffectFailure, EffectReply, HttpResponse};
use counterfoil_domain::id::RunId;
use counterfoil_domain::ports::{EffectPort as _, VerifyEnd, VerifyJob};
use counterfoil_domain::receipt::resolution::{Outcome, Resolution, resolve};
use counterfoil_domain::receipt::verification::Verdict;
use counterfoil_domain::receipt::{Actor, Recorded};
use counterfoil_effects::Guard;
use counterfoil_store::receipt::{EffectFilter, ReceiptView, Resolved};
use counterfoil_store::run::RunState;
use counterfoil_testkit::provider::Act;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use serde_json::json;

use crate::house::{Asked, House, call, eventually};

/// Looks for the charge under its key.
fn looks<'a>(guard: &'a Guard, job: &'a VerifyJob) -> BoxFuture<'a, VerifyEnd> {
    async {
        let key = job.receipt.idempotency_key.as_deref().unwrap_or_default();
        let verdict =
            match guard.perform(job.execution, call("GET", &format!("/charges?key={key}"), "")).await {
                EffectReply::Answered(found) => Verdict::Applied(found),
                EffectReply::Failed(EffectFailure::Rejected(answer)) if answer.status == 404 => {
                    Verdict::NotApplied
                }
                EffectReply::Failed(failure) => Verdict::Inconclusive(format!("{failure:?}")),
                EffectReply::Stop => return VerifyEnd::Stopped,
            };
        VerifyEnd::Said(verdict)
    }
    .boxed()
}

impl House {
    /// A house whose block `charge` can be asked so.
    async fn asking(asked: Option<Asked>) -> anyhow::Result<Self> {
        let mut house = Self::new().await?;
        house.charging("charge", asked).await?;
        Ok(house)
    }

    /// Starts a run whose charge takes place and whose answer is lost.
    async fn lose_a_charge(&self) -> anyhow::Result<RunId> {
        self.provider.script("/charges", Act::dropped());
        self.start("charge", json!({})).await
    }

    /// Calls that the provider saw, by method.
    fn calls(&self, method: &str) -> usize {
        self.provider.calls().iter().filter(|call| call.method == method).count()
    }

    /// The first receipt of a run, once it is as it should be.
    async fn receipt(&self, run: RunId, is_so: impl Fn(&ReceiptView) -> bool) -> anyhow::Result<ReceiptView> {
        let (store, tenant) = (&self.work.store, self.work.tenant);
        let filter = EffectFilter { run: Some(run), ..EffectFilter::default() };
        eventually(async || {
            let page = counterfoil_store::Page { after: None, limit: 10 };
            let rows = store.effects(tenant, filter, page).await?;
            let Some(first) = rows.iter().find(|row| row.dispatch_number == 0) else { return Ok(None) };
            let view = store.receipt(tenant, first.id).await?;
            Ok(view.filter(|view| is_so(view)))
        })
        .await
    }

    /// Once its block has been asked so often, and is not being asked now.
    async fn asked(&self, run: RunId, asked: u32) -> anyhow::Result<ReceiptView> {
        self.receipt(run, |view| {
            view.verification
                .as_ref()
                .is_some_and(|found| found.asked == asked && found.said.is_some() && !found.is_being_asked)
        })
        .await
        .with_context(|| format!("asked {asked} times"))
    }
}

fn actors(view: &ReceiptView) -> Vec<String> {
    view.history.iter().map(|entry| format!("{} by {}", entry.to, entry.actor)).collect()
}

/// What becomes of a lost answer whose block can find it, and of one whose block cannot be asked.
#[tokio::test]
async fn a_block_that_can_find_its_effect_goes_on_without_a_person() -> anyhow::Result<()> {
    let mut house = House::asking(Some(looks)).await?;
    house.charging("silent", None).await?;
    let _host = house.host()?;
    let run = house.lose_a_charge().await?;
    eventually(async || Ok((house.run(run).await?.row.state == RunState::Succeeded).then_some(()))).await?;
    let view = house.run(run).await?;
    assert_eq!(view.output, Some(json!({ "id": "ch_1", "receipt_id": "rcpt_1" })));
    assert_eq!((house.calls("POST"), house.calls("GET")), (1, 1));
    assert_eq!(house.work.receipts().await?, ["charge:0 verified"], "a look-up leaves no receipt");
    let receipt = house.receipt(run, |_| true).await?;
    assert_eq!(actors(&receipt), ["unknown by host", "verified by verifier"]);
    assert_eq!(receipt.provider_receipt_id.as_deref(), Some("rcpt_1"));

    house.provider.script("/charges", Act::dropped());
    let run = house.start("silent", json!({})).await?;
    assert_eq!(house.ended(run).await?.row.state, RunState::Blocked);
    assert_eq!(house.receipt(run, |_| true).await?.verification, None, "it is a person's at once");
    Ok(())
}

/// Not there yet is not the same as not there: the block is asked again when its word can be believed.
#[tokio::test]
async fn an_absence_is_believed_when_the_call_can_no_longer_arrive() -> anyhow::Result<()> {
    let house = House::asking(Some(|_, _| async { VerifyEnd::Said(Verdict::NotApplied) }.boxed())).await?;
    let _host = house.host()?;
    let run = house.lose_a_charge().await?;
    // It was asked once, too early, which does not count.
    let early = house.asked(run, 0).await?;
    let verification = early.verification.context("it waits")?;
    assert_eq!(verification.next_at, early.absence_known_at);
    let said = verification.said.unwrap_or_default();
    assert!(said.starts_with("not applied; but the request may still arrive until"), "{said}");
    assert_eq!(house.run(run).await?.row.state, RunState::Blocked);
    assert_eq!(house.calls("POST"), 1, "nothing is sent meanwhile");

    house.work.execute("UPDATE receipts SET absence_known_at = now()").await?;
    house.work.let_time_pass().await?;
    eventually(async || Ok((house.run(run).await?.row.state == RunState::Succeeded).then_some(()))).await?;
    assert_eq!(house.calls("POST"), 2, "sent again, once");
    assert_eq!(house.work.receipts().await?, ["charge:0 abandoned", "charge:1 committed"]);
    Ok(())
}

/// A look that began too early proves nothing, however late it ends: what was not there may have come since.
#[tokio::test]
async fn a_look_that_began_too_early_is_taken_again() -> anyhow::Result<()> {
    let sees_nothing: Asked = |guard, job| {
        async {
            guard.perform(job.execution, call("GET", "/charges", "")).await;
            VerifyEnd::Said(Verdict::NotApplied)
        }
        .boxed()
    };
    let house = House::asking(Some(sees_nothing)).await?;
    let _host = house.host()?;
    let run = house.lose_a_charge().await?;
    house.provider.wait_for_calls(1).await?;
    house.provider.script("/charges", Act::held());
    house.provider.wait_for_calls(2).await?;
    house.work.execute("UPDATE receipts SET absence_known_at = now()").await?;
    house.provider.release();
    eventually(async || Ok((house.run(run).await?.row.state == RunState::Succeeded).then_some(()))).await?;
    assert_eq!((house.calls("POST"), house.calls("GET")), (2, 2));
    Ok(())
}

/// A block that does not know is asked again, ever later, and then a person is.
#[tokio::test]
async fn a_block_that_never_knows_leaves_it_to_a_person() -> anyhow::Result<()> {
    let house = House::asking(Some(looks)).await?;
    let _host = house.host()?;
    let run = house.lose_a_charge().await?;
    for asked in 1..=6 {
        // Its charge was the first to meet a script.
        house.provider.script("/charges", Act::status(500));
        house.receipt(run, |view| view.verification.is_some()).await?;
        house.work.let_time_pass().await?;
        let view = house.asked(run, asked).await?;
        let verification = view.verification.context("it is unknown")?;
        let said = verification.said.unwrap_or_default();
        assert!(said.contains("Rejected") && said.contains("500"), "{said}");
        assert_eq!(verification.next_at.is_none(), asked == 6, "asked {asked} times");
    }
    assert_eq!(house.run(run).await?.row.state, RunState::Blocked);
    assert_eq!((house.calls("POST"), house.calls("GET")), (1, 6));
    house.say_verified(run).await?;
    assert_eq!(house.ended(run).await?.row.state, RunState::Succeeded);
    Ok(())
}

/// What a verifier may not do, or cannot, is no verdict, and harms nobody.
#[tokio::test]
async fn a_verifier_that_acts_or_breaks_is_inconclusive() -> anyhow::Result<()> {
    let acts: Asked = |guard, job| {
        async {
            let reply = guard.perform(job.execution, call("POST", "/charges", "{}")).await;
            VerifyEnd::Said(Verdict::Inconclusive(format!("{reply:?}")))
        }
        .boxed()
    };
    let traps: Asked = |_, _| {
        let code = counterfoil_domain::code::Code::GuestTrap;
        async move { VerifyEnd::Trapped { code, message: "the block was ended: unreachable".into() } }.boxed()
    };
    let lies: Asked = |_, _| {
        let answer = HttpResponse { status: 402, headers: vec![], body: vec![], truncated: false };
        async { VerifyEnd::Said(Verdict::Applied(Answer::Http(answer))) }.boxed()
    };
    for (asked, expected) in [
        (acts, "Denied(\"a block that is asked what became of an effect may look, and change nothing\")"),
        (traps, "unreachable"),
        (lies, "an effect that took place is answered with a status of 200 to 399"),
    ] {
        let house = House::asking(Some(asked)).await?;
        let _host = house.host()?;
        let run = house.lose_a_charge().await?;
        let view = house.asked(run, 1).await?;
        let verification = view.verification.context("it is unknown")?;
        let said = verification.said.unwrap_or_default();
        assert!(said.contains(expected), "{said}");
        assert!(verification.next_at.is_some(), "it is asked again");
        assert_eq!(house.calls("POST"), 1, "{expected}");
        assert_eq!(house.work.receipts().await?, ["charge:0 unknown"]);
    }
    Ok(())
}

#[tokio::test]
async fn a_host_that_is_lost_while_it_asks_is_followed_by_another() -> anyhow::Result<()> {
    let house = House::asking(Some(looks)).await?;
    let host = house.host()?;
    let run = house.lose_a_charge().await?;
    house.provider.wait_for_calls(1).await?;
    house.provider.script("/charges", Act::held());
    house.provider.wait_for_calls(2).await?;
    drop(host);
    let _other = house.host()?;
    assert_eq!(house.run(run).await?.row.state, RunState::Blocked, "the hold is the lost host's still");
    house.work.let_time_pass().await?;
    eventually(async || Ok((house.run(run).await?.row.state == RunState::Succeeded).then_some(()))).await?;
    assert_eq!((house.calls("POST"), house.calls("GET")), (1, 2));
    Ok(())
}

/// A host that is told to stop lets a block say what it was asked.
#[tokio::test]
async fn a_host_that_stops_hears_what_it_asked_for() -> anyhow::Result<()> {
    let house = House::asking(Some(looks)).await?;
    let host = house.host()?;
    let run = house.lose_a_charge().await?;
    house.provider.wait_for_calls(1).await?;
    house.provider.script("/charges", Act::held());
    house.provider.wait_for_calls(2).await?;
    let stopping = tokio::spawn(host.stop());
    tokio::task::yield_now().await;
    house.provider.release();
    stopping.await??;
    assert_eq!(house.work.receipts().await?, ["charge:0 verified"]);
    assert_eq!(house.run(run).await?.row.state, RunState::Running, "another host goes on with it");
    Ok(())
}

/// Whoever comes first has said it; the other finds it said.
#[tokio::test]
async fn a_person_may_come_before_the_block() -> anyhow::Result<()> {
    let house = House::asking(Some(looks)).await?;
    let _host = house.host()?;
    let run = house.lose_a_charge().await?;
    house.provider.wait_for_calls(1).await?;
    house.provider.script("/charges", Act::held());
    house.provider.wait_for_calls(2).await?;
    house.say_verified(run).await?;
    house.provider.release();
    house.provider.wait_until(|calls| calls.iter().all(|call| call.outcome.is_some())).await?;
    let view = house.ended(run).await?;
    assert_eq!((view.row.state, view.output), (RunState::Succeeded, Some(json!("by hand"))));
    let receipt = house.receipt(run, |_| true).await?;
    assert_eq!(actors(&receipt), ["unknown by host", "verified by person:ada"]);
    assert_eq!(house.work.count("SELECT count(*) FROM verifications").await?, 0);
    Ok(())
}

impl House {
    async fn say_verified(&self, run: RunId) -> anyhow::Result<()> {
        let receipt = self.receipt(run, |_| true).await?.receipt;
        let answer =
            HttpResponse { status: 200, headers: vec![], body: b"\"by hand\"".to_vec(), truncated: false };
        let resolution = Resolution {
            outcome: Outcome::Verified,
            evidence: "seen".into(),
            recorded: Some(Recorded::Answer(Answer::Http(answer))),
            provider_receipt_id: None,
        };
        let person = Actor::Person("ada".into());
        let decide = |receipt: &_, now| resolve(receipt, resolution, person.clone(), now);
        let resolved = self.work.store.resolve(self.work.tenant, receipt.id, decide, true, &person).await?;
        assert_eq!(resolved, Resolved::Done { resumed: true, run });
        Ok(())
    }
}
