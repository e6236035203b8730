//! The provider of a rehearsal: what it answers, what goes wrong, and what it has seen.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::effect::{Answer, EffectCall, EffectRequest, HttpResponse, Safety};
use crate::receipt::answer::Exchanged;
use crate::receipt::task::{self, Said, TookPlace};
use crate::receipt::{Move, RequestFacts, SlotKey};

/// Who takes whatever lies in a queue.
const WORKER: &str = "rehearsal";

/// Which calls an answer is for.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(from = "NumberOrText")]
pub enum Calls {
    /// Of the effect with this label.
    Of(String),
    /// With this method and URL; a URL that ends with `*` stands for all that begin so.
    To(String, String),
    /// The call that the provider sees as its nth, from 1.
    Nth(u32),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum NumberOrText {
    Number(u32),
    Text(String),
}

impl From<NumberOrText> for Calls {
    fn from(written: NumberOrText) -> Self {
        match written {
            NumberOrText::Number(nth) => Self::Nth(nth),
            NumberOrText::Text(text) => match text.split_once(' ') {
                Some((method, url)) => Self::To(method.into(), url.into()),
                None => Self::Of(text),
            },
        }
    }
}

impl Calls {
    fn contain(&self, nth: u32, slot: &SlotKey, call: &EffectCall) -> bool {
        match (self, &call.request) {
            (Self::Of(label), _) => slot.to_string() == *label,
            (Self::Nth(expected), _) => *expected == nth,
            (Self::To(method, url), EffectRequest::Http(http)) => {
                let matches = match url.strip_suffix('*') {
                    Some(beginning) => http.url.starts_with(beginning),
                    None => http.url == *url,
                };
                http.method == *method && matches
            }
            (Self::To(..), _) => false,
        }
    }

    /// The narrowest say first.
    const fn width(&self) -> u8 {
        match self {
            Self::Nth(_) => 0,
            Self::Of(_) => 1,
            Self::To(..) => 2,
        }
    }
}

/// What the provider does with a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// It answers; of a mail server, the status is its code and the body its text. Of a worker, one below 400 says that it
    /// is done, with the body as its output; one below 500 that it failed, with a `code` and a `message`, and that nothing
    /// took place; and any other one that it failed, and that some of it may have.
    Answer(HttpResponse),
    /// It cannot be reached.
    NotSent,
    /// It takes the call, and its answer never comes.
    Lost,
}

/// What goes wrong at an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The process dies before the answer is recorded.
    CrashBefore,
    /// The process dies when the answer is recorded.
    CrashAfter,
    /// No answer comes.
    Lose,
}

/// A call that the provider saw.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Sent {
    /// The effect: its label, or `#` and its number among those without one.
    pub effect: String,
    /// In a line: `POST /charges`.
    pub request: String,
    /// Through which connection.
    pub connection: Option<String>,
    /// The header fields that the block set.
    pub headers: BTreeMap<String, String>,
    /// The body as JSON, if it is.
    pub json: Option<Value>,
    /// The body as text.
    pub body: String,
    /// By which the receiver recognises a repeat; none of a read.
    pub idempotency_key: Option<String>,
}

/// A call that no answer is scripted for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no answer is scripted for call {nth}, `{request}` of the effect `{effect}`")]
pub(super) struct Unscripted {
    nth: u32,
    request: String,
    effect: String,
}

/// A provider that answers as it is told.
#[derive(Debug, Clone, Default)]
pub struct Provider {
    rules: Vec<Rule>,
    otherwise: Option<Reply>,
    faults: BTreeMap<u32, Fault>,
    sent: Vec<Sent>,
}

#[derive(Debug, Clone)]
struct Rule {
    calls: Calls,
    reply: Reply,
    is_used: bool,
}

impl Provider {
    /// Answers these calls so. Several answers for the same calls are given in turn, the last of them from then on.
    pub fn answer(&mut self, calls: Calls, reply: Reply) {
        self.rules.push(Rule { calls, reply, is_used: false });
    }

    /// Answers so whatever else is asked.
    pub fn otherwise(&mut self, reply: Reply) {
        self.otherwise = Some(reply);
    }

    /// At the nth call, from 1, this goes wrong.
    pub fn fault(&mut self, nth: u32, fault: Fault) {
        self.faults.insert(nth, fault);
    }

    /// Which of its answers for certain calls no call got, by their number among those, from 0.
    pub fn unused(&self) -> impl Iterator<Item = usize> {
        (0..self.rules.len()).filter(|index| !self.rules[*index].is_used)
    }

    /// The calls, by number, at which something was to go wrong, and that never came.
    pub fn spared(&self) -> impl Iterator<Item = u32> {
        self.faults.keys().copied()
    }

    /// Every call that it saw, in order.
    pub fn sent(&self) -> &[Sent] {
        &self.sent
    }

    /// Takes a call: what comes of it, and what goes wrong then.
    ///
    /// # Errors
    /// [`Unscripted`].
    pub(super) fn take(
        &mut self,
        slot: &SlotKey,
        call: &EffectCall,
        facts: &RequestFacts,
    ) -> Result<(Exchanged, Option<Fault>), Unscripted> {
        let (reply, fault) = self.replied(slot, call, facts)?;
        let exchanged = match reply {
            Reply::Answer(response) => exchanged(call, response),
            Reply::Lost => Exchanged::Lost { reason: "the answer was lost".into() },
            Reply::NotSent => {
                Exchanged::NotSent { denied: false, message: "the receiver cannot be reached".into() }
            }
        };
        Ok((exchanged, fault))
    }

