//! A provider that counts its calls and can lose their answers.
//!
//! A real HTTP/1.1 server on loopback. Every request that arrived whole is appended to a log before anything is
//! answered, so that the log, not the sender, says what took place. How a call is answered follows from the path
//! ([`demo`]'s endpoints), or from an [`Act`]: scripted for a path beforehand, or given in the request's own query.
//!
//! ```text
//! POST /charges?delay_ms=200&reset_at=17
//! GET  /charges?key=…  the charge that was made under this idempotency key, or 404
//! POST /__script  {"path":"/charges","times":1,"act":{"drop":true}}
//! POST /__release      lets go of every call that an act holds now
//! GET  /__calls        the log so far
//! ```

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

mod act;
mod demo;
mod log;
mod request;
mod serve;

pub use act::Act;
pub use log::{Call, Outcome};

use log::CallLog;

/// How long a test waits for calls before it fails.
const WAIT: Duration = Duration::from_secs(10);

/// Where the provider listens and what it keeps.
#[derive(Debug, Clone, Default)]
pub struct ProviderConfig {
    /// Log to append to, JSON lines. Calls are kept in memory as well, and only there without a path.
    pub log_path: Option<PathBuf>,
    /// Port on 127.0.0.1; 0 takes a free one.
    pub port: u16,
}

/// A running provider; dropping it closes its port.
#[derive(Debug)]
pub struct Provider {
    state: Arc<State>,
    address: SocketAddr,
    listening: JoinHandle<()>,
}

#[derive(Debug)]
struct State {
    log: CallLog,
    scripts: Mutex<HashMap<String, Vec<Act>>>,
    habits: Mutex<Habits>,
    /// Counts the releases, so that a call that is held waits for one after its own arrival.
    released: watch::Sender<u64>,
}

/// What is done with calls that nothing else speaks of: each act once, in order, and again from the first.
#[derive(Debug, Default)]
struct Habits {
    acts: Vec<Act>,
    next: usize,
}

