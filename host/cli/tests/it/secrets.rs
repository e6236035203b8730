//! Secrets of connections, over a real host: they reach the provider and are found nowhere else; and their keys rotate.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, ensure};
use counterfoil_testkit::host::{Host, HostConfig, PATIENCE};
use counterfoil_testkit::http;
use counterfoil_testkit::provider::{Act, Call};
use serde_json::{Value, json};

use crate::program::{Said, counterfoil, run};
use crate::world::World;

const HEADER: &str = "Bearer canary-7d41c09be2";
const TOKEN: &str = "canary-0aa35f6c11";
const PASSWORD: &str = "canary-e6b80d9f27";

/// Whatever shows any of them, as it is or in base64.
const TRACES: [&str; 3] = ["canary-", "Y2FuYXJ5", "63616e617279"];

impl World {
    fn data_dir(&self) -> PathBuf {
        self.directory.path().join("host")
    }

    fn keys_file(&self) -> PathBuf {
        self.data_dir().join("secret-keys")
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = counterfoil(self.directory.path());
        command.env("DATABASE_URL", self.database.url()).arg("--data-dir").arg(self.data_dir()).args(args);
        command
    }

    fn run(&self, args: &[&str]) -> Said {
        run(&mut self.command(args))
    }

    /// Sets a connection by command, with secrets that the command reads from where only its owner looks.
    fn connect(&self, host: &Host, name: &str, url: &str) -> anyhow::Result<()> {
        fs::write(self.directory.path().join("header"), format!("{HEADER}\n"))?;
        let set = ["connection", "set", name, "--base-url", url, "--url", host.base(), "--key", &self.key];
        let secrets = [
            "--secret",
            "header:Authorization=@header",
            "--secret",
            "header:X-Api-Token=env:TOKEN",
            "--secret",
            "password=env:PASSWORD",
        ];
        let said =
            run(self.command(&[&set[..], &secrets].concat()).env("TOKEN", TOKEN).env("PASSWORD", PASSWORD));
        ensure!(said.code == Some(0), "{said:?}");
        let said = said.text(self.directory.path());
        ensure!(said.contains("header:authorization") && !shows(&said), "{said}");
        Ok(())
    }
}

fn shows(text: &str) -> bool {
    TRACES.iter().any(|trace| text.contains(trace))
}

fn is_authorized(call: &Call) -> bool {
    call.header("authorization") == Some(HEADER) && call.header("x-api-token") == Some(TOKEN)
}

