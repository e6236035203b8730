//! Blocks: uploads, and what is known of them.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use chrono::{DateTime, Utc};
use counterfoil_domain::block::with_manifest;
use counterfoil_domain::id::Digest;
use counterfoil_domain::ports::Refused;
use counterfoil_domain::schema::Fault;
use counterfoil_domain::workflow::is_name;
use counterfoil_store::block::{BlockVersion, NewBlock};
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::auth::{Caller, Principal, Viewer};
use crate::extract::{Json, Named, Params};
use crate::idempotency::{Created, Creating};
use crate::list::{LIMIT_MAX, ListParams, Listed};
use crate::problem::{FieldError, Problem};
use crate::state::{App, Shared};
use crate::uploads::Upload;

/// Where a manifest stands: the body is the component.
const MANIFEST_HEADER: &str = "counterfoil-manifest";

pub(super) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(upload, show))
        .routes(routes!(versions))
        .routes(routes!(schema))
}

/// A block in a list: its newest version.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Block {
    pub(crate) name: String,
    /// The sha256 of the component's bytes, which is the version's name.
    #[schema(value_type = String)]
    pub(crate) digest: Digest,
    pub(crate) bytes_len: u64,
    /// One line for people.
    pub(crate) summary: String,
    pub(crate) uploaded_at: DateTime<Utc>,
}

/// The newest version of a block.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct BlockDetail {
    name: String,
    #[schema(value_type = String)]
    digest: Digest,
    bytes_len: u64,
    /// What the block says of itself.
    descriptor: Value,
    /// Interfaces that it imports.
    imports: Vec<String>,
    uploaded_at: DateTime<Utc>,
}

/// A version of a block.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Version {
    #[schema(value_type = String)]
    digest: Digest,
    bytes_len: u64,
    uploaded_at: DateTime<Utc>,
}

/// What a block takes and gives.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct BlockSchema {
    name: String,
    #[schema(value_type = String)]
    digest: Digest,
    /// JSON Schema of the input.
    input: Value,
    /// JSON Schema of the output.
    output: Value,
}

/// What an upload turned out to be.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Uploaded {
    name: String,
    #[schema(value_type = String)]
    digest: Digest,
    /// Whether the block did not have this version before.
    new: bool,
    bytes_len: u64,
    /// What the block says of itself.
    descriptor: Value,
    /// Interfaces that it imports.
    imports: Vec<String>,
    /// Interfaces that it exports.
    exports: Vec<String>,
    /// Time to compile it, in milliseconds.
    compile_ms: u64,
}

impl From<BlockVersion> for Block {
    fn from(version: BlockVersion) -> Self {
        let summary = version.descriptor["summary"].as_str().unwrap_or_default().to_owned();
        let BlockVersion { name, digest, bytes_len, uploaded_at, .. } = version;
        Self { name, digest, bytes_len, summary, uploaded_at }
    }
}

/// Upload a version of a block
///
/// The bytes are a WebAssembly component. They are checked, compiled and asked what they are before anything is stored.
#[utoipa::path(
    post,
    path = "/v1/blocks/{name}",
    tag = "blocks",
    params(("name" = String, Path, description = "Name of the block"),
        ("Idempotency-Key" = Option<String>, Header, description = "A repeat gets the first answer"),
        ("Counterfoil-Manifest" = Option<String>, Header, description = "The descriptor of a program that cannot say \
            what it is: JSON as base64, at most 64 KiB. It becomes a part of the component")),
    request_body(content = inline(String), content_type = "application/wasm", description = "At most 64 MiB"),
    responses((status = 201, body = Uploaded), (status = 200, body = Uploaded, description = "The block had this version")),
    security(("key" = ["author"]))
)]
async fn upload(
    State(app): Shared,
    creating: Creating,
    Named(name): Named<String>,
    headers: HeaderMap,
    mut upload: Upload,
) -> Result<Response, Problem> {
    if !is_name(&name) {
        return Err(Problem::bad_request(
            "a block's name is a lowercase letter, then letters, digits and hyphens",
        ));
    }
    let manifest = manifest(&headers)?;
    let (bytes, _turn) = upload.held(&app).await?;
    let bytes = match manifest {
        Some(manifest) => with_manifest(&bytes, &manifest),
        None => bytes,
    };
    let bytes = Bytes::from(bytes);
    let caller = &upload.caller;
    let work = async {
        let inspection = app.inspector.inspect(bytes.to_vec()).await.map_err(refused)?;
        let descriptor = json!(inspection.descriptor);
        let block = NewBlock {
            name: &name,
            digest: inspection.digest,
            bytes: &bytes,
            descriptor: &descriptor,
            imports: &inspection.imports,
            verifies: inspection.verifies(),
        };
        let new = app.store.put_block(caller.tenant, &block).await?;
        let detail = json!({ "block": name, "digest": inspection.digest });
        app.store.record_audit(caller.tenant, &caller.actor(), "block.upload", None, &detail).await?;
        let uploaded = Uploaded {
            name: name.clone(),
            digest: inspection.digest,
            new,
            bytes_len: inspection.bytes_len,
            descriptor,
            imports: inspection.imports,
            exports: inspection.exports,
            compile_ms: inspection.compile_ms,
        };
        Created::new(if new { StatusCode::CREATED } else { StatusCode::OK }, &uploaded)
    };
    creating.once(&app, caller.tenant, &bytes, work).await
}

