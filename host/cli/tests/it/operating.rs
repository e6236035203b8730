//! What an operator is told of hosts and databases that are not as they should be.

use std::net::TcpListener;

use anyhow::Context as _;
use counterfoil_testkit::host::Host;
use counterfoil_testkit::postgres::{TestDatabase, change};
use counterfoil_testkit::tenant::PEPPER;
use nix::sys::signal::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::program::{Said, counterfoil, run};
use crate::world::World;

/// What `doctor` says of a subject: its state, and the rest.
fn of(said: &Said, subject: &str) -> Option<(String, String)> {
    let document = said.json();
    let check = document["checks"].as_array()?.iter().find(|check| check["subject"] == subject)?;
    let text = |name: &str| check[name].as_str().map(str::to_owned);
    text("state").zip(text("detail"))
}

fn doctor(home: &TempDir, environment: &[(&str, &str)]) -> Said {
    run(counterfoil(home.path()).args(["-o", "json", "doctor"]).envs(environment.iter().copied()))
}

#[tokio::test]
async fn a_host_serves_on_the_tables_of_its_version_or_a_newer_one_and_on_no_others() -> anyhow::Result<()> {
    let database = TestDatabase::new().await;
    let mut connection = database.connect().await;
    let (home, url) = (tempfile::tempdir()?, database.url());
    for statement in [
        "CREATE TABLE last AS SELECT * FROM _sqlx_migrations ORDER BY version DESC LIMIT 1",
        "DELETE FROM _sqlx_migrations m USING last WHERE m.version = last.version",
    ] {
        change(&mut connection, statement).await?;
    }
    let serve = |command: &mut std::process::Command| {
        run(command.env("DATABASE_URL", &url).env("COUNTERFOIL__PEPPER", hex::encode(PEPPER)))
    };
    let refused = serve(counterfoil(home.path()).args(["serve", "--listen", "127.0.0.1:0"]));
    assert_eq!(
        refused.text(home.path()).replace(&url, "URL"),
        "--- stderr\nerror: the database has not the tables of this version\n  URL\nnext: counterfoil migrate    (or `counterfoil dev`, which does that too)\n--- exit 1"
    );
    let told = doctor(&home, &[("DATABASE_URL", &url)]);
    let missing = "not up to date, so that no host of this version serves: counterfoil migrate";
    assert_eq!(of(&told, "tables"), Some(("fault".into(), missing.into())));
    assert_eq!((of(&told, "sealed secrets"), of(&told, "finished runs")), (None, None), "nobody can know");

    for statement in [
        "INSERT INTO _sqlx_migrations SELECT * FROM last",
        "UPDATE last SET version = 9999",
        "INSERT INTO _sqlx_migrations SELECT * FROM last",
    ] {
        change(&mut connection, statement).await?;
    }
    let told = doctor(&home, &[("DATABASE_URL", &url)]);
    let newer = "those of a newer version than this program; its hosts go on with their own";
    assert_eq!(of(&told, "tables"), Some(("note".into(), newer.into())));
    let world = World::over(database, "newer").await?;
    let host = Host::start(&world.host(15_000), &world.key).await?;
    assert!(host.log().contains("goes on with its own"), "{}", host.log());
    host.call("GET", "/v1/runs", &Value::Null).await?;
    host.kill().await
}

#[test]
fn a_database_that_cannot_be_reached_is_named_with_the_reason() -> anyhow::Result<()> {
    let home = tempfile::tempdir()?;
    let free = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let url = format!("postgres://ada:secret@{free}/acme");
    let shown = format!("postgres://ada:***@{free}/acme");
    let why =
        "no connection could be made: error communicating with database: Connection refused (os error 111)";
    let look = "look whether a Postgres runs there, has that database, and lets that user in";
    let said = run(counterfoil(home.path())
        .args(["serve", "--listen", "127.0.0.1:0"])
        .env("DATABASE_URL", &url)
        .env("COUNTERFOIL__PEPPER", hex::encode(PEPPER)));
    assert_eq!(
        said.text(home.path()),
        format!(
            "--- stderr\nerror: the database cannot be reached\n  {shown}: {why}\n  {look}\nnext: counterfoil doctor\n--- exit 1"
        )
    );
    let told = doctor(&home, &[("DATABASE_URL", &url)]);
    let all = format!("the database cannot be reached; {shown}: {why}; {look}");
    assert_eq!(of(&told, "database"), Some(("fault".into(), all)));
    for subject in ["clocks", "tables", "sealed secrets", "finished runs"] {
        assert_eq!(of(&told, subject), None, "nobody can know");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_is_told_from_a_frozen_one_from_a_stranger_and_from_nobody() -> anyhow::Result<()> {
    let world = World::bare("told").await?;
    let host = Host::start(&world.host(15_000), &world.key).await?;
    let url = format!("{}/", host.base().trim_end_matches('/'));
    let address = url.trim_start_matches("http://").trim_end_matches('/').to_owned();
    let home = tempfile::tempdir()?;
    let database = world.database.url();
    let look = |listen: &str, commands: &str| {
        let told = doctor(
            &home,
            &[
                ("DATABASE_URL", &database),
                ("COUNTERFOIL__SERVER__LISTEN", listen),
                ("COUNTERFOIL_URL", commands),
            ],
        );
        let first = |(state, detail): (String, String)| {
            (state, detail.split("; ").next().unwrap_or_default().replace(&url, "URL"))
        };
        (of(&told, "host").map(first), of(&told, "host of commands").map(first))
    };
    let said = |state: &str, detail: &str| Some((state.to_owned(), detail.to_owned()));
    let ready = said("fine", "one answers at URL, and is ready");
    assert_eq!(look(&address, ""), (ready.clone(), None));
    assert_eq!(look(&address, &url), (ready.clone(), None), "it is the same");
    let any = said("note", "server.listen = 127.0.0.1:0 is any free port, so that none is looked for");
    assert_eq!(look("127.0.0.1:0", &url), (any, ready));

    host.signal(Signal::SIGSTOP)?;
    let frozen = look(&address, "");
    host.signal(Signal::SIGCONT)?;
    let silent = "something listens at URL and says nothing for 3 s: a host that is frozen or overloaded, whose steps others take over when its leases run out, or another program";
    assert_eq!(frozen, (said("fault", silent), None));
    host.kill().await?;
    assert_eq!(look(&address, ""), (said("note", "none answers at URL"), None));

    for (answer, detail) in [
        ("", "took the connection and broke it off: a host that is stopping, or another program"),
        ("SSH-2.0-x\r\n", "is no Counterfoil host"),
        ("HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n", "is no Counterfoil host"),
    ] {
        let stranger = Stranger::start(answer)?;
        let (told, _) = look(&stranger.address, "");
        let (state, told) = told.context("a line")?;
        assert!(state == "fault" && told.ends_with(detail), "{answer:?}: {told}");
    }
    Ok(())
}

/// Reads a request, answers it so, and hangs up.
struct Stranger {
    address: String,
}

impl Stranger {
    fn start(answer: &'static str) -> anyhow::Result<Self> {
        use std::io::{Read as _, Write as _};
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?.to_string();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept()?;
            let _ = stream.read(&mut [0; 1024])?;
            stream.write_all(answer.as_bytes())
        });
        Ok(Self { address })
    }
}
