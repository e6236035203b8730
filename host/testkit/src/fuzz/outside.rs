//! What lies outside the host: workers that take whatever lies in a queue, and people, who say what became of an effect
//! when its block could not.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};
use sqlx::PgPool;

use super::values::QUEUE;
use crate::host::Caller;

/// A worker that says nothing is waited for as long.
const TASK_LEASE_MS: u64 = 1_000;
/// Queues of one poll, besides the usual one.
const QUEUES_MAX: i64 = 15;
const TASKS_MAX: u32 = 10;
const POLL_WAIT_MS: u64 = 200;
/// Between two looks at a run that is blocked: its block is asked a second after its effect became unknown.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(50);

/// What workers and people have done.
#[derive(Debug, Default)]
pub(super) struct Outside {
    tasks: AtomicUsize,
    asked_in_vain: AtomicUsize,
    faults: Mutex<Vec<String>>,
}

impl Outside {
    /// Tasks that workers took, and effects of which a block was asked in vain, so that a person said what became of them.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.tasks.load(Ordering::Relaxed), self.asked_in_vain.load(Ordering::Relaxed))
    }

    /// What a host must not have answered to a worker.
    pub(super) fn said(&self) -> Vec<String> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes whatever work there is, and says something of it, until it is dropped.
    pub(super) async fn work(&self, caller: Caller<'_>, pool: &PgPool) {
        loop {
            if let Err(error) = self.take(caller, pool).await {
                // The host may be gone: then whoever plays a case says so too, and that ends it.
                self.faults
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(format!("a worker: {error:#}"));
                return std::future::pending().await;
            }
        }
    }

    async fn take(&self, caller: Caller<'_>, pool: &PgPool) -> anyhow::Result<()> {
        // A damaged name of a queue may be a name too.
        let mut queues: Vec<String> = sqlx::query_scalar(
            "SELECT DISTINCT queue FROM worker_tasks WHERE waiting AND queue <> $1 LIMIT $2",
        )
        .bind(QUEUE)
        .bind(QUEUES_MAX)
        .fetch_all(pool)
        .await?;
        queues.push(QUEUE.to_owned());
        let body = json!({
            "worker": "fuzz",
            "queues": queues,
            "tasks": TASKS_MAX,
            "wait_ms": POLL_WAIT_MS,
            "lease_ms": TASK_LEASE_MS,
        });
        let taken = caller.call("POST", "/v1/workers/poll", &body).await?;
        for task in taken["tasks"].as_array().context("a poll gives a list")? {
            self.say(caller, task).await?;
        }
        Ok(())
    }

    async fn say(&self, caller: Caller<'_>, task: &Value) -> anyhow::Result<()> {
        let failed = |nothing_took_place: bool, retry: bool| {
            (
                "fail",
                json!({ "message": "a\u{1}b", "nothing_took_place": nothing_took_place, "retry": retry }),
            )
        };
        let (verb, mut body) = match self.tasks.fetch_add(1, Ordering::Relaxed) % 8 {
            0 => ("complete", json!({ "output": { "pages": 3 } })),
            1 => ("complete", json!({ "output": "x".repeat(100_000) })),
            2 => ("complete", json!({ "output": (0..90).fold(json!(1), |inner, _| json!([inner])) })),
            3 => ("complete", json!({})),
            4 => failed(true, false),
            5 => failed(true, true),
            6 => failed(false, false),
            // It is never heard of again.
            _ => return Ok(()),
        };
        body["claim"] = task["claim"].clone();
        let path = format!("/v1/workers/tasks/{}/{verb}", task["id"].as_str().context("an id")?);
        settled(caller, &path, &body).await
    }

    /// Waits for the end of a run; where it is blocked, until its block was asked, or cannot be, and then says that the
    /// effect took place.
    pub(super) async fn see_to_its_end(
        &self,
        caller: Caller<'_>,
        run: &str,
        patience: Duration,
    ) -> anyhow::Result<Value> {
        let begun = tokio::time::Instant::now();
        loop {
            let seen = caller.wait_for_run(run).await?;
            if seen["state"] != "blocked" {
                return Ok(seen);
            }
            ensure!(begun.elapsed() < patience, "{seen} stays blocked");
            let path = format!("/v1/runs/{run}/effects");
            let effects = caller.call("GET", &path, &Value::Null).await?;
            for effect in effects["items"].as_array().context("effects are a list")? {
                if effect["state"] == "unknown" {
                    self.resolve(caller, effect["id"].as_str().context("an id")?).await?;
                }
            }
            tokio::time::sleep(LOOK_AGAIN_AFTER).await;
        }
    }

    async fn resolve(&self, caller: Caller<'_>, effect: &str) -> anyhow::Result<()> {
        let path = format!("/v1/effects/{effect}");
        let verification = caller.call("GET", &path, &Value::Null).await?["verification"].clone();
        if !verification.is_null() {
            if verification["said"].is_null() || verification["being_asked"] == true {
                return Ok(());
            }
            self.asked_in_vain.fetch_add(1, Ordering::Relaxed);
        }
        let answer = json!({ "status": 200, "json": { "id": "ch_1" } });
        let resolution = json!({ "outcome": "committed", "evidence": "seen", "answer": answer });
        settled(caller, &format!("{path}/resolve"), &resolution).await
    }
}

/// Says something that may have been settled by somebody else meanwhile.
async fn settled(caller: Caller<'_>, path: &str, body: &Value) -> anyhow::Result<()> {
    const CONFLICT: u16 = 409;
    let reply = caller.send("POST", path, body).await?;
    ensure!(
        reply.status < 300 || reply.status == CONFLICT,
        "{path}: status {}: {}",
        reply.status,
        reply.json()?
    );
    Ok(())
}