    /// Takes work from a queue, or leaves it there: what comes of it, and what goes wrong then.
    ///
    /// # Errors
    /// [`Unscripted`].
    pub(super) fn take_work(
        &mut self,
        slot: &SlotKey,
        (call, queue): (&EffectCall, &str),
        facts: &RequestFacts,
    ) -> Result<(Move, Option<Fault>), Unscripted> {
        let (reply, fault) = self.replied(slot, call, facts)?;
        let what = match reply {
            Reply::Answer(response) => task::meaning(WORKER, said(&response)),
            Reply::Lost => task::expired(queue, Some(WORKER)),
            Reply::NotSent => task::expired(queue, None),
        };
        Ok((what, fault))
    }

    fn replied(
        &mut self,
        slot: &SlotKey,
        call: &EffectCall,
        facts: &RequestFacts,
    ) -> Result<(Reply, Option<Fault>), Unscripted> {
        let nth = u32::try_from(self.sent.len()).map_or(u32::MAX, |seen| seen.saturating_add(1));
        let reply = self.reply(nth, slot, call).ok_or_else(|| Unscripted {
            nth,
            request: Line(&call.request).to_string(),
            effect: slot.to_string(),
        })?;
        if reply == Reply::NotSent {
            return Ok((reply, None));
        }
        self.sent.push(sent(slot, call, facts));
        match self.faults.remove(&nth) {
            Some(Fault::Lose) => Ok((Reply::Lost, None)),
            fault => Ok((reply, fault)),
        }
    }

    fn reply(&mut self, nth: u32, slot: &SlotKey, call: &EffectCall) -> Option<Reply> {
        let matching: Vec<usize> =
            (0..self.rules.len()).filter(|index| self.rules[*index].calls.contain(nth, slot, call)).collect();
        let narrowest = matching.iter().map(|index| self.rules[*index].calls.width()).min();
        let mut candidates =
            matching.into_iter().filter(|index| Some(self.rules[*index].calls.width()) == narrowest);
        let last = candidates.clone().next_back();
        match candidates.find(|index| !self.rules[*index].is_used).or(last) {
            Some(index) => {
                self.rules[index].is_used = true;
                Some(self.rules[index].reply.clone())
            }
            None => self.otherwise.clone(),
        }
    }
}

/// An answer in the words of the call's protocol.
fn exchanged(call: &EffectCall, response: HttpResponse) -> Exchanged {
    if !matches!(call.request, EffectRequest::Mail(_)) {
        return Exchanged::Answered(response.kept(None));
    }
    let text = String::from_utf8_lossy(&response.body);
    match response.status {
        code @ 200..=299 => Exchanged::Accepted(Answer::Mailed(format!("{code} {text}"))),
        code @ ..=399 => {
            Exchanged::Lost { reason: format!("the server answered the message with {code} {text}") }
        }
        code => Exchanged::Refused { transient: code < 500, response },
    }
}

/// An answer in the words of a worker.
fn said(response: &HttpResponse) -> Said {
    let text = String::from_utf8_lossy(&response.body);
    let output = serde_json::from_slice(&response.body).unwrap_or_else(|_| Value::String(text.into_owned()));
    let took_place = match response.status {
        200..=399 => return Said::Done { output },
        400..=499 => TookPlace::Nothing { again: false },
        _ => TookPlace::Maybe,
    };
    let field = |name: &str| output[name].as_str().unwrap_or_default().to_owned();
    Said::Failed { code: field("code"), message: field("message"), took_place }
}

fn sent(slot: &SlotKey, call: &EffectCall, facts: &RequestFacts) -> Sent {
    let (headers, body) = match &call.request {
        EffectRequest::Http(http) => {
            let is_key = |name: &str| name.eq_ignore_ascii_case("idempotency-key");
            let given = http.headers.iter().filter(|(name, _)| !is_key(name));
            (given.map(|(name, value)| (name.to_ascii_lowercase(), value.clone())).collect(), &*http.body)
        }
        EffectRequest::Mail(mail) => (mail.headers.iter().cloned().collect(), mail.text.as_bytes()),
        EffectRequest::Worker { input, .. } => (BTreeMap::new(), input.as_bytes()),
        _ => (BTreeMap::new(), &[][..]),
    };
    Sent {
        effect: slot.to_string(),
        request: Line(&call.request).to_string(),
        connection: call.connection.clone(),
        headers,
        json: serde_json::from_slice(body).ok(),
        body: String::from_utf8_lossy(body).into_owned(),
        idempotency_key: (facts.safety != Safety::ReadOnly).then(|| facts.idempotency_key.clone()),
    }
}

/// What was asked for, in a line.
pub(super) struct Line<'a>(pub(super) &'a EffectRequest);

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use crate::effect::StorageRequest as S;
        match self.0 {
            EffectRequest::Http(http) => write!(f, "{} {}", http.method, http.url),
            EffectRequest::Emit { event_type, .. } => write!(f, "emit {event_type}"),
            EffectRequest::Storage(S::Get(key)) => write!(f, "get {key}"),
            EffectRequest::Storage(S::Put(key, _)) => write!(f, "put {key}"),
            EffectRequest::Storage(S::Delete(key)) => write!(f, "delete {key}"),
            EffectRequest::Mail(mail) => write!(f, "mail to {}: {}", mail.to.join(", "), mail.subject),
            EffectRequest::Model(_) => f.write_str("model"),
            EffectRequest::Worker { queue, .. } => write!(f, "worker {queue}"),
        }
    }
}
