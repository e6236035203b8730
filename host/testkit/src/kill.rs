//! The kill harness: real hosts on a real Postgres work and die, the database crashes, the wire is cut, the provider
//! misbehaves; then everything is left alone, and what is found must reconcile.

mod api;
mod database;
mod fleet;
pub mod guards;
mod load;
mod log;
mod operator;
pub mod plan;
mod proxy;
mod report;
mod strangers;
mod work;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use sqlx::AssertSqlSafe;

pub use self::report::{Faults, Report};

use self::database::Database;
use self::fleet::Fleet;
use self::guards::Guards;
use self::load::{Load, Starts};
use self::operator::{Operator, Resolutions};
use self::plan::{DatabaseFault, Mix, Plan, TENANTS};
use self::proxy::Proxy;
use crate::host::{Host, HostConfig};
use crate::ledger::{Expected, Timer, reconcile_tenants};
use crate::provider::{Provider, ProviderConfig};
use crate::tenant::PEPPER;

/// The shortest that a host accepts, so that a takeover does not take long.
const LEASE_MS: u64 = 1_000;
/// Total time of an effect: longer than the provider ever takes, and short enough to be waited for.
const TIMEOUT_MS: u64 = 2_000;
/// Added to lease and timeout before an absence counts as known.
const MARGIN_MS: u64 = 500;
/// Within this after the last fault, nothing may be left that has not ended.
const DRAIN_MAX: Duration = Duration::from_mins(1);
/// Within this after the last fault, every start must have had its answer.
const ANSWERS_MAX: Duration = Duration::from_secs(15);
/// Between two looks whether everything has ended.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Kills between two signs of life.
const PROGRESS_EVERY: u64 = 250;
/// What the shortest retry of any workflow waits.
const RETRY_MS_MIN: i64 = 200;

/// How the harness is run.
#[derive(Debug, Clone)]
pub struct Options {
    /// The `counterfoil` program.
    pub binary: PathBuf,
    /// Directory of the example blocks.
    pub blocks: PathBuf,
    /// Hosts that are to be killed.
    pub kills: u64,
    /// What the schedule of faults follows from.
    pub seed: u64,
    /// Hosts that work at a time.
    pub hosts: usize,
    /// Steps that are kept open.
    pub open_steps: i64,
    /// How often each fault comes.
    pub mix: Mix,
    /// What is taken out of the product.
    pub guards: Guards,
    /// Longest that nothing may have ended after the last fault, before it is given up.
    pub drain: Duration,
}

impl Options {
    /// The ordinary run.
    pub fn new(binary: PathBuf, blocks: PathBuf, kills: u64, seed: u64) -> Self {
        let guards = Guards::default();
        Self {
            binary,
            blocks,
            kills,
            seed,
            hosts: 4,
            open_steps: 20,
            mix: Mix::ALL,
            guards,
            drain: DRAIN_MAX,
        }
    }
}

