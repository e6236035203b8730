//! What needs no network to be refused: what the block did not declare, and what no host takes.

use super::effect::Call;
use crate::block::Grant;
use crate::effect::{EffectError, Safety, StorageOperation, WorkerEffect};
use crate::http::Answer;

/// Effects of one step.
pub(super) const EFFECTS_MAX: usize = 64;
/// Labels, connection names, idempotency keys.
const NAME_BYTES_MAX: usize = 255;
/// Body of a request, and as much of an answer's body as is kept.
const BODY_BYTES_MAX: usize = 1 << 20;
const STORAGE_KEY_BYTES_MAX: usize = 512;
const VALUE_BYTES_MAX: usize = 64 << 10;
/// Of connections and queues.
const NAME_LEN_MAX: usize = 64;
const INPUT_BYTES_MAX: usize = 256 << 10;
/// How long work may lie in its queue, and a worker be at it: 30 days.
const TASK_MS_MAX: u64 = 30 * 86_400_000;

/// Header fields of an answer that a host keeps.
const KEPT_HEADERS: [&str; 10] = [
    "content-type",
    "content-language",
    "etag",
    "last-modified",
    "link",
    "location",
    "retry-after",
    "x-request-id",
    "request-id",
    "content-encoding",
];

/// The limits on the call itself, which leave no receipt.
pub(super) fn limits(calls: usize, label: Option<&str>, is_used: bool) -> Result<(), EffectError> {
    let limit = |message: String| Err(EffectError::Limit(message));
    if calls >= EFFECTS_MAX {
        return limit(format!("effect_limit: a step makes at most {EFFECTS_MAX} effects"));
    }
    match label {
        Some(label) if label.is_empty() || label.len() > NAME_BYTES_MAX || label.contains('\0') => {
            limit(format!("slot_label: a key has 1 to {NAME_BYTES_MAX} bytes and no NUL"))
        }
        Some(label) if is_used => {
            limit(format!("slot_reused: the key `{label}` names another effect of this step already"))
        }
        _ => Ok(()),
    }
}

/// A connection's name that can be none.
pub(super) fn connection(call: &Call) -> Result<(), EffectError> {
    let Some(name) = call.connection() else { return Ok(()) };
    if is_name(name) {
        return Ok(());
    }
    Err(EffectError::Denied(format!("`{name}` is no name of a connection")))
}

fn is_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.len() <= NAME_LEN_MAX
        && name.chars().all(plain)
}

/// What the block declared, and the form of the call. The address of a call, and the finer form of its header fields,
/// only a host can judge.
pub(super) fn allowed(call: &Call, grants: &[Grant]) -> Result<(), String> {
    let (kind, safety) = (call.kind(), call.safety());
    let of_kind = || grants.iter().filter(|grant| grant.kind == kind);
    let repeatable = |grant: &&Grant| safety == Safety::ReadOnly || grant.safety == name(safety);
    match call {
        Call::Http(http) => {
            let mut fitting = of_kind().filter(repeatable);
            match &http.connection {
                Some(connection) if !fitting.any(|grant| grant.connections.contains(&&**connection)) => {
                    let safety = name(safety);
                    return Err(format!(
                        "the block's descriptor declares no {safety} effect on `{connection}`"
                    ));
                }
                None if !fitting.any(|grant| grant.hosts.iter().any(|host| is_below(&http.url, host))) => {
                    return Err("this call is not allowed".into());
                }
                _ => {}
            }
            if http.body.len() > BODY_BYTES_MAX {
                let len = http.body.len();
                return Err(format!("the body has {len} bytes; at most {BODY_BYTES_MAX} are sent"));
            }
            Ok(())
        }
        Call::Mail(mail) => {
            let connection = mail.connection.as_deref().ok_or("a message is sent through a connection")?;
            if of_kind().filter(repeatable).any(|grant| grant.connections.contains(&connection)) {
                return Ok(());
            }
            Err(format!("the block's descriptor declares no `mail` effect on `{connection}`"))
        }
        Call::Worker(work) => {
            if !of_kind().any(|grant| repeatable(&grant)) {
                return Err("the block's descriptor declares no `worker` effect that allows it".into());
            }
            work_form(work)
        }
        Call::Emit(_) | Call::Storage(_) => {
            if !of_kind().any(|grant| safety == Safety::ReadOnly || grant.safety != name(Safety::ReadOnly)) {
                return Err(format!("the block's descriptor declares no `{kind}` effect that allows it"));
            }
            stored(call)
        }
    }
}

fn work_form(work: &WorkerEffect) -> Result<(), String> {
    let is_key =
        |key: &String| (1..=NAME_BYTES_MAX).contains(&key.len()) && !key.chars().any(char::is_control);
    if !work.idempotency_key.as_ref().is_none_or(is_key) {
        return Err(format!(
            "an idempotency key has 1 to {NAME_BYTES_MAX} bytes, without control characters"
        ));
    }
    if !is_name(&work.queue) {
        return Err("the name of a queue is a small letter, then small letters, digits and `-`".into());
    }
    let len = work.input.len();
    if len > INPUT_BYTES_MAX {
        return Err(format!("the input has {len} bytes; at most {INPUT_BYTES_MAX} are passed"));
    }
    let times = [work.claim_within_ms, work.timeout_ms.map(u64::from)];
    match times.into_iter().flatten().find(|ms| !(1..=TASK_MS_MAX).contains(ms)) {
        Some(ms) => Err(format!("{ms} ms is not between 1 and {TASK_MS_MAX}")),
        None => Ok(()),
    }
}

fn stored(call: &Call) -> Result<(), String> {
    let Call::Storage(storage) = call else { return Ok(()) };
    let (StorageOperation::Get(key) | StorageOperation::Put(key, _) | StorageOperation::Delete(key)) =
        &storage.operation;
    if !(1..=STORAGE_KEY_BYTES_MAX).contains(&key.len()) || key.contains('\0') {
        return Err(format!("a key has 1 to {STORAGE_KEY_BYTES_MAX} bytes and no NUL"));
    }
    match &storage.operation {
        StorageOperation::Put(_, value) if value.len() > VALUE_BYTES_MAX => {
            Err(format!("the value has {} bytes; at most {VALUE_BYTES_MAX} are stored", value.len()))
        }
        _ => Ok(()),
    }
}

fn name(safety: Safety) -> &'static str {
    match safety {
        Safety::AtMostOnce => "at-most-once",
        Safety::Idempotent => "idempotent",
        Safety::ReadOnly => "read-only",
    }
}

/// Whether an absolute URL is that of an allowed host, with or without a port.
fn is_below(url: &str, pattern: &str) -> bool {
    let Some(rest) = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://")) else {
        return false;
    };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = authority.split(':').next().unwrap_or_default();
    match pattern.strip_prefix("*.") {
        Some(name) => host.strip_suffix(name).is_some_and(|rest| rest.len() > 1 && rest.ends_with('.')),
        None => pattern == authority || pattern == host,
    }
}

/// An answer in the form that is kept.
pub(super) fn kept(mut answer: Answer) -> Answer {
    answer.headers.retain(|(name, _)| {
        let name = name.to_ascii_lowercase();
        KEPT_HEADERS.contains(&name.as_str()) || name.contains("ratelimit")
    });
    if answer.body.len() > BODY_BYTES_MAX {
        answer.body.truncate(BODY_BYTES_MAX);
        answer.truncated = true;
    }
    answer
}
