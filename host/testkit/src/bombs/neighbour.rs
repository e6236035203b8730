//! Another tenant of the same host, who works all the time and notices how long it takes.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::ensure;
use serde_json::json;
use tokio::task::JoinHandle;

use crate::guest::Guest;
use crate::host::Caller;

const BLOCK: &str = "echo";

/// How long runs took, from their start to when their end was seen, the shortest first.
#[derive(Debug)]
pub(super) struct Latencies(Vec<Duration>);

/// Runs, when each began and how long it took.
#[derive(Debug, Default, Clone)]
pub(super) struct Runs(Vec<(Instant, Duration)>);

impl Runs {
    /// Those that began at such a time.
    pub(super) fn which(&self, began: impl Fn(Instant) -> bool) -> Latencies {
        let mut took: Vec<Duration> =
            self.0.iter().filter(|(begun, _)| began(*begun)).map(|(_, took)| *took).collect();
        took.sort_unstable();
        Latencies(took)
    }
}

impl Latencies {
    /// Ninety-nine of a hundred took no longer.
    pub(super) fn p99(&self) -> Duration {
        self.at(0.99)
    }

    fn at(&self, share: f64) -> Duration {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "a few thousand, and a share of them"
        )]
        let index = (self.0.len() as f64 * share) as usize;
        self.0.get(index.min(self.0.len().saturating_sub(1))).copied().unwrap_or_default()
    }
}

impl fmt::Display for Latencies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |share| self.at(share).as_secs_f64() * 1_000.0;
        write!(f, "p50 {:.1} ms, p99 {:.1} ms ({} runs)", ms(0.5), ms(0.99), self.0.len())
    }
}

/// A tenant with a block that does next to nothing.
pub(super) struct Neighbour {
    base: String,
    key: String,
}

/// A neighbour at work.
pub(super) struct Working {
    over: Arc<AtomicBool>,
    task: JoinHandle<anyhow::Result<Runs>>,
}

impl Neighbour {
    pub(super) async fn settle(base: &str, key: &str) -> anyhow::Result<Self> {
        let neighbour = Self { base: base.into(), key: key.into() };
        let caller = Caller::new(&neighbour.base, &neighbour.key);
        let reply = caller.upload(BLOCK, Guest::echo().build()).await?;
        ensure!(reply.status < 300, "{}", reply.json()?);
        let step = json!({ "only": { "block": BLOCK, "input": "=input" } });
        caller.activate(&json!({ "name": BLOCK, "steps": [step] })).await?;
        Ok(neighbour)
    }

    pub(super) fn work(&self) -> Working {
        let over = Arc::new(AtomicBool::new(false));
        let (base, key, told) = (self.base.clone(), self.key.clone(), Arc::clone(&over));
        let task = tokio::spawn(async move {
            let caller = Caller::new(&base, &key);
            let mut runs = Runs::default();
            while !told.load(Ordering::Relaxed) {
                let begun = Instant::now();
                let ended = caller.run_to_end(BLOCK, &json!(1)).await?;
                ensure!(ended["state"] == "succeeded", "{ended}");
                runs.0.push((begun, begun.elapsed()));
            }
            Ok(runs)
        });
        Working { over, task }
    }

    pub(super) async fn work_for(&self, time: Duration) -> anyhow::Result<Runs> {
        let working = self.work();
        tokio::time::sleep(time).await;
        working.stop().await
    }
}

impl Working {
    pub(super) async fn stop(self) -> anyhow::Result<Runs> {
        self.over.store(true, Ordering::Relaxed);
        self.task.await?
    }
}
