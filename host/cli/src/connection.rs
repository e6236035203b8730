//! `counterfoil connection`: a tenant's named ways to reach a system.

use clap::Subcommand;
use counterfoil_domain::workflow::Duration;
use counterfoil_effects::secrets::HIDDEN_BYTES_MIN;
use secrecy::ExposeSecret as _;
use serde_json::{Map, Value, json};
use url::Url;

use crate::api::{Api, Body};
use crate::args::Global;
use crate::exit::{Exit, Failure};
use crate::input::{SecretSource, Text};
use crate::output::{Column, Output};

/// What to do with connections.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Create a connection, or replace it; secrets that are not named stay as they are.
    Set(Box<Set>),
    /// All connections.
    List,
    /// Remove a connection with its secrets, unless an active workflow or a run that is under way goes through it.
    Remove {
        /// Its name.
        name: String,
    },
    /// One connection: everything but the values of its secrets.
    Show {
        /// Its name.
        name: String,
    },
}

/// A connection to set.
#[derive(Debug, clap::Args)]
pub(crate) struct Set {
    /// The name by which blocks ask for it.
    name: String,
    /// What the paths of its calls stand under.
    #[arg(long, value_parser = base_url)]
    base_url: Url,
    /// A host that may be called through it, again for each [default: the one of the base URL].
    #[arg(long = "allow-host", value_name = "HOST")]
    allowed_hosts: Vec<String>,
    /// What the system behind it is known to do, as JSON: `statuses`, `idempotency_header`, `receipt_id_header`.
    #[arg(long, value_name = "JSON|@FILE|-")]
    abilities: Option<Text>,
    /// Calls in a period, such as 100/1m, whichever hosts make them [default: no limit].
    #[arg(long, value_name = "N/PERIOD")]
    rate: Option<Rate>,
    /// Calls that may be made ahead of the rate [default: what passes in 100 ms, at least 1].
    #[arg(long, value_name = "N", requires = "rate")]
    burst: Option<u32>,
    /// Calls that one host may have under way at once [default: no limit].
    #[arg(long, value_name = "N")]
    in_flight_max: Option<u32>,
    /// A secret to set, again for each: `header:<name>`, `username` or `password`. Its value is read from a file, an
    /// environment variable or the standard input.
    #[arg(long = "secret", value_name = "NAME=@FILE|env:VARIABLE|-")]
    secrets: Vec<SecretSource>,
    /// A secret to remove, again for each.
    #[arg(long = "remove-secret", value_name = "NAME")]
    removed: Vec<String>,
}

fn base_url(text: &str) -> Result<Url, String> {
    let how = "it begins with https://, http://, smtps:// or smtp://, and a host follows";
    text.parse().map_err(|error| format!("{error}; {how}"))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Rate {
    limit: u32,
    per_ms: u64,
}

impl std::str::FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (limit, period) = text.split_once('/').ok_or("a rate reads N/PERIOD, such as 20/1s or 100/1m")?;
        let limit = limit.parse().map_err(|_| format!("`{limit}` is not a number of calls"))?;
        let period: Duration = period.parse().map_err(|error| format!("{error}"))?;
        Ok(Self { limit, per_ms: period.ms })
    }
}

const COLUMNS: &[Column] = &[
    Column::plain("name", "/name"),
    Column::plain("base url", "/base_url"),
    Column::plain("allowed hosts", "/allowed_hosts"),
    Column::plain("secrets", "/secrets"),
    Column::time("updated", "/updated_at"),
];

const ALL: &[Column] = &[
    Column::plain("name", "/name"),
    Column::plain("base url", "/base_url"),
    Column::plain("allowed hosts", "/allowed_hosts"),
    Column::plain("abilities", "/abilities"),
    Column::plain("rate", "/rate"),
    Column::plain("in flight max", "/in_flight_max"),
    Column::plain("secrets", "/secrets"),
    Column::time("updated", "/updated_at"),
];

pub(crate) async fn run(command: Command, global: &Global, output: Output) -> anyhow::Result<Exit> {
    let api = Api::new(global)?;
    match command {
        Command::Set(set) => {
            let body = Body::json(&set.body()?);
            let before = api.call("GET", &["connections", &set.name], &[], Body::empty()).await;
            let answer = api.call("PUT", &["connections", &set.name], &[], body).await?;
            output.record(&answer, ALL)?;
            // A connection that was not there has lost nothing.
            for (field, option) in
                [("rate", "--rate"), ("in_flight_max", "--in-flight-max"), ("abilities", "--abilities")]
            {
                let was = before.as_ref().map_or(&Value::Null, |before| &before[field]);
                let is_set = |value: &Value| !value.is_null() && *value != json!({});
                if is_set(was) && !is_set(&answer[field]) {
                    anstream::eprintln!("its {field} {was} is gone: to keep it, name it again with {option}");
                }
            }
        }
        Command::Remove { name } => {
            api.call("DELETE", &["connections", &name], &[], Body::empty()).await?;
            output.show(&json!({ "name": name, "removed": true }), || format!("{name} is removed"))?;
        }
        Command::List => output.list(&api.get(&["connections"], &[]).await?, COLUMNS)?,
        Command::Show { name } => output.record(&api.get(&["connections", &name], &[]).await?, ALL)?,
    }
    Ok(Exit::Ok)
}

impl Set {
    fn body(&self) -> anyhow::Result<Value> {
        let hosts = if self.allowed_hosts.is_empty() { Value::Null } else { json!(self.allowed_hosts) };
        let rate = self.rate.map(|Rate { limit, per_ms }| match self.burst {
            Some(burst) => json!({ "limit": limit, "per_ms": per_ms, "burst": burst }),
            None => json!({ "limit": limit, "per_ms": per_ms }),
        });
        let mut body = json!({
            "base_url": self.base_url.as_str(),
            "allowed_hosts": hosts,
            "rate": rate,
            "in_flight_max": self.in_flight_max,
        });
        if let Some(abilities) = &self.abilities {
            body["abilities"] = abilities.json()?;
        }
        let mut secrets: Map<String, Value> =
            self.removed.iter().map(|name| (name.clone(), Value::Null)).collect();
        for secret in &self.secrets {
            let text = secret.read()?;
            if text.expose_secret().len() < HIDDEN_BYTES_MIN {
                anstream::eprintln!(
                    "`{}` is shorter than {HIDDEN_BYTES_MIN} bytes: where the receiver repeats it in an answer, it is not hidden",
                    secret.name
                );
            }
            if secrets.insert(secret.name.clone(), json!(text.expose_secret())).is_some() {
                let what = format!("the secret `{}` is named twice", secret.name);
                return Err(Failure::new(Exit::Usage, what).into());
            }
        }
        body["secrets"] = Value::Object(secrets);
        Ok(body)
    }
}
