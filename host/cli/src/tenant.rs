//! `counterfoil tenant`: against the database, since there is no key before there is a tenant.

use anyhow::Context as _;
use chrono::Utc;
use clap::Subcommand;
use counterfoil_domain::id::{KeyId, TenantId};
use counterfoil_domain::key::{ApiKey, KEY_RANDOM_BYTES_LEN, Pepper, Scope};
use counterfoil_domain::workflow::{NAME_LEN_MAX, is_name};
use counterfoil_store::Store;
use counterfoil_store::key::KeyRow;
use counterfoil_store::tenant::Created;
use serde_json::json;
use uuid::Uuid;

use crate::args::Global;
use crate::config::{Flags, Purpose, Read};
use crate::database::Database;
use crate::exit::{Exit, Failure};
use crate::output::{Column, Output};

/// What to do with tenants.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Create a tenant, and an admin key of it, which is shown this once.
    Create {
        /// Its name.
        name: String,
    },
}

const COLUMNS: &[Column] =
    &[Column::plain("tenant", "/tenant"), Column::plain("id", "/id"), Column::plain("key", "/key")];

pub(crate) async fn run(command: Command, global: &Global, output: Output) -> anyhow::Result<Exit> {
    let Command::Create { name } = command;
    if !is_name(&name) {
        let what = format!(
            "{name:?} names no tenant: a letter comes first, then `a` to `z`, `0` to `9` and `-`, {NAME_LEN_MAX} at most"
        );
        return Err(Failure::new(Exit::Usage, what).into());
    }
    let config = Read::new(Flags::of(global), Purpose::Service).into_config()?;
    let pepper = config.secrets.pepper.as_ref().context("there is no pepper")?;
    let database = Database::join(&config).await?;
    let store = database.connect_quietly().await?;
    let tenant = create(&store, &name).await?;
    let key = create_admin_key(&store, tenant, "made with its tenant", pepper).await?;
    let record = json!({ "tenant": name, "id": tenant, "key": key.to_string() });
    output.record(&record, COLUMNS)?;
    anstream::eprintln!("the key is shown this once: keep it where secrets are kept");
    database.close().await?;
    Ok(Exit::Ok)
}

/// Creates a tenant. One that has no key, since its creation broke off, is created to its end.
async fn create(store: &Store, name: &str) -> anyhow::Result<TenantId> {
    let tenant = TenantId(Uuid::now_v7());
    if store.create_tenant(tenant, name).await? == Created::New {
        return Ok(tenant);
    }
    if let Some(tenant) = store.tenant_by_name(name).await?
        && store.keys(tenant).await?.is_empty()
    {
        return Ok(tenant);
    }
    Err(Failure::new(Exit::Refused, format!("there is a tenant `{name}` already")).into())
}

/// Creates a key that may do everything in a tenant.
pub(crate) async fn create_admin_key(
    store: &Store,
    tenant: TenantId,
    label: &str,
    pepper: &Pepper,
) -> anyhow::Result<ApiKey> {
    let mut random = [0; KEY_RANDOM_BYTES_LEN];
    getrandom::fill(&mut random)?;
    let key = ApiKey::from_random(random);
    let row = KeyRow {
        tenant,
        id: KeyId(Uuid::now_v7()),
        prefix: key.prefix().to_owned(),
        hash: key.hash(pepper),
        scope: Scope::Admin.name().to_owned(),
        label: label.to_owned(),
        // The database's clock decides.
        created_at: Utc::now(),
        revoked_at: None,
    };
    store.create_key(&row).await?;
    Ok(key)
}
