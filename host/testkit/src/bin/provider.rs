//! A provider in a process of its own, for demos and for tests that kill hosts.
//!
//! `counterfoil-provider [--port N] [--log PATH]`: prints its URL as the first line and serves until it is killed.

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use counterfoil_testkit::asks_for_help;
use counterfoil_testkit::provider::{Provider, ProviderConfig};

const USAGE: &str = "usage: counterfoil-provider [--port N] [--log PATH]";

#[tokio::main]
async fn main() -> ExitCode {
    match run(std::env::args().skip(1).collect()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: Vec<String>) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout();
    if asks_for_help(&arguments) {
        writeln!(stdout, "{USAGE}")?;
        return Ok(());
    }
    let provider = Provider::start(config(arguments.into_iter())?).await?;
    writeln!(stdout, "{}", provider.url())?;
    stdout.flush()?;
    std::future::pending().await
}

fn config(mut arguments: impl Iterator<Item = String>) -> anyhow::Result<ProviderConfig> {
    let mut config = ProviderConfig::default();
    while let Some(name) = arguments.next() {
        let value = arguments.next().with_context(|| format!("{name} needs a value"))?;
        match name.as_str() {
            "--port" => config.port = value.parse().context("--port takes a number")?,
            "--log" => config.log_path = Some(value.into()),
            _ => bail!(USAGE),
        }
    }
    Ok(config)
}
