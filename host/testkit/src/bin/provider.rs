//! A provider in a process of its own, for demos and for tests that kill hosts.
//!
//! `counterfoil-provider [--port N] [--log PATH]`: prints its URL as the first line and serves until it is killed.

use std::io::Write as _;

use anyhow::{Context as _, bail};
use counterfoil_testkit::provider::{Provider, ProviderConfig};

const USAGE: &str = "usage: counterfoil-provider [--port N] [--log PATH]";

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let provider = Provider::start(config(std::env::args().skip(1))?).await?;
    let mut stdout = std::io::stdout();
    writeln!(stdout, "{}", provider.url())?;
    stdout.flush()?;
    std::future::pending().await
}

fn config(mut arguments: impl Iterator<Item = String>) -> anyhow::Result<ProviderConfig> {
    let mut config = ProviderConfig::default();
    while let Some(name) = arguments.next() {
        if name == "--help" {
            bail!(USAGE);
        }
        let value = arguments.next().with_context(|| format!("{name} needs a value"))?;
        match name.as_str() {
            "--port" => config.port = value.parse().context("--port takes a number")?,
            "--log" => config.log_path = Some(value.into()),
            _ => bail!(USAGE),
        }
    }
    Ok(config)
}
