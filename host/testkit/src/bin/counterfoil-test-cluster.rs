//! Runs a private cluster until its standard input ends, for scripts and for the tests of the cluster itself:
//! `counterfoil-test-cluster [--volatile] DIR`. Its URL is the one line that it prints.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::process::ExitCode;

use anyhow::{Context, bail};
use counterfoil_store::cluster::{Cluster, ClusterConfig, Durability, Launcher, Shutdown, reexec};

fn main() -> ExitCode {
    let mut args: Vec<OsString> = std::env::args_os().skip(1).collect();
    let result = if args.first().is_some_and(|arg| arg == reexec::COMMAND) {
        Err(reexec::main(args.drain(1..)).into())
    } else {
        run(&args)
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &[OsString]) -> anyhow::Result<()> {
    let (durability, dir) = match args {
        [flag, dir] if flag == "--volatile" => (Durability::Volatile, dir),
        [dir] if !dir.to_string_lossy().starts_with('-') => (Durability::Durable, dir),
        _ => bail!("usage: counterfoil-test-cluster [--volatile] DIR"),
    };
    let launcher = Launcher::this_program()?;
    let config = ClusterConfig { dir: dir.into(), launcher, durability };
    let runtime = tokio::runtime::Runtime::new().context("starting the runtime")?;
    runtime.block_on(async {
        let cluster = Cluster::start(config).await?;
        writeln!(std::io::stdout(), "{}", cluster.url())?;
        let ended = tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new()));
        ended.await?.context("reading standard input")?;
        cluster.stop(Shutdown::Fast).await?;
        Ok(())
    })
}
