//! A database of its own for each test, with the migrations applied, in some 20 ms.
//!
//! All of them are on one server: the one that `COUNTERFOIL_TEST_DATABASE_URL` names, whose role may create
//! databases (`scripts/test` starts one for the whole run), or else a private cluster that this process starts and
//! that ends with it. Each database is copied from a template, made once for each state of the migrations.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::Context;
use counterfoil_store::cluster::{Cluster, ClusterConfig, Durability, Launcher};
use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::unistd::{Pid, geteuid};
pub use sqlx::PgPool;
use sqlx::migrate::Migrator;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, PgConnection};
use tokio::sync::OnceCell;

/// Names a server on which tests may create databases.
pub const URL_VARIABLE: &str = "COUNTERFOIL_TEST_DATABASE_URL";

/// The migrations as they are in the tree now.
const MIGRATIONS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../migrations");

/// Taken while a template is made. Any number that nothing else takes.
const TEMPLATE_LOCK: i64 = 0x0063_665f_7465_7374;

/// What `counterfoil __postgres` does, for programs that are not `counterfoil`: the test programs.
const LAUNCH: &str = r#"
user=
while [ "$1" != -- ]; do
    case $1 in
        --uid) user="$user --reuid=$2"; shift ;;
        --gid) user="$user --regid=$2 --clear-groups"; shift ;;
        --parent) shift ;;
    esac
    shift
done
shift
exec setpriv $user --pdeathsig=QUIT "$@"
"#;

static SERVER: OnceCell<Server> = OnceCell::const_new();
static DATABASES: AtomicU32 = AtomicU32::new(0);

/// A database that only one test has. It is dropped with this.
#[derive(Debug)]
pub struct TestDatabase {
    name: String,
    admin: PgConnectOptions,
}

impl TestDatabase {
    /// A fresh, migrated database.
    ///
    /// # Panics
    /// If there is none to be had; the message says why.
    pub async fn new() -> Self {
        match Self::create().await {
            Ok(database) => database,
            Err(error) => panic!("no database for this test: {error:#}"),
        }
    }

    async fn create() -> anyhow::Result<Self> {
        let server = SERVER.get_or_try_init(Server::start).await?;
        Self::copy(&server.admin, &server.template).await
    }

    /// A fresh, migrated database on the server that `admin` leads to.
    ///
    /// # Errors
    /// The server is not there, or its role may not create databases.
    pub async fn on(admin: &PgConnectOptions) -> anyhow::Result<Self> {
        let template = make_template(admin).await.context("making the template database")?;
        Self::copy(admin, &template).await
    }

    async fn copy(admin: &PgConnectOptions, template: &str) -> anyhow::Result<Self> {
        let count = DATABASES.fetch_add(1, Ordering::Relaxed);
        let name = format!("test_{}_{count}_{}", std::process::id(), uuid::Uuid::now_v7().simple());
        let mut connection = admin.connect().await.context("connecting")?;
        // Without fsync, copying the files takes half the time of copying their pages through the log.
        let create = format!(r#"CREATE DATABASE "{name}" TEMPLATE "{template}" STRATEGY FILE_COPY"#);
        execute(&mut connection, create).await?;
        connection.close().await?;
        Ok(Self { name, admin: admin.clone() })
    }

    /// How to connect to it.
    pub fn options(&self) -> PgConnectOptions {
        self.admin.clone().database(&self.name)
    }

    /// The same as a URL, for a host in a process of its own.
    pub fn url(&self) -> String {
        self.options().to_url_lossy().into()
    }

    /// A connection.
    ///
    /// # Panics
    /// If the server is gone.
    pub async fn connect(&self) -> PgConnection {
        self.options().connect().await.expect("the database of this test answers")
    }

    /// A small pool.
    ///
    /// # Panics
    /// If the server is gone.
    pub async fn pool(&self) -> PgPool {
        PgPoolOptions::new()
            .max_connections(8)
            .connect_with(self.options())
            .await
            .expect("the database of this test answers")
    }

    /// Everything that is in its tables, a line for each value: `table.column: value`. Bytes that are text are readable.
    ///
    /// # Panics
    /// If the server is gone.
    pub async fn dump(&self) -> Vec<String> {
        let mut connection = self.connect().await;
        let values: Vec<String> = sqlx::query_scalar(
            r"SELECT format(
                  'SELECT %L || %s FROM %I.%I t WHERE %I IS NOT NULL', table_name || '.' || column_name || ': ',
                  format(CASE WHEN data_type = 'bytea' THEN 'encode(%I, ''escape'')' ELSE '%I::text' END, column_name),
                  table_schema, table_name, column_name)
              FROM information_schema.columns JOIN information_schema.tables USING (table_schema, table_name)
              WHERE table_schema NOT IN ('pg_catalog', 'information_schema') AND table_type = 'BASE TABLE'
              ORDER BY table_schema, table_name, ordinal_position",
        )
        .fetch_all(&mut connection)
        .await
        .expect("the database of this test answers");
        let mut lines = vec![];
        for query in values {
            let found: Vec<String> = sqlx::query_scalar(AssertSqlSafe(query))
                .fetch_all(&mut connection)
                .await
                .expect("the database of this test answers");
            lines.extend(found);
        }
        lines
    }
}

