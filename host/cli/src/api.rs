//! Calls of the API, for the commands that go over the network.

use std::time::Duration;

use anyhow::Context as _;
use counterfoil_effects::client::api::{ApiAnswer, ApiClient, ApiError};
use serde::Deserialize;
use serde_json::Value;
use url::Url;

use crate::args::Global;
use crate::config::{Flags, Purpose, Read};
use crate::data::DevFile;
use crate::exit::{Exit, Failure};

/// An upload is compiled before it is answered.
const ANSWER_TIME_MAX: Duration = Duration::from_mins(3);
/// Where `dev` and `serve` listen unless told otherwise.
const URL_DEFAULT: &str = "http://127.0.0.1:8420";

/// The API, as one key's holder sees it.
pub(crate) struct Api {
    client: ApiClient,
    base: Url,
    key: Option<String>,
}

/// A query: names and values, those that are given.
pub(crate) type Query<'a> = &'a [(&'a str, Option<String>)];

/// What is sent along.
pub(crate) struct Body {
    content_type: &'static str,
    bytes: Vec<u8>,
    idempotency_key: Option<String>,
}

impl Body {
    /// Nothing.
    pub(crate) fn empty() -> Self {
        Self { content_type: "", bytes: vec![], idempotency_key: None }
    }

    /// Bytes of a type.
    pub(crate) fn new(content_type: &'static str, bytes: impl Into<Vec<u8>>) -> Self {
        Self { content_type, bytes: bytes.into(), idempotency_key: None }
    }

    /// JSON.
    pub(crate) fn json(value: &Value) -> Self {
        Self::new("application/json", value.to_string())
    }

    /// Marks a repeat of the same call.
    pub(crate) fn idempotency_key(self, key: Option<String>) -> Self {
        Self { idempotency_key: key, ..self }
    }
}

/// An error of the API, as it is sent.
#[derive(Debug, Deserialize)]
pub(crate) struct Problem {
    pub(crate) code: String,
    title: String,
    detail: Option<String>,
    #[serde(rename = "type")]
    advice: Option<String>,
    #[serde(default)]
    pub(crate) errors: Vec<ProblemPart>,
}

/// One thing that is wrong with what was sent.
#[derive(Debug, Deserialize)]
pub(crate) struct ProblemPart {
    pub(crate) pointer: Option<String>,
    pub(crate) detail: String,
    pub(crate) line: Option<u64>,
    pub(crate) column: Option<u64>,
}

/// Why a call brought nothing.
pub(crate) enum Refusal {
    /// The API says why.
    Problem(Problem, Failure),
    /// There is no answer of the API.
    Other(anyhow::Error),
}

impl From<Refusal> for anyhow::Error {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Problem(_, failure) => failure.into(),
            Refusal::Other(error) => error,
        }
    }
}

impl Api {
    /// The API that the command line, the environment or a running `dev` names.
    pub(crate) fn new(global: &Global) -> anyhow::Result<Self> {
        let data = Read::new(Flags::of(global), Purpose::Command).config().data.clone();
        let (url, key) = (global.url()?, global.key());
        let dev = if url.is_none() || key.is_none() { DevFile::read(&data)? } else { None };
        let dev_url = dev.as_ref().map_or(URL_DEFAULT, |dev| &dev.url).parse::<Url>()?;
        let base = url.unwrap_or_else(|| dev_url.clone());
        // A key goes to nobody but the host that made it.
        let dev_key = dev.filter(|_| dev_url.origin() == base.origin()).map(|dev| dev.key);
        let client = ApiClient::new(ANSWER_TIME_MAX, vec![])?;
        Ok(Self { client, base, key: key.or(dev_key) })
    }

    /// The key. It is asked for by whoever calls, so that what is wrong with the command itself is said first.
    ///
    /// # Errors
    /// A [`Failure`] if there is none.
    pub(crate) fn key(&self) -> Result<&str, Failure> {
        self.key.as_deref().ok_or_else(|| {
            Failure::new(Exit::Usage, format!("there is no key for {}", self.base))
                .details(["give one with --key or COUNTERFOIL_KEY".to_owned()])
                .next("counterfoil dev    (in another terminal; it makes a key that the other commands find)")
        })
    }

    /// Reads.
    pub(crate) async fn get(&self, path: &[&str], query: Query<'_>) -> Result<Value, Refusal> {
        self.call("GET", path, query, Body::empty()).await
    }

    /// Creates, or asks for something to be done.
    pub(crate) async fn post(&self, path: &[&str], body: Body) -> Result<Value, Refusal> {
        self.call("POST", path, &[], body).await
    }

    /// Calls `/v1/…`; `null` where the answer has no body.
    pub(crate) async fn call(
        &self,
        method: &str,
        path: &[&str],
        query: Query<'_>,
        body: Body,
    ) -> Result<Value, Refusal> {
        let url = self.url(path, query).map_err(Refusal::Other)?;
        let key = self.key().map_err(|failure| Refusal::Other(failure.into()))?;
        let authorization = format!("Bearer {key}");
        let mut headers = vec![("authorization", authorization.as_str()), ("accept", "application/json")];
        if !body.content_type.is_empty() {
            headers.push(("content-type", body.content_type));
        }
        headers.extend(body.idempotency_key.as_deref().map(|key| ("idempotency-key", key)));
        let answer = self.client.request(method, &url, &headers, body.bytes).await;
        let answer = answer.map_err(|error| Refusal::Other(self.no_answer(error)))?;
        match answer.status {
            204 => Ok(Value::Null),
            200..=299 => serde_json::from_slice(&answer.body)
                .with_context(|| format!("{url} answered {} with what is not JSON", answer.status))
                .map_err(Refusal::Other),
            _ => Err(self.refusal(&url, path, &answer)),
        }
    }

