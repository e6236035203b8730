//! `counterfoil worker`: work that is fetched from queues, for scripts and for looking on.

use clap::Subcommand;
use serde_json::{Value, json};

use crate::api::{Api, Body};
use crate::args::Global;
use crate::exit::Exit;
use crate::input::Text;
use crate::output::{Column, Output, fields};

/// What to do with work.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Take tasks from queues, the oldest first; waits for one.
    Poll {
        /// The queues.
        #[arg(required = true)]
        queues: Vec<String>,
        /// What this worker is called.
        #[arg(long, default_value = "cli")]
        worker: String,
        /// Tasks to take at most.
        #[arg(long, default_value_t = 1)]
        tasks: u32,
        /// Milliseconds to wait for a task.
        #[arg(long, default_value_t = 20_000)]
        wait_ms: u64,
        /// Milliseconds for which a task is this worker's without a heartbeat.
        #[arg(long, default_value_t = 60_000)]
        lease_ms: u64,
        /// Marks a repeat of the same poll, which gets the same tasks.
        #[arg(long, value_name = "KEY")]
        idempotency_key: Option<String>,
    },
    /// Say that a task is being worked on still.
    Heartbeat {
        #[command(flatten)]
        task: Task,
        /// Milliseconds for which it is this worker's without another.
        #[arg(long, default_value_t = 60_000)]
        lease_ms: u64,
    },
    /// Say that a task is done.
    Complete {
        #[command(flatten)]
        task: Task,
        /// What came of it, as JSON.
        #[arg(long, value_name = "JSON|@FILE|-", default_value = "null")]
        result: Text,
    },
    /// Say that a task is not done; what became of it is unknown then, unless nothing of it took place.
    Fail {
        #[command(flatten)]
        task: Task,
        /// In words.
        #[arg(long)]
        message: String,
        /// A name for what went wrong.
        #[arg(long, default_value = "failed")]
        code: String,
        /// It is certain that nothing of it took place.
        #[arg(long)]
        nothing_took_place: bool,
        /// Another try is worth it.
        #[arg(long, requires = "nothing_took_place")]
        retry: bool,
    },
}

/// A task that was taken.
#[derive(Debug, clap::Args)]
pub(crate) struct Task {
    /// Its id, `eff_…`.
    id: String,
    /// Its claim, as the poll told it.
    #[arg(long)]
    claim: String,
}

const TAKEN: &[Column] = &[
    Column::plain("id", "/id"),
    Column::plain("claim", "/claim"),
    Column::plain("queue", "/queue"),
    Column::plain("run", "/run"),
    Column::plain("node", "/node"),
    Column::plain("key", "/idempotency_key"),
    Column::time("lease expires", "/lease_expires_at"),
    Column::time("deadline", "/deadline"),
    Column::plain("input", "/input"),
];

const KEPT: &[Column] = &[
    Column::plain("id", "/id"),
    Column::time("lease expires", "/lease_expires_at"),
    Column::time("deadline", "/deadline"),
];

const TOLD: &[Column] = &[Column::plain("id", "/id"), Column::state("state", "/state")];

pub(crate) async fn run(command: Command, global: &Global, output: Output) -> anyhow::Result<Exit> {
    let api = Api::new(global)?;
    match command {
        Command::Poll { queues, worker, tasks, wait_ms, lease_ms, idempotency_key } => {
            let body = json!({
                "worker": worker, "queues": queues, "tasks": tasks, "wait_ms": wait_ms, "lease_ms": lease_ms,
            });
            let body = Body::json(&body).idempotency_key(idempotency_key);
            let answer = api.post(&["workers", "poll"], body).await?;
            let taken = answer["tasks"].as_array().map_or(&[][..], Vec::as_slice);
            output.show(&answer, || {
                taken.iter().map(|task| fields(task, TAKEN)).collect::<Vec<_>>().join("\n\n")
            })?;
            return Ok(if taken.is_empty() { nothing_came() } else { Exit::Ok });
        }
        Command::Heartbeat { task, lease_ms } => {
            let body = json!({ "claim": task.claim, "lease_ms": lease_ms });
            output.record(&say(&api, &task, "heartbeat", &body).await?, KEPT)?;
        }
        Command::Complete { task, result } => {
            let body = json!({ "claim": task.claim, "output": result.json()? });
            output.record(&say(&api, &task, "complete", &body).await?, TOLD)?;
        }
        Command::Fail { task, message, code, nothing_took_place, retry } => {
            let body = json!({
                "claim": task.claim, "message": message, "code": code,
                "nothing_took_place": nothing_took_place, "retry": retry,
            });
            output.record(&say(&api, &task, "fail", &body).await?, TOLD)?;
        }
    }
    Ok(Exit::Ok)
}

async fn say(api: &Api, task: &Task, what: &str, body: &Value) -> anyhow::Result<Value> {
    Ok(api.post(&["workers", "tasks", &task.id, what], Body::json(body)).await?)
}

fn nothing_came() -> Exit {
    anstream::eprintln!("no task came in time");
    Exit::TimedOut
}
