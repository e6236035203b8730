//! `counterfoil key`: who may call the API.

use clap::Subcommand;
use serde_json::json;

use crate::api::{Api, Body};
use crate::args::Global;
use crate::exit::Exit;
use crate::output::{Column, Output};

/// What to do with keys.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Create a key. It is shown this once.
    Create {
        /// What its holder may do; each scope may all that the ones before it may.
        #[arg(long, value_parser = ["viewer", "operator", "author", "admin"])]
        scope: String,
        /// Who or what holds it.
        #[arg(long)]
        label: String,
    },
    /// All keys, without their secrets.
    List,
    /// End a key for good.
    Revoke {
        /// Its id, `key_…`.
        id: String,
    },
}

const COLUMNS: &[Column] = &[
    Column::plain("id", "/id"),
    Column::plain("prefix", "/prefix"),
    Column::plain("scope", "/scope"),
    Column::plain("label", "/label"),
    Column::time("created", "/created_at"),
    Column::time("revoked", "/revoked_at"),
];

const CREATED: &[Column] = &[
    Column::plain("key", "/key"),
    Column::plain("id", "/id"),
    Column::plain("scope", "/scope"),
    Column::plain("label", "/label"),
];

pub(crate) async fn run(command: Command, global: &Global, output: Output) -> anyhow::Result<Exit> {
    let api = Api::new(global)?;
    match command {
        Command::Create { scope, label } => {
            let answer = api.post(&["keys"], Body::json(&json!({ "scope": scope, "label": label }))).await?;
            output.record(&answer, CREATED)?;
            anstream::eprintln!("the key is shown this once: keep it where secrets are kept");
        }
        Command::List => output.list(&api.get(&["keys"], &[]).await?, COLUMNS)?,
        Command::Revoke { id } => {
            api.call("DELETE", &["keys", &id], &[], Body::empty()).await?;
            output.show(&json!({ "id": id, "revoked": true }), || format!("{id} is revoked"))?;
        }
    }
    Ok(Exit::Ok)
}
