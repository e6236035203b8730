//! `counterfoil event`: facts that may start runs.

use clap::Subcommand;
use counterfoil_domain::workflow::Duration;
use serde_json::{Value, json};
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::api::{Api, Body};
use crate::args::Global;
use crate::exit::Exit;
use crate::input::Text;
use crate::output::{Column, Output};
use crate::progress::Progress;

/// Between two looks whether an event has been answered.
const LOOK_EVERY: std::time::Duration = std::time::Duration::from_millis(100);

/// What to do with events.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Send an event.
    Send {
        /// Its type, such as `crm.lead.created`.
        event_type: String,
        /// What it says, as JSON.
        #[arg(long, value_name = "JSON|@FILE|-")]
        data: Option<Text>,
        /// What it is about, such as a lead's id.
        #[arg(long)]
        record: Option<String>,
        /// Its id, `evt_…`: the same id is the same event, however often it is sent.
        #[arg(long)]
        id: Option<String>,
        /// Wait until each workflow has started a run or refused, and print which. Exit code 6 if all refused.
        #[arg(long)]
        wait: bool,
        /// How long to wait, such as 90s [default: as long as it takes].
        #[arg(long, requires = "wait")]
        timeout: Option<Duration>,
    },
}

const SENT: &[Column] = &[Column::plain("id", "/id"), Column::plain("type", "/type")];

const OUTCOMES: &[Column] = &[
    Column::plain("workflow", "/workflow"),
    Column::plain("run", "/run"),
    Column::plain("refused", "/refusal/code"),
    Column::plain("why", "/refusal/detail"),
];

pub(crate) async fn run(command: Command, global: &Global, output: Output) -> anyhow::Result<Exit> {
    let api = Api::new(global)?;
    let Command::Send { event_type, data, record, id, wait, timeout } = command;
    let data = data.map_or(Ok(Value::Null), |data| data.json())?;
    let event = json!({ "type": event_type, "data": data, "record": record, "id": id });
    let answer = api.post(&["events"], Body::json(&event)).await?;
    let sent = &answer["events"][0];
    if !wait {
        output.show(&answer, || crate::output::fields(sent, SENT))?;
        return Ok(Exit::Ok);
    }
    outcomes(&api, sent["id"].as_str().unwrap_or_default(), timeout, output).await
}

async fn outcomes(api: &Api, id: &str, timeout: Option<Duration>, output: Output) -> anyhow::Result<Exit> {
    let deadline = timeout.map(|timeout| Instant::now() + std::time::Duration::from_millis(timeout.ms));
    let progress = Progress::new(format!("waiting for what becomes of {id}"));
    let mut looks = interval(LOOK_EVERY);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (answer, exit) = loop {
        looks.tick().await;
        let answer = api.get(&["events", id, "outcomes"], &[]).await?;
        if answer["pending"] == json!(false) {
            let outcomes = answer["outcomes"].as_array().map_or(&[][..], Vec::as_slice);
            let all_refused = !outcomes.is_empty() && outcomes.iter().all(|outcome| outcome["run"].is_null());
            break (answer, if all_refused { Exit::Refused } else { Exit::Ok });
        }
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            break (answer, Exit::TimedOut);
        }
    };
    drop(progress);
    let count = answer["outcomes"].as_array().map_or(0, Vec::len);
    if output.is_json() {
        output.json(&answer)?;
    } else if count > 0 {
        output.list(&json!({ "items": answer["outcomes"] }), OUTCOMES)?;
    }
    match exit {
        Exit::TimedOut => {
            anstream::eprintln!("not in time: {id} is recorded, and no host has taken it up yet")
        }
        Exit::Ok if count == 0 => {
            anstream::eprintln!("{id} is recorded; no active workflow has a trigger for its type");
        }
        _ => {}
    }
    Ok(exit)
}
