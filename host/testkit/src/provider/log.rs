//! The provider's log: append-only, one JSON line for each thing that happened.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tokio::sync::watch;

use super::act::Act;
use super::request::Request;

/// One request that arrived whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// Position in the order of arrival, from 1; the number in the ids that demo endpoints answer with.
    pub seq: u64,
    /// Milliseconds since the Unix epoch.
    pub received_at_ms: u64,
    /// Method.
    pub method: String,
    /// Path without its query.
    pub path: String,
    /// Query, without the question mark.
    pub query: String,
    /// Header fields in the order sent, names in lower case.
    pub headers: Vec<(String, String)>,
    /// SHA-256 of the body, in hex.
    pub body_sha256: String,
    /// The body, bytes that are not UTF-8 replaced.
    pub body: String,
    /// What it was told to do with this call.
    pub act: Act,
    /// What became of the answer; `None` while it is under way, or for ever if the provider died first.
    #[serde(default)]
    pub outcome: Option<Outcome>,
}

impl Call {
    /// The first header field of that name, given in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(field, _)| field == name).map(|(_, value)| value.as_str())
    }

    /// Whether what was asked for was done: the status that it was answered with, or would have been, is the truth.
    pub fn took_place(&self) -> bool {
        self.act.status.is_none_or(|status| status < 400)
    }

    /// The key by which the caller marks a repeat.
    pub fn idempotency_key(&self) -> Option<&str> {
        self.header("idempotency-key")
    }
}

/// What became of an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// All of it was handed to the operating system.
    Answered {
        /// Its status.
        status: u16,
    },
    /// It was cut off, or not begun, as told.
    Withheld {
        /// Bytes of it that were sent.
        sent_bytes: usize,
    },
    /// The caller went away first.
    CallerGone,
}

#[derive(Serialize, Deserialize)]
#[serde(tag = "line", rename_all = "snake_case")]
enum Line {
    Call(Box<Call>),
    Outcome { seq: u64, outcome: Outcome },
}

#[derive(Debug)]
pub(super) struct CallLog {
    inner: Mutex<Inner>,
    /// Sends whenever a line is appended.
    changed: watch::Sender<()>,
}

#[derive(Debug)]
struct Inner {
    calls: Vec<Call>,
    file: Option<File>,
}

impl CallLog {
    /// Continues the log at `path` where there is one.
    pub(super) fn open(path: Option<&Path>) -> anyhow::Result<Self> {
        let (mut calls, mut file) = (vec![], None);
        if let Some(path) = path {
            if path.exists() {
                calls = read(path)?;
            }
            let opened = File::options().append(true).create(true).open(path);
            file = Some(opened.with_context(|| format!("opening {}", path.display()))?);
        }
        Ok(Self { inner: Mutex::new(Inner { calls, file }), changed: watch::Sender::new(()) })
    }

    pub(super) fn calls(&self) -> Vec<Call> {
        self.lock().calls.clone()
    }

    pub(super) fn calls_where(&self, wanted: impl Fn(&Call) -> bool) -> Vec<Call> {
        self.lock().calls.iter().filter(|call| wanted(call)).cloned().collect()
    }

    /// The number of the first call that is wanted.
    pub(super) fn find(&self, wanted: impl Fn(&Call) -> bool) -> Option<u64> {
        self.lock().calls.iter().find(|call| wanted(call)).map(|call| call.seq)
    }

    pub(super) fn count(&self) -> usize {
        self.lock().calls.len()
    }

    pub(super) fn satisfies(&self, condition: impl FnOnce(&[Call]) -> bool) -> bool {
        condition(&self.lock().calls)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// Records a call and gives it its number.
    pub(super) fn received(&self, request: &Request, act: &Act) -> anyhow::Result<u64> {
        let mut inner = self.lock();
        let call = Call {
            seq: inner.calls.last().map_or(1, |last| last.seq + 1),
            received_at_ms: u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis())?,
            method: request.method.clone(),
            path: request.path.clone(),
            query: request.query.clone(),
            headers: request.headers.clone(),
            body_sha256: hex::encode(Sha256::digest(&request.body)),
            body: String::from_utf8_lossy(&request.body).into_owned(),
            act: act.clone(),
            outcome: None,
        };
        inner.append(&Line::Call(Box::new(call.clone())))?;
        let seq = call.seq;
        inner.calls.push(call);
        drop(inner);
        self.changed.send_replace(());
        Ok(seq)
    }

    /// Records what became of a call's answer.
    pub(super) fn ended(&self, seq: u64, outcome: Outcome) -> anyhow::Result<()> {
        let mut inner = self.lock();
        inner.append(&Line::Outcome { seq, outcome: outcome.clone() })?;
        if let Some(call) = inner.calls.iter_mut().rev().find(|call| call.seq == seq) {
            call.outcome = Some(outcome);
        }
        drop(inner);
        self.changed.send_replace(());
        Ok(())
    }
}

impl Inner {
    /// One write a line: a reader in another process sees whole lines, and a killed provider loses none.
    fn append(&mut self, line: &Line) -> anyhow::Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        file.write_all(&text).context("appending to the provider's log")
    }
}

pub(super) fn read(path: &Path) -> anyhow::Result<Vec<Call>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    let mut calls: Vec<Call> = vec![];
    for line in text.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
        match serde_json::from_str(line).with_context(|| format!("in {}: {line}", path.display()))? {
            Line::Call(call) => calls.push(*call),
            Line::Outcome { seq, outcome } => {
                if let Some(call) = calls.iter_mut().find(|call| call.seq == seq) {
                    call.outcome = Some(outcome);
                }
            }
        }
    }
    Ok(calls)
}
