//! Effects of the kind `storage`: the tenant's key-value space, written with the step, exactly once. A step sees its own
//! writes before anybody else does.

use async_trait::async_trait;
use counterfoil_domain::effect::{Answer, Safety, StorageRequest};
use counterfoil_domain::id::TenantId;
use counterfoil_domain::limits::{STORAGE_KEY_BYTES_MAX, STORAGE_VALUE_BYTES_MAX, bounded_text};
use counterfoil_domain::receipt::request::{Canonical, fingerprint, preview_body};
use counterfoil_store::settle::Change;
use counterfoil_store::{Store, StoreError};
use serde_json::json;

use super::{Act, Ask, Prepared, Read, judge_own, own_prepared};

/// Bytes of a key that a preview's line shows.
const SUMMARY_KEY_BYTES_MAX: usize = 128;

/// Judges an operation by the block's grants and the limits of the space.
pub(super) fn prepare(ask: Ask<'_>, request: &StorageRequest) -> Prepared {
    let (operation, key, value) = match request {
        StorageRequest::Get(key) => ("get", key, None),
        StorageRequest::Put(key, value) => ("put", key, Some(value)),
        StorageRequest::Delete(key) => ("delete", key, None),
    };
    let safety = match request {
        StorageRequest::Get(_) => Safety::ReadOnly,
        StorageRequest::Put(..) | StorageRequest::Delete(_) => Safety::AtMostOnce,
    };
    let canonical = Canonical {
        kind: "storage",
        connection: ask.call.connection.as_deref(),
        destination: json!({ "key": key }),
        content: json!({ "operation": operation, "value": value.map(|value| fingerprint(value)) }),
        preview: json!({
            "summary": format!("{operation} {}", bounded_text(key, SUMMARY_KEY_BYTES_MAX)),
            "operation": operation,
            "key": bounded_text(key, STORAGE_KEY_BYTES_MAX),
            "body": value.map(|value| preview_body(value)),
            "body_bytes_len": value.map(Vec::len),
        }),
    };
    let act = judge_own(&ask, safety).and_then(|()| judge(key, value)).map(|()| act(&ask, request));
    own_prepared(ask, canonical, safety, act)
}

fn judge(key: &str, value: Option<&Vec<u8>>) -> Result<(), String> {
    if !(1..=STORAGE_KEY_BYTES_MAX).contains(&key.len()) || key.contains('\0') {
        return Err(format!("a key has 1 to {STORAGE_KEY_BYTES_MAX} bytes and no NUL"));
    }
    match value.map(Vec::len) {
        Some(len) if len > STORAGE_VALUE_BYTES_MAX => {
            Err(format!("the value has {len} bytes; at most {STORAGE_VALUE_BYTES_MAX} are stored"))
        }
        _ => Ok(()),
    }
}

fn act(ask: &Ask<'_>, request: &StorageRequest) -> Act {
    let changed = |change| Act::Change { change, answer: Answer::Stored(None) };
    match request.clone() {
        StorageRequest::Put(key, value) => changed(Change::Put { key, value }),
        StorageRequest::Delete(key) => changed(Change::Delete { key }),
        StorageRequest::Get(key) => match written(ask.changes, &key) {
            Some(answer) => Act::Known(answer),
            None => Act::Read(Box::new(Get { tenant: ask.context.fence.tenant, key })),
        },
    }
}

/// What is under a key for the step, if the step itself has written there.
fn written(changes: &[Change], key: &str) -> Option<Answer> {
    changes.iter().rev().find_map(|change| match change {
        Change::Put { key: written, value } if written == key => Some(Answer::Stored(Some(value.clone()))),
        Change::Delete { key: written } if written == key => Some(Answer::Stored(None)),
        _ => None,
    })
}

struct Get {
    tenant: TenantId,
    key: String,
}

#[async_trait]
impl Read for Get {
    async fn read(&self, store: &Store) -> Result<Answer, StoreError> {
        Ok(Answer::Stored(store.stored_value(self.tenant, &self.key).await?))
    }
}
