//! Connections: a tenant's named ways to reach a system.

mod remove;
mod secrets;

use std::sync::Arc;

use axum::extract::State;
use chrono::{DateTime, Utc};
use counterfoil_domain::connection::{Abilities, InvalidConnection, Rate};
use counterfoil_domain::outbound::{is_mail_url, judge_connection};
use counterfoil_domain::workflow::is_name;
use counterfoil_store::connection::NewConnection;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use self::secrets::Given;
use crate::api::share::judge_cap;
use crate::auth::{Admin, Caller, Viewer};
use crate::extract::{Json, JsonBody, Named};
use crate::list::Listed;
use crate::problem::Problem;
use crate::state::{App, Shared};

/// Hosts of one connection: it stands for one system.
const HOSTS_MAX: usize = 32;

pub(super) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(set, show, remove::remove))
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
    /// How often it may be used, whichever hosts use it: at most `limit + burst` calls in any `per_ms` milliseconds.
    #[schema(value_type = Option<Object>, example = json!({ "limit": 20, "per_ms": 1000, "burst": 5 }))]
    rate: Option<Rate>,
    /// Calls that one host may have under way at once.
    in_flight_max: Option<u32>,
    /// The names of its secrets. Their values are never shown.
    #[schema(example = json!(["header:authorization"]))]
    secrets: Vec<String>,
    updated_at: DateTime<Utc>,
}

impl From<counterfoil_store::connection::Connection> for Connection {
    fn from(row: counterfoil_store::connection::Connection) -> Self {
        let counterfoil_store::connection::Connection {
            name,
            base_url,
            allowed_hosts,
            abilities,
            rate,
            in_flight_max,
            secrets,
            updated_at,
        } = row;
        let secrets = secrets.into_iter().map(|secret| secret.name.to_string()).collect();
        Self { name, base_url, allowed_hosts, abilities, rate, in_flight_max, secrets, updated_at }
    }
}

/// A connection to set.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct SetConnection {
    /// What paths are under; or a mail server, as `smtp://…` or `smtps://…`.
    #[schema(example = "https://api.example.com/v1")]
    base_url: String,
    /// Hosts that may be reached through it; the base URL's if absent.
    allowed_hosts: Option<Vec<String>>,
    /// What it declares of the system behind it: status meanings and header names.
    #[serde(default)]
    #[schema(value_type = Object)]
    abilities: Abilities,
    /// How often it may be used; as often as anybody likes if absent.
    #[schema(value_type = Option<Object>, example = json!({ "limit": 20, "per_ms": 1000, "burst": 5 }))]
    rate: Option<Rate>,
    /// Calls that one host may have under way at once; as many as there are if absent. A step beyond them waits its turn, in
    /// the same attempt.
    #[schema(minimum = 1)]
    in_flight_max: Option<u32>,
    /// Secrets by name, `header:<name>`, `username` or `password`, merged into those that are there: a text sets one,
    /// `null` removes one. Absent keeps all, `null` in place of the object removes all.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<Object>, example = json!({ "header:authorization": "Bearer …" }))]
    secrets: Given,
}

fn given<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Given, D::Error> {
    // Read by hand: the words of an error that serde makes would repeat the value.
    Value::deserialize(deserializer).map(|value| Given(Some(value)))
}

/// Set a connection
///
/// Creates it, or replaces what it was, its secrets excepted. The base URL and the hosts are judged by the rules that
/// calls are judged by.
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
    let SetConnection { base_url, allowed_hosts, abilities, rate, in_flight_max, secrets } = body.value;
    let allowed_hosts = hosts(&app, &base_url, allowed_hosts, &abilities)?;
    abilities.judge().map_err(|fault| invalid("/abilities", fault))?;
    rate.map_or(Ok(()), |rate| rate.judge()).map_err(|fault| invalid("/rate", fault))?;
    in_flight_max.map_or(Ok(()), judge_cap)?;
    let secrets = secrets.read()?;
    let present = app.store.connection(caller.tenant, &name).await?.map(|present| present.secrets);
    secrets.judge(&present.unwrap_or_default(), &abilities)?;
    let connection = NewConnection {
        base_url,
        allowed_hosts,
        abilities: json!(abilities),
        rate,
        in_flight_max,
        secrets: secrets.seal(&app, caller.tenant, &name).await?,
        name,
    };
    app.store.set_connection(caller.tenant, &connection, &caller.actor()).await?;
    find(&app, &caller, &connection.name).await
}

fn hosts(
    app: &App,
    base_url: &str,
    given: Option<Vec<String>>,
    abilities: &Abilities,
) -> Result<Vec<String>, Problem> {
    if given.as_ref().is_some_and(|hosts| hosts.len() > HOSTS_MAX) {
        return Err(Problem::bad_field("/allowed_hosts", format!("at most {HOSTS_MAX} hosts")));
    }
    if is_mail_url(base_url) && abilities.mail.is_none() {
        return Err(Problem::bad_field("/abilities/mail", "a mail server needs a sender: `{ \"from\": … }`"));
    }
    let plain_mail = abilities.mail.as_ref().is_some_and(|mail| mail.plain);
    judge_connection(base_url, given, plain_mail, &app.addresses)
        .map_err(|refusal| Problem::bad_field("/base_url", refusal.to_string()))
}

fn invalid(place: &str, fault: InvalidConnection) -> Problem {
    Problem::bad_field(&format!("{place}{}", fault.pointer), fault.message)
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
