//! Runs that wait for signals, events, people and other runs: nothing that came first is lost, and each is taken once.

use std::time::Duration;

use counterfoil_domain::id::{ApprovalId, RunId};
use counterfoil_domain::receipt::Actor;
use counterfoil_store::Page;
use counterfoil_store::run::{Cancelled, RunState};
use counterfoil_store::waiting::{ApprovalOutcome, ApprovalRow, Decided, NewSignal, Signalled};
use counterfoil_testkit::provider::Act;
use futures::future::join_all;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::house::{House, eventually};

impl House {
    async fn signal(&self, run: RunId, name: &str, data: Value) -> anyhow::Result<Signalled> {
        let signal = NewSignal { id: Uuid::now_v7(), name: name.into(), data };
        Ok(self.work.store.signal(self.work.tenant, run, &signal, &ada()).await?)
    }

    async fn cancel(&self, run: RunId) -> anyhow::Result<Cancelled> {
        Ok(self.work.store.cancel_run(self.work.tenant, run, &ada()).await?)
    }

    /// The question that is open.
    async fn question(&self) -> anyhow::Result<ApprovalRow> {
        let page = || Page { after: None, limit: 10 };
        eventually(async || Ok(self.work.store.approvals(self.work.tenant, true, page()).await?.pop())).await
    }

    /// 16: whatever is open and has no time is waited for by somebody.
    async fn everything_open_will_be_woken(&self) -> anyhow::Result<()> {
        let orphans = "SELECT count(*) FROM open_steps s
             WHERE s.vt = 'infinity' AND s.wait <> 'blocked'
               AND NOT EXISTS (SELECT FROM waits w WHERE w.tenant_id = s.tenant_id AND w.step_id = s.id)
               AND NOT EXISTS (
                   SELECT FROM containers c JOIN open_steps o ON o.tenant_id = c.tenant_id AND o.run_id = s.run_id
                   WHERE c.tenant_id = s.tenant_id AND c.step_id = s.id AND starts_with(o.node, s.node || '/'))";
        anyhow::ensure!(self.work.count(orphans).await? == 0, "a step sleeps for ever");
        Ok(())
    }

    /// Waits until so many steps wait for something from outside.
    async fn waiting(&self, count: i64) -> anyhow::Result<()> {
        let waiting =
            "SELECT count(*) FROM open_steps WHERE wait IN ('signal', 'child') AND lease_id IS NULL";
        eventually(async || Ok((self.work.count(waiting).await? == count).then_some(()))).await?;
        self.everything_open_will_be_woken().await
    }

    async fn nothing_waits(&self) -> anyhow::Result<()> {
        let left = "SELECT (SELECT count(*) FROM open_steps) + (SELECT count(*) FROM open_runs)
                        + (SELECT count(*) FROM waits) + (SELECT count(*) FROM due_cancels)
                        + (SELECT count(*) FROM approvals WHERE outcome IS NULL)";
        eventually(async || Ok((self.work.count(left).await? == 0).then_some(()))).await
    }
}

fn ada() -> Actor {
    Actor::Person("ada".into())
}

const REPLY: &str = "name: reply\nsteps:\n  - hear: { listen: { signal: reply } }\n  - done: { set: '=steps.hear.output.data' }\n";

/// 19: a signal is kept from the moment at which the run exists.
#[tokio::test]
async fn a_signal_that_came_first_is_not_lost() -> anyhow::Result<()> {
    let house = House::new().await?;
    house.workflow(REPLY).await?;
    let early = house.start("reply", json!({})).await?;
    assert_eq!(house.signal(early, "reply", json!(1)).await?, Signalled::Kept);
    let _hosts = [house.host()?, house.host()?];
    assert_eq!(house.ended(early).await?.output, Some(json!(1)));
    let late = house.start("reply", json!({})).await?;
    house.waiting(1).await?;
    assert_eq!(house.run(late).await?.row.state, RunState::Waiting);
    assert_eq!(house.signal(late, "other", json!(0)).await?, Signalled::Kept);
    assert_eq!(house.signal(late, "reply", json!(2)).await?, Signalled::Kept);
    assert_eq!(house.ended(late).await?.output, Some(json!(2)));
    assert_eq!(house.signal(late, "reply", json!(3)).await?, Signalled::Ended);
    assert_eq!(house.signal(RunId(Uuid::now_v7()), "reply", json!(3)).await?, Signalled::NotFound);
    house.nothing_waits().await
}

