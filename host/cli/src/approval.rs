//! `counterfoil approval`: what runs ask people, and what people decide.

use clap::Subcommand;
use serde_json::json;

use crate::api::{Api, Body};
use crate::args::Global;
use crate::exit::Exit;
use crate::input::Text;
use crate::output::{Column, Output};

/// What to do with approvals.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Approvals, the oldest first.
    List {
        /// Those too that are decided.
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        page: crate::args::Page,
    },
    /// One approval, with what there is to know about it.
    Show {
        /// Its id, `apr_…`.
        id: String,
    },
    /// Say yes. The first decision holds.
    Approve {
        /// Its id, `apr_…`.
        id: String,
        /// What its form asks for, as JSON.
        #[arg(long, value_name = "JSON|@FILE|-")]
        answer: Option<Text>,
    },
    /// Say no. The first decision holds.
    Reject {
        /// Its id, `apr_…`.
        id: String,
        /// What there is to say about it, as JSON.
        #[arg(long, value_name = "JSON|@FILE|-")]
        answer: Option<Text>,
    },
}

const COLUMNS: &[Column] = &[
    Column::plain("id", "/id"),
    Column::plain("question", "/title"),
    Column::plain("workflow", "/workflow"),
    Column::plain("run", "/run"),
    Column::time("asked", "/asked_at"),
    Column::time("deadline", "/deadline"),
    Column::plain("outcome", "/outcome"),
    Column::plain("by", "/decided_by"),
];

/// Of one approval, what a person decides by too.
const ALL: &[Column] = &[
    Column::plain("id", "/id"),
    Column::plain("question", "/title"),
    Column::plain("detail", "/detail"),
    Column::plain("form", "/form").or("none: a yes needs no answer"),
    Column::plain("workflow", "/workflow"),
    Column::plain("run", "/run"),
    Column::plain("step", "/node"),
    Column::time("asked", "/asked_at"),
    Column::time("deadline", "/deadline"),
    Column::plain("outcome", "/outcome"),
    Column::plain("by", "/decided_by"),
    Column::time("decided", "/decided_at"),
    Column::plain("answer", "/answer"),
];

pub(crate) async fn run(command: Command, global: &Global, output: Output) -> anyhow::Result<Exit> {
    let api = Api::new(global)?;
    match command {
        Command::List { all, page } => {
            let [limit, after] = page.query();
            let query = [("state", (!all).then(|| "open".to_owned())), limit, after];
            output.list(&api.get(&["approvals"], &query).await?, COLUMNS)?;
        }
        Command::Show { id } => {
            let approval = api.get(&["approvals", &id], &[]).await?;
            output.record(&approval, ALL)?;
            if approval["outcome"].is_null() {
                let answer = if approval["form"].is_null() { "" } else { " --answer JSON" };
                anstream::eprintln!("next: counterfoil approval approve {id}{answer}");
            }
        }
        Command::Approve { id, answer } => decide(&api, &id, true, answer, output).await?,
        Command::Reject { id, answer } => decide(&api, &id, false, answer, output).await?,
    }
    Ok(Exit::Ok)
}

async fn decide(
    api: &Api,
    id: &str,
    approved: bool,
    answer: Option<Text>,
    output: Output,
) -> anyhow::Result<()> {
    let answer = answer.map(|answer| answer.json()).transpose()?;
    let body = Body::json(&json!({ "approved": approved, "answer": answer }));
    output.record(&api.post(&["approvals", id], body).await?, ALL)?;
    Ok(())
}
