//! The seam in Wasm: the imports and exports of `wit/block.wit`.

use std::marker::PhantomData;
use std::panic;
use std::sync::Once;
use std::time::{Duration, SystemTime};

use self::bindings::counterfoil::block::{context, effects};
use self::bindings::exports::counterfoil::block::step;
use self::verifying::exports::counterfoil::block::reconcile;
use crate::block::{Block, describe, run};
use crate::context::{Level, Place};
use crate::effect::{
    CLAIM_WITHIN, EffectError, EmitEffect, HttpEffect, MailEffect, Safety, StorageEffect, StorageOperation,
    WorkerEffect,
};
use crate::failure::Failure;
use crate::http::Answer;
use crate::reconcile::{UnknownEffect, Verdict, Verify};

#[expect(missing_docs, clippy::same_length_and_capacity, reason = "generated")]
pub mod bindings {
    wit_bindgen::generate!({
        path: "../../wit",
        world: "block",
        pub_export_macro: true,
        default_bindings_module: "counterfoil_sdk::__private::bindings",
        runtime_path: "counterfoil_sdk::__private::wit_bindgen::rt",
    });
}

/// The export that only some blocks have: a world of its own, since a component must have every export of its world.
#[expect(missing_docs, clippy::same_length_and_capacity, reason = "generated")]
pub mod verifying {
    wit_bindgen::generate!({
        path: "../../wit",
        inline: "
            package counterfoil:sdk;
            world verifying {
                import counterfoil:block/effects@0.1.0;
                export counterfoil:block/reconcile@0.1.0;
            }
        ",
        world: "counterfoil:sdk/verifying",
        with: { "counterfoil:block/effects@0.1.0": super::bindings::counterfoil::block::effects },
        pub_export_macro: true,
        export_macro_name: "export_verifying",
        default_bindings_module: "counterfoil_sdk::__private::verifying",
        runtime_path: "counterfoil_sdk::__private::wit_bindgen::rt",
    });
}

pub(crate) fn perform(effect: HttpEffect) -> Result<Answer, EffectError> {
    match effects::perform(&effect.into()) {
        Ok(effects::Answer::Http(response)) => Ok(response.into()),
        Ok(_) => panic!("the host answered an HTTP call with an answer of another kind"),
        Err(failure) => Err(failure.into()),
    }
}

pub(crate) fn emit(effect: EmitEffect) -> Result<(), EffectError> {
    let EmitEffect { event_type, record, data, key } = effect;
    let event = effects::Event { event_type, record_id: record, data };
    match effects::perform(&own(effects::Request::Emit(event), key)) {
        Ok(effects::Answer::Emitted) => Ok(()),
        Ok(_) => panic!("the host answered an event with an answer of another kind"),
        Err(failure) => Err(failure.into()),
    }
}

pub(crate) fn storage(effect: StorageEffect) -> Result<Option<Vec<u8>>, EffectError> {
    let request = match effect.operation {
        StorageOperation::Get(key) => effects::StorageRequest::Get(key),
        StorageOperation::Put(key, value) => effects::StorageRequest::Put((key, value)),
        StorageOperation::Delete(key) => effects::StorageRequest::Delete(key),
    };
    match effects::perform(&own(effects::Request::Storage(request), effect.key)) {
        Ok(effects::Answer::Stored(value)) => Ok(value),
        Ok(_) => panic!("the host answered for a stored value with an answer of another kind"),
        Err(failure) => Err(failure.into()),
    }
}

pub(crate) fn mail(effect: MailEffect) -> Result<String, EffectError> {
    let MailEffect { to, subject, text, html, headers, connection, key, timeout_ms } = effect;
    let message = effects::MailMessage { to, subject, text, html, headers };
    let effect = effects::Effect { connection, timeout_ms, ..own(effects::Request::Mail(message), key) };
    match effects::perform(&effect) {
        Ok(effects::Answer::Mailed(reply)) => Ok(reply),
        Ok(_) => panic!("the host answered a message with an answer of another kind"),
        Err(effects::Failure::Rejected(response)) => {
            let reply = String::from_utf8_lossy(&response.body).into_owned();
            Err(EffectError::MailRefused { code: response.status, reply })
        }
        Err(failure) => Err(failure.into()),
    }
}

pub(crate) fn worker(effect: WorkerEffect) -> Result<String, EffectError> {
    let WorkerEffect { queue, input, key, is_idempotent, idempotency_key, claim_within_ms, timeout_ms } =
        effect;
    let effect = effects::Effect {
        safety: is_idempotent.then_some(effects::Safety::Idempotent),
        idempotency_key,
        timeout_ms,
        extra: claim_within_ms.map(|ms| (CLAIM_WITHIN.into(), ms.to_string())).into_iter().collect(),
        ..own(effects::Request::Worker(effects::WorkerTask { queue, input }), key)
    };
    match effects::perform(&effect) {
        Ok(effects::Answer::Worker(output)) => Ok(output),
        Ok(_) => panic!("the host answered for work with an answer of another kind"),
        Err(effects::Failure::Rejected(response)) => Err(EffectError::worker_failed(&response.body)),
        Err(failure) => Err(failure.into()),
    }
}

