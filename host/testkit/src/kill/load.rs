//! The application: it starts runs, asks again where it heard no answer, and keeps what it was told.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::api;
use super::database::Database;
use super::fleet::Fleet;
use super::plan::{Plan, Start};

/// Between two looks at how much work is open.
const LOOK_EVERY: Duration = Duration::from_millis(60);
/// Runs started at one look, so that a stall does not end in a flood.
const STARTS_MAX: i64 = 3;
/// Between two tries of one start.
const TRY_EVERY: Duration = Duration::from_millis(150);
/// A start that is still refused as running after so long belongs to a dead host. Its minute is let pass at once.
const BUSY_FOR: Duration = Duration::from_millis(1_500);

/// What became of the starts.
#[derive(Debug, Default)]
pub(super) struct Starts {
    /// Each start's key, and the run that its first answer named.
    accepted: Mutex<BTreeMap<String, String>>,
    /// Keys that were given up without an answer.
    unanswered: Mutex<Vec<String>>,
    /// Two answers to one key that differ, and refusals that make no sense.
    wrong: Mutex<Vec<String>>,
    /// Answers that were asked for again, of another host.
    asked_again: AtomicU64,
    /// Keys whose minute was let pass.
    aged: AtomicU64,
}

/// A copy, for the joins.
#[derive(Debug, Default, Clone)]
pub(super) struct Answered {
    pub(super) accepted: BTreeMap<String, String>,
    pub(super) unanswered: Vec<String>,
    pub(super) wrong: Vec<String>,
    pub(super) asked_again: u64,
    pub(super) aged: u64,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Starts {
    pub(super) fn answered(&self) -> Answered {
        Answered {
            accepted: locked(&self.accepted).clone(),
            unanswered: locked(&self.unanswered).clone(),
            wrong: locked(&self.wrong).clone(),
            asked_again: self.asked_again.load(Ordering::Relaxed),
            aged: self.aged.load(Ordering::Relaxed),
        }
    }

    fn accept(&self, key: &str, run: &str) {
        let mut accepted = locked(&self.accepted);
        let first = accepted.entry(key.to_owned()).or_insert_with(|| run.to_owned());
        if first != run {
            let wrong = format!("the start {key} was answered with {first} and with {run}");
            locked(&self.wrong).push(wrong);
        }
    }
}

/// What the application needs.
pub(super) struct Load {
    pub(super) fleet: Arc<Fleet>,
    pub(super) database: Arc<Database>,
    pub(super) plan: Plan,
    /// Steps that may move by themselves: so many are kept open.
    pub(super) open_steps: i64,
    /// Nothing new is started any more.
    pub(super) over: Arc<AtomicBool>,
    /// No answer is waited for any more.
    pub(super) given_up: Arc<AtomicBool>,
}

impl Load {
    /// Starts runs until it is over, and waits for every answer until it is given up.
    pub(super) async fn run(self: Arc<Self>, starts: Arc<Starts>) -> anyhow::Result<()> {
        let mut asking = JoinSet::new();
        let mut next = 0;
        while !self.over.load(Ordering::Relaxed) {
            // While the database is away nothing is started.
            let open = self.open().await.unwrap_or(self.open_steps);
            for _ in 0..(self.open_steps - open).clamp(0, STARTS_MAX) {
                let (load, starts, start) = (Arc::clone(&self), Arc::clone(&starts), self.plan.start(next));
                asking.spawn(async move { load.ask(&start, &starts).await });
                next += 1;
            }
            while asking.try_join_next().is_some() {}
            tokio::time::sleep(LOOK_EVERY).await;
        }
        while let Some(asked) = asking.join_next().await {
            asked?;
        }
        Ok(())
    }

    async fn open(&self) -> anyhow::Result<i64> {
        let open = sqlx::query_scalar("SELECT count(*) FROM open_steps WHERE wait <> 'blocked'");
        Ok(open.fetch_one(self.database.pool()).await?)
    }

    async fn ask(&self, start: &Start, starts: &Starts) {
        let key = format!("start-{}", start.number);
        let begun = Instant::now();
        let mut random = self.plan.draw("ask", start.number);
        let mut again = start.again;
        loop {
            if self.given_up.load(Ordering::Relaxed) {
                if !locked(&starts.accepted).contains_key(&key) {
                    locked(&starts.unanswered).push(key);
                }
                return;
            }
            let base = self.fleet.serving.pick(&mut random);
            match self.try_once(start, &key, base, starts).await {
                Asked::Answered if !again => return,
                Asked::Answered => {
                    again = false;
                    starts.asked_again.fetch_add(1, Ordering::Relaxed);
                }
                Asked::Wrong(why) => return locked(&starts.wrong).push(why),
                Asked::Busy if begun.elapsed() > BUSY_FOR => self.age(start, &key, starts).await,
                Asked::Busy | Asked::NoAnswer => {}
            }
            tokio::time::sleep(TRY_EVERY).await;
        }
    }

    async fn try_once(&self, start: &Start, key: &str, base: Option<String>, starts: &Starts) -> Asked {
        let Some(base) = base else { return Asked::NoAnswer };
        let path = format!("/v1/workflows/{}/runs", start.workflow);
        let (_, api_key) = &self.database.tenants[start.tenant];
        let sent =
            api::send(&base, api_key, "POST", &path, Some(key), &json!({ "input": start.input })).await;
        let Ok(reply) = sent else { return Asked::NoAnswer };
        let body = reply.json().unwrap_or(Value::Null);
        match (reply.status, body["id"].as_str(), body["code"].as_str()) {
            (200..300, Some(run), _) => {
                starts.accept(key, run);
                Asked::Answered
            }
            (_, _, Some("idempotency_key_busy")) => Asked::Busy,
            // The database was away.
            (500.., ..) => Asked::NoAnswer,
            (status, ..) => Asked::Wrong(format!("the start {key} was refused with {status}: {body}")),
        }
    }

    /// Lets the minute pass for which a host that does not answer keeps a key.
    async fn age(&self, start: &Start, key: &str, starts: &Starts) {
        let (tenant, _) = self.database.tenants[start.tenant];
        let aged = sqlx::query(
            "UPDATE idempotent_requests SET begun_at = begun_at - interval '1 minute'
             WHERE tenant_id = $1 AND key = $2 AND status IS NULL AND begun_at > now() - interval '1 minute'",
        );
        // What fails now is tried again.
        if let Ok(aged) = aged.bind(tenant.0).bind(key).execute(self.database.pool()).await {
            starts.aged.fetch_add(aged.rows_affected(), Ordering::Relaxed);
        }
    }
}

enum Asked {
    Answered,
    /// The first request with this key is still running.
    Busy,
    NoAnswer,
    Wrong(String),
}