/// What came beside the component to say what it is.
fn manifest(headers: &HeaderMap) -> Result<Option<Vec<u8>>, Problem> {
    let Some(value) = headers.get(MANIFEST_HEADER) else { return Ok(None) };
    match BASE64_STANDARD.decode(value.as_bytes()) {
        Ok(manifest) => Ok(Some(manifest)),
        Err(error) => {
            Err(Problem::bad_request(format!("the header `{MANIFEST_HEADER}` is not base64: {error}")))
        }
    }
}

fn refused(refused: Refused) -> Problem {
    // Those of a manifest have their place in it.
    let error = |detail: Fault| FieldError::new(refused.code, detail.place, detail.why);
    let errors = refused.details.iter().cloned().map(error).collect();
    Problem::new(refused.code, refused.message).with_errors(errors)
}

/// List blocks
///
/// The newest version of each, by name.
#[utoipa::path(get, path = "/v1/blocks", tag = "blocks", params(ListParams),
    responses((status = 200, body = Listed<Block>)), security(("key" = ["viewer"])))]
async fn list(
    State(app): Shared,
    caller: Caller<Viewer>,
    Params(params): Params<ListParams>,
) -> Result<Json<Listed<Block>>, Problem> {
    blocks(&app, &caller, params).await.map(Json)
}

/// One page of blocks.
pub(crate) async fn blocks(app: &App, who: &Principal, params: ListParams) -> Result<Listed<Block>, Problem> {
    let page = params.page()?;
    let limit = page.limit;
    let rows = app.store.blocks(who.tenant, page).await?;
    Ok(Listed::page(rows, limit, BlockVersion::cursor, Block::from))
}

/// Show a block
#[utoipa::path(get, path = "/v1/blocks/{name}", tag = "blocks", params(("name" = String, Path)),
    responses((status = 200, body = BlockDetail)), security(("key" = ["viewer"])))]
async fn show(
    State(app): Shared,
    caller: Caller<Viewer>,
    Named(name): Named<String>,
) -> Result<Json<BlockDetail>, Problem> {
    let BlockVersion { name, digest, bytes_len, descriptor, imports, uploaded_at } =
        newest(&app, &caller, &name).await?;
    Ok(Json(BlockDetail { name, digest, bytes_len, descriptor, imports, uploaded_at }))
}

/// List a block's versions
///
/// The newest first, at most 200.
#[utoipa::path(get, path = "/v1/blocks/{name}/versions", tag = "blocks", params(("name" = String, Path)),
    responses((status = 200, body = Listed<Version>)), security(("key" = ["viewer"])))]
async fn versions(
    State(app): Shared,
    caller: Caller<Viewer>,
    Named(name): Named<String>,
) -> Result<Json<Listed<Version>>, Problem> {
    let versions = all(&app, &caller, &name).await?;
    let version = |version: BlockVersion| Version {
        digest: version.digest,
        bytes_len: version.bytes_len,
        uploaded_at: version.uploaded_at,
    };
    Ok(Json(Listed::all(versions.into_iter().take(LIMIT_MAX as usize).map(version).collect())))
}

/// Show what a block takes and gives
#[utoipa::path(get, path = "/v1/blocks/{name}/schema", tag = "blocks", params(("name" = String, Path)),
    responses((status = 200, body = BlockSchema)), security(("key" = ["viewer"])))]
async fn schema(
    State(app): Shared,
    caller: Caller<Viewer>,
    Named(name): Named<String>,
) -> Result<Json<BlockSchema>, Problem> {
    let mut version = newest(&app, &caller, &name).await?;
    let mut taken = |field: &str| version.descriptor.get_mut(field).map(Value::take).unwrap_or_default();
    let (input, output) = (taken("input"), taken("output"));
    Ok(Json(BlockSchema { name: version.name, digest: version.digest, input, output }))
}

async fn newest(app: &App, caller: &Caller<Viewer>, name: &str) -> Result<BlockVersion, Problem> {
    all(app, caller, name).await?.into_iter().next().ok_or_else(Problem::not_found)
}

/// A block's versions, of which there is at least one.
async fn all(app: &App, caller: &Caller<Viewer>, name: &str) -> Result<Vec<BlockVersion>, Problem> {
    if !is_name(name) {
        return Err(Problem::not_found());
    }
    let versions = app.store.block_versions(caller.tenant, name).await?;
    if versions.is_empty() { Err(Problem::not_found()) } else { Ok(versions) }
}
