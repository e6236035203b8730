//! A real host process, to be killed.

use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use counterfoil_domain::block::with_manifest;
use counterfoil_domain::ports::Site;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

use crate::http::{self, Reply};

/// How long anything may take before a test gives up.
pub const PATIENCE: Duration = Duration::from_mins(1);
/// Between two looks at a condition that no one announces.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// How to start a host.
#[derive(Debug, Clone)]
pub struct HostConfig {
    /// The `counterfoil` binary.
    pub binary: PathBuf,
    /// Database it works on.
    pub database_url: String,
    /// Its own directory: compiled blocks, key files.
    pub data_dir: PathBuf,
    /// Lease, in milliseconds.
    pub lease_ms: u64,
    /// Further environment.
    pub environment: Vec<(String, String)>,
}

impl HostConfig {
    /// The same host, with one more variable.
    #[must_use]
    pub fn with(mut self, name: &str, value: &impl ToString) -> Self {
        self.environment.push((name.into(), value.to_string()));
        self
    }

    /// The same host, which kills itself when it passes `site` for the `nth` time.
    #[must_use]
    pub fn crashing_at(self, site: Site, nth: u32) -> Self {
        self.with("COUNTERFOIL_CRASH_AT", &format!("{}:{nth}", site.name()))
    }

    /// A host whose runners are killed when it reaches `site` for the nth time.
    #[must_use]
    pub fn losing_its_runners_at(self, site: Site, nth: u32) -> Self {
        self.with("COUNTERFOIL_CRASH_AT", &format!("{}:{nth}@runners", site.name()))
    }
}

/// A host process and a key to speak to it with.
#[derive(Debug)]
pub struct Host {
    child: Child,
    /// Empty until it serves.
    base: String,
    key: String,
    log: PathBuf,
}

/// Names the logs of one process's hosts, which may share a directory.
static LOGS: AtomicU32 = AtomicU32::new(0);

impl Host {
    /// Starts a host on a free port and waits until it is ready.
    ///
    /// # Errors
    /// It ends first, or takes longer than [`PATIENCE`].
    pub async fn start(config: &HostConfig, key: &str) -> anyhow::Result<Self> {
        let mut host = Self::launch(config, key)?;
        if !host.is_serving().await? {
            let status = host.child.wait().await?;
            bail!("the host ended with {status} before it was ready:\n{}", host.log());
        }
        host.wait_until_ready().await?;
        Ok(host)
    }