/// 19: whoever is first, the wait or the signal.
#[tokio::test(flavor = "multi_thread")]
async fn a_signal_that_comes_with_the_wait_is_not_lost() -> anyhow::Result<()> {
    let house = House::new().await?;
    house.workflow(REPLY).await?;
    let _hosts = [house.host()?, house.host()?, house.host()?];
    for round in 0..20 {
        let mut runs = vec![];
        for _ in 0..5 {
            runs.push(house.start("reply", json!({})).await?);
        }
        tokio::time::sleep(Duration::from_millis(round % 10)).await;
        for sent in join_all(runs.iter().map(|run| house.signal(*run, "reply", json!(round)))).await {
            assert_eq!(sent?, Signalled::Kept);
        }
        for run in runs {
            assert_eq!(house.ended(run).await?.output, Some(json!(round)));
        }
    }
    house.nothing_waits().await
}

#[tokio::test]
async fn a_listen_takes_what_matches_and_leaves_the_rest() -> anyhow::Result<()> {
    let house = House::new().await?;
    house
        .workflow(
            r#"
name: two
steps:
  - want: { set: 7 }
  - both:
      parallel:
        - do: [ { high: { listen: { signal: n, match: "signal.data.n >= steps.want.output" } } } ]
        - do: [ { low: { listen: { signal: n, match: "signal.data.n < steps.want.output" } } } ]
  - done: { set: ["=steps.high.output.data.n", "=steps.low.output.data.n"] }
"#,
        )
        .await?;
    let _hosts = [house.host()?, house.host()?];
    let run = house.start("two", json!({})).await?;
    for n in [json!("seven"), json!({ "n": 3 }), json!({ "n": 9 }), json!({ "n": 10 })] {
        house.signal(run, "n", n).await?;
    }
    assert_eq!(house.ended(run).await?.output, Some(json!([9, 3])));
    assert_eq!(house.work.count("SELECT count(*) FROM signals WHERE taken_by IS NULL").await?, 2);
    house.nothing_waits().await
}

/// 17, 18: the wait and its end are one write; what came due while everything was down is met.
#[tokio::test]
async fn a_wait_ends_with_its_time() -> anyhow::Result<()> {
    let house = House::new().await?;
    house
        .workflow(
            "name: short\nsteps:\n  - hear: { listen: { signal: x, timeout: 300ms }, on_timeout: [ { late: { set: 1 } } ] }\n  - done: { set: { late: '=has(steps.late)', out: '=steps.hear.output.timed_out' } }\n",
        )
        .await?;
    house.workflow("name: hard\nsteps:\n  - hear: { listen: { signal: x, timeout: 300ms } }\n").await?;
    let host = house.host()?;
    let (first, heard, strict) = (
        house.start("short", json!({})).await?,
        house.start("short", json!({})).await?,
        house.start("hard", json!({})).await?,
    );
    house.signal(heard, "x", json!(1)).await?;
    assert_eq!(house.ended(heard).await?.output, Some(json!({ "late": false, "out": false })));
    assert_eq!(house.ended(first).await?.output, Some(json!({ "late": true, "out": true })));
    assert_eq!(house.ended(strict).await?.error.unwrap_or_default()["code"], "timed_out");
    let down = house.start("short", json!({})).await?;
    house.waiting(1).await?;
    host.stop().await?;
    tokio::time::sleep(Duration::from_millis(400)).await;
    let _other = house.host()?;
    assert_eq!(house.ended(down).await?.output, Some(json!({ "late": true, "out": true })));
    house.nothing_waits().await
}

#[tokio::test]
async fn an_event_of_the_record_is_heard_whenever_it_came() -> anyhow::Result<()> {
    let house = House::new().await?;
    house
        .workflow(
            r#"
name: paid
steps:
  - hear: { listen: { event: payment.received, record: "=input.order", match: "signal.data.cents >= 500" } }
  - done: { set: "=steps.hear.output.data.cents" }
"#,
        )
        .await?;
    let first = house.start("paid", json!({ "order": "o-1" })).await?;
    house.event("payment.received", Some("o-2"), json!({ "cents": 999 })).await?;
    house.event("payment.received", Some("o-1"), json!({ "cents": 1 })).await?;
    house.event("payment.received", Some("o-1"), json!({ "cents": 500 })).await?;
    let _hosts = [house.host()?, house.host()?];
    assert_eq!(house.ended(first).await?.output, Some(json!(500)), "it came before the wait");
    let second = house.start("paid", json!({ "order": "o-3" })).await?;
    house.waiting(1).await?;
    house.event("payment.received", Some("o-3"), json!({ "cents": 700 })).await?;
    assert_eq!(house.ended(second).await?.output, Some(json!(700)));
    let mut runs = vec![];
    for n in 0..20 {
        let order = format!("many-{n}");
        runs.push((house.start("paid", json!({ "order": order })).await?, n));
        house.event("payment.received", Some(&order), json!({ "cents": 1000 + n })).await?;
    }
    for (run, n) in runs {
        assert_eq!(house.ended(run).await?.output, Some(json!(1000 + n)));
    }
    house.nothing_waits().await
}

