//! Workers outside the host, as they are to everybody: over HTTP, at real hosts, that are killed in between.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use counterfoil_testkit::host::{Host, PATIENCE};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::program::{counterfoil, run};
use crate::world::World;

/// A lease that a worker lets run out.
const SHORT_MS: u64 = 400;
const LONG_MS: u64 = 600_000;

struct Workers {
    world: World,
    host: Host,
}

impl Workers {
    /// A host, and a workflow `work` whose one step hands over its input.
    async fn new(name: &str, worker: Value, retry: Value) -> anyhow::Result<Self> {
        let world = World::bare(name).await?;
        let host = Host::start(&world.host(2_000), &world.key).await?;
        let mut task = json!({ "queue": "papers", "input": "=input" });
        if let (Some(task), Value::Object(more)) = (task.as_object_mut(), worker) {
            task.extend(more);
        }
        let steps = json!([
            { "hand": { "worker": task, "retry": retry } },
            { "done": { "set": { "said": "=steps.hand.output" } } },
        ]);
        host.activate(&json!({ "name": "work", "steps": steps })).await?;
        Ok(Self { world, host })
    }

    async fn start(&self, n: u32) -> anyhow::Result<String> {
        self.host.start_run("work", &json!({ "n": n })).await
    }

    /// Polls until there is a task.
    async fn take(&self, worker: &str, lease_ms: u64) -> anyhow::Result<Value> {
        let body = json!({ "worker": worker, "queues": ["papers"], "lease_ms": lease_ms });
        let taken = self.host.call("POST", "/v1/workers/poll", &body).await?;
        taken["tasks"].get(0).cloned().context("a task")
    }

    /// Says something of a task: status and code, or state.
    async fn say(&self, task: &Value, what: &str, more: Value) -> anyhow::Result<(u16, String)> {
        let mut body = json!({ "claim": task["claim"] });
        if let (Some(body), Value::Object(more)) = (body.as_object_mut(), more) {
            body.extend(more);
        }
        let path = format!("/v1/workers/tasks/{}/{what}", task["id"].as_str().context("an id")?);
        let reply = self.host.send("POST", &path, &body).await?;
        let told = reply.json()?;
        let word = ["code", "state"].into_iter().find_map(|field| told[field].as_str()).unwrap_or("kept");
        Ok((reply.status, word.to_owned()))
    }

    async fn ended(&self, run: &str) -> anyhow::Result<Value> {
        self.host.wait_for_run(run, &["succeeded", "failed", "cancelled", "blocked"]).await
    }

    /// The effects of a run, the oldest first: dispatch number, state, key.
    async fn effects(&self, run: &str) -> anyhow::Result<Vec<(u64, String)>> {
        let list = self.host.call("GET", &format!("/v1/runs/{run}/effects"), &Value::Null).await?;
        let items = list["items"].as_array().context("a list")?.iter().rev();
        let effect = |effect: &Value| {
            let state = effect["state"].as_str().unwrap_or_default().to_owned();
            (effect["dispatch_number"].as_u64().unwrap_or_default(), state)
        };
        Ok(items.map(effect).collect())
    }

