//! The settings, a struct for each concern.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use counterfoil_domain::key::Pepper;
use counterfoil_domain::limits::{CPU_TICK_MS, MEMORY_BYTES_MAX, StepLimits};
use counterfoil_domain::outbound::{AddressPolicy, PrivateNetwork};
use counterfoil_domain::ports::Site;
use serde::Deserialize;
use tracing_subscriber::EnvFilter;

use super::Purpose;
use super::address::{is_postgres, without_password};
use super::reader::Reader;
use crate::faults::CrashAt;

/// Names the crash point at which the process kills itself: for tests of what a crash leaves behind.
const CRASH_AT: &str = "COUNTERFOIL_CRASH_AT";
/// Set to anything, it takes away the receipt before each call, so that a test can show that it would notice. Builds
/// for release do not read it.
const NO_RECEIPTS: &str = "COUNTERFOIL_UNSAFE_NO_RECEIPTS";

/// Where the host listens.
#[derive(Debug, Clone)]
pub(crate) struct ServerConfig {
    /// Address and port of the API and the pages; port 0 takes a free one.
    /// `--listen`, `COUNTERFOIL__SERVER__LISTEN`, default `127.0.0.1:8420`.
    pub(crate) listen: SocketAddr,
    /// Whether browsers send the session over https alone: for hosts behind a proxy that ends TLS.
    /// `COUNTERFOIL__SERVER__COOKIES_SECURE`, default `false` where the host listens on this machine alone, else `true`.
    pub(crate) cookies_secure: bool,
}

impl ServerConfig {
    pub(super) fn read(reader: &mut Reader) -> Self {
        let listen: SocketAddr = reader.value("server.listen", SocketAddr::from((Ipv4Addr::LOCALHOST, 8420)));
        let cookies_secure = reader.value("server.cookies_secure", !listen.ip().is_loopback());
        Self { listen, cookies_secure }
    }
}

/// Where the host keeps what is its own.
#[derive(Debug, Clone)]
pub(crate) struct DataConfig {
    /// A directory. `--data-dir`, `COUNTERFOIL__DATA__DIR`, default `$XDG_DATA_HOME/counterfoil`, else
    /// `~/.local/share/counterfoil`, else `./data`.
    pub(crate) dir: PathBuf,
    /// Compiled blocks that are kept in it; beyond that, those go that were used longest ago.
    /// `COUNTERFOIL__DATA__BLOCKS_BYTES_MAX`, default 4 GiB: ten thousand Rust blocks, or eighty Python ones.
    pub(crate) blocks_bytes_max: u64,
}

impl DataConfig {
    pub(super) fn read(reader: &mut Reader) -> Self {
        // Room for the largest that there can be.
        const BLOCKS_BYTES_MIN: u64 = 256 << 20;
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let home = set("XDG_DATA_HOME").or_else(|| set("HOME").map(|home| home.join(".local/share")));
        let default = home.map_or_else(|| "data".into(), |home| home.join("counterfoil"));
        let given = reader.optional(
            "data.dir",
            |dir: &PathBuf| dir.display().to_string(),
            &default.display().to_string(),
        );
        let dir = given.unwrap_or(default);
        // What is kept there names paths in it, so that they must hold from everywhere.
        let dir = std::path::absolute(&dir).unwrap_or(dir);
        let blocks_bytes_max = reader.value("data.blocks_bytes_max", 4 << 30);
        reader.check("data.blocks_bytes_max", blocks_bytes_max >= BLOCKS_BYTES_MIN, || {
            format!("at least {BLOCKS_BYTES_MIN} bytes")
        });
        Self { dir, blocks_bytes_max }
    }
}

/// How to reach the database.
#[derive(Debug, Clone)]
pub(crate) struct DatabaseConfig {
    /// `postgres://…`, of a direct connection. `DATABASE_URL`, else `COUNTERFOIL__DATABASE__URL`; where neither is
    /// given, the host starts a Postgres of its own in its data directory.
    pub(crate) url: Option<String>,
    /// Connections of this process at most, half of them for requests (of each at least two), beside some of special use. `COUNTERFOIL__DATABASE__CONNECTIONS_MAX`,
    /// default 16.
    pub(crate) connections_max: u32,
}

impl DatabaseConfig {
    pub(super) fn read(reader: &mut Reader) -> Self {
        const OTHERS: &str = "a Postgres of its own";
        const NO_ADDRESS: &str = "not an address of the form `postgres://…`";
        let url = match std::env::var("DATABASE_URL") {
            Ok(url) if !url.is_empty() => {
                reader.note("database.url", without_password(&url), "DATABASE_URL");
                if !is_postgres(&url) {
                    reader.fault("DATABASE_URL", NO_ADDRESS.into());
                }
                Some(url)
            }
            _ => {
                let url = reader.optional("database.url", |url: &String| without_password(url), OTHERS);
                reader.check("database.url", url.as_deref().is_none_or(is_postgres), || NO_ADDRESS.into());
                url
            }
        };
        let connections_max = reader.value("database.connections_max", 16);
        // One is held by a transaction while another look-up runs.
        reader.check("database.connections_max", connections_max >= 2, || "at least 2".into());
        Self { url, connections_max }
    }
}

