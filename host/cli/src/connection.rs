//! `counterfoil connection`: a tenant's named ways to reach a system.

use clap::Subcommand;
use serde_json::{Value, json};
use url::Url;

use crate::api::{Api, Body};
use crate::args::Global;
use crate::exit::Exit;
use crate::input::Text;
use crate::output::{Column, Output};

/// What to do with connections.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Create a connection, or change it.
    Set {
        /// The name by which blocks ask for it.
        name: String,
        /// What the paths of its calls stand under.
        #[arg(long)]
        base_url: Url,
        /// A host that may be called through it, again for each [default: the one of the base URL].
        #[arg(long = "allow-host", value_name = "HOST")]
        allowed_hosts: Vec<String>,
        /// What the system behind it is known to do, as JSON.
        #[arg(long, value_name = "JSON|@FILE|-")]
        abilities: Option<Text>,
    },
    /// All connections.
    List,
}

const COLUMNS: &[Column] = &[
    Column::plain("name", "/name"),
    Column::plain("base url", "/base_url"),
    Column::plain("allowed hosts", "/allowed_hosts"),
    Column::time("updated", "/updated_at"),
];

pub(crate) async fn run(command: Command, global: &Global, output: Output) -> anyhow::Result<Exit> {
    let api = Api::new(global)?;
    match command {
        Command::Set { name, base_url, allowed_hosts, abilities } => {
            let hosts = if allowed_hosts.is_empty() { Value::Null } else { json!(allowed_hosts) };
            let mut body = json!({ "base_url": base_url.as_str(), "allowed_hosts": hosts });
            if let Some(abilities) = abilities {
                body["abilities"] = abilities.json()?;
            }
            let answer = api.call("PUT", &["connections", &name], &[], Body::json(&body)).await?;
            output.record(&answer, COLUMNS)?;
        }
        Command::List => output.list(&api.get(&["connections"], &[]).await?, COLUMNS)?,
    }
    Ok(Exit::Ok)
}
