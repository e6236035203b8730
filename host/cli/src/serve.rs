//! `counterfoil serve`: a host, until it is told to stop.

use std::net::SocketAddr;

use anyhow::Context as _;
use serde_json::json;

use crate::args::Global;
use crate::config::{Flags, Purpose, Read};
use crate::database::Database;
use crate::exit::Exit;
use crate::output::Output;
use crate::wire::{self, Host};
use crate::{faults, secret, telemetry};

/// How to serve.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Address and port; port 0 takes a free one [default: 127.0.0.1:8420].
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
}

impl Args {
    /// The same, as settings.
    pub(crate) fn flags(&self, global: &Global) -> Flags {
        let mut flags = Flags::of(global);
        flags.set("server.listen", "--listen", self.listen.map(|listen| listen.to_string()));
        flags
    }
}

pub(crate) async fn run(args: Args, global: &Global, output: Output) -> anyhow::Result<Exit> {
    let config = Read::new(args.flags(global), Purpose::Service).into_config()?;
    let pepper = config.secrets.pepper.clone().context("there is no pepper")?;
    telemetry::install(&config.log)?;
    let listener = wire::bind(&config.server).await?;
    let database = Database::open(&config).await?;
    database.tell_if_private(&config);
    let faults = faults::faults(config.effects.crash_at);
    let (database, store) = database.with_tables(faults.clone()).await?;
    if !store.is_migrated().await? {
        // A host of the version before serves while the next one is brought in.
        tracing::warn!(
            "the database has tables of a newer version than this host's, which goes on with its own"
        );
    }
    secret::check_keys(&config.secrets.keys_file, &store).await?;
    let host = Host::new(&config, store, pepper, faults, listener)?;
    let url = host.url().to_string();
    output.show(&json!({ "url": url }), || format!("serving at {url}"))?;
    host.run(wire::told_to_stop()?).await?;
    database.close().await?;
    Ok(Exit::Ok)
}
