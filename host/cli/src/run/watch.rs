//! Waits for a run, and prints what became of it.

use std::collections::BTreeMap;

use anyhow::Context as _;
use counterfoil_domain::workflow::Duration;
use serde::Deserialize as _;
use serde_json::Value;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::api::Api;
use crate::exit::Exit;
use crate::output::Output;
use crate::progress::Progress;
use crate::timeline::{Effect, Timeline, mark};

/// Between two looks: short against a person's patience, long against the cost of one.
const LOOK_EVERY: std::time::Duration = std::time::Duration::from_millis(300);

/// Prints the timeline as it is now.
pub(super) async fn show(api: &Api, id: &str, output: Output) -> anyhow::Result<Exit> {
    let (value, timeline) = look(api, id).await?;
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
        let (value, timeline) = look(api, id).await?;
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

async fn look(api: &Api, id: &str) -> anyhow::Result<(Value, Timeline)> {
    let value = api.get(&["runs", id, "timeline"], &[]).await?;
    let timeline = Timeline::deserialize(&value)
        .context("the host's timeline is of another version than this program")?;
    Ok((value, timeline))
}

/// Whether the blocks themselves will be asked, or are being asked, about everything that is unknown, before a person is.
async fn is_for_verifiers(api: &Api, timeline: &Timeline) -> anyhow::Result<bool> {
    let mut unknown = unknown(timeline).peekable();
    let is_any = unknown.peek().is_some();
    for effect in unknown {
        let effect = api.get(&["effects", &effect.id], &[]).await?;
        let asked = &effect["verification"];
        // One that has been settled meanwhile is nobody's turn any more.
        let is_open = effect["state"] == "unknown";
        if is_open && asked["next_at"].is_null() && asked["being_asked"] != true {
            return Ok(false);
        }
    }
    Ok(is_any)
}

fn unknown(timeline: &Timeline) -> impl Iterator<Item = &Effect> {
    timeline.entries.iter().flat_map(|entry| &entry.effects).filter(|effect| effect.state == "unknown")
}

/// The page, and what a person can do where one is needed.
async fn advise(api: &Api, timeline: &Timeline) {
    anstream::eprintln!("page: {}", api.page(&format!("/runs/{}", timeline.run.id)));
    // Where that cannot be read, a person is told what a person can do.
    if is_for_verifiers(api, timeline).await.unwrap_or(false) {
        anstream::eprintln!("nobody knows yet whether it took place; the block is asked first");
    }
    for effect in unknown(timeline) {
        anstream::eprintln!("nobody knows whether {} took place; find out, then say so:", effect.id);
        anstream::eprintln!("next: counterfoil effect show {}", effect.id);
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