const ASK: &str = r#"
name: ask
steps:
  - ok:
      approval:
        title: "='Refund ' + input.order + '?'"
        detail: { order: "=input.order" }
        form: { type: object, required: [limit], properties: { limit: { type: integer } } }
        deadline: 1h
      on_timeout: [ { late: { set: 1 } } ]
  - done: { set: "=steps.ok.output" }
"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_decision_is_made_once() -> anyhow::Result<()> {
    let house = House::new().await?;
    house.workflow(ASK).await?;
    let _hosts = [house.host()?, house.host()?];
    let run = house.start("ask", json!({ "order": "o-1" })).await?;
    let asked = house.question().await?;
    assert_eq!((asked.title.as_str(), &asked.detail), ("Refund o-1?", &json!({ "order": "o-1" })));
    assert!(asked.deadline.is_some_and(|deadline| deadline > asked.asked_at));
    house.waiting(1).await?;
    let answer = json!({ "limit": 3 });
    let decided = join_all((0..10).map(|n| {
        let (store, answer, id) = (&house.work.store, &answer, asked.id);
        async move { store.decide(house.work.tenant, id, n % 2 == 0, Some(answer), &ada()).await }
    }));
    let decided: Vec<Decided> = decided.await.into_iter().collect::<Result<_, _>>()?;
    let done: Vec<&ApprovalRow> = decided
        .iter()
        .filter_map(|decided| match decided {
            Decided::Done(row) => Some(row),
            _ => None,
        })
        .collect();
    assert_eq!(done.len(), 1, "{decided:?}");
    let output = house.ended(run).await?.output.unwrap_or_default();
    assert_eq!(output["approved"], json!(done[0].outcome == Some(ApprovalOutcome::Approved)));
    assert_eq!((&output["by"], &output["answer"]), (&json!("person:ada"), &answer));
    house.nothing_waits().await
}

#[tokio::test]
async fn a_question_ends_with_its_time_or_its_run() -> anyhow::Result<()> {
    let house = House::new().await?;
    house.workflow(&ASK.replace("deadline: 1h", "deadline: 200ms")).await?;
    let _host = house.host()?;
    let run = house.start("ask", json!({ "order": "o-1" })).await?;
    let view = house.ended(run).await?;
    assert_eq!(view.output, Some(json!({ "timed_out": true })), "{view:?}");
    house.workflow(ASK).await?;
    let run = house.start("ask", json!({ "order": "o-2" })).await?;
    let asked = house.question().await?;
    house.waiting(1).await?;
    assert_eq!(house.cancel(run).await?, Cancelled::Done);
    let decided = house.work.store.decide(house.work.tenant, asked.id, true, None, &ada()).await?;
    let Decided::AlreadyDecided(row) = decided else { panic!("{decided:?}") };
    assert_eq!(row.outcome, Some(ApprovalOutcome::Cancelled));
    let gone = ApprovalId(Uuid::now_v7());
    let decided = house.work.store.decide(house.work.tenant, gone, true, None, &ada()).await?;
    assert_eq!(decided, Decided::NotFound);
    house.nothing_waits().await
}

const PARENT: &str = "name: parent\nsteps:\n  - child: { workflow: child, input: { n: '=input.n' } }\n  - done: { set: '=steps.child.output' }\n";

