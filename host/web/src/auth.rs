//! Who asks, and whether they may.

use std::marker::PhantomData;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::{header, request::Parts};
use counterfoil_domain::code::Code;
use counterfoil_domain::id::TenantId;
use counterfoil_domain::key::{self, ApiKey, Scope};
use counterfoil_domain::receipt::Actor;
use counterfoil_domain::workflow::is_name;
use counterfoil_store::key::KeyRow;
use counterfoil_store::workflow::ActiveVersion;

use crate::extract::Named;
use crate::problem::Problem;
use crate::state::App;

/// The holder of a key that holds.
#[derive(Debug, Clone)]
pub(crate) struct Principal {
    pub(crate) tenant: TenantId,
    pub(crate) scope: Scope,
    /// What the key was called when it was made.
    pub(crate) label: String,
}

impl Principal {
    /// The name that an action is recorded under.
    pub(crate) fn actor(&self) -> Actor {
        Actor::Person(self.label.clone())
    }

    /// # Errors
    /// A refusal that names the scope needed.
    pub(crate) fn needs(&self, scope: Scope) -> Result<(), Problem> {
        if self.scope.allows(scope) { Ok(()) } else { Err(Problem::forbidden(scope)) }
    }
}

/// A scope as a type, so that a handler's signature says which it needs.
pub(crate) trait Needed: Send + Sync {
    const SCOPE: Scope;
}

macro_rules! needed {
    ($($name:ident),*) => {$(
        #[derive(Debug)]
        pub(crate) struct $name;

        impl Needed for $name {
            const SCOPE: Scope = Scope::$name;
        }
    )*};
}

needed!(Viewer, Operator, Author, Admin);

/// A caller of the API whose key allows what `S` may.
#[derive(Debug)]
pub(crate) struct Caller<S> {
    pub(crate) principal: Principal,
    scope: PhantomData<S>,
}

impl<S> std::ops::Deref for Caller<S> {
    type Target = Principal;

    fn deref(&self) -> &Principal {
        &self.principal
    }
}

impl<S: Needed> FromRequestParts<Arc<App>> for Caller<S> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Problem> {
        let key = bearer(parts)?;
        let kept = app.store.key_by_prefix(key.prefix()).await?;
        Self::of(holder(app, &key, kept)?)
    }
}

impl<S: Needed> Caller<S> {
    fn of(principal: Principal) -> Result<Self, Problem> {
        principal.needs(S::SCOPE)?;
        Ok(Self { principal, scope: PhantomData })
    }
}

/// Who wants a run of the workflow that the path names, and what that would be pinned to: whoever starts one waits for it, so
/// that both are found in one look at the database.
#[derive(Debug)]
pub(crate) struct Starter {
    pub(crate) caller: Caller<Operator>,
    pub(crate) workflow: String,
    /// None if there is no such workflow, or no version of it is active.
    pub(crate) active: Option<ActiveVersion>,
}

impl FromRequestParts<Arc<App>> for Starter {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Problem> {
        let key = bearer(parts)?;
        let named = Named::<String>::from_request_parts(parts, app).await;
        // What is no name finds nothing.
        let name = named.as_ref().map(|Named(name)| name.as_str()).ok().filter(|name| is_name(name));
        let found = app.store.key_and_active(key.prefix(), name.unwrap_or_default()).await?;
        let (kept, active) = found.unzip();
        let caller = Caller::of(holder(app, &key, kept)?)?;
        let Named(workflow) = named?;
        Ok(Self { caller, workflow, active: active.flatten() })
    }
}

/// The key that a request came with.
fn bearer(parts: &Parts) -> Result<ApiKey, Problem> {
    let bearer = parts
        .headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split_once(' '))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
        .map(|(_, key)| key.trim());
    read(bearer.ok_or_else(unauthenticated)?)
}

fn read(text: &str) -> Result<ApiKey, Problem> {
    text.parse().map_err(|error| Problem::new(Code::Unauthenticated, format!("{error}")))
}

/// The holder of the key that reads `text`.
///
/// # Errors
/// The same refusal for a key that never was, that does not match, and that was revoked.
pub(crate) async fn by_key(app: &App, text: &str) -> Result<Principal, Problem> {
    let key = read(text)?;
    let kept = app.store.key_by_prefix(key.prefix()).await?;
    holder(app, &key, kept)
}

/// The holder of a key, if what is kept under its prefix is that key.
fn holder(app: &App, key: &ApiKey, kept: Option<KeyRow>) -> Result<Principal, Problem> {
    // Hashed also where there is nothing to compare with, so that the time tells nothing.
    let hash = key.hash(&app.pepper);
    let row = kept.filter(|row| key::matches(&hash, &row.hash) && row.revoked_at.is_none());
    principal(row.ok_or_else(unauthenticated)?)
}

/// The holder of the key with this prefix, for a session that was signed when the whole key was shown.
pub(crate) async fn by_prefix(app: &App, prefix: &str) -> Result<Principal, Problem> {
    let row = app.store.key_by_prefix(prefix).await?.filter(|row| row.revoked_at.is_none());
    principal(row.ok_or_else(unauthenticated)?)
}

fn principal(row: KeyRow) -> Result<Principal, Problem> {
    let scope = Scope::from_name(&row.scope).ok_or_else(|| {
        tracing::error!(key = %row.id, scope = row.scope, "a key has a scope that this version does not know");
        Problem::new(Code::Internal, "the key's scope cannot be read")
    })?;
    Ok(Principal { tenant: row.tenant, scope, label: row.label })
}

fn unauthenticated() -> Problem {
    Problem::new(
        Code::Unauthenticated,
        "send `Authorization: Bearer cf_…` with a key that has not been revoked",
    )
}