/// How the host takes and holds work.
#[derive(Debug, Clone)]
pub(crate) struct EngineConfig {
    /// How long a lease lasts without renewal. `COUNTERFOIL__ENGINE__LEASE_MS`, default 15,000 ms.
    pub(crate) lease: Duration,
    /// How often leases are renewed. `COUNTERFOIL__ENGINE__RENEW_MS`, default a third of the lease.
    pub(crate) renew: Duration,
    /// Most steps in flight at once. `COUNTERFOIL__ENGINE__IN_FLIGHT_MAX`, default 256.
    pub(crate) in_flight_max: u32,
    /// Processes that run blocks and can do nothing else; 0 runs them in the host's own. `COUNTERFOIL__ENGINE__RUNNERS`,
    /// default one a core, and 0 where the system is not Linux.
    pub(crate) runners: u32,
    /// Longest time between two looks for due work that nothing announced. `COUNTERFOIL__ENGINE__POLL_MS`, default
    /// 1,000 ms.
    pub(crate) poll: Duration,
    /// How long steps in flight may take to end when the host stops. `COUNTERFOIL__ENGINE__DRAIN_MS`, default
    /// 10,000 ms.
    pub(crate) drain: Duration,
}

impl EngineConfig {
    pub(super) fn read(reader: &mut Reader) -> Self {
        // Below a second, a busy machine's pauses look like its death.
        const LEASE_MS_MIN: u64 = 1_000;
        let lease_ms = reader.value("engine.lease_ms", 15_000);
        reader.check("engine.lease_ms", lease_ms >= LEASE_MS_MIN, || format!("at least {LEASE_MS_MIN} ms"));
        let renew_ms = reader.value("engine.renew_ms", lease_ms / 3);
        reader.check("engine.renew_ms", renew_ms > 0 && renew_ms <= lease_ms / 2, || {
            format!(
                "between 1 ms and half of the lease ({} ms), so that one renewal may be lost",
                lease_ms / 2
            )
        });
        let in_flight_max = reader.value("engine.in_flight_max", 256);
        reader.check("engine.in_flight_max", in_flight_max > 0, || "at least 1".into());
        let runners = reader.value("engine.runners", runners_by_default());
        reader.check("engine.runners", runners <= RUNNERS_MAX, || format!("at most {RUNNERS_MAX}"));
        reader.check("engine.runners", runners == 0 || cfg!(target_os = "linux"), || {
            "0: blocks run in processes of their own on Linux only".into()
        });
        let poll_ms = reader.value("engine.poll_ms", 1_000);
        reader.check("engine.poll_ms", poll_ms > 0, || "at least 1 ms".into());
        let drain_ms = reader.value("engine.drain_ms", 10_000);
        Self {
            lease: Duration::from_millis(lease_ms),
            renew: Duration::from_millis(renew_ms),
            in_flight_max,
            runners,
            poll: Duration::from_millis(poll_ms),
            drain: Duration::from_millis(drain_ms),
        }
    }
}

/// What one execution of any block may use; a tenant's and a block's own limits can only narrow it.
#[derive(Debug, Clone)]
pub(crate) struct LimitsConfig {
    /// The settings `COUNTERFOIL__LIMITS__MEMORY_BYTES_MAX`, default 64 MiB; `…__CPU_MS_MAX`, default 1,000 ms; and
    /// `…__WALL_MS_MAX`, default 120,000 ms. The rest is not for operators to choose.
    pub(crate) step: StepLimits,
}

impl LimitsConfig {
    pub(super) fn read(reader: &mut Reader) -> Self {
        // One page of it is the least.
        const MEMORY_BYTES: RangeInclusive<u64> = 64 << 10..=MEMORY_BYTES_MAX;
        // One tick of the clock, and a minute in which a core does nothing else.
        const CPU_MS: RangeInclusive<u64> = CPU_TICK_MS..=60_000;
        const WALL_MS: RangeInclusive<u64> = 100..=3_600_000;
        let mut limit = |name, default, range: RangeInclusive<u64>| {
            let value = reader.value(name, default);
            reader.check(name, range.contains(&value), || {
                format!("between {} and {}", range.start(), range.end())
            });
            value
        };
        let default = StepLimits::DEFAULT;
        let step = StepLimits {
            memory_bytes_max: limit("limits.memory_bytes_max", default.memory_bytes_max, MEMORY_BYTES),
            cpu_ms_max: limit("limits.cpu_ms_max", default.cpu_ms_max, CPU_MS),
            wall_ms_max: limit("limits.wall_ms_max", default.wall_ms_max, WALL_MS),
            ..default
        };
        Self { step }
    }
}