/// A workflow of one call that ends the run with whatever it was told.
fn calls(name: &str, connection: &str, path: &str) -> Value {
    let call = json!({ "connection": connection, "method": "POST", "url": path, "body": { "order": "=input.order" } });
    json!({ "name": name, "steps": [{ "only": { "http": call, "retry": { "attempts": 1 } } }] })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_secret_is_at_the_provider_and_nowhere_else() -> anyhow::Result<()> {
    let world = World::new("canary").await?;
    assert_eq!(world.run(&["secret", "add-key"]).code, Some(0));
    let config = world.host(15_000).with("COUNTERFOIL__LOG__FILTER", &"trace");
    let host = Host::start(&config, &world.key).await?;
    for name in ["payments", "crm"] {
        world.connect(&host, name, &world.provider.url())?;
    }
    let closed = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    world.connect(&host, "closed", &format!("http://127.0.0.1:{closed}"))?;

    // A provider that shows whatever it was sent, where it can.
    let echo = |id: &str| json!({ "id": id, "seen": [HEADER, TOKEN], "receipt_id": TOKEN }).to_string();
    let said =
        vec![("x-request-id".to_owned(), TOKEN.to_owned()), ("set-cookie".to_owned(), TOKEN.to_owned())];
    let company = json!({ "domain": TOKEN, "tier": HEADER, "employees": 7 }).to_string();
    world.provider.script("/companies/a.example", Act { body: Some(company), ..Act::default() });
    for path in ["/charges", "/answered"] {
        world
            .provider
            .script(path, Act { body: Some(echo(HEADER)), headers: said.clone(), ..Act::status(201) });
    }
    world
        .provider
        .script("/refused", Act { body: Some(echo("r")), headers: said.clone(), ..Act::status(422) });
    world.provider.script("/lost", Act { body: Some(echo("l")), cut_at: Some(150), ..Act::default() });

    let mut runs = vec![];
    let order = json!({ "order": "o-1", "cents": 5, "domain": "a.example" });
    for (workflow, state) in [("charge-card", "succeeded"), ("enrich-lead", "succeeded")] {
        runs.push(ended(&host, workflow, &order, state).await?);
    }
    for (workflow, connection, path, state) in [
        ("answered", "payments", "/answered", "succeeded"),
        ("refused", "payments", "/refused", "failed"),
        ("lost", "payments", "/lost", "blocked"),
        ("unreachable", "closed", "/x", "failed"),
        ("outside", "payments", "https://elsewhere.example/", "failed"),
    ] {
        host.activate(&calls(workflow, connection, path)).await?;
        runs.push(ended(&host, workflow, &order, state).await?);
    }

    let calls = world.provider.calls();
    assert_eq!(calls.len(), 5, "{calls:#?}");
    assert!(calls.iter().all(is_authorized), "{calls:#?}");
    let mut places: Vec<(String, String)> =
        world.database.dump().await.into_iter().map(|line| ("the database".to_owned(), line)).collect();
    assert!(
        places.iter().any(|(_, line)| line.starts_with("connection_secrets.sealed: ")),
        "it is there, sealed"
    );
    places.extend(answers(&world, &host, &runs).await?);
    let log = host.log();
    assert!(log.contains("DEBUG"), "the log has everything that there is to log");
    places.extend(log.lines().map(|line| ("the host's log".to_owned(), line.to_owned())));
    let shown: Vec<_> = places.iter().filter(|(_, text)| shows(text)).collect();
    assert!(shown.is_empty(), "{} places show a secret: {shown:#?}", shown.len());
    println!("looked at {} texts", places.len());
    host.kill().await
}

async fn ended(host: &Host, workflow: &str, input: &Value, state: &str) -> anyhow::Result<String> {
    let run = host.start_run(workflow, input).await?;
    host.wait_for_run(&run, &[state]).await.with_context(|| format!("running {workflow}"))?;
    Ok(run)
}

/// What the API, the pages and the metrics say, by path.
async fn answers(world: &World, host: &Host, runs: &[String]) -> anyhow::Result<Vec<(String, String)>> {
    let form = format!("key={}", world.key);
    let headers = [("content-type", "application/x-www-form-urlencoded"), ("sec-fetch-site", "same-origin")];
    let session = http::send(host.base(), "POST", "/login", &headers, form).await?;
    ensure!(session.status == 303, "signing in: {session:?}");
    let effects = host.call("GET", "/v1/effects", &Value::Null).await?;
    let effects = effects["items"].as_array().context("a list")?.clone();
    ensure!(effects.len() == runs.len(), "one a run: {effects:#?}");

    let mut paths: Vec<String> =
        ["/metrics", "/openapi.json", "/v1/connections", "/v1/runs", "/v1/effects", "/runs", "/effects", "/"]
            .map(str::to_owned)
            .into();
    paths.extend(["payments", "crm", "closed"].map(|name| format!("/v1/connections/{name}")));
    for run in runs {
        paths.extend(["", "/timeline", "/effects"].map(|part| format!("/v1/runs/{run}{part}")));
        paths.push(format!("/runs/{run}"));
    }
    for effect in &effects {
        let id = effect["id"].as_str().context("an id")?;
        paths.extend([format!("/v1/effects/{id}"), format!("/effects/{id}")]);
    }
    let mut answers = vec![];
    let authorization = format!("Bearer {}", world.key);
    for path in paths {
        let own = if path.starts_with("/v1/") {
            ("authorization", authorization.as_str())
        } else {
            ("cookie", session.cookie.as_str())
        };
        let reply = http::send(host.base(), "GET", &path, &[own], "").await?;
        ensure!(reply.status == 200, "{path}: {reply:?}");
        answers.push((path, String::from_utf8_lossy(&reply.body).into_owned()));
    }
    Ok(answers)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_moved_or_changed_sends_nothing_until_it_is_mended() -> anyhow::Result<()> {
    let world = World::new("moved").await?;
    assert_eq!(world.run(&["secret", "add-key"]).code, Some(0));
    let host = Host::start(&world.host(15_000), &world.key).await?;
    world.connect(&host, "payments", &world.provider.url())?;
    // A row of another connection: whoever can write to the database could send it elsewhere.
    let moved = "INSERT INTO connection_secrets (tenant_id, connection, name, key_id, sealed)
        SELECT tenant_id, 'crm', name, key_id, sealed FROM connection_secrets";
    let mut connection = world.database.connect().await;
    counterfoil_testkit::postgres::change(&mut connection, moved).await?;
    let started = host.start_run("enrich-lead", &json!({ "domain": "a.example" })).await?;
    let begun = Instant::now();
    while !host.log().contains("the secrets of a connection do not open") {
        ensure!(begun.elapsed() < PATIENCE, "nobody says so:\n{}", host.log());
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert!(host.log().contains("does not open with the key"), "{}", host.log());
    assert_eq!(world.provider.calls(), [], "nothing is sent without its credentials");
    let body = json!({ "base_url": world.provider.url(), "secrets": null });
    host.call("PUT", "/v1/connections/crm", &body).await?;
    host.wait_for_run(&started, &["succeeded"]).await?;
    assert_eq!(world.provider.calls().len(), 1);
    host.kill().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_rotate_while_hosts_work_and_can_be_removed_afterwards() -> anyhow::Result<()> {
    let world = World::new("rotation").await?;
    let without = world.run(&["-o", "json", "secret", "rotate"]);
    assert_eq!(without.code, Some(1), "{without:?}");
    assert!(without.stderr.contains("restore the file from its backup"), "{}", without.stderr);
    let config = world.host(15_000);
    let host = Host::start(&config, &world.key).await?;
    let body = json!({ "base_url": world.provider.url(), "secrets": { "password": PASSWORD } });
    let refused = host.send("PUT", "/v1/connections/payments", &body).await?;
    assert_eq!((refused.status, &refused.json()?["code"]), (503, &json!("secret_key_missing")));

    let first = world.run(&["-o", "json", "secret", "add-key"]).json();
    assert_eq!(
        std::os::unix::fs::PermissionsExt::mode(&fs::metadata(world.keys_file())?.permissions()) & 0o777,
        0o600
    );
    world.connect(&host, "payments", &world.provider.url())?;
    let order = json!({ "order": "o-1", "cents": 5 });
    ended(&host, "charge-card", &order, "succeeded").await?;

    // Broken off behind the new key: the next one finishes it, and makes no other.
    let second = world.run(&["-o", "json", "secret", "add-key"]).json();
    let rotated = world.run(&["-o", "json", "secret", "rotate"]).json();
    let expected = json!({ "key": second["key"], "file": world.keys_file(), "sealed_anew": 3, "unused_keys": [first["key"]] });
    assert_eq!(rotated, expected);
    // To look whether anything is left makes no key.
    let looked = world.run(&["-o", "json", "secret", "rotate", "--no-new-key"]).json();
    assert_eq!((&looked["key"], &looked["sealed_anew"]), (&second["key"], &json!(0)));
    ended(&host, "charge-card", &order, "succeeded").await?;
    let again = world.run(&["-o", "json", "secret", "rotate"]).json();
    assert_eq!((&again["sealed_anew"], again["unused_keys"].as_array().map(Vec::len)), (&json!(3), Some(2)));

    // Without the old keys, also in a host that has never seen them.
    let text = fs::read_to_string(world.keys_file())?;
    let newest: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).take(1).collect();
    fs::write(world.keys_file(), newest[0])?;
    host.kill().await?;
    let host = Host::start(&config, &world.key).await?;
    ended(&host, "charge-card", &order, "succeeded").await?;
    assert_eq!(world.provider.calls().len(), 3);
    assert!(world.provider.calls().iter().all(is_authorized), "{:#?}", world.provider.calls());
    host.kill().await?;

    // A host without the keys says what it lacks, and does not start.
    let kept = fs::read(world.keys_file())?;
    fs::remove_file(world.keys_file())?;
    let lacking = serve(&world, &config);
    assert_eq!(lacking.code, Some(2), "{lacking:?}");
    let key = newest[0].split(' ').next().context("a key has an id")?;
    insta::assert_snapshot!(lacking.text(world.directory.path()).replace(key, "KEY"), @r"
    --- stderr
    error: connections have secrets that are sealed with KEY, not in HOME/host/secret-keys
      copy the file from another host of this database, or from where it is kept
      if it is lost, make a new one and set every connection's secrets again
    next: counterfoil secret add-key
    --- exit 2
    ");
    // So does one with another key, and whoever looks or rotates is told.
    assert_eq!(world.run(&["secret", "add-key"]).code, Some(0));
    assert_eq!(serve(&world, &config), lacking);
    let doctor = world.run(&["doctor"]);
    assert!(doctor.stdout.contains("✗ sealed secrets: some are sealed with"), "{}", doctor.stdout);
    let lost = world.run(&["secret", "rotate"]);
    assert_eq!(lost.code, Some(1), "{lost:?}");
    assert!(lost.stderr.contains("3 secrets do not open"), "{}", lost.stderr);
    fs::write(world.keys_file(), kept)?;
    let mended = world.run(&["-o", "json", "secret", "rotate"]).json();
    assert_eq!(mended["sealed_anew"], json!(3));
    Ok(())
}

/// A host that ends by itself.
fn serve(world: &World, config: &HostConfig) -> Said {
    run(world.command(&["serve", "--listen", "127.0.0.1:0"]).envs(config.environment.iter().cloned()))
}
