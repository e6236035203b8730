//! `counterfoil effect`: effects and their receipts.

use clap::{Args, Subcommand, ValueEnum};
use serde_json::{Value, json};

use crate::api::{Api, Body};
use crate::args::Global;
use crate::exit::{Exit, Failure};
use crate::input::Text;
use crate::output::{Column, Output, fields, plain};

/// What to do with effects.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Effects, the newest first; unknown ones the oldest first, since somebody waits for them.
    List {
        /// Only those in this state; those that are `unknown` wait for a person.
        #[arg(long)]
        state: Option<String>,
        /// Only those of this run.
        #[arg(long)]
        run: Option<String>,
        #[command(flatten)]
        page: crate::args::Page,
    },
    /// One effect: what was sent, what was answered, its history, and what can be done.
    Show {
        /// Its id, `eff_…`.
        id: String,
    },
    /// Say what became of an effect whose outcome is unknown, and how that is known.
    Resolve(Resolve),
}

/// A resolution.
#[derive(Debug, Args)]
pub(crate) struct Resolve {
    /// The effect's id, `eff_…`.
    id: String,
    /// What happened.
    #[arg(long, value_enum)]
    outcome: Outcome,
    /// How that is known: where you looked, and what it said.
    #[arg(long, value_name = "TEXT|@FILE|-")]
    evidence: Text,
    /// The answer's status, which the block is handed (for committed and verified) [default with --body: 200].
    #[arg(long)]
    status: Option<u16>,
    /// The answer's body, as JSON; an empty text for none.
    #[arg(long, value_name = "JSON|@FILE|-")]
    body: Option<Text>,
    /// The receiver's own name for what it did.
    #[arg(long, value_name = "ID")]
    provider_receipt_id: Option<String>,
    /// Leave the step blocked; `counterfoil run resume` goes on later.
    #[arg(long)]
    no_resume: bool,
    /// Say what would happen, and change nothing.
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Outcome {
    /// It took place, and this is the answer.
    Committed,
    /// It took place, as the receiver's own records show, and this is the answer.
    Verified,
    /// It took place and has been undone: it is sent again.
    Compensated,
    /// It did not take place: it is sent again.
    Abandoned,
}

impl Outcome {
    const fn name(self) -> &'static str {
        match self {
            Self::Committed => "committed",
            Self::Verified => "verified",
            Self::Compensated => "compensated",
            Self::Abandoned => "abandoned",
        }
    }

    const fn needs_answer(self) -> bool {
        matches!(self, Self::Committed | Self::Verified)
    }
}

const COLUMNS: &[Column] = &[
    Column::plain("id", "/id"),
    Column::state("state", "/state"),
    Column::plain("summary", "/summary"),
    Column::plain("safety", "/safety"),
    Column::plain("connection", "/connection"),
    Column::plain("workflow", "/workflow"),
    Column::plain("node", "/node"),
    Column::plain("run", "/run"),
    Column::time("dispatched", "/dispatched_at"),
];

const DETAILS: &[Column] = &[
    Column::plain("id", "/id"),
    Column::state("state", "/state"),
    Column::plain("reason", "/reason"),
    Column::plain("run", "/run"),
    Column::plain("workflow", "/workflow"),
    Column::plain("node", "/node"),
    Column::plain("slot", "/slot"),
    Column::plain("dispatch number", "/dispatch_number"),
    Column::plain("safety", "/safety"),
    Column::plain("connection", "/connection"),
    Column::plain("idempotency key", "/idempotency_key"),
    Column::plain("provider's receipt", "/provider_receipt_id"),
    Column::time("dispatched", "/dispatched_at"),
    Column::time("answered", "/answered_at"),
    Column::time("resolved", "/resolved_at"),
    Column::plain("request", "/summary"),
    Column::plain("request body", "/preview/body"),
    Column::digest("request hash", "/request_hash"),
    Column::plain("answer status", "/answer/status"),
    Column::plain("answer body", "/answer/body"),
    Column::plain("answer", "/answer/text"),
    Column::plain("its verify was asked", "/verification/asked"),
    Column::time("last asked", "/verification/asked_at"),
    Column::plain("it said", "/verification/said"),
    Column::time("asked next", "/verification/next_at"),
];

