//! `counterfoil tenant`: against the database, since there is no key before there is a tenant.

use anyhow::Context as _;
use chrono::Utc;
use clap::Subcommand;
use counterfoil_domain::fair_share::Share;
use counterfoil_domain::id::{KeyId, TenantId};
use counterfoil_domain::key::{ApiKey, KEY_RANDOM_BYTES_LEN, Pepper, Scope};
use counterfoil_domain::limits::CPU_TICK_MS;
use counterfoil_domain::receipt::Actor;
use counterfoil_domain::workflow::{NAME_LEN_MAX, is_name};
use counterfoil_store::Store;
use counterfoil_store::key::KeyRow;
use counterfoil_store::retention::OwnRetention;
use counterfoil_store::tenant::{Created, LimitsChange, TenantRow};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::args::{Global, Own, SHARE, ShareChange};
use crate::config::{DAYS, Flags, Purpose, Read};
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
    /// Create another admin key of a tenant, whose own are lost or revoked. It is shown this once.
    Key {
        /// The tenant's name.
        name: String,
    },
    /// Every tenant, and what it may have.
    List,
    /// Show what one execution of a tenant's blocks may use, or narrow it. Hosts take it with the next step.
    Limits(Limits),
    /// Show how much of a host's room a tenant may have, or change it. Hosts know of it within a second.
    Share {
        /// Its name.
        name: String,
        #[command(flatten)]
        change: ShareChange,
    },
    /// Show how long a tenant's finished runs are kept, or set it.
    Retention {
        /// Its name.
        name: String,
        /// Days after the end of a run; `none` takes the tenant's own time away.
        #[arg(long, value_name = "DAYS")]
        days: Option<Own>,
    },
}

/// Limits of a tenant.
#[derive(Debug, clap::Args)]
pub(crate) struct Limits {
    /// Its name.
    tenant: String,
    /// Linear memory, in bytes, at least one page of 65536; `none` takes the tenant's own limit away.
    #[arg(long, value_name = "BYTES", value_parser = own_memory)]
    memory_bytes_max: Option<Own>,
    /// Guest CPU, in milliseconds, counted in tens of them and so at least 10, or `none`.
    #[arg(long, value_name = "MS", value_parser = own_cpu)]
    cpu_ms_max: Option<Own>,
    /// Whole execution, waiting for answers included, in milliseconds, or `none`.
    #[arg(long, value_name = "MS")]
    wall_ms_max: Option<Own>,
}

fn own_memory(text: &str) -> Result<Own, String> {
    /// A block without a page can do nothing.
    const PAGE_BYTES: u64 = 64 << 10;
    match text.parse()? {
        Own(Some(limit)) if limit < PAGE_BYTES => Err(format!("at least {PAGE_BYTES}, one page, or `none`")),
        own => Ok(own),
    }
}

fn own_cpu(text: &str) -> Result<Own, String> {
    match text.parse()? {
        Own(Some(limit)) if limit < CPU_TICK_MS => {
            Err(format!("at least {CPU_TICK_MS}, in which it is counted, or `none`"))
        }
        own => Ok(own),
    }
}

const TENANTS: &[Column] = &[
    Column::plain("tenant", "/tenant"),
    Column::plain("id", "/id"),
    Column::plain("weight", "/weight"),
    Column::plain("in flight max", "/in_flight_max"),
    Column::plain("memory, bytes", "/limits/memory_bytes_max"),
    Column::plain("cpu, ms", "/limits/cpu_ms_max"),
    Column::plain("wall, ms", "/limits/wall_ms_max"),
    Column::time("created", "/created_at"),
];

const LIMITS: &[Column] = &[
    Column::plain("tenant", "/tenant"),
    Column::plain("its own: memory, bytes", "/own/memory_bytes_max").or("none"),
    Column::plain("its own: cpu, ms", "/own/cpu_ms_max").or("none"),
    Column::plain("its own: wall, ms", "/own/wall_ms_max").or("none"),
    Column::plain("in force: memory, bytes", "/in_force/memory_bytes_max"),
    Column::plain("in force: cpu, ms", "/in_force/cpu_ms_max"),
    Column::plain("in force: wall, ms", "/in_force/wall_ms_max"),
];

const RETENTION: &[Column] = &[
    Column::plain("tenant", "/tenant"),
    Column::plain("its own: days", "/own/days").or("none"),
    Column::plain("in force: days", "/in_force/days").or("for ever"),
];

/// Other hosts may be configured otherwise.
fn tell_whose() {
    anstream::eprintln!("in force is what a host does that is configured as this command is");
}

const COLUMNS: &[Column] =
    &[Column::plain("tenant", "/tenant"), Column::plain("id", "/id"), Column::plain("key", "/key")];

pub(crate) async fn run(command: Command, global: &Global, output: Output) -> anyhow::Result<Exit> {
    let name = match &command {
        Command::List => return list(global, output).await,
        Command::Limits(limits) => &limits.tenant,
        Command::Create { name }
        | Command::Key { name }
        | Command::Share { name, .. }
        | Command::Retention { name, .. } => name,
    };
    if !is_name(name) {
        let what = format!(
            "{name:?} names no tenant: a letter comes first, then `a` to `z`, `0` to `9` and `-`, {NAME_LEN_MAX} at most"
        );
        return Err(Failure::new(Exit::Usage, what).into());
    }
    match command {
        Command::List => list(global, output).await,
        Command::Create { name } => with_key(&name, Tenant::New, global, output).await,
        Command::Key { name } => with_key(&name, Tenant::There, global, output).await,
        Command::Limits(limits) => limits.run(global, output).await,
        Command::Share { name, change } => share(&name, change, global, output).await,
        Command::Retention { name, days } => retention(&name, days, global, output).await,
    }
}