/// An effect on the tenant's own data, which has nothing to say but what it is.
fn own(request: effects::Request, key: Option<String>) -> effects::Effect {
    effects::Effect {
        request,
        key,
        connection: None,
        safety: None,
        idempotency_key: None,
        timeout_ms: None,
        extra: Vec::new(),
    }
}

pub(crate) fn place() -> Place {
    let context::StepPlace { lineage, node, iteration } = context::place();
    Place { lineage, node, iteration }
}

pub(crate) fn started_at_ms() -> u64 {
    context::started_at()
}

pub(crate) fn random(len: u32) -> Vec<u8> {
    context::random(len)
}

pub(crate) fn log(level: Level, message: &str) {
    let level = match level {
        Level::Trace => context::Level::Trace,
        Level::Debug => context::Level::Debug,
        Level::Info => context::Level::Info,
        Level::Warn => context::Level::Warn,
        Level::Error => context::Level::Error,
    };
    context::log(level, message);
}

/// The exported `step` interface of the block `B`.
#[doc(hidden)]
pub struct Step<B>(PhantomData<B>);

impl<B: Block> step::Guest for Step<B> {
    fn describe() -> String {
        log_panics();
        describe::<B>()
    }

    fn run(input: String) -> Result<String, step::Failure> {
        log_panics();
        run::<B>(&input).map_err(Into::into)
    }
}

impl<B: Verify> reconcile::Guest for Step<B> {
    fn verify(receipt: reconcile::Receipt) -> reconcile::Verdict {
        log_panics();
        match B::verify(&receipt.into()) {
            Verdict::Applied(answer) => reconcile::Verdict::Applied(effects::Answer::Http(answer.into())),
            Verdict::NotApplied => reconcile::Verdict::NotApplied,
            Verdict::Inconclusive(why) => reconcile::Verdict::Inconclusive(why),
        }
    }
}

impl From<reconcile::Receipt> for UnknownEffect {
    fn from(receipt: reconcile::Receipt) -> Self {
        let reconcile::Receipt { id, kind, node, key, idempotency_key, request, sent_at } = receipt;
        Self {
            id,
            kind,
            node,
            key,
            idempotency_key,
            // The host gives JSON.
            request: serde_json::from_str(&request).unwrap_or_default(),
            sent_at: SystemTime::UNIX_EPOCH + Duration::from_millis(sent_at),
        }
    }
}

/// A trap carries no text: without this, what a panic said would be lost.
fn log_panics() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        panic::set_hook(Box::new(|panic| log(Level::Error, &panic.to_string())));
    });
}

impl From<HttpEffect> for effects::Effect {
    fn from(effect: HttpEffect) -> Self {
        let HttpEffect { method, url, headers, body, key, connection, safety, idempotency_key, timeout_ms } =
            effect;
        Self {
            request: effects::Request::Http(effects::HttpRequest { method, url, headers, body }),
            key,
            connection,
            safety: safety.map(Into::into),
            idempotency_key,
            timeout_ms,
            extra: Vec::new(),
        }
    }
}

impl From<Safety> for effects::Safety {
    fn from(safety: Safety) -> Self {
        match safety {
            Safety::AtMostOnce => Self::AtMostOnce,
            Safety::Idempotent => Self::Idempotent,
            Safety::ReadOnly => Self::ReadOnly,
        }
    }
}

impl From<effects::HttpResponse> for Answer {
    fn from(response: effects::HttpResponse) -> Self {
        let effects::HttpResponse { status, headers, body, truncated } = response;
        Self { status, headers, body, truncated }
    }
}

impl From<Answer> for effects::HttpResponse {
    fn from(answer: Answer) -> Self {
        let Answer { status, headers, body, truncated } = answer;
        Self { status, headers, body, truncated }
    }
}

impl From<effects::Failure> for EffectError {
    fn from(failure: effects::Failure) -> Self {
        match failure {
            effects::Failure::Denied(why) => Self::Denied(why),
            effects::Failure::NotSent(why) => Self::NotSent(why),
            effects::Failure::Rejected(response) => Self::Rejected(response.into()),
            effects::Failure::NoAnswer(why) => Self::NoAnswer(why),
            effects::Failure::ResponseTooLarge(response) => Self::ResponseTooLarge(response.into()),
            effects::Failure::Limit(why) => Self::Limit(why),
        }
    }
}

impl From<Failure> for step::Failure {
    fn from(failure: Failure) -> Self {
        let reason = step::Reason { code: failure.code().into(), message: failure.message().into() };
        if failure.is_transient() {
            let delay_ms =
                failure.retry_after().map(|delay| delay.as_millis().try_into().unwrap_or(u64::MAX));
            Self::Transient((reason, delay_ms))
        } else {
            Self::Permanent(reason)
        }
    }
}
