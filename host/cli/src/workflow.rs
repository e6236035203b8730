//! `counterfoil workflow`: definitions, their versions, and which of them is active.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::Subcommand;
use counterfoil_domain::fair_share::Share;
use serde_json::{Value, json};

use crate::api::{Api, Body, Refusal};
use crate::args::{Global, SHARE, ShareChange};
use crate::exit::Exit;
use crate::input;
use crate::output::{Column, Output, fields, plain};

mod check;
mod diff;

/// What to do with workflows.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Check a definition without a host; which blocks exist is checked when it is pushed.
    Check {
        /// The definition, in YAML or JSON.
        file: PathBuf,
    },
    /// Save a definition as a new version of its workflow.
    Push {
        /// The definition, in YAML or JSON.
        file: PathBuf,
        /// Activate the version at once.
        #[arg(long)]
        activate: bool,
        /// Activate it also if it changes side effects.
        #[arg(long, requires = "activate")]
        accept: bool,
    },
    /// Let a version start the runs from now on. Runs that have begun keep theirs.
    Activate {
        /// The workflow.
        name: String,
        /// Which version, such as 2 or v2 [default: the newest].
        #[arg(long)]
        version: Option<VersionNumber>,
        /// Activate it also if it changes side effects.
        #[arg(long)]
        accept: bool,
    },
    /// What is different between two versions, and what of it touches side effects.
    Diff {
        /// The workflow.
        name: String,
        /// The version to compare with [default: the active one].
        from: Option<VersionNumber>,
        /// The version to compare [default: the newest].
        to: Option<VersionNumber>,
    },
    /// Let a workflow start no runs; those that have started go on.
    Pause {
        /// The workflow.
        name: String,
    },
    /// Let a paused workflow start runs again.
    Resume {
        /// The workflow.
        name: String,
    },
    /// Show how much of a host's room a workflow may have, or change it.
    Share {
        /// The workflow.
        name: String,
        #[command(flatten)]
        change: ShareChange,
    },
    /// All workflows.
    List {
        #[command(flatten)]
        page: crate::args::Page,
    },
    /// A workflow and its versions.
    Show {
        /// The workflow.
        name: String,
    },
}

/// A version, as it is counted (`2`) or shown (`v2`).
#[derive(Debug, Clone, Copy)]
pub(crate) struct VersionNumber(u32);

impl FromStr for VersionNumber {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = text.strip_prefix('v').unwrap_or(text).parse().ok().filter(|number| *number > 0);
        number.map(Self).ok_or("versions are counted from 1: 2, or v2")
    }
}

const COLUMNS: &[Column] = &[
    Column::plain("name", "/name"),
    Column::plain("active", "/active"),
    Column::plain("newest", "/newest"),
    Column::plain("paused", "/paused"),
    Column::plain("id", "/id"),
];

const SAVED: &[Column] = &[
    Column::plain("name", "/name"),
    Column::plain("version", "/version"),
    Column::plain("id", "/version_id"),
    Column::plain("unchanged", "/unchanged"),
    Column::plain("active", "/active"),
];

const PAUSED: &[Column] = &[Column::plain("name", "/name"), Column::plain("paused", "/paused")];