/// More than a machine has cores for.
const RUNNERS_MAX: u32 = 256;

fn runners_by_default() -> u32 {
    if !cfg!(target_os = "linux") {
        return 0;
    }
    let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    u32::try_from(cores).unwrap_or(RUNNERS_MAX).min(RUNNERS_MAX)
}

/// What blocks may reach, and how long they wait.
#[derive(Debug, Clone)]
pub(crate) struct EffectsConfig {
    /// Total time of an effect that names none. `COUNTERFOIL__EFFECTS__TIMEOUT_MS`, default 30,000 ms.
    pub(crate) timeout: Duration,
    /// How long an answer may wait for its step's end before it is written alone.
    /// `COUNTERFOIL__EFFECTS__ANSWER_WAIT_MS`, default 1 ms.
    pub(crate) answer_wait: Duration,
    /// What is added to lease and timeout before it counts as known that a request will not arrive any more: clock
    /// differences, and the kernel's own queues. `COUNTERFOIL__EFFECTS__ABSENCE_MARGIN_MS`, default 5,000 ms.
    pub(crate) absence_margin: Duration,
    /// Whether blocks may call this machine: for development. `COUNTERFOIL__EFFECTS__ALLOW_LOOPBACK`, default
    /// `false`, under `dev` `true`.
    pub(crate) allow_loopback: bool,
    /// Private networks that blocks may call, such as `10.1.0.0/16`: a list, or separated by commas.
    /// `COUNTERFOIL__EFFECTS__PRIVATE_NETWORKS`, default none.
    pub(crate) private_networks: Vec<PrivateNetwork>,
    /// Where this process kills itself: for tests. `COUNTERFOIL_CRASH_AT`, `SITE` or `SITE:NTH`.
    pub(crate) crash_at: Option<CrashAt>,
    /// Whether a receipt is written before each call. Only a test ever says no.
    pub(crate) receipts: bool,
}

impl EffectsConfig {
    pub(super) fn read(reader: &mut Reader, purpose: Purpose) -> Self {
        let timeout_ms = reader.value("effects.timeout_ms", 30_000);
        reader.check("effects.timeout_ms", timeout_ms > 0, || "at least 1 ms".into());
        let answer_wait_ms = reader.value("effects.answer_wait_ms", 1);
        let absence_margin_ms = reader.value("effects.absence_margin_ms", 5_000);
        let allow_loopback = reader.value("effects.allow_loopback", purpose == Purpose::Development);
        let Texts(names) = reader.value("effects.private_networks", Texts(vec![]));
        let private_networks = names.iter().filter_map(|name| match name.parse() {
            Ok(network) => Some(network),
            Err(fault) => {
                reader.check("effects.private_networks", false, || format!("`{name}`: {fault}"));
                None
            }
        });
        Self {
            private_networks: private_networks.collect(),
            timeout: Duration::from_millis(timeout_ms),
            answer_wait: Duration::from_millis(answer_wait_ms),
            absence_margin: Duration::from_millis(absence_margin_ms),
            allow_loopback,
            crash_at: crash_at(reader),
            receipts: !(cfg!(debug_assertions) && std::env::var_os(NO_RECEIPTS).is_some()),
        }
    }

    /// Which addresses may be called.
    pub(crate) fn policy(&self) -> AddressPolicy {
        AddressPolicy { loopback: self.allow_loopback, private: self.private_networks.clone() }
    }
}

fn crash_at(reader: &mut Reader) -> Option<CrashAt> {
    let text = std::env::var(CRASH_AT).ok().filter(|text| !text.is_empty())?;
    let parsed = text.parse().ok();
    if parsed.is_none() {
        let sites: Vec<&str> = Site::ALL.iter().map(|site| site.name()).collect();
        reader.fault(
            CRASH_AT,
            format!(
                "`{text}` is not SITE or SITE:NTH, with or without @runners; sites are {}",
                sites.join(", ")
            ),
        );
    }
    parsed
}

/// A list, or one text with commas.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(from = "TextOrTexts")]
struct Texts(Vec<String>);

#[derive(Deserialize)]
#[serde(untagged)]
enum TextOrTexts {
    One(String),
    Many(Vec<String>),
}

