//! The operator: looks each unknown effect up in the provider's log, and says what it shows.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::api;
use super::database::Database;
use super::fleet::Fleet;
use super::plan::Plan;
use crate::provider::{Call, Outcome, Provider};
use crate::random::Random;

/// Between two looks at the queue.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Clocks of one machine, read by two processes and kept in milliseconds.
const CLOCK_SLACK_MS: i64 = 2;
/// Longest that an operator lets an effect lie while hosts still die: a late answer may come meanwhile.
const LIES_MS_MAX: u64 = 1_500;

/// What the operator did.
#[derive(Debug, Default, Serialize)]
pub(super) struct Resolutions {
    /// Effects that the log showed to have taken place.
    pub(super) took_place: AtomicU64,
    /// Effects that it showed to have been refused, or never to have arrived.
    pub(super) did_not: AtomicU64,
    /// Tries that came before an absence could be known.
    pub(super) too_early: AtomicU64,
    /// Tries that found an effect settled by a late answer, or by the other operator.
    pub(super) settled_before: AtomicU64,
    /// Effects that two people resolved at once, of whom one was told so.
    pub(super) at_once: AtomicU64,
    /// Effects that two people were both told to have resolved.
    pub(super) both_done: AtomicU64,
}

pub(super) struct Operator {
    pub(super) fleet: Arc<Fleet>,
    pub(super) database: Arc<Database>,
    pub(super) providers: Vec<Arc<Provider>>,
    pub(super) plan: Plan,
    /// Nothing dies any more: nothing is let lie.
    pub(super) in_haste: Arc<AtomicBool>,
    pub(super) over: Arc<AtomicBool>,
}

impl Operator {
    /// Looks after every tenant's queue until it is over.
    pub(super) async fn run(self: Arc<Self>, done: Arc<Resolutions>) {
        let mut looks = 0;
        while !self.over.load(Ordering::Relaxed) {
            for tenant in 0..self.providers.len() {
                looks += 1;
                // Whatever host it spoke to may have died; the next look goes to another.
                let _ = self.look(tenant, looks, &done).await;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Looks at everything in one queue, as many people would.
    async fn look(self: &Arc<Self>, tenant: usize, look: u64, done: &Arc<Resolutions>) -> anyhow::Result<()> {
        let mut random = self.plan.draw("operator", look);
        let base = self.fleet.serving.pick(&mut random).context("no host serves")?;
        let (_, key) = &self.database.tenants[tenant];
        let queue =
            api::send(&base, key, "GET", "/v1/effects?state=unknown&limit=100", None, &Value::Null).await?;
        let mut people = JoinSet::new();
        for effect in queue.json()?["items"].as_array().context("a list of effects")? {
            let (operator, done, effect) = (Arc::clone(self), Arc::clone(done), effect.clone());
            people.spawn(async move {
                // What fails has another try at the next look.
                let _ = operator.look_at(tenant, &effect, look, &done).await;
            });
        }
        while people.join_next().await.is_some() {}
        Ok(())
    }

    async fn look_at(
        &self,
        tenant: usize,
        effect: &Value,
        look: u64,
        done: &Resolutions,
    ) -> anyhow::Result<()> {
        let id = effect["id"].as_str().context("an effect has an id")?;
        let random = &mut self.plan.draw(id, look);
        let dispatched_at = time(&effect["dispatched_at"])?;
        if self.lets_lie(id, dispatched_at) {
            return Ok(());
        }
        let base = self.fleet.serving.pick(random).context("no host serves")?;
        let (path, (_, key)) = (format!("/v1/effects/{id}"), &self.database.tenants[tenant]);
        let detail = api::send(&base, key, "GET", &path, None, &Value::Null).await?.json()?;
        let said = verdict(&self.providers[tenant], &detail, dispatched_at)?;
        self.resolve(tenant, id, &said, random, done).await
    }

    fn lets_lie(&self, id: &str, dispatched_at: DateTime<Utc>) -> bool {
        let lies_ms = self.plan.draw(id, 0).below(LIES_MS_MAX);
        let since_ms = u64::try_from((Utc::now() - dispatched_at).num_milliseconds()).unwrap_or(0);
        !self.in_haste.load(Ordering::Relaxed) && since_ms < lies_ms
    }

    async fn resolve(
        &self,
        tenant: usize,
        id: &str,
        said: &Value,
        random: &mut Random,
        done: &Resolutions,
    ) -> anyhow::Result<()> {
        let (_, key) = &self.database.tenants[tenant];
        let path = format!("/v1/effects/{id}/resolve");
        let (one, other) = self.fleet.serving.pick_two(random).context("no host serves")?;
        let post = |base: String| {
            let path = path.clone();
            async move { api::send(&base, key, "POST", &path, None, said).await }
        };
        let replies = if random.percent(30) {
            let (one, other) = tokio::join!(post(one), post(other));
            vec![one, other]
        } else {
            vec![post(one).await]
        };
        let mut resolved = 0;
        for reply in replies.iter().flatten() {
            let body = reply.json().unwrap_or(Value::Null);
            match (reply.status, body["code"].as_str()) {
                (200, _) => resolved += 1,
                (_, Some("too_early")) => drop(done.too_early.fetch_add(1, Ordering::Relaxed)),
                (_, Some("not_unknown")) => drop(done.settled_before.fetch_add(1, Ordering::Relaxed)),
                // The database was away.
                _ => {}
            }
        }
        let counted = if said["outcome"] == "verified" { &done.took_place } else { &done.did_not };
        counted.fetch_add(u64::from(resolved > 0), Ordering::Relaxed);
        done.at_once.fetch_add(u64::from(replies.len() > 1 && resolved == 1), Ordering::Relaxed);
        done.both_done.fetch_add(u64::from(resolved > 1), Ordering::Relaxed);
        Ok(())
    }
}

fn time(value: &Value) -> anyhow::Result<DateTime<Utc>> {
    value.as_str().context("an unknown effect was dispatched")?.parse().context("reading a time")
}

/// What the provider's log shows of an effect: of one that is sent again under its key, the whole slot counts.
fn verdict(provider: &Provider, detail: &Value, dispatched_at: DateTime<Utc>) -> anyhow::Result<Value> {
    let key = detail["idempotency_key"].as_str().context("an effect has a key")?;
    let is_idempotent = detail["safety"] == "idempotent";
    let since_ms = u64::try_from(dispatched_at.timestamp_millis() - CLOCK_SLACK_MS).unwrap_or(0);
    let calls: Vec<Call> = provider
        .calls_under(key)
        .into_iter()
        .filter(|call| is_idempotent || call.received_at_ms >= since_ms)
        .collect();
    Ok(match (calls.iter().find(|call| call.took_place()), calls.first()) {
        (Some(call), _) => json!({
            "outcome": "verified",
            "evidence": format!("call {} in the provider's log", call.seq),
            "answer": { "status": answered_status(call), "json": { "id": format!("ch_{}", call.seq) } },
        }),
        (None, Some(call)) => json!({
            "outcome": "abandoned",
            "evidence": format!("the provider refused call {} with {:?}", call.seq, call.act.status),
        }),
        (None, None) => json!({ "outcome": "abandoned", "evidence": "the provider's log has no such call" }),
    })
}

fn answered_status(call: &Call) -> u16 {
    match call.outcome {
        Some(Outcome::Answered { status }) => status,
        _ => 201,
    }
}
