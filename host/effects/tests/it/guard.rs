//! The guard, over a real database and a provider that counts: what is sent, what is recorded, and what the guest is told.

mod answers;
mod connection;
mod fence;
mod journal;
mod limits;
mod mail;
mod own;
mod reach;
mod verify;
mod worker;

use std::sync::Arc;
use std::time::Duration;

use counterfoil_domain::block::EffectGrant;
use counterfoil_domain::effect::{
    Answer, EffectCall, EffectFailure, EffectReply, EffectRequest, HttpRequest, Safety,
};
use counterfoil_domain::outbound::AddressPolicy;
use counterfoil_domain::ports::{EffectPort as _, NoFaults};
use counterfoil_domain::step::Stop;
use counterfoil_domain::workflow::definition::Invariant;
use counterfoil_effects::client::{Client, ClientConfig, NameServers};
use counterfoil_effects::secrets::Secrets;
use counterfoil_effects::{ExecutionContext, Finished, Guard, GuardConfig};
use counterfoil_store::container::Containers;
use counterfoil_store::settle::{
    BlockVerdict, Blocking, RetryLater, RetryVerdict, SettleVerdict, SettledState, SettledStep, Settlement,
};
use counterfoil_store::step::Claimed;
use counterfoil_testkit::provider::{Provider, ProviderConfig};
use counterfoil_testkit::work::Work;
use serde_json::json;

/// Long beside any call of these tests.
pub(crate) const LEASE: Duration = Duration::from_secs(20);

/// Longer than an answer has to wait in any of these tests but the one that gives it up.
pub(crate) const RECORD_FOR: Duration = Duration::from_secs(3);

/// A guard, a provider behind the connection `p`, and work to do.
pub(crate) struct Desk {
    pub(crate) work: Work,
    pub(crate) provider: Provider,
    pub(crate) guard: Guard,
    pub(crate) invariants: Vec<Invariant>,
}

impl Desk {
    pub(crate) async fn new() -> anyhow::Result<Self> {
        Self::with_abilities(json!({})).await
    }

    pub(crate) async fn with_abilities(abilities: serde_json::Value) -> anyhow::Result<Self> {
        let work = Work::new().await?;
        let provider = Provider::start(ProviderConfig::default()).await?;
        work.connect("p", &provider.url(), abilities).await?;
        // An answer waits for the end of its step, so that each test decides what a crash finds.
        let guard = guard(&work, Duration::from_hours(1))?;
        Ok(Self { work, provider, guard, invariants: vec![] })
    }

    /// Whose guard writes each answer as it comes.
    pub(crate) async fn with_answers_at_once() -> anyhow::Result<Self> {
        let desk = Self::new().await?;
        let guard = guard(&desk.work, Duration::ZERO)?;
        Ok(Self { guard, ..desk })
    }

    /// Claims the one step that is due, and opens the door for it.
    pub(crate) async fn begin(&self) -> anyhow::Result<Claimed> {
        let claimed = self.work.claim(LEASE).await?;
        self.guard.begin(self.context(&claimed));
        Ok(claimed)
    }

    pub(crate) fn context(&self, claimed: &Claimed) -> ExecutionContext {
        let http = |safety| EffectGrant { connections: vec!["p".into()], ..grant("http", safety) };
        ExecutionContext {
            fence: claimed.fence,
            run: claimed.run,
            workflow: self.work.workflow,
            place: claimed.place.clone(),
            attempt: claimed.attempt,
            is_first: claimed.is_first_of_lineage(),
            grants: Some(vec![
                http(Safety::AtMostOnce),
                http(Safety::Idempotent),
                grant("emit", Safety::AtMostOnce),
                grant("storage", Safety::AtMostOnce),
                grant("worker", Safety::AtMostOnce),
                grant("worker", Safety::Idempotent),
                EffectGrant {
                    connections: ["post", "p", "nowhere"].map(Into::into).into(),
                    ..grant("mail", Safety::AtMostOnce)
                },
            ]),
            invariants: self.invariants.clone().into(),
        }
    }

    pub(crate) async fn perform(&self, claimed: &Claimed, call: EffectCall) -> EffectReply {
        self.guard.perform(claimed.fence.lease, call).await
    }

    /// Ends the execution as the engine would: settled, waiting, or blocked.
    pub(crate) async fn end(&self, claimed: &Claimed) -> anyhow::Result<String> {
        let finished = self.guard.finish(claimed.fence.lease).await;
        match finished.stop.clone() {
            None => self.settle(claimed, finished).await,
            Some(Stop::Blocked { .. }) => self.block(claimed, finished).await,
            Some(Stop::Resend { .. }) => self.retry(claimed, finished).await,
            Some(stop) => Ok(format!("{stop:?}")),
        }
    }