    /// The address of a page.
    pub(crate) fn page(&self, path: &str) -> String {
        self.base.join(path).map_or_else(|_| path.to_owned(), Into::into)
    }

    fn url(&self, path: &[&str], query: Query<'_>) -> anyhow::Result<Url> {
        let mut url = self.base.clone();
        url.path_segments_mut()
            .map_err(|()| Failure::new(Exit::Usage, format!("{} cannot be the API's address", self.base)))?
            .pop_if_empty()
            .push("v1")
            .extend(path);
        for (name, value) in query {
            if let Some(value) = value {
                url.query_pairs_mut().append_pair(name, value);
            }
        }
        Ok(url)
    }

    fn no_answer(&self, error: ApiError) -> anyhow::Error {
        match error {
            ApiError::Connect { .. } => {
                let why = format!("{:#}", anyhow::Error::from(error));
                Failure::new(Exit::Error, format!("no host answers at {}", self.base))
                    .details([why])
                    .next("counterfoil dev    (or name another host with --url or COUNTERFOIL_URL)")
                    .into()
            }
            ApiError::Url(_) => {
                Failure::new(Exit::Usage, format!("{} cannot be the API's address", self.base))
                    .details(["it begins with http:// or https://".to_owned()])
                    .into()
            }
            other => anyhow::Error::from(other).context(format!("no answer of {}", self.base)),
        }
    }

    fn refusal(&self, url: &Url, path: &[&str], answer: &ApiAnswer) -> Refusal {
        let Ok(problem) = serde_json::from_slice::<Problem>(&answer.body) else {
            let what =
                format!("{url} answered {}: is that the address of a Counterfoil host?", answer.status);
            return Refusal::Other(Failure::new(Exit::Error, what).into());
        };
        let what = match &problem.detail {
            // Of what there is not, it was asked here, unless the host says what of it there is not.
            Some(_) if problem.code == "not_found" && problem.errors.is_empty() => {
                format!("{} ({}): {}", problem.title, problem.code, named(path))
            }
            Some(detail) => format!("{} ({}): {detail}", problem.title, problem.code),
            None => format!("{} ({})", problem.title, problem.code),
        };
        let is_news = |part: &&ProblemPart| Some(part.line()) != problem.detail;
        let mut failure = Failure::new(Exit::of_status(answer.status), what)
            .details(problem.errors.iter().filter(is_news).map(ProblemPart::line));
        if let Some(advice) = &problem.advice {
            failure = failure.details([format!("advice: {}", self.page(advice))]);
        }
        if let Some(next) = next(&problem, path) {
            failure = failure.next(next);
        }
        Refusal::Problem(problem, failure)
    }
}

impl ProblemPart {
    fn line(&self) -> String {
        match (&self.pointer, self.line, self.column) {
            (_, Some(line), Some(column)) => format!("{line}:{column}: {}", self.detail),
            (Some(pointer), ..) if !pointer.is_empty() => format!("{pointer}: {}", self.detail),
            _ => self.detail.clone(),
        }
    }
}

/// What a path names, in words: `block "a"`.
fn named(path: &[&str]) -> String {
    let (noun, name) = match path {
        [list, name, ..] if *list != "workers" => {
            (list.strip_suffix('s').unwrap_or(list), (*name).to_owned())
        }
        path => ("path", path.join("/")),
    };
    format!("there is no {noun} {name:?} for this key's tenant")
}

/// What usually helps.
fn next(problem: &Problem, path: &[&str]) -> Option<String> {
    Some(match (problem.code.as_str(), path) {
        ("not_found", ["workflows", name, ..]) if !problem.errors.is_empty() => {
            format!("counterfoil workflow show {name}")
        }
        ("unauthenticated", _) => "counterfoil doctor    (give a key with --key or COUNTERFOIL_KEY)".into(),
        ("workflow_not_active", ["workflows", name, ..]) => format!("counterfoil workflow activate {name}"),
        ("not_unknown", _) => "counterfoil effect list --state unknown".into(),
        ("conflict", _) => "counterfoil run list".into(),
        ("definition_invalid", _) => "counterfoil workflow check FILE".into(),
        (
            "not_found",
            [list @ ("blocks" | "workflows" | "runs" | "effects" | "approvals" | "connections" | "keys"), ..],
        ) => {
            format!("counterfoil {} list", list.strip_suffix('s').unwrap_or(list))
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_is_named() -> serde_json::Result<()> {
        for (path, expected, advice) in [
            (
                &["blocks", "a"][..],
                "there is no block \"a\" for this key's tenant",
                Some("counterfoil block list"),
            ),
            (
                &["runs", "run_1", "timeline"],
                "there is no run \"run_1\" for this key's tenant",
                Some("counterfoil run list"),
            ),
            (
                &["workers", "tasks", "eff_1", "fail"],
                "there is no path \"workers/tasks/eff_1/fail\" for this key's tenant",
                None,
            ),
        ] {
            let problem: Problem = serde_json::from_str(r#"{ "code": "not_found", "title": "Not found" }"#)?;
            assert_eq!(
                (named(path).as_str(), next(&problem, path).as_deref()),
                (expected, advice),
                "{path:?}"
            );
        }
        Ok(())
    }
}
