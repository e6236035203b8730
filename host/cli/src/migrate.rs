//! `counterfoil migrate`: brings the database's tables up to this version.

use anyhow::Context as _;
use serde_json::json;

use crate::args::Global;
use crate::config::{Flags, Purpose, Read};
use crate::database::Database;
use crate::exit::Exit;
use crate::output::Output;

pub(crate) async fn run(global: &Global, output: Output) -> anyhow::Result<Exit> {
    let config = Read::new(Flags::of(global), Purpose::Command).into_config()?;
    let database = Database::open_beside(&config).await?;
    database.tell_if_private(&config);
    let store = database.connect_quietly().await?;
    store.migrate().await.context("the tables could not be brought up to date")?;
    output.show(&json!({ "migrated": true }), || "the database is up to date".into())?;
    database.close().await?;
    Ok(Exit::Ok)
}
