//! API keys: shown once when they are made, kept as hashes.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use chrono::{DateTime, Utc};
use counterfoil_domain::id::KeyId;
use counterfoil_domain::key::{ApiKey, KEY_RANDOM_BYTES_LEN, Scope};
use counterfoil_store::key::KeyRow;
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::auth::{Admin, Caller, Principal};
use crate::extract::{Json, JsonBody, Named};
use crate::idempotency::{Created, Creating, derived_id};
use crate::list::Listed;
use crate::problem::Problem;
use crate::state::{App, Shared};

/// Of a key's label, which is the name of its holder in every history.
const LABEL_CHARS_MAX: usize = 64;

pub(super) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(create, list)).routes(routes!(revoke))
}

/// A key to make.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct NewKey {
    /// `viewer`, `operator`, `author` or `admin`; each may do what the ones before it may.
    #[schema(value_type = String)]
    scope: Scope,
    /// Whose it is, or what for: the name under which its holder's actions are recorded.
    label: String,
}

/// A key that was made.
#[derive(Debug, Clone, Serialize, ToSchema)]
struct KeyCreated {
    #[schema(value_type = String)]
    id: KeyId,
    /// The key. It is shown this once; a repeat of the request gets null.
    key: Option<String>,
    /// What finds the key.
    prefix: String,
    scope: String,
    label: String,
}

/// A key, as far as it is kept.
#[derive(Debug, Serialize, ToSchema)]
struct Key {
    #[schema(value_type = String)]
    id: KeyId,
    /// What finds the key.
    prefix: String,
    scope: String,
    label: String,
    created_at: DateTime<Utc>,
    revoked_at: Option<DateTime<Utc>>,
}

impl KeyCreated {
    /// What a repeat is shown.
    fn without_key(row: KeyRow) -> Self {
        let KeyRow { id, prefix, scope, label, .. } = row;
        Self { id, key: None, prefix, scope, label }
    }
}

impl From<KeyRow> for Key {
    fn from(row: KeyRow) -> Self {
        let KeyRow { id, prefix, scope, label, created_at, revoked_at, .. } = row;
        Self { id, prefix, scope, label, created_at, revoked_at }
    }
}

/// Make a key
///
/// The answer has the key itself, which is kept nowhere.
#[utoipa::path(post, path = "/v1/keys", tag = "keys", request_body = NewKey,
    params(("Idempotency-Key" = Option<String>, Header, description = "A repeat gets the first answer, without the key")),
    responses((status = 201, body = KeyCreated)), security(("key" = ["admin"])))]
async fn create(
    State(app): Shared,
    caller: Caller<Admin>,
    creating: Creating,
    body: JsonBody<NewKey>,
) -> Result<Response, Problem> {
    let NewKey { scope, label } = body.value;
    let is_shown = |sign: char| !sign.is_control();
    if label.trim().is_empty() || label.chars().count() > LABEL_CHARS_MAX || !label.chars().all(is_shown) {
        return Err(Problem::bad_field(
            "/label",
            format!("a label has 1 to {LABEL_CHARS_MAX} printable characters"),
        ));
    }
    let work = make(&app, &caller, &creating, scope, label);
    creating.once(&app, caller.tenant, &body.bytes, work).await
}

async fn make(
    app: &App,
    who: &Principal,
    creating: &Creating,
    scope: Scope,
    label: String,
) -> Result<Created, Problem> {
    let id = match creating.key() {
        Some(key) => derived_id("key", who.tenant, &[key]).into(),
        None => app.new_id().into(),
    };
    // Made before, by a host that died before it kept its answer: the key itself is lost with it.
    if let Some(row) = app.store.keys(who.tenant).await?.into_iter().find(|row| row.id == id) {
        return Created::new(StatusCode::CREATED, &KeyCreated::without_key(row));
    }
    let mut random = [0; KEY_RANDOM_BYTES_LEN];
    (app.random)(&mut random);
    let key = ApiKey::from_random(random);
    let row = KeyRow {
        tenant: who.tenant,
        id,
        prefix: key.prefix().into(),
        hash: key.hash(&app.pepper),
        scope: scope.name().into(),
        label,
        created_at: app.now(),
        revoked_at: None,
    };
    app.store.create_key(&row).await?;
    let detail = json!({ "prefix": row.prefix, "scope": row.scope, "label": row.label });
    app.store.record_audit(who.tenant, &who.actor(), "key.create", Some(row.id.0), &detail).await?;
    let kept = KeyCreated::without_key(row);
    let shown = KeyCreated { key: Some(key.to_string()), ..kept.clone() };
    Created::with_secret(StatusCode::CREATED, &shown, &kept)
}

/// List keys
#[utoipa::path(get, path = "/v1/keys", tag = "keys",
    responses((status = 200, body = Listed<Key>)), security(("key" = ["admin"])))]
async fn list(State(app): Shared, caller: Caller<Admin>) -> Result<Json<Listed<Key>>, Problem> {
    let keys = app.store.keys(caller.tenant).await?;
    Ok(Json(Listed::all(keys.into_iter().map(Key::from).collect())))
}

/// Revoke a key
///
/// At once, and for good. Sessions that were opened with it end.
#[utoipa::path(delete, path = "/v1/keys/{id}", tag = "keys", params(("id" = String, Path)),
    responses((status = 204, description = "It holds no more")), security(("key" = ["admin"])))]
async fn revoke(
    State(app): Shared,
    caller: Caller<Admin>,
    Named(id): Named<KeyId>,
) -> Result<StatusCode, Problem> {
    if app.store.revoke_key(caller.tenant, id).await? {
        app.store.record_audit(caller.tenant, &caller.actor(), "key.revoke", Some(id.0), &json!({})).await?;
    } else if !app.store.keys(caller.tenant).await?.iter().any(|key| key.id == id) {
        return Err(Problem::not_found());
    }
    Ok(StatusCode::NO_CONTENT)
}