impl Drop for TestDatabase {
    fn drop(&mut self) {
        let (name, admin) = (std::mem::take(&mut self.name), self.admin.clone());
        // The runtime of the test cannot be waited for here. What is left behind if this fails is only space.
        let dropped = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let mut connection = admin.connect().await?;
                execute(&mut connection, format!(r#"DROP DATABASE "{name}" WITH (FORCE)"#)).await
            })
        })
        .join();
        if let Ok(Err(error)) = dropped {
            eprintln!("the database of a test was left behind: {error:#}");
        }
    }
}

struct Server {
    /// Of a database that is not a test's.
    admin: PgConnectOptions,
    template: String,
    /// Ends with the process.
    _private: Option<Cluster>,
}

impl Server {
    async fn start() -> anyhow::Result<Self> {
        let (admin, private): (PgConnectOptions, _) = if let Ok(url) = std::env::var(URL_VARIABLE) {
            (url.parse().with_context(|| format!("{URL_VARIABLE} is no URL"))?, None)
        } else {
            let cluster = start_private().await?;
            (cluster.connect_options(), Some(cluster))
        };
        let template = make_template(&admin).await.context("making the template database")?;
        Ok(Self { admin, template, _private: private })
    }
}

async fn start_private() -> anyhow::Result<Cluster> {
    let base = std::env::temp_dir().join(format!("counterfoil-test-{}", geteuid()));
    std::fs::create_dir_all(&base).with_context(|| format!("making {}", base.display()))?;
    sweep(&base);
    let launcher = Launcher {
        program: PathBuf::from("/bin/sh"),
        args: ["-c", LAUNCH, "sh"].map(OsString::from).to_vec(),
    };
    let dir = base.join(std::process::id().to_string());
    let config = ClusterConfig { dir, launcher, durability: Durability::Volatile };
    Cluster::start(config).await.context("starting a private cluster")
}

/// Removes what earlier test programs left: each named its directory after its process.
fn sweep(base: &Path) {
    let Ok(entries) = std::fs::read_dir(base) else { return };
    for entry in entries.flatten() {
        let pid = entry.file_name().to_str().and_then(|name| name.parse().ok()).map(Pid::from_raw);
        if pid.is_some_and(|pid| kill(pid, None) == Err(Errno::ESRCH)) {
            // Its server may be ending still; the next sweep has another chance.
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// Makes the template of the present migrations, unless it exists.
async fn make_template(admin: &PgConnectOptions) -> anyhow::Result<String> {
    let migrator = Migrator::new(Path::new(MIGRATIONS)).await.context("reading the migrations")?;
    let checksums: Vec<u8> = migrator.iter().flat_map(|migration| migration.checksum.to_vec()).collect();

    let mut connection = admin.connect().await.context("connecting")?;
    // Let go when the connection closes.
    sqlx::query("SELECT pg_advisory_lock($1)").bind(TEMPLATE_LOCK).execute(&mut connection).await?;
    let digest: String =
        sqlx::query_scalar("SELECT md5($1)").bind(checksums).fetch_one(&mut connection).await?;
    let name = format!("counterfoil_template_{digest}");
    let exists: bool = sqlx::query_scalar("SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)")
        .bind(&name)
        .fetch_one(&mut connection)
        .await?;
    if !exists {
        // Only a whole one gets the name.
        let new = format!("{name}_new");
        execute(&mut connection, format!(r#"DROP DATABASE IF EXISTS "{new}" WITH (FORCE)"#)).await?;
        execute(&mut connection, format!(r#"CREATE DATABASE "{new}" TEMPLATE template0"#)).await?;
        let mut inside = admin.clone().database(&new).connect().await?;
        migrator.run(&mut inside).await.context("applying the migrations")?;
        inside.close().await?;
        execute(&mut connection, format!(r#"ALTER DATABASE "{new}" RENAME TO "{name}""#)).await?;
    }
    connection.close().await?;
    Ok(name)
}

/// Runs a statement whose names are made here.
async fn execute(connection: &mut PgConnection, statement: String) -> anyhow::Result<()> {
    let context = statement.clone();
    sqlx::raw_sql(AssertSqlSafe(statement)).execute(connection).await.context(context)?;
    Ok(())
}

/// Changes what no host would.
///
/// # Errors
/// The database refuses.
pub async fn change(connection: &mut PgConnection, statement: &'static str) -> anyhow::Result<()> {
    sqlx::raw_sql(statement).execute(connection).await.context("changing a test's database")?;
    Ok(())
}