    async fn waits_for_worker(&self, run: &str) -> anyhow::Result<Value> {
        let begun = Instant::now();
        loop {
            let timeline = self.host.call("GET", &format!("/v1/runs/{run}/timeline"), &Value::Null).await?;
            if timeline.to_string().contains("waiting_for_worker") {
                return Ok(timeline);
            }
            ensure!(begun.elapsed() < PATIENCE, "{timeline}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Kills the host, and starts another.
    async fn restart(self) -> anyhow::Result<Self> {
        self.host.kill().await?;
        let host = Host::start(&self.world.host(2_000), &self.world.key).await?;
        Ok(Self { host, ..self })
    }
}

fn state(name: &str) -> (u16, String) {
    (200, name.to_owned())
}

fn refused(code: &str) -> (u16, String) {
    (409, code.to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_outlives_its_hosts_and_is_done_once() -> anyhow::Result<()> {
    let workers = Workers::new("outlives", json!({}), json!({ "attempts": 1 })).await?;
    let run = workers.start(1).await?;
    let timeline = workers.waits_for_worker(&run).await?;
    assert!(timeline.to_string().contains("\"ended\":\"queued\""), "{timeline}");
    assert_eq!(workers.effects(&run).await?, [(0, "dispatched".into())]);
    let view = workers.host.call("GET", &format!("/v1/runs/{run}"), &Value::Null).await?;
    assert_eq!(view["state"], "waiting");

    let workers = workers.restart().await?;
    let task = workers.take("first", LONG_MS).await?;
    assert_eq!((&task["input"], &task["node"]), (&json!({ "n": 1 }), &json!("hand")));
    let workers = workers.restart().await?;
    assert_eq!(workers.say(&task, "heartbeat", json!({})).await?, state("kept"));
    let output = json!({ "output": { "pages": 3 } });
    assert_eq!(workers.say(&task, "complete", output.clone()).await?, state("committed"));
    assert_eq!(workers.say(&task, "complete", output).await?, state("committed"), "its answer was lost");
    let other = json!({ "output": 4 });
    assert_eq!(workers.say(&task, "complete", other).await?, refused("task_over"), "the first word holds");
    assert_eq!(workers.say(&task, "heartbeat", json!({})).await?, refused("task_over"));
    let view = workers.ended(&run).await?;
    assert_eq!(view["output"], json!({ "said": { "pages": 3 } }), "{view}");
    assert_eq!(workers.effects(&run).await?, [(0, "committed".into())]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn of_workers_that_race_one_has_each_task() -> anyhow::Result<()> {
    const TASKS: u32 = 12;
    let workers = Workers::new("race", json!({}), json!({ "attempts": 1 })).await?;
    let mut runs = vec![];
    for n in 0..TASKS {
        runs.push(workers.start(n).await?);
    }
    let race = (0..8).map(|worker| {
        let workers = &workers;
        async move {
            let mut taken = vec![];
            let body = json!({ "worker": format!("w{worker}"), "queues": ["other", "papers"], "wait_ms": 3_000, "tasks": 2 });
            loop {
                let answer = workers.host.call("POST", "/v1/workers/poll", &body).await?;
                let tasks = answer["tasks"].as_array().cloned().unwrap_or_default();
                if tasks.is_empty() {
                    return anyhow::Ok(taken);
                }
                taken.extend(tasks);
            }
        }
    });
    let taken: Vec<Value> = futures::future::try_join_all(race).await?.into_iter().flatten().collect();
    let distinct: BTreeSet<String> = taken.iter().map(|task| task["id"].to_string()).collect();
    assert_eq!((taken.len(), distinct.len()), (TASKS as usize, TASKS as usize));

    // Another worker's claim opens nothing, and an unknown one neither.
    let mut thief = taken[0].clone();
    for claim in [&taken[1]["claim"], &json!("00000000-0000-0000-0000-000000000000")] {
        if *claim != taken[0]["claim"] {
            thief["claim"] = claim.clone();
            for (what, more) in
                [("heartbeat", json!({})), ("complete", json!({})), ("fail", json!({ "message": "no" }))]
            {
                assert_eq!(workers.say(&thief, what, more).await?, refused("task_not_owned"), "{what}");
            }
        }
    }
    for task in &taken {
        assert_eq!(
            workers.say(task, "complete", json!({ "output": task["input"]["n"] })).await?,
            state("committed")
        );
    }
    for (n, run) in runs.iter().enumerate() {
        assert_eq!(workers.ended(run).await?["output"], json!({ "said": n }));
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_dies_leaves_an_unknown_outcome_and_its_late_word_settles_it() -> anyhow::Result<()> {
    let workers = Workers::new("dies", json!({}), json!({ "attempts": 1 })).await?;
    let run = workers.start(1).await?;
    let task = workers.take("dies", SHORT_MS).await?;
    let view = workers.ended(&run).await?;
    assert_eq!(view["state"], "blocked", "{view}");
    assert_eq!(workers.effects(&run).await?, [(0, "unknown".into())]);
    let body = json!({ "worker": "next", "queues": ["papers"], "wait_ms": 200 });
    let nothing = workers.host.call("POST", "/v1/workers/poll", &body).await?;
    assert_eq!(nothing["tasks"], json!([]), "it is given to nobody else");
    assert_eq!(workers.say(&task, "heartbeat", json!({})).await?, refused("task_over"));
    assert_eq!(workers.say(&task, "fail", json!({ "message": "late" })).await?, state("unknown"));
    assert_eq!(workers.say(&task, "complete", json!({ "output": "late" })).await?, state("committed"));
    assert_eq!(workers.host.wait_for_run(&run, &["succeeded"]).await?["output"], json!({ "said": "late" }));

    // A person may say so instead, and then the worker's word comes too late.
    let run = workers.start(2).await?;
    let task = workers.take("dies", SHORT_MS).await?;
    workers.ended(&run).await?;
    let effect = task["id"].as_str().context("an id")?;
    let said = json!({ "outcome": "verified", "evidence": "the log", "answer": { "status": 200, "body": "{\"by\":\"me\"}" } });
    workers.host.call("POST", &format!("/v1/effects/{effect}/resolve"), &said).await?;
    let view = workers.host.wait_for_run(&run, &["succeeded"]).await?;
    assert_eq!(view["output"], json!({ "said": { "by": "me" } }));
    assert_eq!(workers.say(&task, "complete", json!({})).await?, refused("task_over"));

    // With heartbeats the same lease lasts longer than it would.
    let run = workers.start(3).await?;
    let task = workers.take("lives", SHORT_MS).await?;
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(3 * SHORT_MS) {
        assert_eq!(workers.say(&task, "heartbeat", json!({ "lease_ms": SHORT_MS })).await?, state("kept"));
        tokio::time::sleep(Duration::from_millis(SHORT_MS / 8)).await;
    }
    assert_eq!(workers.say(&task, "complete", json!({})).await?, state("committed"));
    assert_eq!(workers.ended(&run).await?["state"], "succeeded");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_cancelled_ends_as_it_stood() -> anyhow::Result<()> {
    let workers = Workers::new("cancelled", json!({}), json!({ "attempts": 1 })).await?;
    let (queued, taken) = (workers.start(1).await?, workers.start(2).await?);
    workers.waits_for_worker(&queued).await?;
    let cancel =
        async |run: &str| workers.host.call("POST", &format!("/v1/runs/{run}/cancel"), &json!({})).await;
    cancel(&queued).await?;
    assert_eq!(workers.effects(&queued).await?, [(0, "rejected".into())], "nobody had it");
    let task = workers.take("w", LONG_MS).await?;
    assert_eq!(task["run"], json!(taken));
    cancel(&taken).await?;
    assert_eq!(workers.effects(&taken).await?, [(0, "unknown".into())]);
    assert_eq!(workers.say(&task, "heartbeat", json!({})).await?, refused("task_over"), "it may stop");
    assert_eq!(workers.say(&task, "complete", json!({ "output": 1 })).await?, state("committed"));
    assert_eq!(workers.effects(&taken).await?, [(0, "committed".into())]);
    assert_eq!(workers.ended(&taken).await?["state"], "cancelled");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_no_worker_takes_was_not_sent_and_may_be_queued_anew() -> anyhow::Result<()> {
    let short = json!({ "claim_within": "300ms" });
    let workers = Workers::new("untaken", short, json!({ "attempts": 2, "delays": ["100ms"] })).await?;
    let run = workers.start(1).await?;
    let view = workers.ended(&run).await?;
    assert_eq!((&view["state"], &view["error"]["code"]), (&json!("failed"), &json!("not_sent")), "{view}");
    assert_eq!(workers.effects(&run).await?, [(0, "rejected".into()), (1, "rejected".into())]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_says_what_it_knows_of_its_failure() -> anyhow::Result<()> {
    let retry = json!({ "attempts": 2, "delays": ["100ms"] });
    let workers = Workers::new("fails", json!({}), retry.clone()).await?;
    let nothing =
        |again| json!({ "message": "no paper", "code": "empty", "nothing_took_place": true, "retry": again });
    let run = workers.start(1).await?;
    let task = workers.take("w", LONG_MS).await?;
    let first_key = task["idempotency_key"].clone();
    assert_eq!(workers.say(&task, "fail", nothing(true)).await?, state("rejected"));
    let again = workers.take("w", LONG_MS).await?;
    assert_ne!(again["id"], task["id"]);
    assert_eq!(again["idempotency_key"], first_key);
    assert_eq!(workers.say(&again, "fail", nothing(false)).await?, state("rejected"));
    let view = workers.ended(&run).await?;
    let error = &view["error"];
    assert_eq!((&error["code"], &error["block_code"]), (&json!("worker_failed"), &json!("empty")), "{view}");

    let run = workers.start(2).await?;
    let task = workers.take("w", LONG_MS).await?;
    assert_eq!(workers.say(&task, "fail", json!({ "message": "who knows" })).await?, state("unknown"));
    assert_eq!(workers.ended(&run).await?["state"], "blocked");

    // Workers that recognise a repeat get it again, under the same key, in another attempt; then it waits for a person.
    let steps =
        json!([{ "hand": { "worker": { "queue": "papers", "safety": "idempotent" }, "retry": retry } }]);
    workers.host.activate(&json!({ "name": "work", "steps": steps })).await?;
    let run = workers.start(3).await?;
    let task = workers.take("w", SHORT_MS).await?;
    let again = workers.take("w", LONG_MS).await?;
    assert_eq!(again["idempotency_key"], task["idempotency_key"]);
    assert_eq!(workers.effects(&run).await?, [(0, "unknown".into()), (1, "dispatched".into())]);
    assert_eq!(workers.say(&again, "fail", nothing(true)).await?, state("rejected"));
    assert_eq!(workers.ended(&run).await?["state"], "blocked");
    assert_eq!(workers.say(&task, "complete", json!({ "output": 7 })).await?, state("committed"));
    assert_eq!(workers.host.wait_for_run(&run, &["succeeded"]).await?["output"], json!(7));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_poll_that_is_repeated_gets_the_same_and_a_host_that_stops_lets_it_go() -> anyhow::Result<()> {
    let workers = Workers::new("repeated", json!({}), json!({ "attempts": 1 })).await?;
    let run_id = workers.start(1).await?;
    let cli = |args: &[&str]| {
        let mut command = counterfoil(workers.world.directory.path());
        command.args(args).args(["-o", "json", "--url", workers.host.base(), "--key", &workers.world.key]);
        tokio::task::spawn_blocking(move || run(&mut command))
    };
    let poll = ["worker", "poll", "papers", "--idempotency-key", "k-1"];
    let first = cli(&poll).await?.json();
    assert_eq!(cli(&poll).await?.json(), first);
    let task = first["tasks"][0].clone();
    let [id, claim] = ["id", "claim"].map(|field| task[field].as_str().unwrap_or_default().to_owned());
    let none = cli(&["worker", "poll", "papers", "--wait-ms", "50"]).await?;
    assert_eq!((none.code, none.stderr.as_str()), (Some(5), "no task came in time\n"));
    let kept = cli(&["worker", "heartbeat", &id, "--claim", &claim]).await?;
    assert_eq!((kept.code, &kept.json()["id"]), (Some(0), &json!(id)));
    let stranger = cli(&["worker", "fail", &id, "--claim", &run_id[4..], "--message", "no"]).await?;
    assert_eq!(stranger.code, Some(2), "{stranger:?}");
    let done = cli(&["worker", "complete", &id, "--claim", &claim, "--result", "[1]"]).await?;
    assert_eq!(done.json()["state"], "committed", "{done:?}");
    assert_eq!(workers.ended(&run_id).await?["output"], json!({ "said": [1] }));

    let body = json!({ "worker": "w", "queues": ["papers"], "wait_ms": 20_000 });
    let begun = Instant::now();
    let (answer, ()) = tokio::try_join!(workers.host.call("POST", "/v1/workers/poll", &body), async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        workers.host.signal(Signal::SIGTERM)
    })?;
    assert_eq!(answer["tasks"], json!([]));
    assert!(begun.elapsed() < Duration::from_secs(10), "it was let go when the host stopped");
    Ok(())
}
