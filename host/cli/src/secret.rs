//! `counterfoil secret`: the keys that secrets of connections are sealed with.
//!
//! What is sealed is changed in the database, and keys in a file of the host, so that these commands run on a host.

use std::path::Path;

use anyhow::Context as _;
use clap::Subcommand;
use counterfoil_effects::secrets::{KeyFileError, KeyRing};
use counterfoil_store::Store;
use counterfoil_store::connection::SecretRow;
use secrecy::ExposeSecret as _;
use serde_json::json;

use crate::args::Global;
use crate::config::{Config, Flags, Purpose, Read};
use crate::data::write_private;
use crate::database::Database;
use crate::exit::{Exit, Failure};
use crate::output::{Column, Output};
use crate::wire;

/// What to do with the keys.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Put a new key before those of the key file, which is made if there is none. It seals whatever is set from now on.
    AddKey,
    /// Seal every secret anew with a new key; or with the first key, where secrets are left under another one.
    ///
    /// It may be broken off and repeated. Once it has ended well, the keys behind the first open nothing any more.
    Rotate {
        /// Seal with the first key whatever is left under another one, and make no key: to see that nothing is left.
        #[arg(long)]
        no_new_key: bool,
    },
}

/// Secrets that are sealed anew between two looks at the database.
const AT_ONCE: u32 = 100;

const ADDED: &[Column] = &[Column::plain("key", "/key"), Column::plain("file", "/file")];
const ROTATED: &[Column] = &[
    Column::plain("key", "/key"),
    Column::plain("file", "/file"),
    Column::plain("sealed anew", "/sealed_anew"),
    Column::plain("keys that open nothing any more", "/unused_keys"),
];

pub(crate) async fn run(command: Command, global: &Global, output: Output) -> anyhow::Result<Exit> {
    let config = Read::new(Flags::of(global), Purpose::Command).into_config()?;
    let file = config.secrets.keys_file.clone();
    match command {
        Command::AddKey => {
            config.data.create()?;
            let ring = add_key(&file)?;
            output.record(&json!({ "key": ring.first_id(), "file": file }), ADDED)?;
            anstream::eprintln!(
                "every host of the database needs this file: copy it to them, and keep it safe"
            );
            Ok(Exit::Ok)
        }
        Command::Rotate { no_new_key } => rotate(&config, no_new_key, output).await,
    }
}

/// Puts a new key at the front of the file, for its owner alone.
pub(crate) fn add_key(file: &Path) -> anyhow::Result<KeyRing> {
    let others = match KeyRing::read(file) {
        Ok(ring) => Some(ring),
        Err(KeyFileError::Missing(_)) => None,
        Err(error) => return Err(error.into()),
    };
    let ring = KeyRing::with_new(others, wire::random);
    write_private(file, ring.to_text().expose_secret().as_bytes())?;
    Ok(ring)
}

/// Keys that secrets are sealed with, and `file` does not hold.
///
/// # Errors
/// The file is damaged, or the database cannot be asked.
pub(crate) async fn missing_keys(file: &Path, store: &Store) -> anyhow::Result<Missing> {
    let ring = match KeyRing::read(file) {
        Ok(ring) => Some(ring),
        Err(KeyFileError::Missing(_)) => None,
        Err(error) => return Err(error.into()),
    };
    // Tables of the version before have no secrets.
    let needed = if store.has_its_tables().await? { store.secret_key_ids().await? } else { vec![] };
    let is_held = |id: &String| ring.as_ref().is_some_and(|ring| ring.ids().any(|held| held == id));
    let (held, missing): (Vec<_>, Vec<_>) = needed.into_iter().partition(is_held);
    Ok(Missing { keys: missing, opens_some: !held.is_empty() })
}

/// What a key file lacks.
pub(crate) struct Missing {
    /// Ids of keys.
    pub(crate) keys: Vec<String>,
    /// It holds others that secrets are sealed with.
    opens_some: bool,
}

/// A host whose tenants have secrets needs the keys to them.
///
/// # Errors
/// It has none of them, or the file is damaged.
pub(crate) async fn check_keys(file: &Path, store: &Store) -> anyhow::Result<()> {
    let missing = missing_keys(file, store).await?;
    if missing.keys.is_empty() {
        return Ok(());
    }
    let keys = missing.keys.join(", ");
    if missing.opens_some {
        tracing::warn!(
            file = %file.display(),
            keys,
            "secrets are sealed with keys that the key file does not hold: calls that need them wait"
        );
        return Ok(());
    }
    let what = format!("connections have secrets that are sealed with {keys}, not in {}", file.display());
    Err(Failure::new(Exit::Usage, what)
        .details([
            "copy the file from another host of this database, or from where it is kept".to_owned(),
            "if it is lost, make a new one and set every connection's secrets again".to_owned(),
        ])
        .next("counterfoil secret add-key")
        .into())
}

async fn rotate(config: &Config, no_new_key: bool, output: Output) -> anyhow::Result<Exit> {
    let file = &config.secrets.keys_file;
    let (database, store) = Database::join(config).await?;
    let mut ring = KeyRing::read(file).map_err(|error| {
        let why = format!("{:#}", anyhow::Error::from(error));
        Failure::new(Exit::Error, "there are no keys to go on from").details([
            why,
            "restore the file from its backup, or copy it from another host of this database".to_owned(),
            "where no connection has ever had a secret, `counterfoil secret add-key` makes a key".to_owned(),
        ])
    })?;
    // What an earlier rotation, or a new key, has left is done first.
    if !no_new_key && store.secrets_not_under(ring.first_id(), None, 1).await?.is_empty() {
        ring = add_key(file)?;
    }
    let done = reseal(config, &store, ring.first_id()).await?;
    drop(store);
    database.close().await?;
    let unused: Vec<&str> = if done.left.is_empty() { ring.ids().skip(1).collect() } else { vec![] };
    let record =
        json!({ "key": ring.first_id(), "file": file, "sealed_anew": done.count, "unused_keys": unused });
    output.record(&record, ROTATED)?;
    if done.left.is_empty() {
        anstream::eprintln!(
            "once every host has this file, and before you remove a key: `counterfoil secret rotate --no-new-key` \
             must seal nothing anew"
        );
        return Ok(Exit::Ok);
    }
    let what = format!("{} secrets do not open; set them again", done.left.len());
    Err(Failure::new(Exit::Error, what).details(done.left).into())
}

struct Resealed {
    count: u32,
    /// Those that do not open, and why.
    left: Vec<String>,
}

/// Seals whatever is not under `key` anew, each secret in a transaction of its own.
async fn reseal(config: &Config, store: &Store, key: &str) -> anyhow::Result<Resealed> {
    let secrets = wire::secrets(config);
    let mut done = Resealed { count: 0, left: vec![] };
    let mut after: Option<SecretRow> = None;
    loop {
        let rows = store.secrets_not_under(key, after.as_ref(), AT_ONCE).await?;
        let Some(last) = rows.last() else { return Ok(done) };
        after = Some(last.clone());
        for row in rows {
            match secrets.reseal(row.tenant, &row.connection, &row.secret) {
                // Where another value has been set meanwhile, that is under the first key.
                Ok(sealed) => {
                    let replaced = store.reseal_secret(&row, &sealed).await;
                    done.count += u32::from(replaced.context("a secret could not be sealed anew")?);
                }
                Err(error) => {
                    let why = format!("{:#}", anyhow::Error::from(error));
                    done.left.push(format!("tenant {}, connection `{}`: {why}", row.tenant, row.connection));
                }
            }
        }
    }
}
