//! Speaking to whichever host is there.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use serde_json::Value;

use crate::http::{self, Reply};
use crate::random::Random;

/// A host that does not answer for so long is dead, frozen, or cut off from its database.
const ANSWER_WAIT: Duration = Duration::from_secs(3);

/// The hosts that serve now.
#[derive(Debug, Default)]
pub(super) struct Serving(Mutex<Vec<String>>);

impl Serving {
    fn bases(&self) -> MutexGuard<'_, Vec<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, base: &str) {
        self.bases().push(base.to_owned());
    }

    pub(super) fn remove(&self, base: &str) {
        self.bases().retain(|known| known != base);
    }

    /// One of them.
    pub(super) fn pick(&self, random: &mut Random) -> Option<String> {
        let bases = self.bases();
        (!bases.is_empty()).then(|| random.pick(&bases).clone())
    }

    /// Two of them, where there are two.
    pub(super) fn pick_two(&self, random: &mut Random) -> Option<(String, String)> {
        let bases = self.bases();
        let first = usize::try_from(random.below(bases.len() as u64)).ok()?;
        let second = bases.get((first + 1) % bases.len().max(1))?;
        Some((bases.get(first)?.clone(), second.clone()))
    }
}

/// Sends a request to one host as the holder of `key`.
///
/// # Errors
/// The host is not there, or does not answer in time.
pub(super) async fn send(
    base: &str,
    key: &str,
    method: &str,
    path: &str,
    idempotency_key: Option<&str>,
    body: &Value,
) -> anyhow::Result<Reply> {
    let authorization = format!("Bearer {key}");
    let mut headers = vec![("authorization", authorization.as_str()), ("content-type", "application/json")];
    headers.extend(idempotency_key.map(|key| ("idempotency-key", key)));
    let body = if body.is_null() { vec![] } else { body.to_string().into_bytes() };
    tokio::time::timeout(ANSWER_WAIT, http::send(base, method, path, &headers, body))
        .await
        .context("no answer in time")?
}
