//! The API under `/v1`: one file a noun.

#![expect(unused_qualifications, reason = "the macro that describes parameters writes out whole paths")]

use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;

use crate::state::App;

pub(crate) mod approvals;
pub(crate) mod blocks;
pub(crate) mod connections;
pub(crate) mod effects;
pub(crate) mod events;
pub(crate) mod keys;
pub(crate) mod limits;
pub(crate) mod operations;
pub(crate) mod runs;
pub(crate) mod share;
pub(crate) mod timeline;
pub(crate) mod workers;
pub(crate) mod workflows;

/// Every call, with its description.
pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .merge(blocks::routes())
        .merge(workflows::routes())
        .merge(events::routes())
        .merge(runs::routes())
        .merge(effects::routes())
        .merge(approvals::routes())
        .merge(workers::routes())
        .merge(connections::routes())
        .merge(keys::routes())
        .merge(limits::routes())
        .merge(operations::routes())
}