pub(crate) async fn run(command: Command, global: &Global, output: Output) -> anyhow::Result<Exit> {
    let api = Api::new(global)?;
    match command {
        Command::List { state, run, page } => {
            let [limit, after] = page.query();
            output.list(
                &api.get(&["effects"], &[("state", state), ("run", run), limit, after]).await?,
                COLUMNS,
            )?;
        }
        Command::Show { id } => {
            let effect = api.get(&["effects", &id], &[]).await?;
            output.show(&effect, || details(&effect))?;
            anstream::eprintln!("page: {}", api.page(&format!("/effects/{id}")));
        }
        Command::Resolve(resolve) => {
            let body = resolve.body()?;
            let answer = api.post(&["effects", &resolve.id, "resolve"], Body::json(&body)).await?;
            output.show(&answer, || resolved(&resolve.id, &answer))?;
            if let (false, Some(run)) = (resolve.dry_run, answer["run"].as_str()) {
                let verb = match (&answer["resumed"], resolve.no_resume) {
                    (Value::Bool(true), _) => "watch",
                    (_, true) => "resume",
                    // Its run has ended.
                    (_, false) => "show",
                };
                anstream::eprintln!("next: counterfoil run {verb} {run}");
            }
        }
    }
    Ok(Exit::Ok)
}

impl Resolve {
    fn body(&self) -> anyhow::Result<Value> {
        let given = self.status.is_some() || self.body.is_some();
        if self.outcome.needs_answer() && !given {
            let what = format!("`{}` needs the answer that the block will be handed", self.outcome.name());
            return Err(Failure::new(Exit::Usage, what)
                .details([
                    "give what the receiver answered, or would have: --status 200 --body JSON".to_owned()
                ])
                .next(format!("counterfoil effect show {}", self.id))
                .into());
        }
        let mut answer = Value::Null;
        if given {
            answer = json!({ "status": self.status.unwrap_or(200) });
            if let Some(body) = &self.body {
                match body.json_unless_blank()? {
                    Some(body) => answer["json"] = body,
                    None => answer["body"] = json!(""),
                }
            }
        }
        Ok(json!({
            "outcome": self.outcome.name(),
            "evidence": self.evidence.text()?.trim(),
            "answer": answer,
            "provider_receipt_id": self.provider_receipt_id,
            "resume": !self.no_resume,
            "dry_run": self.dry_run,
        }))
    }
}

fn resolved(id: &str, answer: &Value) -> String {
    let would = if answer["dry_run"] == json!(true) { "would be " } else { "is " };
    format!("{id} {would}{}\n{}", plain(&answer["to"]), plain(&answer["consequence"]))
}

fn details(effect: &Value) -> String {
    let mut text = fields(effect, DETAILS);
    let list = |name: &str| effect[name].as_array().cloned().unwrap_or_default();
    let history: Vec<String> = list("history")
        .iter()
        .map(|entry| {
            let evidence = plain(&entry["evidence"]);
            let evidence = if evidence.is_empty() { evidence } else { format!(": {evidence}") };
            let (at, from, to) = (plain(&entry["at"]), plain(&entry["from"]), plain(&entry["to"]));
            format!("  {at}  {from} → {to} by {}{evidence}", plain(&entry["actor"]))
        })
        .collect();
    let ways: Vec<String> = list("resolutions")
        .iter()
        .map(|way| {
            let outcome = plain(&way["outcome"]);
            let answer = if way["needs_answer"] == json!(true) { " --status N --body JSON" } else { "" };
            let from = match plain(&way["allowed_from"]) {
                time if time.is_empty() => time,
                time => format!(" (not before {time})"),
            };
            format!(
                "  --outcome {outcome} --evidence TEXT{answer}{from}\n      {}",
                plain(&way["consequence"])
            )
        })
        .collect();
    if !history.is_empty() {
        text.push_str("\n\nhistory\n");
        text.push_str(&history.join("\n"));
    }
    if !ways.is_empty() {
        text.push_str("\n\nfind out what happened, then: counterfoil effect resolve ");
        text.push_str(&plain(&effect["id"]));
        text.push('\n');
        text.push_str(&ways.join("\n"));
    }
    text
}