pub(crate) async fn run(command: Command, global: &Global, output: Output) -> anyhow::Result<Exit> {
    match command {
        Command::Check { file } => return check::check(&file, output),
        Command::Push { file, activate, accept } => {
            let activate = activate.then_some(accept);
            push(&Api::new(global)?, &file, activate, output).await?;
        }
        Command::Activate { name, version, accept } => {
            let answer =
                activate(&Api::new(global)?, &name, version.map(|version| version.0), accept).await?;
            output.record(&answer, SAVED)?;
        }
        Command::Diff { name, from, to } => {
            let query = [("from", from), ("to", to)]
                .map(|(name, number)| (name, number.map(|VersionNumber(number)| number.to_string())));
            let answer = Api::new(global)?.get(&["workflows", &name, "diff"], &query).await?;
            output.show(&answer, || diff::text(&answer))?;
        }
        Command::Pause { name } => {
            let answer = Api::new(global)?.post(&["workflows", &name, "pause"], Body::empty()).await?;
            output.record(&answer, PAUSED)?;
        }
        Command::Resume { name } => {
            let answer = Api::new(global)?.post(&["workflows", &name, "resume"], Body::empty()).await?;
            output.record(&answer, PAUSED)?;
        }
        Command::Share { name, change } => share(&Api::new(global)?, &name, change, output).await?,
        Command::List { page } => {
            output.list(&Api::new(global)?.get(&["workflows"], &page.query()).await?, COLUMNS)?;
        }
        Command::Show { name } => {
            let workflow = Api::new(global)?.get(&["workflows", &name], &[]).await?;
            output.show(&workflow, || show(&workflow))?;
        }
    }
    Ok(Exit::Ok)
}

/// Saves a definition, and activates it if told whether to accept what it changes.
async fn push(api: &Api, file: &Path, activate: Option<bool>, output: Output) -> anyhow::Result<()> {
    let text = input::read_file(file)?;
    let name = check::name(file, &text)?;
    let content_type =
        if text.trim_start().starts_with('{') { "application/json" } else { "application/yaml" };
    let body = Body::new(content_type, text.clone());
    let mut answer = match api.call("PUT", &["workflows", &name], &[], body).await {
        Ok(answer) => answer,
        Err(Refusal::Problem(problem, _)) if problem.code == "definition_invalid" => {
            return Err(check::refused(file, &text, &problem.errors).into());
        }
        Err(refusal) => return Err(refusal.into()),
    };
    check::warn(file, &text, &answer["warnings"]);
    if let Some(accepts) = activate {
        let version = answer["version"].as_u64().and_then(|version| u32::try_from(version).ok());
        let active = self::activate(api, &name, version, accepts).await?;
        answer["active"] = active["version"].clone();
    }
    output.record(&answer, SAVED)?;
    if answer["active"] != answer["version"] {
        anstream::eprintln!("next: counterfoil workflow activate {name}");
    }
    Ok(())
}

async fn activate(api: &Api, name: &str, version: Option<u32>, accepts: bool) -> anyhow::Result<Value> {
    let mut body = json!({ "accept": accepts });
    if let Some(version) = version {
        body["version"] = version.into();
    }
    match api.post(&["workflows", name, "activate"], Body::json(&body)).await {
        Err(Refusal::Problem(problem, failure)) if problem.code == "side_effects_changed" => {
            let version = version.map(|version| format!(" --version {version}")).unwrap_or_default();
            Err(failure
                .details([format!("what is different in full: counterfoil workflow diff {name}")])
                .next(format!("counterfoil workflow activate {name}{version} --accept"))
                .into())
        }
        answer => Ok(answer?),
    }
}

async fn share(api: &Api, name: &str, change: ShareChange, output: Output) -> anyhow::Result<()> {
    let workflow = api.get(&["workflows", name], &[]).await?;
    let now = &workflow["share"];
    let count = |field: &str| now[field].as_u64().and_then(|count| u32::try_from(count).ok());
    let now = Share { weight: count("weight").unwrap_or(1), in_flight_max: count("in_flight_max") };
    let Share { weight, in_flight_max } = change.of(now)?;
    let mut share = json!({ "weight": weight, "in_flight_max": in_flight_max });
    if !change.is_empty() {
        share = api.call("PUT", &["workflows", name, "share"], &[], Body::json(&share)).await?;
    }
    output.record(&share, SHARE)
}

fn show(workflow: &Value) -> String {
    let mut lines = vec![fields(workflow, COLUMNS)];
    for version in workflow["versions"].as_array().into_iter().flatten() {
        let active = if version["version"] == workflow["active"] { "  active" } else { "" };
        let [number, created_at, id] =
            ["version", "created_at", "version_id"].map(|name| plain(&version[name]));
        lines.push(format!("  v{number}  {created_at}  {id}{active}"));
    }
    lines.join("\n")
}