    pub(crate) async fn settle(&self, claimed: &Claimed, finished: Finished) -> anyhow::Result<String> {
        let settlement = Settlement {
            fence: claimed.fence,
            run: claimed.run,
            lineage: claimed.place.lineage,
            writes: finished.writes,
            own: finished.own,
            settled: SettledStep {
                step: claimed.fence.step,
                node: claimed.place.node.clone(),
                iteration: vec![],
                state: SettledState::Succeeded,
                output: Some(json!(null)),
                error: None,
                choice: None,
            },
            logs: None,
            inline: vec![],
            containers: Containers::default(),
            open: vec![],
            keep: None,
            end: None,
        };
        Ok(match self.work.store.settle(&settlement).await? {
            SettleVerdict::Settled { .. } => "settled".into(),
            other => format!("{other:?}"),
        })
    }

    async fn block(&self, claimed: &Claimed, finished: Finished) -> anyhow::Result<String> {
        let blocking = Blocking {
            fence: claimed.fence,
            run: claimed.run,
            writes: finished.writes,
            lose: finished.lose,
            error: json!({}),
            logs: None,
        };
        Ok(match self.work.store.block(&blocking).await? {
            BlockVerdict::Blocked => "blocked".into(),
            other => format!("{other:?}"),
        })
    }

    /// The step waits for another attempt.
    pub(crate) async fn retry(&self, claimed: &Claimed, finished: Finished) -> anyhow::Result<String> {
        let retry = RetryLater {
            fence: claimed.fence,
            run: claimed.run,
            writes: finished.writes,
            lose: finished.lose,
            delay: Duration::ZERO,
            error: json!({}),
            logs: None,
            next_attempt: true,
        };
        Ok(match self.work.store.retry_later(&retry).await? {
            RetryVerdict::Waiting => "waits".into(),
            other => format!("{other:?}"),
        })
    }
}

pub(crate) fn guard(work: &Work, answer_wait: Duration) -> anyhow::Result<Guard> {
    guard_with(work, answer_wait, Secrets::new("/nowhere".into(), |_| {}), LEASE)
}

/// A guard with a key for secrets, whose send window is a part of `lease`.
pub(crate) fn guard_with(
    work: &Work,
    answer_wait: Duration,
    secrets: Secrets,
    lease: Duration,
) -> anyhow::Result<Guard> {
    let client = Client::new(ClientConfig {
        policy: AddressPolicy { loopback: true, private: vec![] },
        name_servers: NameServers::System,
        extra_roots: vec![],
        first_byte_alone: false,
    })?;
    let config = GuardConfig {
        lease,
        timeout: Duration::from_secs(5),
        answer_wait,
        absence_margin: Duration::ZERO,
        record_for: RECORD_FOR,
        receipts: true,
    };
    Ok(Guard::new(work.store.clone(), client, secrets, config, Arc::new(NoFaults)))
}

/// Leave for a kind of effect, without connections and hosts.
pub(crate) fn grant(kind: &str, safety: Safety) -> EffectGrant {
    EffectGrant { kind: kind.into(), safety, connections: vec![], hosts: vec![] }
}

/// A call through `p`.
pub(crate) fn call(method: &str, path: &str, key: Option<&str>, safety: Option<Safety>) -> EffectCall {
    let body = if method == "GET" { vec![] } else { br#"{"cents":500}"#.to_vec() };
    EffectCall {
        request: EffectRequest::Http(HttpRequest {
            method: method.into(),
            url: path.into(),
            headers: vec![("content-type".into(), "application/json".into())],
            body,
        }),
        key: key.map(Into::into),
        connection: Some("p".into()),
        safety,
        idempotency_key: None,
        timeout_ms: None,
        extra: vec![],
    }
}

/// What the guest is told, in a word.
pub(crate) fn told(reply: &EffectReply) -> String {
    match reply {
        EffectReply::Answered(Answer::Http(response)) => format!("answer {}", response.status),
        EffectReply::Failed(EffectFailure::Rejected(response)) => format!("rejected {}", response.status),
        EffectReply::Failed(EffectFailure::ResponseTooLarge(response)) => {
            format!("too large {}", response.status)
        }
        EffectReply::Failed(EffectFailure::Denied(_)) => "denied".into(),
        EffectReply::Failed(EffectFailure::NotSent(_)) => "not sent".into(),
        EffectReply::Failed(EffectFailure::NoAnswer(_)) => "no answer".into(),
        EffectReply::Failed(EffectFailure::Limit(text)) => {
            format!("limit {}", text.split(':').next().unwrap_or_default())
        }
        EffectReply::Stop => "nothing".into(),
        EffectReply::Answered(Answer::Stored(value)) => match value.as_deref().map(String::from_utf8_lossy) {
            Some(text) => format!("value {text}"),
            None => "no value".into(),
        },
        EffectReply::Answered(Answer::Emitted) => "emitted".into(),
        EffectReply::Answered(Answer::Mailed(_)) => "mailed".into(),
        other @ EffectReply::Answered(_) => format!("{other:?}"),
    }
}
