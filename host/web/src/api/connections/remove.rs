//! Removing a connection that nothing goes through.

use std::collections::BTreeSet;

use axum::extract::State;
use axum::http::StatusCode;
use counterfoil_domain::block::Descriptor;
use counterfoil_domain::code::Code;
use counterfoil_domain::id::{Digest, TenantId};
use counterfoil_domain::workflow::is_name;

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
    // One that a newer host wrote is not in the way of this one's.
    let plans: Vec<_> =
        in_use.iter().filter_map(|version| Some((version, read_plan(&version.plan).ok()?))).collect();
    let blocks: BTreeSet<Digest> = plans.iter().flat_map(|(_, plan)| plan.blocks()).collect();
    let blocks: Vec<Digest> = blocks.into_iter().collect();
    let goes_through = |descriptor: Descriptor| {
        descriptor.effects.iter().any(|grant| grant.connections.iter().any(|connection| connection == name))
    };
    let blocks: BTreeSet<Digest> = app
        .store
        .descriptors(tenant, &blocks)
        .await?
        .into_iter()
        .filter(|(_, descriptor)| serde_json::from_value(descriptor.clone()).is_ok_and(goes_through))
        .map(|(digest, _)| digest)
        .collect();
    let uses = plans.iter().filter(|(_, plan)| {
        plan.connections().any(|connection| connection == name)
            || plan.blocks().any(|block| blocks.contains(&block))
    });
    Ok(uses.map(|(version, _)| format!("`{}` (version {})", version.name, version.number)).collect())
}
