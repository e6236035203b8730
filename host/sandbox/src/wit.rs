//! Between the types of the block contract and those of the domain.

use counterfoil_domain::effect::{
    Answer, EffectCall, EffectFailure, EffectRequest, HttpRequest, HttpResponse, MailMessage, Safety,
    StorageRequest,
};
use counterfoil_domain::limits::{ERROR_TEXT_BYTES_MAX, bounded_text};
use counterfoil_domain::ports::LogLevel;
use counterfoil_domain::receipt::verification::{UnknownReceipt, Verdict};

use crate::bindings::counterfoil::block::{context, effects};
use crate::bindings::exports::counterfoil::block::reconcile;

impl From<effects::Effect> for EffectCall {
    fn from(effect: effects::Effect) -> Self {
        Self {
            request: effect.request.into(),
            key: effect.key,
            connection: effect.connection,
            safety: effect.safety.map(Safety::from),
            idempotency_key: effect.idempotency_key,
            timeout_ms: effect.timeout_ms,
            extra: effect.extra,
        }
    }
}

impl From<effects::Safety> for Safety {
    fn from(safety: effects::Safety) -> Self {
        match safety {
            effects::Safety::AtMostOnce => Self::AtMostOnce,
            effects::Safety::Idempotent => Self::Idempotent,
            effects::Safety::ReadOnly => Self::ReadOnly,
        }
    }
}

impl From<effects::Request> for EffectRequest {
    fn from(request: effects::Request) -> Self {
        match request {
            effects::Request::Http(effects::HttpRequest { method, url, headers, body }) => {
                Self::Http(HttpRequest { method, url, headers, body })
            }
            effects::Request::Emit(effects::Event { event_type, record_id, data }) => {
                Self::Emit { event_type, record_id, data }
            }
            effects::Request::Storage(request) => Self::Storage(match request {
                effects::StorageRequest::Get(key) => StorageRequest::Get(key),
                effects::StorageRequest::Put((key, value)) => StorageRequest::Put(key, value),
                effects::StorageRequest::Delete(key) => StorageRequest::Delete(key),
            }),
            effects::Request::Mail(effects::MailMessage { to, subject, text, html, headers }) => {
                Self::Mail(MailMessage { to, subject, text, html, headers })
            }
            effects::Request::Model(body) => Self::Model(body),
            effects::Request::Worker(effects::WorkerTask { queue, input }) => Self::Worker { queue, input },
        }
    }
}

impl From<Answer> for effects::Answer {
    fn from(answer: Answer) -> Self {
        match answer {
            Answer::Http(response) => Self::Http(response.into()),
            Answer::Emitted => Self::Emitted,
            Answer::Stored(value) => Self::Stored(value),
            Answer::Mailed(reply) => Self::Mailed(reply),
            Answer::Model(body) => Self::Model(body),
            Answer::Worker(output) => Self::Worker(output),
        }
    }
}

impl From<effects::Answer> for Answer {
    fn from(answer: effects::Answer) -> Self {
        match answer {
            effects::Answer::Http(effects::HttpResponse { status, headers, body, truncated }) => {
                Self::Http(HttpResponse { status, headers, body, truncated })
            }
            effects::Answer::Emitted => Self::Emitted,
            effects::Answer::Stored(value) => Self::Stored(value),
            effects::Answer::Mailed(reply) => Self::Mailed(reply),
            effects::Answer::Model(body) => Self::Model(body),
            effects::Answer::Worker(output) => Self::Worker(output),
        }
    }
}

impl From<UnknownReceipt> for reconcile::Receipt {
    fn from(receipt: UnknownReceipt) -> Self {
        let UnknownReceipt { id, kind, node, key, idempotency_key, request, sent_at_ms } = receipt;
        Self { id, kind, node, key, idempotency_key, request, sent_at: sent_at_ms }
    }
}

impl From<reconcile::Verdict> for Verdict {
    fn from(verdict: reconcile::Verdict) -> Self {
        match verdict {
            reconcile::Verdict::Applied(answer) => Self::Applied(answer.into()),
            reconcile::Verdict::NotApplied => Self::NotApplied,
            reconcile::Verdict::Inconclusive(why) => {
                Self::Inconclusive(bounded_text(&why, ERROR_TEXT_BYTES_MAX))
            }
        }
    }
}

impl From<HttpResponse> for effects::HttpResponse {
    fn from(HttpResponse { status, headers, body, truncated }: HttpResponse) -> Self {
        Self { status, headers, body, truncated }
    }
}

impl From<EffectFailure> for effects::Failure {
    fn from(failure: EffectFailure) -> Self {
        match failure {
            EffectFailure::Denied(reason) => Self::Denied(reason),
            EffectFailure::NotSent(reason) => Self::NotSent(reason),
            EffectFailure::Rejected(response) => Self::Rejected(response.into()),
            EffectFailure::NoAnswer(reason) => Self::NoAnswer(reason),
            EffectFailure::ResponseTooLarge(response) => Self::ResponseTooLarge(response.into()),
            EffectFailure::Limit(reason) => Self::Limit(reason),
        }
    }
}

impl From<context::Level> for LogLevel {
    fn from(level: context::Level) -> Self {
        match level {
            context::Level::Trace => Self::Trace,
            context::Level::Debug => Self::Debug,
            context::Level::Info => Self::Info,
            context::Level::Warn => Self::Warn,
            context::Level::Error => Self::Error,
        }
    }
}