    /// Starts a host on a free port, and does not wait for anything.
    ///
    /// # Errors
    /// The process cannot be started.
    pub fn launch(config: &HostConfig, key: &str) -> anyhow::Result<Self> {
        std::fs::create_dir_all(&config.data_dir)?;
        let log = config.data_dir.join(format!("host-{}.log", LOGS.fetch_add(1, Ordering::Relaxed)));
        let mut command = Command::new(&config.binary);
        command
            .arg("serve")
            .arg("--data-dir")
            .arg(&config.data_dir)
            .args(["--listen", "127.0.0.1:0"])
            .env("DATABASE_URL", &config.database_url)
            .env("COUNTERFOIL__ENGINE__LEASE_MS", config.lease_ms.to_string())
            .env("COUNTERFOIL__ENGINE__RENEW_MS", (config.lease_ms / 3).max(1).to_string())
            .env("COUNTERFOIL__EFFECTS__ALLOW_LOOPBACK", "true")
            .envs(config.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(std::fs::File::create(&log)?)
            .kill_on_drop(true);
        let child = command.spawn().with_context(|| format!("starting {}", config.binary.display()))?;
        Ok(Self { child, base: String::new(), key: key.into(), log })
    }

    /// Waits until it says where it serves. False if it ended first.
    ///
    /// # Errors
    /// It says something else, or nothing within [`PATIENCE`].
    pub async fn is_serving(&mut self) -> anyhow::Result<bool> {
        let Some(stdout) = self.child.stdout.take() else { return Ok(!self.base.is_empty()) };
        let mut said = String::new();
        let mut stdout = BufReader::new(stdout);
        tokio::time::timeout(PATIENCE, stdout.read_line(&mut said))
            .await
            .context("the host says nothing")??;
        if said.is_empty() {
            return Ok(false);
        }
        let url =
            said.trim().strip_prefix("serving at ").with_context(|| format!("the host says {said:?}"))?;
        url.trim_end_matches('/').clone_into(&mut self.base);
        Ok(true)
    }

    async fn wait_until_ready(&mut self) -> anyhow::Result<()> {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                bail!("the host ended with {status} before it was ready:\n{}", self.log());
            }
            let ready = http::send(&self.base, "GET", "/readyz", &[], "").await;
            if ready.is_ok_and(|reply| reply.status == 200) {
                return Ok(());
            }
            ensure!(begun.elapsed() < PATIENCE, "the host is not ready:\n{}", self.log());
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Waits until the process has ended, however it does.
    ///
    /// # Errors
    /// It could not be waited for.
    pub async fn ended(&mut self) -> anyhow::Result<ExitStatus> {
        Ok(self.child.wait().await?)
    }

    /// The file of its log.
    pub fn log_path(&self) -> &Path {
        &self.log
    }

    /// Where it listens.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// Speaks to it as somebody else.
    pub fn as_holder_of<'a>(&'a self, key: &'a str) -> Caller<'a> {
        Caller { base: &self.base, key }
    }

    fn caller(&self) -> Caller<'_> {
        self.as_holder_of(&self.key)
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Sends a request as the tenant.
    ///
    /// # Errors
    /// The host is not there.
    pub async fn send(&self, method: &str, path: &str, body: &Value) -> anyhow::Result<Reply> {
        self.caller().send(method, path, body).await
    }

    /// Sends a request and expects success.
    ///
    /// # Errors
    /// The host is not there, or refuses.
    pub async fn call(&self, method: &str, path: &str, body: &Value) -> anyhow::Result<Value> {
        self.caller().call(method, path, body).await
    }

    /// Uploads a block.
    ///
    /// # Errors
    /// The file cannot be read, or the host refuses it.
    pub async fn push_block(&self, name: &str, file: &Path) -> anyhow::Result<Value> {
        self.caller().push_block(name, file).await
    }

    /// Saves and activates a workflow, written as JSON, whatever it changes.
    ///
    /// # Errors
    /// The host refuses it.
    pub async fn activate(&self, definition: &Value) -> anyhow::Result<()> {
        self.caller().activate(definition).await
    }

    /// Starts a run and returns its id.
    ///
    /// # Errors
    /// The host refuses it.
    pub async fn start_run(&self, workflow: &str, input: &Value) -> anyhow::Result<String> {
        let run =
            self.call("POST", &format!("/v1/workflows/{workflow}/runs"), &json!({ "input": input })).await?;
        Ok(run["id"].as_str().context("a run has an id")?.to_owned())
    }

    /// Waits until a run is in one of `states`, and returns it.
    ///
    /// # Errors
    /// It is not within [`PATIENCE`].
    pub async fn wait_for_run(&self, run: &str, states: &[&str]) -> anyhow::Result<Value> {
        let begun = Instant::now();
        loop {
            let value = self.call("GET", &format!("/v1/runs/{run}"), &Value::Null).await?;
            if value["state"].as_str().is_some_and(|state| states.contains(&state)) {
                return Ok(value);
            }
            ensure!(begun.elapsed() < PATIENCE, "{run} is not {states:?} but {value}\n{}", self.log());
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Kills it, as the out-of-memory killer would.
    ///
    /// # Errors
    /// It could not be waited for.
    pub async fn kill(mut self) -> anyhow::Result<()> {
        self.signal(Signal::SIGKILL)?;
        self.child.wait().await?;
        Ok(())
    }

    /// Its process id.
    ///
    /// # Errors
    /// It has ended.
    pub fn pid(&self) -> anyhow::Result<u32> {
        self.child.id().context("the host has ended")
    }

    /// Sends it a signal.
    ///
    /// # Errors
    /// It has ended.
    pub fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        kill(Pid::from_raw(i32::try_from(self.pid()?)?), signal)?;
        Ok(())
    }

    /// Waits until it has killed itself.
    ///
    /// # Errors
    /// It lives on, or ended in another way.
    pub async fn wait_until_killed(&mut self) -> anyhow::Result<()> {
        let status = tokio::time::timeout(PATIENCE, self.child.wait())
            .await
            .with_context(|| format!("the host lives on:\n{}", self.log()))??;
        ensure!(
            status.signal() == Some(Signal::SIGKILL as i32),
            "the host ended with {status}:\n{}",
            self.log()
        );
        Ok(())
    }

    /// Waits until it has ended by itself, and returns its exit code.
    ///
    /// # Errors
    /// It lives on, or was killed.
    pub async fn wait_for_exit(&mut self) -> anyhow::Result<i32> {
        let status =
            tokio::time::timeout(PATIENCE, self.child.wait()).await.context("the host lives on")??;
        status.code().with_context(|| format!("the host ended with {status}"))
    }
}

/// Somebody who speaks to a host.
#[derive(Debug, Clone, Copy)]
pub struct Caller<'a> {
    base: &'a str,
    key: &'a str,
}

impl<'a> Caller<'a> {
    /// The holder of `key`, at a host that listens at `base`.
    pub fn new(base: &'a str, key: &'a str) -> Self {
        Self { base, key }
    }
}

impl Caller<'_> {
    /// Sends a request as the tenant.
    ///
    /// # Errors
    /// The host is not there.
    pub async fn send(&self, method: &str, path: &str, body: &Value) -> anyhow::Result<Reply> {
        let authorization = format!("Bearer {}", self.key);
        let headers = [("authorization", authorization.as_str()), ("content-type", "application/json")];
        let body = if body.is_null() { vec![] } else { body.to_string().into_bytes() };
        http::send(self.base, method, path, &headers, body).await
    }

