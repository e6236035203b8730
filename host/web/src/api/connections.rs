//! Connections: a tenant's named ways to reach a system.

use std::sync::Arc;

use axum::extract::State;
use chrono::{DateTime, Utc};
use counterfoil_domain::connection::Abilities;
use counterfoil_domain::outbound::{Destination, Reach};
use counterfoil_domain::workflow::is_name;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::auth::{Admin, Caller, Viewer};
use crate::extract::{Json, JsonBody, Named};
use crate::list::Listed;
use crate::problem::Problem;
use crate::state::{App, Shared};

/// Hosts of one connection: it stands for one system.
const HOSTS_MAX: usize = 32;

pub(super) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(set, show))
}

/// A connection.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Connection {
    name: String,
    /// What paths are under.
    base_url: String,
    /// Hosts that may be reached through it; none if empty.
    allowed_hosts: Vec<String>,
    /// What it declares of the system behind it.
    abilities: Value,
    updated_at: DateTime<Utc>,
}

impl From<counterfoil_store::connection::Connection> for Connection {
    fn from(row: counterfoil_store::connection::Connection) -> Self {
        let counterfoil_store::connection::Connection {
            name,
            base_url,
            allowed_hosts,
            abilities,
            updated_at,
        } = row;
        Self { name, base_url, allowed_hosts, abilities, updated_at }
    }
}

/// A connection to set.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct SetConnection {
    /// What paths are under.
    #[schema(example = "https://api.example.com/v1")]
    base_url: String,
    /// Hosts that may be reached through it; the base URL's if absent.
    allowed_hosts: Option<Vec<String>>,
    /// What it declares of the system behind it: status meanings and header names.
    #[serde(default)]
    #[schema(value_type = Object)]
    abilities: Abilities,
}

/// Set a connection
///
/// Creates it, or replaces what it was. The base URL and the hosts are judged by the rules that calls are judged by.
#[utoipa::path(put, path = "/v1/connections/{name}", tag = "connections", params(("name" = String, Path)),
    request_body = SetConnection, responses((status = 200, body = Connection)), security(("key" = ["admin"])))]
async fn set(
    State(app): Shared,
    caller: Caller<Admin>,
    Named(name): Named<String>,
    body: JsonBody<SetConnection>,
) -> Result<Json<Connection>, Problem> {
    if !is_name(&name) {
        return Err(Problem::bad_request(
            "a connection's name is a lowercase letter, then letters, digits and hyphens",
        ));
    }
    let SetConnection { base_url, allowed_hosts, abilities } = body.value;
    let allowed_hosts = match allowed_hosts {
        Some(hosts) if hosts.len() > HOSTS_MAX => {
            return Err(Problem::bad_field("/allowed_hosts", format!("at most {HOSTS_MAX} hosts")));
        }
        Some(hosts) => hosts,
        None => {
            let base = Destination::parse(&base_url, &app.addresses)
                .map_err(|refusal| Problem::bad_field("/base_url", refusal.to_string()))?;
            vec![base.authority().to_owned()]
        }
    };
    Reach::of_connection(&base_url, &allowed_hosts, &app.addresses)
        .map_err(|refusal| Problem::bad_field("/base_url", refusal.to_string()))?;
    let connection = counterfoil_store::connection::Connection {
        name: name.clone(),
        base_url,
        allowed_hosts,
        abilities: json!(abilities),
        updated_at: app.now(),
    };
    app.store.set_connection(caller.tenant, &connection).await?;
    let detail = json!({ "connection": name, "base_url": connection.base_url });
    app.store.record_audit(caller.tenant, &caller.actor(), "connection.set", None, &detail).await?;
    find(&app, &caller, &name).await
}

/// List connections
#[utoipa::path(get, path = "/v1/connections", tag = "connections",
    responses((status = 200, body = Listed<Connection>)), security(("key" = ["viewer"])))]
async fn list(State(app): Shared, caller: Caller<Viewer>) -> Result<Json<Listed<Connection>>, Problem> {
    let connections = app.store.connections(caller.tenant).await?;
    Ok(Json(Listed::all(connections.into_iter().map(Connection::from).collect())))
}

/// Show a connection
#[utoipa::path(get, path = "/v1/connections/{name}", tag = "connections", params(("name" = String, Path)),
    responses((status = 200, body = Connection)), security(("key" = ["viewer"])))]
async fn show(
    State(app): Shared,
    caller: Caller<Viewer>,
    Named(name): Named<String>,
) -> Result<Json<Connection>, Problem> {
    find(&app, &caller, &name).await
}

async fn find<S>(app: &App, caller: &Caller<S>, name: &str) -> Result<Json<Connection>, Problem> {
    let found = if is_name(name) { app.store.connection(caller.tenant, name).await? } else { None };
    found.map(|connection| Json(connection.into())).ok_or_else(Problem::not_found)
}
