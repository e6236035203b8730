//! What bombs cost a runtime as its documentation starts it: nothing is scanned, and nothing has a limit but a stack.
//!
//! Each goes off in a process of its own, which is killed when it has taken what no host would give it.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use counterfoil_testkit::bombs::{ALL, Bomb};
use serde_json::{Map, Value, json};
use tokio::process::{Child, Command};
use wasmtime::component::{Component, HasSelf, Linker};
use wasmtime::{Engine, Store};

use crate::bare;
use crate::machine;
use crate::measure::rounded;

/// The first argument of a process that a bomb goes off in; the second is its number.
pub(crate) const COMMAND: &str = "__stock";
/// What a bomb may take before it is over.
const TIME_MAX: Duration = Duration::from_secs(20);
const MEMORY_KIB_MAX: u64 = 6 << 20;
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Lets a bomb go off in this process, and says what it came to.
#[expect(clippy::print_stdout, reason = "what the parent reads")]
pub(crate) fn child(arguments: &[OsString]) -> ExitCode {
    let number = arguments.first().and_then(|number| number.to_str()?.parse::<usize>().ok());
    let Some(bomb) = number.and_then(|number| ALL.get(number)) else { return ExitCode::FAILURE };
    match go_off(&(bomb.build)()) {
        Ok(()) => println!("done"),
        Err(error) => println!("{}", error.root_cause().to_string().lines().next().unwrap_or_default()),
    }
    ExitCode::SUCCESS
}

fn go_off(component: &[u8]) -> wasmtime::Result<()> {
    let engine = Engine::default();
    let component = Component::new(&engine, component)?;
    let mut linker = Linker::new(&engine);
    bare::Block::add_to_linker::<_, HasSelf<_>>(&mut linker, |host| host)?;
    let ready = linker.instantiate_pre(&component)?;
    let mut store = Store::new(&engine, bare::Host);
    let instance = ready.instantiate(&mut store)?;
    // Some have done what they are for by now, and are no blocks.
    let Ok(block) = bare::Block::new(&mut store, &instance) else { return Ok(()) };
    block.counterfoil_block_step().call_describe(&mut store)?;
    block
        .counterfoil_block_step()
        .call_run(&mut store, "0")?
        .map_err(|_| wasmtime::format_err!("it failed"))?;
    Ok(())
}

/// Prints a table of all of them.
pub(crate) async fn measure() -> anyhow::Result<Map<String, Value>> {
    println!("| bomb | CPU | memory | came to |\n|---|---:|---:|---|");
    let mut bombs = vec![];
    for (number, bomb) in ALL.iter().enumerate() {
        let cost = cost(number, bomb).await.with_context(|| bomb.name)?;
        println!("| {} | {:.1} s | {} MiB | {} |", bomb.name, cost.cpu_s, cost.kib >> 10, cost.came_to);
        bombs.push(json!({
            "bomb": bomb.name,
            "cpu_s": rounded(cost.cpu_s),
            "memory_kib": cost.kib,
            "came_to": cost.came_to,
        }));
    }
    Ok(Map::from_iter([("stock_engine".into(), bombs.into())]))
}

struct Cost {
    cpu_s: f64,
    kib: u64,
    came_to: String,
}

async fn cost(number: usize, bomb: &Bomb) -> anyhow::Result<Cost> {
    let mut child = Command::new(std::env::current_exe()?)
        .args([COMMAND, &number.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("starting a process for {}", bomb.name))?;
    let pid = child.id().context("it has just been started")?;
    let begun = Instant::now();
    let mut cost = Cost { cpu_s: 0.0, kib: 0, came_to: String::new() };
    let stopped = loop {
        if child.try_wait()?.is_some() {
            break None;
        }
        cost.cpu_s = machine::cpu_seconds(pid, true).unwrap_or(cost.cpu_s).max(cost.cpu_s);
        cost.kib = machine::peak_kib(pid).unwrap_or_default().max(cost.kib);
        if begun.elapsed() > TIME_MAX {
            break Some(format!("still at it after {} s", TIME_MAX.as_secs()));
        }
        if cost.kib > MEMORY_KIB_MAX {
            break Some(format!("more than {} GiB", MEMORY_KIB_MAX >> 20));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    };
    cost.came_to = match stopped {
        Some(why) => {
            child.kill().await?;
            why
        }
        None => ended(child).await?,
    };
    Ok(cost)
}

async fn ended(child: Child) -> anyhow::Result<String> {
    let output = child.wait_with_output().await?;
    if let Some(signal) = output.status.signal() {
        return Ok(format!("its process was ended by signal {signal}"));
    }
    let said = String::from_utf8(output.stdout).map_err(|_| anyhow!("it says no text"))?;
    Ok(said.trim().to_owned())
}
