//! What one execution of the tenant's blocks may use.

use std::sync::Arc;

use axum::extract::State;
use counterfoil_domain::block::WantedLimits;
use counterfoil_domain::limits::StepLimits;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::auth::{Caller, Viewer};
use crate::extract::Json;
use crate::problem::Problem;
use crate::state::{App, Shared};

pub(super) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(show))
}

/// What one execution of a block may use; a block's own limits narrow it further.
#[derive(Debug, Serialize, ToSchema)]
struct Limits {
    /// What this host grants to every tenant.
    host: Bounds,
    /// The tenant's own limits, where it has any.
    tenant: OwnBounds,
    /// The least of both, which holds.
    in_force: Bounds,
}

/// Bounds of one execution of a block.
#[derive(Debug, Serialize, ToSchema)]
#[expect(clippy::struct_field_names, reason = "the names that they have everywhere")]
struct Bounds {
    /// Linear memory.
    memory_bytes_max: u64,
    table_elements_max: u64,
    /// Guest CPU, counted in tens of milliseconds.
    cpu_ms_max: u64,
    /// Whole execution, waiting for answers included.
    wall_ms_max: u64,
    output_bytes_max: u64,
    log_bytes_max: u64,
    log_lines_max: u64,
}

/// Limits of a tenant's own; absent where it has none.
#[derive(Debug, Serialize, ToSchema)]
#[expect(clippy::struct_field_names, reason = "the names that they have everywhere")]
struct OwnBounds {
    memory_bytes_max: Option<u64>,
    cpu_ms_max: Option<u64>,
    wall_ms_max: Option<u64>,
}

impl From<StepLimits> for Bounds {
    fn from(limits: StepLimits) -> Self {
        let StepLimits {
            memory_bytes_max,
            table_elements_max,
            cpu_ms_max,
            wall_ms_max,
            output_bytes_max,
            log_bytes_max,
            log_lines_max,
        } = limits;
        Self {
            memory_bytes_max,
            table_elements_max,
            cpu_ms_max,
            wall_ms_max,
            output_bytes_max,
            log_bytes_max,
            log_lines_max,
        }
    }
}

impl From<WantedLimits> for OwnBounds {
    fn from(limits: WantedLimits) -> Self {
        let WantedLimits { memory_bytes_max, cpu_ms_max, wall_ms_max } = limits;
        Self { memory_bytes_max, cpu_ms_max, wall_ms_max }
    }
}

/// Show what a block may use
///
/// What this host and the tenant grant to one execution; what a block says of itself can only narrow it.
#[utoipa::path(get, path = "/v1/limits", tag = "limits",
    responses((status = 200, body = Limits)), security(("key" = ["viewer"])))]
async fn show(State(app): Shared, caller: Caller<Viewer>) -> Result<Json<Limits>, Problem> {
    let tenant = app.store.tenant_limits(caller.tenant).await?;
    let in_force = tenant.narrow(app.limits);
    Ok(Json(Limits { host: app.limits.into(), tenant: tenant.into(), in_force: in_force.into() }))
}