impl Provider {
    /// Starts to listen.
    ///
    /// # Errors
    /// The port is taken, or the log cannot be opened.
    pub async fn start(config: ProviderConfig) -> anyhow::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, config.port))
            .await
            .with_context(|| format!("listening on port {}", config.port))?;
        let address = listener.local_addr()?;
        let log = CallLog::open(config.log_path.as_deref())?;
        let state = Arc::new(State {
            log,
            scripts: Mutex::default(),
            habits: Mutex::default(),
            released: watch::Sender::new(0),
        });
        let listening = tokio::spawn(serve::accept(listener, Arc::clone(&state)));
        Ok(Self { state, address, listening })
    }

    /// `http://127.0.0.1:<port>`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Every call so far, in the order of arrival.
    pub fn calls(&self) -> Vec<Call> {
        self.state.log.calls()
    }

    /// The calls that carried this key, in the order of arrival.
    pub fn calls_under(&self, key: &str) -> Vec<Call> {
        self.state.log.calls_where(|call| call.idempotency_key() == Some(key))
    }

    /// Number of calls so far.
    pub fn calls_count(&self) -> usize {
        self.state.log.count()
    }

    /// Waits until at least `count` calls have arrived, and returns all of them.
    ///
    /// # Errors
    /// They did not within ten seconds.
    pub async fn wait_for_calls(&self, count: usize) -> anyhow::Result<Vec<Call>> {
        self.wait_until(|calls| calls.len() >= count)
            .await
            .with_context(|| format!("waiting for {count} calls"))
    }

    /// Waits until the log satisfies `condition`, and returns it.
    ///
    /// # Errors
    /// It did not within ten seconds.
    pub async fn wait_until(&self, condition: impl Fn(&[Call]) -> bool) -> anyhow::Result<Vec<Call>> {
        let mut changes = self.state.log.changes();
        let satisfied = changes.wait_for(|()| self.state.log.satisfies(&condition));
        tokio::time::timeout(WAIT, satisfied)
            .await
            .with_context(|| format!("after {WAIT:?} the provider's log is {:?}", self.calls()))??;
        Ok(self.calls())
    }

    /// Answers the next call of `path` so. Several scripts for a path are used up in order, one call each.
    pub fn script(&self, path: &str, act: Act) {
        self.state.script(path, act, 1);
    }

    /// From now on, answers the calls that no script and no query speaks of with these acts in turn; with none of them,
    /// as it should.
    pub fn misbehave(&self, acts: Vec<Act>) {
        *self.state.habits.lock().unwrap_or_else(PoisonError::into_inner) = Habits { acts, next: 0 };
    }

    /// Lets go of every call that an act holds now.
    pub fn release(&self) {
        self.state.release();
    }

    /// Reads a log that a provider, perhaps of another process, wrote.
    ///
    /// # Errors
    /// The file cannot be read, or a line of it cannot. (A last line without its end is still being written.)
    pub fn read_log(path: &Path) -> anyhow::Result<Vec<Call>> {
        log::read(path)
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

impl State {
    fn script(&self, path: &str, act: Act, times: usize) {
        let mut scripts = self.scripts.lock().unwrap_or_else(PoisonError::into_inner);
        scripts.entry(path.to_owned()).or_default().extend(std::iter::repeat_n(act, times));
    }

    fn take_script(&self, path: &str) -> Option<Act> {
        let mut scripts = self.scripts.lock().unwrap_or_else(PoisonError::into_inner);
        let queue = scripts.get_mut(path)?;
        if queue.is_empty() { None } else { Some(queue.remove(0)) }
    }

    fn take_habit(&self) -> Act {
        let mut habits = self.habits.lock().unwrap_or_else(PoisonError::into_inner);
        let Habits { acts, next } = &mut *habits;
        if acts.is_empty() {
            return Act::default();
        }
        let act = acts[*next % acts.len()].clone();
        *next += 1;
        act
    }

    fn release(&self) {
        self.released.send_modify(|count| *count += 1);
    }
}

/// What ends a connection without fault of ours: the caller went away.
fn is_gone(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionReset
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::UnexpectedEof
            | io::ErrorKind::NotConnected
    )
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;

    use super::*;

    async fn send(provider: &Provider, method: &str, target: &str, body: &str) -> anyhow::Result<String> {
        let mut stream = TcpStream::connect(provider.address()).await?;
        let request = format!(
            "{method} {target} HTTP/1.1\r\nhost: a\r\nIdempotency-Key: k\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
            body.len(),
        );
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok(answer)
    }

    #[tokio::test]
    async fn the_log_outlives_the_provider_and_goes_on() -> anyhow::Result<()> {
        let directory = tempfile::tempdir()?;
        let log_path = directory.path().join("calls.jsonl");
        let config = ProviderConfig { log_path: Some(log_path.clone()), port: 0 };
        for expected in ["ch_1", "ch_2"] {
            let provider = Provider::start(config.clone()).await?;
            let answer = send(&provider, "POST", "/charges?a=b", r#"{"amount":1}"#).await?;
            assert!(answer.starts_with("HTTP/1.1 201 \r\n") && answer.contains(expected), "{answer}");
            provider.wait_until(|calls| calls.iter().all(|call| call.outcome.is_some())).await?;
        }
        let calls = Provider::read_log(&log_path)?;
        let seen: Vec<_> =
            calls.iter().map(|call| (call.seq, call.path.as_str(), call.body.as_str())).collect();
        assert_eq!(seen, [(1, "/charges", r#"{"amount":1}"#), (2, "/charges", r#"{"amount":1}"#)]);
        assert_eq!(calls[0].idempotency_key(), Some("k"));
        assert_eq!(calls[0].outcome, Some(Outcome::Answered { status: 201 }));
        assert_eq!(calls[0].body_sha256, "c2b11e657e12fd177359627ca89412018e2274d0873cfbfcf1fc50f685582e9e");
        Ok(())
    }

    #[tokio::test]
    async fn scripts_are_used_up_in_order() -> anyhow::Result<()> {
        let provider = Provider::start(ProviderConfig::default()).await?;
        provider.script("/charges", Act::status(500));
        let script = r#"{"path":"/charges","times":2,"act":{"status":429,"retry_after":3}}"#;
        send(&provider, "POST", "/__script", script).await?;
        let mut statuses = vec![];
        for _ in 0..4 {
            let answer = send(&provider, "POST", "/charges", "").await?;
            assert_eq!(answer.contains("retry-after: 3\r\n"), answer.starts_with("HTTP/1.1 429"), "{answer}");
            statuses.push(answer[9..12].to_owned());
        }
        assert_eq!(statuses, ["500", "429", "429", "201"]);
        assert_eq!(provider.calls().len(), 4, "control requests are no calls");
        Ok(())
    }

    #[tokio::test]
    async fn habits_go_round_and_yield_to_scripts() -> anyhow::Result<()> {
        let provider = Provider::start(ProviderConfig::default()).await?;
        provider.misbehave(vec![Act::status(500), Act::default()]);
        provider.script("/charges", Act::status(429));
        let mut statuses = vec![];
        for _ in 0..4 {
            statuses.push(send(&provider, "POST", "/charges", "").await?[9..12].to_owned());
        }
        provider.misbehave(vec![]);
        statuses.push(send(&provider, "POST", "/charges", "").await?[9..12].to_owned());
        assert_eq!(statuses, ["429", "500", "201", "500", "201"]);
        assert_eq!((provider.calls_under("k").len(), provider.calls_count()), (5, 5));
        let took_place: Vec<bool> = provider.calls().iter().map(Call::took_place).collect();
        assert_eq!(took_place, [false, false, true, false, true]);
        Ok(())
    }

    #[tokio::test]
    async fn a_held_call_waits_for_a_release_after_it() -> anyhow::Result<()> {
        let provider = Provider::start(ProviderConfig::default()).await?;
        provider.release();
        let calling = send(&provider, "POST", "/charges?hold", "");
        let releasing = async {
            let calls = provider.wait_for_calls(1).await?;
            assert_eq!(calls[0].outcome, None);
            send(&provider, "POST", "/__release", "").await
        };
        let (answer, released) = tokio::join!(calling, releasing);
        assert!(answer?.contains("ch_1"));
        released?;
        Ok(())
    }

    #[tokio::test]
    async fn a_charge_is_found_by_its_key_whatever_became_of_its_answer() -> anyhow::Result<()> {
        let provider = Provider::start(ProviderConfig::default()).await?;
        let find = async || send(&provider, "GET", "/charges?key=k", "").await;
        provider.script("/charges", Act::status(402));
        send(&provider, "POST", "/charges", "").await?;
        assert!(find().await?.starts_with("HTTP/1.1 404"), "a refusal is no charge");
        provider.script("/charges", Act::dropped());
        assert_eq!(send(&provider, "POST", "/charges", "").await?, "");
        let found = find().await?;
        assert!(found.starts_with("HTTP/1.1 200") && found.contains("ch_3"), "{found}");
        assert!(send(&provider, "GET", "/charges?key=other", "").await?.starts_with("HTTP/1.1 404"));
        Ok(())
    }

    #[tokio::test]
    async fn half_a_request_is_no_call() -> anyhow::Result<()> {
        let provider = Provider::start(ProviderConfig::default()).await?;
        for half in
            ["P", "POST /charges HTTP/1.1\r\nhost: a\r\n", "POST / HTTP/1.1\r\ncontent-length: 2\r\n\r\nx"]
        {
            let mut stream = TcpStream::connect(provider.address()).await?;
            stream.write_all(half.as_bytes()).await?;
            stream.shutdown().await?;
            let mut rest = vec![];
            stream.read_to_end(&mut rest).await?;
            assert_eq!(rest, b"", "{half:?}");
        }
        assert_eq!(provider.calls(), []);
        Ok(())
    }
}
