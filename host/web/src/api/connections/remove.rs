//! Removing a connection that nothing goes through.

use std::collections::BTreeSet;

use axum::extract::State;
use axum::http::StatusCode;
use counterfoil_domain::block::Descriptor;
use counterfoil_domain::code::Code;
use counterfoil_domain::id::{Digest, TenantId};
use counterfoil_domain::workflow::is_name;
use counterfoil_store::workflow::ActivePlan;
use serde_json::Value;

use crate::api::runs::read_plan;
use crate::auth::{Admin, Caller};
use crate::extract::Named;
use crate::problem::Problem;
use crate::state::{App, Shared};

/// Versions that are named: the first of them are a beginning.
const TOLD_MAX: usize = 10;

/// Remove a connection
///
/// With its secrets and its rate. Refused (`connection_in_use`) while an active version of a workflow, or one that an unfinished
/// run follows, goes through it. Whatever else names it is refused as `denied` from then on.
#[utoipa::path(delete, path = "/v1/connections/{name}", tag = "connections", params(("name" = String, Path)),
    responses((status = 204, description = "There is none of that name")), security(("key" = ["admin"])))]
pub(super) async fn remove(
    State(app): Shared,
    caller: Caller<Admin>,
    Named(name): Named<String>,
) -> Result<StatusCode, Problem> {
    if !is_name(&name) || app.store.connection(caller.tenant, &name).await?.is_none() {
        return Err(Problem::not_found());
    }
    let users = users(&app, caller.tenant, &name).await?;
    if !users.is_empty() {
        let more = match users.len().saturating_sub(TOLD_MAX) {
            0 => String::new(),
            more => format!(", and {more} more"),
        };
        let told = users.iter().take(TOLD_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
        let detail = format!("`{name}` is gone through by {told}{more}");
        return Err(Problem::new(Code::ConnectionInUse, detail));
    }
    if !app.store.remove_connection(caller.tenant, &name, &caller.actor()).await? {
        return Err(Problem::not_found());
    }
    Ok(StatusCode::NO_CONTENT)
}

/// What serves, or is under way, and goes through a connection.
async fn users(app: &App, tenant: TenantId, name: &str) -> Result<Vec<String>, Problem> {
    let in_use = app.store.plans_in_use(tenant).await?;
    let uses = app.aside.compute(tenant, move || uses(in_use)).await?;
    let blocks: BTreeSet<Digest> = uses.iter().flat_map(|uses| &uses.blocks).copied().collect();
    let blocks: Vec<Digest> = blocks.into_iter().collect();
    let described = app.store.descriptors(tenant, &blocks).await?;
    let name = name.to_owned();
    app.aside.compute(tenant, move || through(&name, uses, described)).await
}

/// What a version goes through: by itself, and by way of its blocks.
struct Uses {
    version: String,
    connections: BTreeSet<String>,
    blocks: BTreeSet<Digest>,
}

fn uses(versions: Vec<ActivePlan>) -> Vec<Uses> {
    let uses = |version: ActivePlan| {
        // One that a newer host wrote is not in the way of this one's.
        let plan = read_plan(&version.plan).ok()?;
        Some(Uses {
            version: format!("`{}` (version {})", version.name, version.number),
            connections: plan.connections().map(str::to_owned).collect(),
            blocks: plan.blocks().collect(),
        })
    };
    versions.into_iter().filter_map(uses).collect()
}

/// Those that go through the connection.
fn through(name: &str, uses: Vec<Uses>, described: Vec<(Digest, Value)>) -> Vec<String> {
    let goes_through = |descriptor: Descriptor| {
        descriptor.effects.iter().any(|grant| grant.connections.iter().any(|connection| connection == name))
    };
    let blocks: BTreeSet<Digest> = described
        .into_iter()
        .filter_map(|(digest, descriptor)| {
            serde_json::from_value(descriptor).is_ok_and(goes_through).then_some(digest)
        })
        .collect();
    uses.into_iter()
        .filter(|uses| uses.connections.contains(name) || !uses.blocks.is_disjoint(&blocks))
        .map(|uses| uses.version)
        .collect()
}