#[tokio::test]
async fn a_run_waits_for_the_run_that_it_starts() -> anyhow::Result<()> {
    let house = House::new().await?;
    house
        .workflow(
            r#"
name: child
steps:
  - pay: { http: { connection: p, method: POST, url: /charges, body: { n: "=input.n" } } }
  - check: { switch: [ { when: input.n > 2, do: [ { no: { stop: { outcome: failed, message: too many } } } ] } ] }
  - done: { set: { n: "=input.n", status: "=steps.pay.output.status" } }
"#,
        )
        .await?;
    house.workflow(PARENT).await?;
    house
        .workflow(
            "name: tell\nsteps:\n  - child: { workflow: child, input: { n: 1 }, wait: false }\n  - done: { set: '=steps.child.output.run' }\n",
        )
        .await?;
    house
        .workflow("name: many\nsteps:\n  - each: { map: { items: [0, 1, 2], do: [ { one: { workflow: child, input: { n: '=item' } } } ] } }\n")
        .await?;
    let _hosts = [house.host()?, house.host()?];
    let run = house.start("parent", json!({ "n": 2 })).await?;
    assert_eq!(house.ended(run).await?.output, Some(json!({ "n": 2, "status": 201 })));
    let failing = house.start("parent", json!({ "n": 3 })).await?;
    let error = house.ended(failing).await?.error.unwrap_or_default();
    assert_eq!(error["code"], "child_failed");
    let message = error["message"].as_str().unwrap_or_default();
    assert!(message.contains("failed at `check/no`: too many"), "{message}");
    let many = house.start("many", json!({})).await?;
    let outputs: Vec<_> = (0..3).map(|n| json!({ "n": n, "status": 201 })).collect();
    assert_eq!(house.ended(many).await?.output, Some(json!(outputs)));
    let tell = house.start("tell", json!({})).await?;
    let told = house.ended(tell).await?.output.unwrap_or_default();
    let child: RunId = told.as_str().unwrap_or_default().parse()?;
    assert_eq!(house.ended(child).await?.row.state, RunState::Succeeded);
    let lineages =
        "SELECT count(DISTINCT lineage) FROM runs WHERE trigger = 'run' AND lineage <> id AND depth = 1";
    assert_eq!(house.work.count(lineages).await?, 6);
    house.nothing_waits().await
}

#[tokio::test]
async fn cancellation_goes_both_ways() -> anyhow::Result<()> {
    let house = House::new().await?;
    house.workflow("name: child\nsteps:\n  - inner: { workflow: leaf }\n").await?;
    house.workflow("name: leaf\nsteps:\n  - nap: { delay: 1h }\n").await?;
    house.workflow(PARENT).await?;
    let _hosts = [house.host()?, house.host()?];
    let parent = house.start("parent", json!({ "n": 1 })).await?;
    house.waiting(2).await?;
    let napping = "SELECT count(*) FROM open_steps WHERE node = 'nap'";
    eventually(async || Ok((house.work.count(napping).await? == 1).then_some(()))).await?;
    assert_eq!(house.cancel(parent).await?, Cancelled::Done);
    house.nothing_waits().await?;
    let cancelled = "SELECT count(*) FROM runs WHERE state = 'cancelled'";
    assert_eq!(house.work.count(cancelled).await?, 3);

    let parent = house.start("parent", json!({ "n": 1 })).await?;
    eventually(async || Ok((house.work.count(napping).await? == 1).then_some(()))).await?;
    let leaf: Uuid = sqlx_one(&house).await?;
    assert_eq!(house.cancel(RunId(leaf)).await?, Cancelled::Done);
    let error = house.ended(parent).await?.error.unwrap_or_default();
    assert_eq!(error["code"], "child_failed");
    assert!(error["message"].as_str().is_some_and(|message| message.contains("was cancelled")), "{error}");
    house.nothing_waits().await
}

/// The run of the step that naps.
async fn sqlx_one(house: &House) -> anyhow::Result<Uuid> {
    let page = Page { after: None, limit: 50 };
    let runs =
        house.work.store.runs(house.work.tenant, &counterfoil_store::run::RunFilter::default(), page).await?;
    let leaf = runs.iter().find(|run| run.workflow_name == "leaf" && run.ended_at.is_none());
    Ok(leaf.map(|run| run.id.0).unwrap_or_default())
}

/// 21: a step that started its run before its host died waits for that run, finished or not.
#[tokio::test]
async fn a_parent_that_lost_its_host_finds_the_run_that_it_started() -> anyhow::Result<()> {
    let house = House::new().await?;
    house.workflow("name: child\nsteps:\n  - hear: { listen: { signal: go } }\n").await?;
    house.workflow(PARENT).await?;
    let lease = Duration::from_millis(500);
    let first = house.host_with(|_| true, lease)?;
    let parent = house.start("parent", json!({ "n": 1 })).await?;
    house.waiting(2).await?;
    drop(first);
    // As if the host had died right after the run was admitted.
    house.work.execute("UPDATE open_steps SET wait = 'ready', vt = now() WHERE node = 'child'").await?;
    let runs = "SELECT count(*) FROM runs";
    let _second = house.host_with(|_| true, lease)?;
    house.waiting(2).await?;
    assert_eq!(house.work.count(runs).await?, 2);
    let page = Page { after: None, limit: 50 };
    let all =
        house.work.store.runs(house.work.tenant, &counterfoil_store::run::RunFilter::default(), page).await?;
    let child = all.iter().find(|run| run.workflow_name == "child").expect("it runs").id;
    house.signal(child, "go", json!(1)).await?;
    assert_eq!(house.ended(parent).await?.row.state, RunState::Succeeded);
    assert_eq!(house.work.count(runs).await?, 2);
    house.nothing_waits().await
}

