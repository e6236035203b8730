//! `counterfoil block`: from a crate to a version that runs.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::{Subcommand, ValueEnum};
use counterfoil_domain::block::with_manifest;
use counterfoil_domain::workflow::{NAME_LEN_MAX, is_name};
use serde_json::{Value, json};

use crate::api::{Api, Body, Refusal};
use crate::args::Global;
use crate::exit::{Exit, Failure};
use crate::input;
use crate::output::{Column, Output};
use crate::progress::Progress;

mod build;
mod inspect;
mod local;
mod new;
mod test;

use self::new::Template;

/// What to do with blocks.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Begin a block from an example.
    New {
        /// Name of the block, and of its directory.
        name: String,
        /// The example.
        #[arg(long, value_enum, default_value_t = From::ChargeCard)]
        from: From,
        /// Where its directory is made.
        #[arg(long, default_value = ".", value_name = "DIR")]
        parent: PathBuf,
    },
    /// Build a block's crate to a component.
    Build {
        /// The crate.
        #[arg(default_value = ".")]
        dir: PathBuf,
        /// Where the component is written [default: block/NAME.wasm in cargo's target directory].
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
    },
    /// Play a block's scenarios with the built component, within the bounds of a host, without one.
    Test(test::Args),
    /// Check a component as an upload does, and say what it is and within which bounds it would run.
    Inspect(inspect::Args),
    /// Upload a block: a crate, which is built first, or a component.
    Push {
        /// The crate's directory, or the component's file.
        #[arg(default_value = ".")]
        path: PathBuf,
        /// Under which name [default: the crate's, or the file's].
        #[arg(long)]
        name: Option<String>,
        /// What the block is, as JSON: for a program that cannot say so itself.
        #[arg(long, value_name = "FILE")]
        manifest: Option<PathBuf>,
    },
    /// Every block's newest version.
    List {
        #[command(flatten)]
        page: crate::args::Page,
    },
    /// A block's newest version, and what it says of itself.
    Show {
        /// The block.
        name: String,
    },
}

/// The examples that a block can begin from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum From {
    /// One call that must not be made twice.
    ChargeCard,
    /// One read, then the output.
    EnrichLead,
}

const COLUMNS: &[Column] = &[
    Column::plain("name", "/name"),
    Column::digest("digest", "/digest"),
    Column::plain("bytes", "/bytes_len"),
    Column::plain("summary", "/summary"),
    Column::time("uploaded", "/uploaded_at"),
];

const DETAILS: &[Column] = &[
    Column::plain("name", "/name"),
    Column::plain("digest", "/digest"),
    Column::plain("bytes", "/bytes_len"),
    Column::plain("summary", "/descriptor/summary"),
    Column::plain("credits", "/descriptor/credits"),
    Column::plain("effects", "/descriptor/effects"),
    Column::plain("input", "/descriptor/input"),
    Column::plain("output", "/descriptor/output"),
    Column::plain("imports", "/imports"),
    Column::plain("exports", "/exports"),
    Column::plain("compiled in ms", "/compile_ms"),
    Column::time("uploaded", "/uploaded_at"),
];

const PUSHED: &[Column] = &[
    Column::plain("name", "/name"),
    Column::plain("digest", "/digest"),
    Column::plain("new", "/new"),
    Column::plain("bytes", "/bytes_len"),
    Column::plain("imports", "/imports"),
    Column::plain("compiled in ms", "/compile_ms"),
];

