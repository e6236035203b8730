//! `counterfoil event`: facts that may start runs.

use clap::Subcommand;
use counterfoil_domain::workflow::Duration;
use serde_json::{Value, json};
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::api::{Api, Body};
use crate::args::Global;
use crate::exit::Exit;
use crate::input::Text;
use crate::output::{Column, Output, fields, plain, table};
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
        /// Wait until a workflow has started a run or refused to, and print which. It ends with 6 if all refused.
        #[arg(long)]
        wait: bool,
        /// How long to wait: nothing ever comes of an event that no workflow is triggered by.
        #[arg(long, requires = "wait", default_value = "10s")]
        timeout: Duration,
    },
    /// What became of an event: each run that it started, and why it started no others.
    Show {
        /// Its id, `evt_…`.
        id: String,
    },
}

const SENT: &[Column] = &[Column::plain("id", "/id"), Column::plain("type", "/type")];

const EVENT: &[Column] = &[
    Column::plain("id", "/id"),
    Column::plain("type", "/type"),
    Column::plain("record", "/record"),
    Column::time("recorded", "/recorded_at"),
    Column::time("handed out", "/published_at"),
];

const OUTCOMES: &[Column] = &[
    Column::plain("workflow", "/workflow"),
    Column::plain("run", "/run"),
    Column::plain("refused", "/refusal/code"),
    Column::plain("why", "/refusal/detail"),
];

pub(crate) async fn run(command: Command, global: &Global, output: Output) -> anyhow::Result<Exit> {
    let api = Api::new(global)?;
    let (event_type, data, record, id, wait, timeout) = match command {
        Command::Send { event_type, data, record, id, wait, timeout } => {
            (event_type, data, record, id, wait, timeout)
        }
        Command::Show { id } => return show(&api, &id, output).await,
    };
    let data = data.map_or(Ok(Value::Null), |data| data.json())?;
    let event = json!({ "type": event_type, "data": data, "record": record, "id": id });
    let answer = api.post(&["events"], Body::json(&event)).await?;
    let sent = &answer["events"][0];
    for warning in answer["warnings"].as_array().into_iter().flatten() {
        anstream::eprintln!("warning: {}", plain(&warning["detail"]));
    }
    if !wait {
        output.show(&answer, || fields(sent, SENT))?;
        return Ok(Exit::Ok);
    }
    outcomes(&api, sent["id"].as_str().unwrap_or_default(), timeout, output).await
}

async fn show(api: &Api, id: &str, output: Output) -> anyhow::Result<Exit> {
    let event = api.get(&["events", id, "outcomes"], &[]).await?;
    output.show(&event, || {
        let outcomes = event["outcomes"].as_array().map_or(&[][..], Vec::as_slice);
        let became = match outcomes {
            [] if event["published_at"].is_null() => "no workflow has been asked yet".to_owned(),
            [] => format!("no active workflow had a trigger for `{}`", plain(&event["type"])),
            outcomes => table(OUTCOMES, outcomes),
        };
        format!("{}\n\n{became}", fields(&event, EVENT))
    })?;
    anstream::eprintln!("page: {}", api.page(&format!("/events/{id}")));
    Ok(Exit::Ok)
}

async fn outcomes(api: &Api, id: &str, timeout: Duration, output: Output) -> anyhow::Result<Exit> {
    let deadline = Instant::now() + std::time::Duration::from_millis(timeout.ms);
    let progress = Progress::new(format!("waiting for what becomes of {id}"));
    let mut looks = interval(LOOK_EVERY);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (answer, exit) = loop {
        looks.tick().await;
        let answer = api.get(&["events", id, "outcomes"], &[]).await?;
        let outcomes = answer["outcomes"].as_array().map_or(&[][..], Vec::as_slice);
        let is_refused = |outcome: &Value| outcome["run"].is_null();
        let exit = match outcomes {
            [] if Instant::now() < deadline => continue,
            [] => Exit::TimedOut,
            outcomes if outcomes.iter().all(is_refused) => Exit::Refused,
            _ => Exit::Ok,
        };
        break (answer, exit);
    };
    drop(progress);
    output.show(&answer, || table(OUTCOMES, answer["outcomes"].as_array().map_or(&[], Vec::as_slice)))?;
    if exit == Exit::TimedOut {
        anstream::eprintln!(
            "nothing has come of {id} yet: no active workflow has a trigger for it, or no host runs"
        );
        anstream::eprintln!("next: counterfoil workflow list");
    } else {
        // By it, what became of the event is found again.
        anstream::eprintln!("see it again: counterfoil event show {id}");
    }
    Ok(exit)
}
