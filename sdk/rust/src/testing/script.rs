//! The provider of a test: what it answers, what goes wrong, and what it has seen.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::effect::{Call, Facts, Slot};
use super::meaning::Exchanged;
use super::receipt::Sent;
use crate::effect::Safety;
use crate::http::Answer;

/// Which calls an answer is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Calls {
    /// Of the effect with this label.
    Of(String),
    /// With this method and URL; a URL that ends with `*` stands for all that begin so.
    To(String, String),
    /// The call that the provider sees as its nth, from 1.
    Nth(usize),
}

impl From<&str> for Calls {
    fn from(label: &str) -> Self {
        Self::Of(label.to_owned())
    }
}

impl From<(&str, &str)> for Calls {
    fn from((method, url): (&str, &str)) -> Self {
        Self::To(method.to_owned(), url.to_owned())
    }
}

impl From<usize> for Calls {
    fn from(nth: usize) -> Self {
        Self::Nth(nth)
    }
}

impl Calls {
    fn contain(&self, nth: usize, slot: &Slot, call: &Call) -> bool {
        match (self, call) {
            (Self::Of(label), _) => matches!(slot, Slot::Label(given) if given == label),
            (Self::Nth(expected), _) => *expected == nth,
            (Self::To(method, url), Call::Http(http)) => {
                let matches = match url.strip_suffix('*') {
                    Some(beginning) => http.url.starts_with(beginning),
                    None => http.url == *url,
                };
                http.method == *method && matches
            }
            (Self::To(..), _) => false,
        }
    }
}

/// What the provider does with a call.
#[derive(Debug, Clone, PartialEq)]
pub struct Reply(pub(super) Exchanged);

impl Reply {
    /// It cannot be reached: nothing leaves.
    pub fn not_sent() -> Self {
        Self(Exchanged::NotSent("the receiver cannot be reached".into()))
    }

    /// It takes the call, and its answer never comes.
    pub fn lost() -> Self {
        Self(Exchanged::Lost("the answer was lost".into()))
    }

    /// A mail server's code and text.
    pub fn mail(code: u16, text: impl Into<String>) -> Self {
        Self(Exchanged::Replied { code, text: text.into() })
    }

    /// A worker has done its work, with this output: the same as a status of 200.
    pub fn worker(output: &Value) -> Self {
        Answer::new_json(200, output).into()
    }

    /// A worker failed, and said that nothing of it took place: the same as a status of 422, `code` and `message` in JSON.
    pub fn worker_failed(code: &str, message: &str) -> Self {
        Answer::new_json(422, &json!({ "code": code, "message": message })).into()
    }
}

impl From<Answer> for Reply {
    fn from(answer: Answer) -> Self {
        Self(Exchanged::Answered(answer))
    }
}

/// A status and a body of JSON. Of a worker, a status below 400 says that it is done, with the body as its output; one below
/// 500 that it failed, with a `code` and a `message`, and that nothing took place; and any other one that some of it may have.
impl From<(u16, Value)> for Reply {
    fn from((status, body): (u16, Value)) -> Self {
        Answer::new_json(status, &body).into()
    }
}

/// What goes wrong at an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    CrashBefore,
    CrashAfter,
    Lose,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Script {
    rules: Vec<Rule>,
    otherwise: Option<Reply>,
    faults: BTreeMap<usize, Fault>,
    sent: Vec<Sent>,
}

#[derive(Debug, Clone)]
struct Rule {
    calls: Calls,
    reply: Reply,
    is_used: bool,
}

impl Script {
    pub(super) fn add(&mut self, calls: Calls, reply: Reply) {
        self.rules.push(Rule { calls, reply, is_used: false });
    }

    pub(super) fn otherwise(&mut self, reply: Reply) {
        self.otherwise = Some(reply);
    }

    pub(super) fn fault(&mut self, nth: usize, fault: Fault) {
        assert!(nth > 0, "calls are counted from 1");
        self.faults.insert(nth, fault);
    }

    pub(super) fn sent(&self) -> &[Sent] {
        &self.sent
    }

    /// The provider takes a call: what comes of it, and what goes wrong then.
    ///
    /// # Errors
    ///
    /// Nothing is scripted for it.
    pub(super) fn take(
        &mut self,
        slot: &Slot,
        call: &Call,
        facts: &Facts,
    ) -> Result<(Exchanged, Option<Fault>), String> {
        let nth = self.sent.len() + 1;
        let Reply(exchanged) = self.reply(nth, slot, call).ok_or_else(|| {
            format!("no answer is scripted for call {nth}, `{}` of the effect `{slot}`", facts.request)
        })?;
        if matches!(exchanged, Exchanged::NotSent(_)) {
            return Ok((exchanged, None));
        }
        self.sent.push(sent(slot, call, facts));
        let fault = self.faults.remove(&nth);
        match fault {
            Some(Fault::Lose) => Ok((Reply::lost().0, None)),
            fault => Ok((exchanged, fault)),
        }
    }

    /// Of several answers for a call, each is given once, and the last from then on. The narrowest say first.
    fn reply(&mut self, nth: usize, slot: &Slot, call: &Call) -> Option<Reply> {
        let narrow = |calls: &Calls| match calls {
            Calls::Nth(_) => 0,
            Calls::Of(_) => 1,
            Calls::To(..) => 2,
        };
        let matching: Vec<usize> =
            (0..self.rules.len()).filter(|index| self.rules[*index].calls.contain(nth, slot, call)).collect();
        let narrowest = matching.iter().map(|index| narrow(&self.rules[*index].calls)).min();
        let mut candidates =
            matching.into_iter().filter(|index| Some(narrow(&self.rules[*index].calls)) == narrowest);
        let last = candidates.clone().next_back();
        let chosen = candidates.find(|index| !self.rules[*index].is_used).or(last);
        match chosen {
            Some(index) => {
                self.rules[index].is_used = true;
                Some(self.rules[index].reply.clone())
            }
            None => self.otherwise.clone(),
        }
    }
}

fn sent(slot: &Slot, call: &Call, facts: &Facts) -> Sent {
    let (headers, body) = match call {
        Call::Http(http) => {
            let is_key = |name: &str| name.eq_ignore_ascii_case("idempotency-key");
            (http.headers.iter().filter(|(name, _)| !is_key(name)).cloned().collect(), http.body.clone())
        }
        Call::Mail(mail) => (mail.headers.clone(), mail.text.clone().into_bytes()),
        Call::Worker(work) => (Vec::new(), work.input.clone().into_bytes()),
        Call::Emit(_) | Call::Storage(_) => (Vec::new(), Vec::new()),
    };
    Sent {
        effect: slot.to_string(),
        request: facts.request.clone(),
        connection: call.connection().map(Into::into),
        headers,
        body,
        idempotency_key: (facts.safety != Safety::ReadOnly).then(|| facts.key.clone()),
    }
}