#[tokio::test]
async fn runs_start_each_other_only_so_deep() -> anyhow::Result<()> {
    let house = House::new().await?;
    // Saving would refuse it; a definition that changes under its runs may still come to it.
    house.workflow("name: loop\nsteps:\n  - again: { workflow: loop }\n").await?;
    let _host = house.host()?;
    let run = house.start("loop", json!({})).await?;
    let error = house.ended(run).await?.error.unwrap_or_default();
    assert!(
        error["message"].as_str().is_some_and(|message| message.contains("workflow_too_deep")),
        "{error}"
    );
    assert_eq!(house.work.count("SELECT max(depth)::bigint FROM runs").await?, 8);
    house.nothing_waits().await
}

#[tokio::test]
async fn a_run_is_blocked_by_a_run_below_it_unless_something_else_moves() -> anyhow::Result<()> {
    let house = House::new().await?;
    house.workflow("name: leaf\nsteps:\n  - pay: { http: { connection: p, method: POST, url: /charges, body: {} } }\n").await?;
    house.workflow("name: above\nsteps:\n  - below: { workflow: leaf }\n").await?;
    house.workflow("name: top\nsteps:\n  - below: { workflow: above }\n").await?;
    house
        .workflow(
            "name: beside\nsteps:\n  - both: { parallel: [ { do: [ { below: { workflow: leaf } } ] }, { do: [ { nap: { delay: 1h } } ] } ] }\n",
        )
        .await?;
    house.provider.misbehave(vec![Act::dropped()]);
    let _hosts = [house.host()?, house.host()?];
    let top = house.start("top", json!({})).await?;
    assert_eq!(house.ended(top).await?.row.state, RunState::Blocked);
    let beside = house.start("beside", json!({})).await?;
    let unknown = "SELECT count(*) FROM open_steps WHERE wait = 'blocked'";
    eventually(async || Ok((house.work.count(unknown).await? == 2).then_some(()))).await?;
    assert_eq!(house.run(beside).await?.row.state, RunState::Waiting, "its nap will end");

    let filter = counterfoil_store::run::RunFilter { state: Some(RunState::Blocked), ..Default::default() };
    let page = Page { after: None, limit: 50 };
    let blocked = house.work.store.runs(house.work.tenant, &filter, page).await?;
    let mut names: Vec<_> = blocked.iter().map(|run| run.workflow_name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["above", "leaf", "leaf", "top"]);
    Ok(())
}

/// A run that keeps all that it may says which events it could not keep, whether they came before it waited or after.
#[tokio::test]
async fn events_that_a_run_cannot_keep_are_counted_in_its_timeline() -> anyhow::Result<()> {
    const FULL: &str = "INSERT INTO signals (tenant_id, run_id, id, kind, name, data, sent_by)
        SELECT tenant_id, run_id, gen_random_uuid(), 'signal', 'noise', '1', 'test'
        FROM open_runs, generate_series(1, 999)";
    let house = House::new().await?;
    house
        .workflow(
            "name: full\nsteps:\n  - go: { listen: { signal: go } }\n  - paid: { listen: { event: paid, match: 'signal.data == 3' } }\n",
        )
        .await?;
    let _host = house.host()?;
    let run = house.start("full", json!({})).await?;
    house.waiting(1).await?;
    house.work.execute(FULL).await?;
    // One of them is room for the signal, and then for one event.
    house.event("paid", None, json!(1)).await?;
    house.event("paid", None, json!(2)).await?;
    house.signal(run, "go", json!(1)).await?;
    let unheard = async |count| {
        eventually(async || {
            let audit = house.timeline(run).await?.audit;
            let told: Vec<_> = audit
                .into_iter()
                .filter(|row| row.action == "run.unheard")
                .map(|row| (row.actor, row.detail["event"].clone(), row.detail["events"].clone()))
                .collect();
            Ok((told.len() >= count).then_some(told))
        })
        .await
    };
    let first = ("host".to_owned(), json!("paid"), json!(1));
    assert_eq!(unheard(1).await?, std::slice::from_ref(&first));
    house.event("paid", None, json!(3)).await?;
    assert_eq!(unheard(2).await?, [first.clone(), first]);
    assert_eq!(house.work.count("SELECT count(*) FROM signals WHERE kind = 'event'").await?, 1);
    Ok(())
}