/// Runs the harness once.
///
/// # Errors
/// The harness itself could not go on. What it finds is in the report.
pub async fn run(options: &Options) -> anyhow::Result<Report> {
    let directory = tempfile::Builder::new().prefix("counterfoil-kill-").tempdir()?;
    // As root, Postgres runs as another user, who must come in.
    std::fs::set_permissions(directory.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    let stage = Stage::build(options, directory.path()).await?;
    let report = stage.play(options).await;
    stage.database.stop().await?;
    report
}

/// Everything that a run happens on.
struct Stage {
    database: Arc<Database>,
    proxy: Proxy,
    providers: Vec<Arc<Provider>>,
    fleet: Arc<Fleet>,
    plan: Plan,
}

impl Stage {
    async fn build(options: &Options, directory: &Path) -> anyhow::Result<Self> {
        let plan = Plan::new(options.seed, options.mix.clone(), LEASE_MS);
        let database = Arc::new(Database::start(&directory.join("postgres")).await?);
        let proxy = Proxy::start(database.socket().to_owned(), options.guards.rewrites()).await?;
        let config = host_config(options, directory, &proxy);
        let mut providers = vec![];
        let host = Host::start(&config, "").await?;
        for (_, key) in &database.tenants {
            let provider = Provider::start(ProviderConfig::default()).await?;
            work::furnish(host.as_holder_of(key), &options.blocks, &provider.url()).await?;
            providers.push(Arc::new(provider));
        }
        host.kill().await?;
        for statement in options.guards.statements() {
            sqlx::raw_sql(AssertSqlSafe(statement)).execute(database.pool()).await.context(statement)?;
        }
        let fleet = Arc::new(Fleet::new(config, plan.clone(), options.kills));
        Ok(Self { database, proxy, providers, fleet, plan })
    }

    async fn play(&self, options: &Options) -> anyhow::Result<Report> {
        let flag = || Arc::new(AtomicBool::new(false));
        let (calm, given_up, over) = (flag(), flag(), flag());
        let (starts, resolutions) = (Arc::new(Starts::default()), Arc::new(Resolutions::default()));
        for (tenant, provider) in self.providers.iter().enumerate() {
            provider.misbehave(self.plan.acts(tenant));
        }
        let load = Arc::new(self.load(options, &calm, &given_up));
        let loading = tokio::spawn(load.run(Arc::clone(&starts)));
        let operator = Arc::new(self.operator(&calm, &over));
        let operating = tokio::spawn(operator.run(Arc::clone(&resolutions)));

        let begun = Instant::now();
        let ((), mut faults) =
            tokio::try_join!(self.fleet.work(options.hosts), self.database_faults(options.kills))?;
        let killing = begun.elapsed();

        self.providers.iter().for_each(|provider| provider.misbehave(vec![]));
        self.proxy.heal();
        [faults.cuts_after, faults.cuts_blind, faults.cuts_before] = self.proxy.cuts_made();
        calm.store(true, Ordering::Relaxed);
        let healthy = self.fleet.healthy(options.hosts).await?;
        let drain = self.drain(options.drain, &given_up).await;
        given_up.store(true, Ordering::Relaxed);
        loading.await??;
        over.store(true, Ordering::Relaxed);
        operating.await?;
        let strangers = strangers::look(&healthy, &self.database).await?;
        let said = self.fleet.dismiss(healthy).await?;
        self.proxy.check_rewrites()?;

        let answered = starts.answered();
        let tenants = self.database.tenants.iter().map(|(tenant, _)| *tenant);
        let logs: Vec<_> = tenants.zip(self.providers.iter().map(|provider| provider.calls())).collect();
        let expected = Expected {
            accepted: Some(&answered.accepted),
            unanswered: &answered.unanswered,
            timers: &TIMERS,
            retry_ms_min: RETRY_MS_MIN,
            nothing_open: true,
        };
        let found = reconcile_tenants(self.database.pool(), &logs, &expected).await?;
        let mut report = Report::new(options, found, &faults, &logs);
        report.time(killing, drain);
        report.people(&answered, &resolutions, strangers);
        let incarnations = self.fleet.incarnations();
        report.hosts(&incarnations, said);
        report.trace(self.database.pool(), &incarnations).await?;
        report.count_ends(self.database.pool()).await?;
        Ok(report)
    }

    fn load(&self, options: &Options, calm: &Arc<AtomicBool>, given_up: &Arc<AtomicBool>) -> Load {
        Load {
            fleet: Arc::clone(&self.fleet),
            database: Arc::clone(&self.database),
            plan: self.plan.clone(),
            open_steps: options.open_steps,
            over: Arc::clone(calm),
            given_up: Arc::clone(given_up),
        }
    }

    fn operator(&self, calm: &Arc<AtomicBool>, over: &Arc<AtomicBool>) -> Operator {
        Operator {
            fleet: Arc::clone(&self.fleet),
            database: Arc::clone(&self.database),
            providers: self.providers.clone(),
            plan: self.plan.clone(),
            in_haste: Arc::clone(calm),
            over: Arc::clone(over),
        }
    }

    /// Does to the database what belongs after each kill, until there have been enough.
    async fn database_faults(&self, kills_wanted: u64) -> anyhow::Result<Faults> {
        let (mut kills, mut seen, mut done) = (self.fleet.kills(), 0, Faults::default());
        while seen < kills_wanted {
            let now = *kills.wait_for(|now| *now > seen).await?;
            while seen < now {
                seen += 1;
                if seen % PROGRESS_EVERY == 0 {
                    eprintln!("{seen} kills");
                }
                for fault in self.plan.database_faults(seen) {
                    match fault {
                        DatabaseFault::Restart => {
                            self.database.restart().await?;
                            done.restarts += 1;
                        }
                        DatabaseFault::Terminate(count) => {
                            self.database.terminate(count, seen).await?;
                            done.terminations += 1;
                        }
                        DatabaseFault::Cut(cut) => self.proxy.cut(cut),
                    }
                }
            }
        }
        Ok(done)
    }

    /// Waits until everything has ended, and says how long that took; none if it did not.
    async fn drain(&self, longest: Duration, given_up: &AtomicBool) -> Option<Duration> {
        let begun = Instant::now();
        while begun.elapsed() < longest {
            let open = sqlx::query_scalar::<_, i64>(
                "SELECT (SELECT count(*) FROM open_runs) + (SELECT count(*) FROM receipts WHERE unresolved)
                      + (SELECT count(*) FROM idempotent_requests WHERE status IS NULL)",
            );
            if open.fetch_one(self.database.pool()).await.is_ok_and(|open| open == 0) {
                return Some(begun.elapsed());
            }
            if begun.elapsed() > ANSWERS_MAX {
                given_up.store(true, Ordering::Relaxed);
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        None
    }
}

/// The delays in the workflows.
const TIMERS: [Timer; 3] = [
    Timer { workflow: "lead", node: "wait", delay_ms: work::DELAY_MS },
    Timer { workflow: "claims", node: "a", delay_ms: work::PAUSE_MS },
    Timer { workflow: "claims", node: "b", delay_ms: work::PAUSE_MS },
];

fn host_config(options: &Options, directory: &Path, proxy: &Proxy) -> HostConfig {
    let setting = |name: &str, value: &dyn ToString| (format!("COUNTERFOIL__{name}"), value.to_string());
    let mut environment = vec![
        setting("PEPPER", &hex::encode(PEPPER)),
        setting("EFFECTS__TIMEOUT_MS", &TIMEOUT_MS),
        setting("EFFECTS__ABSENCE_MARGIN_MS", &MARGIN_MS),
        // Few of everything: there are many hosts, and each starts often.
        setting("ENGINE__IN_FLIGHT_MAX", &6),
        setting("ENGINE__POLL_MS", &200),
        setting("ENGINE__DRAIN_MS", &2_000),
        setting("DATABASE__CONNECTIONS_MAX", &2),
    ];
    environment.extend(options.guards.environment());
    HostConfig {
        binary: options.binary.clone(),
        database_url: format!("postgres://counterfoil@{}/counterfoil?sslmode=disable", proxy.address()),
        data_dir: directory.join("hosts"),
        lease_ms: LEASE_MS,
        environment,
    }
}

/// The names of the tenants, for reports.
pub(crate) fn tenant_name(index: usize) -> &'static str {
    TENANTS[index % TENANTS.len()]
}
