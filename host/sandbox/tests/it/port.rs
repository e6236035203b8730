//! An effect port that does what its test tells it, and remembers what it was asked.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use counterfoil_domain::effect::{Answer, EffectCall, EffectReply};
use counterfoil_domain::id::LeaseId;
use counterfoil_domain::ports::EffectPort;

/// What the port does with a call.
#[derive(Clone)]
pub(crate) enum Act {
    Reply(EffectReply),
    ReplyAfter(Duration, EffectReply),
    /// Never answers.
    Wait,
}

pub(crate) struct Script {
    act: Act,
    calls: Mutex<Vec<(LeaseId, EffectCall)>>,
}

impl Script {
    pub(crate) fn new(act: Act) -> Arc<Self> {
        Arc::new(Self { act, calls: Mutex::default() })
    }

    /// For blocks that make no call.
    pub(crate) fn unused() -> Arc<Self> {
        Self::new(Act::Reply(EffectReply::Stop))
    }

    pub(crate) fn emitted() -> Arc<Self> {
        Self::new(Act::Reply(EffectReply::Answered(Answer::Emitted)))
    }

    pub(crate) fn calls(&self) -> Vec<(LeaseId, EffectCall)> {
        self.calls.lock().expect("no test panics while it holds the lock").clone()
    }
}

#[async_trait]
impl EffectPort for Script {
    async fn perform(&self, execution: LeaseId, call: EffectCall) -> EffectReply {
        self.calls.lock().expect("no test panics while it holds the lock").push((execution, call));
        match self.act.clone() {
            Act::Reply(reply) => reply,
            Act::ReplyAfter(wait, reply) => {
                tokio::time::sleep(wait).await;
                reply
            }
            Act::Wait => std::future::pending().await,
        }
    }
}
