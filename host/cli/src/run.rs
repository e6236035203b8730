//! `counterfoil run`: executions of workflows.

use clap::Subcommand;
use counterfoil_domain::workflow::Duration;
use serde_json::{Value, json};

use crate::api::{Api, Body};
use crate::args::Global;
use crate::exit::Exit;
use crate::input::Text;
use crate::output::{Column, Output};

mod watch;

/// What to do with runs.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start a run of a workflow's active version.
    Start {
        /// The workflow.
        workflow: String,
        /// Its input, as JSON.
        #[arg(long, value_name = "JSON|@FILE|-")]
        input: Option<Text>,
        /// What the run is about, such as a customer's id.
        #[arg(long)]
        record: Option<String>,
        /// The same key starts the same run, however often this is called.
        #[arg(long)]
        idempotency_key: Option<String>,
        /// Wait until it ends or needs a person, and print its timeline.
        #[arg(long)]
        wait: bool,
        /// How long to wait, such as 90s [default: as long as it takes].
        #[arg(long, requires = "wait")]
        timeout: Option<Duration>,
    },
    /// Runs, the newest first.
    List {
        /// Only those of this workflow.
        #[arg(long)]
        workflow: Option<String>,
        /// Only those in this state.
        #[arg(long)]
        state: Option<String>,
        /// Only those about this.
        #[arg(long)]
        record: Option<String>,
        #[command(flatten)]
        page: crate::args::Page,
    },
    /// One run and a page of its timeline, as they are now.
    Show {
        /// Its id, `run_…`.
        id: String,
        #[command(flatten)]
        page: crate::args::Page,
    },
    /// Wait until a run ends or needs a person, then print its timeline; the exit code tells its state.
    Watch {
        /// Its id, `run_…`.
        id: String,
        /// How long to wait, such as 90s [default: as long as it takes].
        #[arg(long)]
        timeout: Option<Duration>,
    },
    /// End a run. Effects whose outcome is unknown stay open to resolution.
    Cancel {
        /// Its id, `run_…`.
        id: String,
    },
    /// Send a signal to a run. It is kept until a `listen` of the run takes it.
    Signal {
        /// The run's id, `run_…`.
        id: String,
        /// The signal's name.
        name: String,
        /// What it says, as JSON.
        #[arg(long, value_name = "JSON|@FILE|-")]
        data: Option<Text>,
        /// The same key sends one signal, however often this is called.
        #[arg(long)]
        idempotency_key: Option<String>,
    },
    /// Go on with the blocked steps of a run none of whose effects is unknown any more.
    Resume {
        /// Its id, `run_…`.
        id: String,
    },
}

const COLUMNS: &[Column] = &[
    Column::plain("id", "/id"),
    Column::plain("workflow", "/workflow"),
    Column::plain("version", "/version"),
    Column::state("state", "/state"),
    Column::plain("record", "/record"),
    Column::plain("started by", "/trigger"),
    Column::time("started", "/admitted_at"),
    Column::time("ended", "/ended_at"),
];

pub(crate) async fn run(command: Command, global: &Global, output: Output) -> anyhow::Result<Exit> {
    let api = Api::new(global)?;
    match command {
        Command::Start { workflow, input, record, idempotency_key, wait, timeout } => {
            let input = input.map_or(Ok(Value::Null), |input| input.json())?;
            let body =
                Body::json(&json!({ "input": input, "record": record })).idempotency_key(idempotency_key);
            let run = api.post(&["workflows", &workflow, "runs"], body).await?;
            let id = run["id"].as_str().unwrap_or_default().to_owned();
            if wait {
                return watch::watch(&api, &id, timeout, output).await;
            }
            output.record(&run, COLUMNS)?;
            anstream::eprintln!("see it happen: counterfoil run watch {id}");
        }
        Command::List { workflow, state, record, page } => {
            let [limit, after] = page.query();
            let query = [("workflow", workflow), ("state", state), ("record", record), limit, after];
            output.list(&api.get(&["runs"], &query).await?, COLUMNS)?;
        }
        Command::Show { id, page } => return watch::show(&api, &id, page, output).await,
        Command::Watch { id, timeout } => return watch::watch(&api, &id, timeout, output).await,
        Command::Cancel { id } => {
            output.record(&api.post(&["runs", &id, "cancel"], Body::empty()).await?, COLUMNS)?;
        }
        Command::Signal { id, name, data, idempotency_key } => {
            let data = data.map_or(Ok(Value::Null), |data| data.json())?;
            let body = Body::json(&json!({ "data": data })).idempotency_key(idempotency_key);
            let answer = api.post(&["runs", &id, "signals", &name], body).await?;
            output.show(&answer, || format!("`{name}` is kept for {id}"))?;
        }
        Command::Resume { id } => {
            let answer = api.post(&["runs", &id, "resume"], Body::empty()).await?;
            let count = answer["resumed"].as_u64().unwrap_or_default();
            output.show(&answer, || match count {
                0 => format!("no step of {id} can go on: none is blocked, or an outcome is still unknown"),
                1 => format!("a step of {id} goes on"),
                _ => format!("{count} steps of {id} go on"),
            })?;
            if count == 0 {
                return Ok(Exit::Refused);
            }
        }
    }
    Ok(Exit::Ok)
}