async fn list(global: &Global, output: Output) -> anyhow::Result<Exit> {
    let config = Read::new(Flags::of(global), Purpose::Command).into_config()?;
    let (database, store) = Database::join(&config).await?;
    let tenants = store.tenants().await?;
    let item = |row: TenantRow| {
        let TenantRow { id, name, created_at, share, limits } = row;
        let Share { weight, in_flight_max } = share;
        json!({
            "tenant": name,
            "id": id,
            "weight": weight,
            "in_flight_max": in_flight_max,
            "limits": limits,
            "created_at": created_at,
        })
    };
    let items: Vec<Value> = tenants.into_iter().map(item).collect();
    output.list(&json!({ "items": items }), TENANTS)?;
    database.close().await?;
    Ok(Exit::Ok)
}

async fn share(name: &str, change: ShareChange, global: &Global, output: Output) -> anyhow::Result<Exit> {
    let config = Read::new(Flags::of(global), Purpose::Command).into_config()?;
    let (database, store) = Database::join(&config).await?;
    let tenants = store.tenants().await?;
    let now = tenants.iter().find(|tenant| tenant.name == name).ok_or_else(|| no_tenant(name))?.share;
    let share = change.of(now)?;
    if !change.is_empty() && !store.set_tenant_share(name, share, &operator()).await? {
        return Err(no_tenant(name).into());
    }
    let Share { weight, in_flight_max } = share;
    output.record(&json!({ "weight": weight, "in_flight_max": in_flight_max }), SHARE)?;
    database.close().await?;
    Ok(Exit::Ok)
}

fn no_tenant(name: &str) -> Failure {
    Failure::new(Exit::Error, format!("there is no tenant `{name}`")).next("counterfoil tenant list")
}

/// Whoever has the database's address.
fn operator() -> Actor {
    Actor::Person("operator".into())
}

async fn retention(name: &str, days: Option<Own>, global: &Global, output: Output) -> anyhow::Result<Exit> {
    let set = days.map(|Own(days)| days.map(u32::try_from).transpose()).transpose();
    let set = set.ok().filter(|set| set.flatten().is_none_or(|days| DAYS.contains(&days)));
    let Some(set) = set else {
        let what = format!("runs are kept for {} to {} days", DAYS.start(), DAYS.end());
        return Err(Failure::new(Exit::Usage, what).into());
    };
    let config = Read::new(Flags::of(global), Purpose::Command).into_config()?;
    let (database, store) = Database::join(&config).await?;
    if let Some(days) = set
        && !store.set_tenant_retention(name, OwnRetention { days }, &operator()).await?
    {
        return Err(no_tenant(name).into());
    }
    let own = store.tenant_retention(name).await?.ok_or_else(|| no_tenant(name))?;
    // What hosts do that have this configuration.
    let in_force = own.days.or(config.retention.finished_runs);
    let told = json!({ "tenant": name, "own": { "days": own.days }, "in_force": { "days": in_force } });
    output.record(&told, RETENTION)?;
    tell_whose();
    database.close().await?;
    Ok(Exit::Ok)
}

/// Whose key is made.
enum Tenant {
    New,
    There,
}

async fn with_key(name: &str, whose: Tenant, global: &Global, output: Output) -> anyhow::Result<Exit> {
    let config = Read::new(Flags::of(global), Purpose::Service).into_config()?;
    let pepper = config.secrets.pepper.as_ref().context("there is no pepper")?;
    let (database, store) = Database::join(&config).await?;
    let (tenant, label) = match whose {
        Tenant::New => (create(&store, name).await?, "made with its tenant"),
        Tenant::There => {
            (store.tenant_by_name(name).await?.ok_or_else(|| no_tenant(name))?, "made by the operator")
        }
    };
    let key = create_admin_key(&store, tenant, label, pepper).await?;
    let record = json!({ "tenant": name, "id": tenant, "key": key.to_string() });
    output.record(&record, COLUMNS)?;
    anstream::eprintln!("the key is shown this once: keep it where secrets are kept");
    database.close().await?;
    Ok(Exit::Ok)
}

impl Limits {
    async fn run(self, global: &Global, output: Output) -> anyhow::Result<Exit> {
        let config = Read::new(Flags::of(global), Purpose::Command).into_config()?;
        let (database, store) = Database::join(&config).await?;
        let Some(tenant) = store.tenant_by_name(&self.tenant).await? else {
            return Err(no_tenant(&self.tenant).into());
        };
        let set = |own: Option<Own>| own.map(|Own(limit)| limit);
        let change = LimitsChange {
            memory_bytes_max: set(self.memory_bytes_max),
            cpu_ms_max: set(self.cpu_ms_max),
            wall_ms_max: set(self.wall_ms_max),
        };
        let own = if change == LimitsChange::default() {
            store.tenant_limits(tenant).await?
        } else {
            store.set_tenant_limits(tenant, change, &operator()).await?
        };
        // What hosts grant that have this configuration.
        let in_force = own.narrow(config.limits.step);
        output.record(&json!({ "tenant": self.tenant, "own": own, "in_force": in_force }), LIMITS)?;
        tell_whose();
        database.close().await?;
        Ok(Exit::Ok)
    }
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
