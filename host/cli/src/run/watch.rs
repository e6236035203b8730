//! Waits for a run, and prints what became of it.

use std::collections::BTreeMap;

use anyhow::Context as _;
use counterfoil_domain::workflow::Duration;
use serde::Deserialize as _;
use serde_json::Value;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::api::Api;
use crate::args::Page;
use crate::exit::Exit;
use crate::output::Output;
use crate::progress::Progress;
use crate::timeline::{Timeline, mark};

/// Between two looks: short against a person's patience, long against the cost of one.
const LOOK_EVERY: std::time::Duration = std::time::Duration::from_millis(300);

/// Prints a page of the timeline as it is now.
pub(super) async fn show(api: &Api, id: &str, page: Page, output: Output) -> anyhow::Result<Exit> {
    let (value, timeline) = look(api, id, page).await?;
    output.show(&value, || timeline.text())?;
    advise(api, &timeline).await;
    Ok(Exit::Ok)
}

/// Waits until the run ends or needs a person, then prints the timeline. The code tells the state.
pub(super) async fn watch(
    api: &Api,
    id: &str,
    timeout: Option<Duration>,
    output: Output,
) -> anyhow::Result<Exit> {
    let deadline = timeout.map(|timeout| Instant::now() + std::time::Duration::from_millis(timeout.ms));
    let progress = Progress::new(format!("waiting for {id}"));
    let mut looks = interval(LOOK_EVERY);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut seen = Seen::default();
    loop {
        looks.tick().await;
        let (value, timeline) = look(api, id, Page::FIRST).await?;
        seen.tell(&timeline, &progress);
        let exit = match timeline.run.state.as_str() {
            "succeeded" => Exit::Ok,
            "failed" | "cancelled" => Exit::RunFailed,
            "blocked" if !is_for_verifiers(api, &timeline).await? => Exit::NeedsPerson,
            _ if deadline.is_some_and(|deadline| Instant::now() >= deadline) => Exit::TimedOut,
            _ => continue,
        };
        drop(progress);
        output.show(&value, || timeline.text())?;
        if exit == Exit::TimedOut {
            anstream::eprintln!("not in time: {id} is {} still", timeline.run.state);
        }
        advise(api, &timeline).await;
        return Ok(exit);
    }
}

async fn look(api: &Api, id: &str, page: Page) -> anyhow::Result<(Value, Timeline)> {
    let value = api.get(&["runs", id, "timeline"], &page.query()).await?;
    let timeline = Timeline::deserialize(&value)
        .context("the host's timeline is of another version than this program")?;
    Ok((value, timeline))
}

/// Whether the blocks themselves will be asked, or are being asked, about everything that is unknown, before a person is.
async fn is_for_verifiers(api: &Api, timeline: &Timeline) -> anyhow::Result<bool> {
    let unknown = unknown(api, timeline).await?;
    for id in &unknown {
        let effect = api.get(&["effects", id], &[]).await?;
        let asked = &effect["verification"];
        // One that has been settled meanwhile is nobody's turn any more.
        let is_open = effect["state"] == "unknown";
        if is_open && asked["next_at"].is_null() && asked["being_asked"] != true {
            return Ok(false);
        }
    }
    Ok(!unknown.is_empty())
}

/// The run's effects whose outcome is unknown, the oldest first, as many as a page holds.
async fn unknown(api: &Api, timeline: &Timeline) -> anyhow::Result<Vec<String>> {
    let query = [("state", Some("unknown".to_owned())), ("run", Some(timeline.run.id.clone()))];
    let found = api.get(&["effects"], &query).await?;
    let ids = found["items"].as_array().into_iter().flatten().filter_map(|effect| effect["id"].as_str());
    Ok(ids.map(ToOwned::to_owned).collect())
}

/// The page, and what a person can do where one is needed.
async fn advise(api: &Api, timeline: &Timeline) {
    anstream::eprintln!("page: {}", api.page(&format!("/runs/{}", timeline.run.id)));
    // Where that cannot be read, a person is told what a person can do.
    if is_for_verifiers(api, timeline).await.unwrap_or(false) {
        anstream::eprintln!("nobody knows yet whether it took place; the block is asked first");
    }
    for id in unknown(api, timeline).await.unwrap_or_default() {
        anstream::eprintln!("nobody knows whether {id} took place; find out, then say so:");
        anstream::eprintln!("next: counterfoil effect show {id}");
    }
}

/// The states that were told already.
#[derive(Default)]
struct Seen(BTreeMap<String, (String, u32)>);

impl Seen {
    /// Says what has changed since the last look.
    fn tell(&mut self, timeline: &Timeline, progress: &Progress) {
        for entry in &timeline.entries {
            let now = (entry.state.clone(), entry.attempt);
            let name = entry.name();
            if self.0.get(&name) != Some(&now) {
                let again =
                    if entry.attempt > 1 { format!(", attempt {}", entry.attempt) } else { String::new() };
                progress.note(&format!(
                    "{} {name}: {}{again}",
                    mark(&entry.state),
                    entry.state.replace('_', " ")
                ));
                self.0.insert(name, now);
            }
        }
        progress.say(format!("{} is {}", timeline.run.id, timeline.run.state));
    }
}
