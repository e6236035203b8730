//! A real browser, driven over WebDriver.

use std::path::Path;
use std::process::Stdio;

use anyhow::Context as _;
use fantoccini::ClientBuilder;
pub use fantoccini::{Client, Locator};
use hyper_util::client::legacy::connect::HttpConnector;
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

use crate::host::PATIENCE;

/// A driver of its own, on a port that it chooses.
pub struct Driver {
    /// Ends with this.
    _child: Child,
    url: String,
}

impl Driver {
    /// Starts `chromedriver`.
    ///
    /// # Errors
    /// It is not there, or does not listen.
    pub async fn start() -> anyhow::Result<Self> {
        let mut child = Command::new("chromedriver")
            .arg("--port=0")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .context("chromedriver is not there: scripts/test installs it")?;
        let mut lines = BufReader::new(child.stdout.take().context("its output is piped")?).lines();
        let url = tokio::time::timeout(PATIENCE, async {
            while let Some(line) = lines.next_line().await? {
                if let Some(port) = line.split("successfully on port ").nth(1) {
                    return Ok(format!("http://127.0.0.1:{}", port.trim_end_matches('.')));
                }
            }
            anyhow::bail!("chromedriver ended before it listened")
        })
        .await??;
        // Whatever it says later must not block it.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Ok(Self { _child: child, url })
    }

    /// Opens a headless browser that is as wide as a phone.
    ///
    /// # Errors
    /// There is none.
    pub async fn browser(&self, profile: &Path) -> anyhow::Result<Client> {
        let arguments = [
            "--headless".into(),
            "--no-sandbox".into(),
            "--disable-gpu".into(),
            "--disable-background-networking".into(),
            "--disable-component-update".into(),
            "--disable-sync".into(),
            "--no-first-run".into(),
            "--window-size=390,4000".into(),
            format!("--user-data-dir={}", profile.display()),
        ];
        let capabilities = json!({ "goog:chromeOptions": { "args": arguments } });
        let capabilities = capabilities.as_object().context("an object")?.clone();
        Ok(ClientBuilder::new(HttpConnector::new()).capabilities(capabilities).connect(&self.url).await?)
    }
}
