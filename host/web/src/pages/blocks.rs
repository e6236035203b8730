//! Blocks: the list, and one with its versions.

use askama::Template;
use axum::extract::State;
use counterfoil_domain::workflow::is_name;
use counterfoil_store::block::BlockVersion;

use super::{Chrome, Page, show};
use crate::api::blocks::{Block, blocks};
use crate::extract::{Named, Params};
use crate::list::{ListParams, Listed};
use crate::problem::Problem;
use crate::session::Visitor;
use crate::state::Shared;

#[derive(Debug, Template)]
#[template(path = "blocks.html")]
pub(super) struct BlocksPage {
    chrome: Chrome,
    blocks: Vec<Block>,
    next: Option<String>,
}

/// `GET /blocks`
pub(super) async fn list(
    State(app): Shared,
    visitor: Visitor,
    Params(params): Params<ListParams>,
) -> Result<Page<BlocksPage>, Problem> {
    let Listed { items, next } = blocks(&app, &visitor.principal, params).await?;
    Ok(Page(BlocksPage { chrome: Chrome::of(&visitor), blocks: items, next }))
}

#[derive(Debug, Template)]
#[template(path = "block.html")]
pub(super) struct BlockPage {
    chrome: Chrome,
    block: BlockVersion,
    versions: Vec<BlockVersion>,
}

/// `GET /blocks/{name}`
pub(super) async fn page(
    State(app): Shared,
    visitor: Visitor,
    Named(name): Named<String>,
) -> Result<Page<BlockPage>, Problem> {
    let versions = if is_name(&name) {
        app.store.block_versions(visitor.principal.tenant, &name).await?
    } else {
        Vec::new()
    };
    let block = versions.first().cloned().ok_or_else(Problem::not_found)?;
    Ok(Page(BlockPage { chrome: Chrome::of(&visitor), block, versions }))
}