impl From<TextOrTexts> for Texts {
    fn from(given: TextOrTexts) -> Self {
        let texts = match given {
            TextOrTexts::One(text) => text.split(',').map(|part| part.trim().to_owned()).collect(),
            TextOrTexts::Many(texts) => texts,
        };
        Self(texts.into_iter().filter(|text| !text.is_empty()).collect())
    }
}

impl fmt::Display for Texts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { f.write_str("none") } else { f.write_str(&self.0.join(", ")) }
    }
}

/// What the host says while it runs, on the standard error.
#[derive(Debug, Clone)]
pub(crate) struct LogConfig {
    /// `text` or `json`. `COUNTERFOIL__LOG__FORMAT`, default `text`.
    pub(crate) format: LogFormat,
    /// Which messages, in the form of `tracing`'s filters. `COUNTERFOIL__LOG__FILTER`, default `info`.
    pub(crate) filter: String,
}

/// How log messages are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) enum LogFormat {
    /// A line for people.
    Text,
    /// A JSON object a line.
    Json,
}

impl TryFrom<String> for LogFormat {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        match name.as_str() {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err(format!("`{name}` is neither `text` nor `json`")),
        }
    }
}

impl fmt::Display for LogFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Text => "text",
            Self::Json => "json",
        })
    }
}

impl LogConfig {
    pub(super) fn read(reader: &mut Reader) -> Self {
        let format = reader.value("log.format", LogFormat::Text);
        // What the database's driver says in passing, as that a table is there already, is nothing to an operator.
        let filter = reader.value("log.filter", "info,sqlx=warn".to_owned());
        if let Err(error) = EnvFilter::builder().parse(&filter) {
            reader.check("log.filter", false, || format!("`{filter}`: {error}"));
        }
        Self { format, filter }
    }
}

/// The installation's own secrets.
#[derive(Debug, Clone)]
pub(crate) struct SecretsConfig {
    /// 64 hexadecimal digits. `COUNTERFOIL__PEPPER`, else the file named by
    /// `COUNTERFOIL__PEPPER_FILE`, else `pepper` in the data directory, which `dev` makes on first use.
    pub(crate) pepper: Option<Pepper>,
    /// Where `dev` makes one.
    pub(crate) pepper_file: PathBuf,
    /// The file of the keys that secrets of connections are sealed with, the same on every host of a database.
    /// `COUNTERFOIL__SECRET_KEYS_FILE`, default `secret-keys` in the data directory. `dev` makes it on first use,
    /// `counterfoil secret add-key` for others.
    pub(crate) keys_file: PathBuf,
}

impl SecretsConfig {
    pub(super) fn read(reader: &mut Reader, data: &DataConfig, purpose: Purpose) -> Self {
        let given = reader.optional("pepper", |_: &String| "given, not shown".into(), "not given");
        let named = reader.optional(
            "pepper_file",
            |path: &PathBuf| path.display().to_string(),
            &data.pepper_file().display().to_string(),
        );
        let pepper = match (&given, &named) {
            (Some(text), _) => pepper(reader, "pepper", text),
            (None, Some(path)) => match std::fs::read_to_string(path) {
                Ok(text) => pepper(reader, "pepper_file", &text),
                Err(error) => {
                    reader.check("pepper_file", false, || format!("{}: {error}", path.display()));
                    None
                }
            },
            (None, None) => read_default(reader, &data.pepper_file(), purpose),
        };
        let keys_file = reader.optional(
            "secret_keys_file",
            |path: &PathBuf| path.display().to_string(),
            &data.secret_keys_file().display().to_string(),
        );
        Self {
            pepper,
            pepper_file: named.unwrap_or_else(|| data.pepper_file()),
            keys_file: keys_file.unwrap_or_else(|| data.secret_keys_file()),
        }
    }
}

fn read_default(reader: &mut Reader, path: &Path, purpose: Purpose) -> Option<Pepper> {
    match std::fs::read_to_string(path) {
        Ok(text) => pepper(reader, "pepper_file", &text),
        Err(_) if !path.exists() => {
            // Another one than the other hosts have would make every key useless.
            reader.check("pepper", purpose != Purpose::Service, || {
                format!(
                    "missing, and there is no {}: all hosts of a database share one secret, 64 hexadecimal digits, as \
                     `openssl rand -hex 32` prints them",
                    path.display()
                )
            });
            None
        }
        Err(error) => {
            reader.fault(&path.display().to_string(), error.to_string());
            None
        }
    }
}

fn pepper(reader: &mut Reader, key: &'static str, text: &str) -> Option<Pepper> {
    let mut bytes = [0; 32];
    let is_right = hex::decode_to_slice(text.trim(), &mut bytes).is_ok();
    reader.check(key, is_right, || "64 hexadecimal digits, as `openssl rand -hex 32` prints them".into());
    is_right.then(|| Pepper::new(bytes))
}