    /// Sends a request and expects success.
    ///
    /// # Errors
    /// The host is not there, or refuses.
    pub async fn call(&self, method: &str, path: &str, body: &Value) -> anyhow::Result<Value> {
        let reply = self.send(method, path, body).await?;
        let value = if reply.body.is_empty() { Value::Null } else { reply.json()? };
        ensure!(reply.status < 300, "{method} {path}: status {}: {value}", reply.status);
        Ok(value)
    }

    /// Sends the bytes of a component, which the host may refuse.
    ///
    /// # Errors
    /// The host is not there.
    pub async fn upload(&self, name: &str, bytes: Vec<u8>) -> anyhow::Result<Reply> {
        let authorization = format!("Bearer {}", self.key);
        let headers = [("authorization", authorization.as_str()), ("content-type", "application/wasm")];
        http::send(self.base, "POST", &format!("/v1/blocks/{name}"), &headers, bytes).await
    }

    /// Uploads a block.
    ///
    /// # Errors
    /// The file cannot be read, or the host refuses it.
    pub async fn push_block(&self, name: &str, file: &Path) -> anyhow::Result<Value> {
        let mut bytes = std::fs::read(file).with_context(|| format!("reading {}", file.display()))?;
        if let Ok(manifest) = std::fs::read(file.with_extension("json")) {
            bytes = with_manifest(&bytes, &manifest);
        }
        let reply = self.upload(name, bytes).await?;
        ensure!(reply.status < 300, "uploading {name}: {}", reply.json()?);
        reply.json()
    }

    /// Saves and activates a workflow, written as JSON, whatever it changes.
    ///
    /// # Errors
    /// The host refuses it.
    pub async fn activate(&self, definition: &Value) -> anyhow::Result<()> {
        let name = definition["name"].as_str().context("a workflow has a name")?;
        self.call("PUT", &format!("/v1/workflows/{name}"), definition).await?;
        self.call("POST", &format!("/v1/workflows/{name}/activate"), &json!({ "accept": true })).await?;
        Ok(())
    }

    /// Starts a run and waits until it has ended, or is blocked.
    ///
    /// # Errors
    /// The host refuses it, or it does not end within [`PATIENCE`].
    pub async fn run_to_end(&self, workflow: &str, input: &Value) -> anyhow::Result<Value> {
        let run = self.start_run(workflow, input).await?;
        self.wait_for_run(&run).await
    }

    /// Starts a run; its id.
    ///
    /// # Errors
    /// The host refuses it.
    pub async fn start_run(&self, workflow: &str, input: &Value) -> anyhow::Result<String> {
        let path = format!("/v1/workflows/{workflow}/runs");
        let run = self.call("POST", &path, &json!({ "input": input })).await?;
        Ok(run["id"].as_str().context("a run has an id")?.to_owned())
    }

    /// Waits until a run has ended, or is blocked.
    ///
    /// # Errors
    /// It does not end within [`PATIENCE`].
    pub async fn wait_for_run(&self, run: &str) -> anyhow::Result<Value> {
        /// A run of a small block takes a few of these.
        const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(2);
        let begun = Instant::now();
        let path = format!("/v1/runs/{run}");
        loop {
            let run = self.call("GET", &path, &Value::Null).await?;
            if matches!(run["state"].as_str(), Some("succeeded" | "failed" | "cancelled" | "blocked")) {
                return Ok(run);
            }
            ensure!(begun.elapsed() < PATIENCE, "{run} does not end");
            tokio::time::sleep(LOOK_AGAIN_AFTER).await;
        }
    }
}
