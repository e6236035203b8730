//! What operators and their tools ask of the process itself. No key is needed, and nothing of a tenant is told.

use std::sync::Arc;

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use counterfoil_domain::code::Code;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::extract::Json;
use crate::metrics;
use crate::problem::Problem;
use crate::state::{App, Shared};

pub(super) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(livez)).routes(routes!(readyz)).routes(routes!(metrics_text))
}

/// Whether the host can serve.
#[derive(Debug, Serialize, ToSchema)]
struct Ready {
    #[schema(example = "ready")]
    status: &'static str,
}

/// Whether the process lives
#[utoipa::path(get, path = "/livez", tag = "operations",
    responses((status = 200, body = String, content_type = "text/plain")))]
async fn livez() -> &'static str {
    "ok\n"
}

/// Whether the host can serve
///
/// 503 while it cannot reach its database, or while that lacks tables of this version.
#[utoipa::path(get, path = "/readyz", tag = "operations", responses((status = 200, body = Ready)))]
async fn readyz(State(app): Shared) -> Result<Json<Ready>, Problem> {
    // Whatever keeps the database from answering keeps this host from serving.
    let has_its_tables = app.store.has_its_tables().await.map_err(|error| {
        tracing::warn!(error = &error as &dyn std::error::Error, "the host is not ready");
        Problem::new(Code::Unavailable, "the database cannot be reached now")
    })?;
    if !has_its_tables {
        let what = "the database lacks tables of this version: `counterfoil migrate` makes them";
        return Err(Problem::new(Code::Unavailable, what));
    }
    Ok(Json(Ready { status: "ready" }))
}

/// What Prometheus reads
#[utoipa::path(get, path = "/metrics", tag = "operations",
    responses((status = 200, body = String, content_type = "text/plain")))]
async fn metrics_text(State(app): Shared) -> Result<Response, Problem> {
    let counts = app.store.counts().await?;
    let text = metrics::exposition(&app.metrics, &counts)
        .map_err(|_| Problem::new(Code::Internal, "the metrics cannot be written"))?;
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(([(header::CONTENT_TYPE, kind)], text).into_response())
}