pub(crate) async fn run(command: Command, global: &Global, output: Output) -> anyhow::Result<Exit> {
    match command {
        Command::New { name, from, parent } => {
            let template = match from {
                From::ChargeCard => Template::ChargeCard,
                From::EnrichLead => Template::EnrichLead,
            };
            let dir = new::new(&parent, &name, template)?;
            output.show(&json!({ "name": name, "dir": dir }), || dir.display().to_string())?;
            anstream::eprintln!("next: counterfoil block test {}", dir.display());
        }
        Command::Build { dir, out } => {
            let built = build(&dir, out.as_deref())?;
            let record = json!({ "name": built.name, "path": built.path, "bytes_len": built.bytes_len });
            output.show(&record, || built.path.display().to_string())?;
        }
        Command::Test(args) => return test::run(args, global, output).await,
        Command::Inspect(args) => return inspect::run(args, global, output).await,
        Command::Push { path, name, manifest } => {
            push(&Api::new(global)?, &path, name, manifest.as_deref(), output).await?;
        }
        Command::List { page } => {
            output.list(&Api::new(global)?.get(&["blocks"], &page.query()).await?, COLUMNS)?;
        }
        Command::Show { name } => {
            output.record(&Api::new(global)?.get(&["blocks", &name], &[]).await?, DETAILS)?;
        }
    }
    Ok(Exit::Ok)
}

/// A component on this machine.
struct Component {
    /// The crate's, or the file's.
    name: Option<String>,
    bytes: Vec<u8>,
}

/// Reads a component: a file, or a crate's, which is built first; with the manifest that is to go with it.
fn component(path: &Path, manifest: Option<&Path>) -> anyhow::Result<Component> {
    // Before a build, which takes a while.
    let manifest = manifest.map(read_manifest).transpose()?;
    let (name, path) = if path.is_dir() {
        let built = build(path, None)?;
        (Some(built.name), built.path)
    } else {
        (path.file_stem().map(|stem| stem.to_string_lossy().into_owned()), path.to_owned())
    };
    let mut bytes = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    if let Some(manifest) = manifest {
        bytes = with_manifest(&bytes, manifest.as_bytes());
    }
    Ok(Component { name, bytes })
}

/// The text of a manifest, which is JSON; what it says is the host's to judge.
fn read_manifest(path: &Path) -> anyhow::Result<String> {
    let text = input::read_file(path)?;
    input::parse(&text, &path.display().to_string())?;
    Ok(text)
}

fn build(dir: &Path, out: Option<&Path>) -> anyhow::Result<build::Built> {
    let progress = Progress::new(format!("building {}", dir.display()));
    // Cargo takes seconds, and this thread has nothing else to do.
    tokio::task::block_in_place(|| build::build(dir, out, &|line| progress.follow(line)))
}

async fn push(
    api: &Api,
    path: &Path,
    name: Option<String>,
    manifest: Option<&Path>,
    output: Output,
) -> anyhow::Result<()> {
    if path.is_dir() {
        // It is about to be built.
        api.key()?;
    }
    let Component { name: own_name, bytes } = component(path, manifest)?;
    let name =
        name.or(own_name).ok_or_else(|| Failure::new(Exit::Usage, "give the block a name with --name"))?;
    if !is_name(&name) {
        let what = format!(
            "{name:?} names no block: a letter comes first, then `a` to `z`, `0` to `9` and `-`, {NAME_LEN_MAX} at most"
        );
        return Err(Failure::new(Exit::Usage, what)
            .details(["give it another with --name".to_owned()])
            .into());
    }
    let size = indicatif::HumanBytes(bytes.len() as u64);
    let progress = Progress::new("the host checks and compiles it, which may take a minute");
    progress.note(&format!("uploading {name} ({size}); the host checks and compiles it"));
    let answer = api.post(&["blocks", &name], Body::new("application/wasm", bytes)).await;
    drop(progress);
    let answer: Value = answer.map_err(|refusal| match refusal {
        Refusal::Problem(problem, failure) => local::placed(failure, &problem.code, manifest).into(),
        Refusal::Other(error) => error,
    })?;
    output.record(&answer, PUSHED)?;
    let own = answer["descriptor"]["name"].as_str().unwrap_or_default();
    if own != name {
        anstream::eprintln!(
            "it calls itself {own:?}; workflows find it as `{name}`, the name of this upload"
        );
    }
    Ok(())
}
