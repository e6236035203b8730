//! `counterfoil dev`: everything in one process, for one developer.

use anyhow::Context as _;
use chrono::Utc;
use counterfoil_domain::id::TenantId;
use counterfoil_domain::key::{self, ApiKey, Pepper};
use counterfoil_store::Store;
use counterfoil_web::LoginLinks;
use serde_json::json;
use uuid::Uuid;

use crate::args::Global;
use crate::config::{Config, Purpose, Read, SecretsConfig};
use crate::data::{DevFile, write_private};
use crate::database::Database;
use crate::exit::Exit;
use crate::output::{Column, Output};
use crate::progress::Progress;
use crate::tenant::create_admin_key;
use crate::wire::{self, Host};
use crate::{faults, secret, serve, telemetry};

/// How to serve.
pub(crate) type Args = serve::Args;

/// The one tenant.
const TENANT: &str = "dev";

const BANNER: &[Column] = &[
    Column::plain("page", "/page"),
    Column::plain("api", "/api"),
    Column::plain("key", "/key"),
    Column::plain("data", "/data_dir"),
    Column::plain("database", "/database"),
];

pub(crate) async fn run(args: Args, global: &Global, output: Output) -> anyhow::Result<Exit> {
    let config = Read::new(args.flags(global), Purpose::Development).into_config()?;
    telemetry::install(&config.log)?;
    let listener = wire::bind(&config.server).await?;
    config.data.create()?;
    let pepper = pepper(&config.secrets)?;
    if !config.secrets.keys_file.exists() {
        secret::add_key(&config.secrets.keys_file)?;
    }

    let progress = Progress::new("starting the database");
    let database = Database::open(&config).await?;
    let faults = faults::faults(config.effects.crash_at);
    let store = database.connect(faults.clone()).await?;
    progress.say("bringing its tables up to date");
    store.migrate().await.context("the tables could not be brought up to date")?;
    let (key, is_new) = developer_key(&config, &store, &pepper).await?;
    let host = Host::new(&config, store, pepper, faults, listener)?;
    drop(progress);

    let file = DevFile {
        url: host.url().to_string(),
        key: key.to_string(),
        database_url: database.url().to_owned(),
    };
    file.write(&config.data)?;
    let banner = json!({
        "page": host.url().join(&host.login_link(&key)?)?.as_str(),
        "api": host.url().join("v1")?.as_str(),
        "key": is_new.then(|| key.to_string()),
        "data_dir": config.data.dir,
        "database": database.private_version().map_or_else(
            || "as configured".to_owned(),
            |version| format!("a Postgres {version} of its own"),
        ),
    });
    output.record(&banner, BANNER)?;
    anstream::eprintln!(
        "the page's address signs one browser in, once, within {} minutes; Ctrl-C stops",
        LoginLinks::VALID_MINUTES
    );
    host.run(wire::told_to_stop()?).await?;
    database.close().await?;
    Ok(Exit::Ok)
}

/// The configured pepper, else one that is made now and kept.
fn pepper(config: &SecretsConfig) -> anyhow::Result<Pepper> {
    if let Some(pepper) = &config.pepper {
        return Ok(pepper.clone());
    }
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes)?;
    write_private(&config.pepper_file, format!("{}\n", hex::encode(bytes)).as_bytes())?;
    Ok(Pepper::new(bytes))
}

/// The key that the last `dev` made, if the database knows it still; else a new one.
async fn developer_key(config: &Config, store: &Store, pepper: &Pepper) -> anyhow::Result<(ApiKey, bool)> {
    let kept = DevFile::read(&config.data)?.and_then(|file| file.key.parse::<ApiKey>().ok());
    if let Some(kept) = kept {
        let row = store.key_by_prefix(kept.prefix()).await?;
        if row.is_some_and(|row| row.revoked_at.is_none() && key::matches(&kept.hash(pepper), &row.hash)) {
            return Ok((kept, false));
        }
    }
    let found = store.tenant_by_name(TENANT).await?;
    let tenant = found.unwrap_or_else(|| TenantId(Uuid::now_v7()));
    if found.is_none() {
        store.create_tenant(tenant, TENANT).await?;
    }
    let label = format!("counterfoil dev, {}", Utc::now().format("%Y-%m-%d"));
    Ok((create_admin_key(store, tenant, &label, pepper).await?, true))
}
