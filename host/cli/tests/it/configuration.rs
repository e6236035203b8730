//! Flags over environment over file over defaults, and every finding at once.

use std::fs;

use crate::program::{counterfoil, run};

#[test]
fn every_finding_is_told_at_once_and_before_anything_is_done() -> anyhow::Result<()> {
    let home = tempfile::tempdir()?;
    fs::write(
        home.path().join("counterfoil.toml"),
        "[engine]\nin_flight_max = 0\nlease_ms = 500\n\n[effects]\nprivate_networks = [\"10.0.0.0/8\", \"8.8.8.8/32\"]\n\n[sever]\nlisten = \"x\"\n",
    )?;
    let said = run(counterfoil(home.path())
        .args(["serve", "--data-dir", "made/by/nobody"])
        .env("COUNTERFOIL__SERVER__LISTEN", "everywhere")
        .env("COUNTERFOIL__ENGINE__POLL_MS", "-1")
        .env("DATABASE_URL", "mysql://root@nowhere")
        .env("COUNTERFOIL__LOG__FORMAT", "xml")
        .env("COUNTERFOIL__LOG__FILTER", "a=b=c")
        .env("COUNTERFOIL__PEPPER", "short")
        .env("COUNTERFOIL__ENGINE__LEASEMS", "1")
        .env("COUNTERFOIL_CRASH_AT", "somewhere"));
    insta::assert_snapshot!(said.text(home.path()), @r#"
    --- stderr
    error: the configuration has 12 faults
      COUNTERFOIL__SERVER__LISTEN: invalid socket address syntax
      DATABASE_URL: not an address of the form `postgres://…`
      engine.lease_ms in counterfoil.toml: at least 1000 ms
      engine.in_flight_max in counterfoil.toml: at least 1
      COUNTERFOIL__ENGINE__POLL_MS: a whole number, not below 0, is expected here, and this is `-1`
      effects.private_networks in counterfoil.toml: `8.8.8.8/32`: only networks within 10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16, 100.64.0.0/10 and fc00::/7 can be opened
      COUNTERFOIL_CRASH_AT: `somewhere` is not SITE or SITE:NTH, with or without @runners; sites are before-claim, after-claim, before-prepare, after-dispatch, after-connect, after-first-byte, after-last-byte, mid-answer, before-answer-recorded, after-answer-recorded, in-settle, after-settle
      COUNTERFOIL__LOG__FORMAT: `xml` is neither `text` nor `json`
      COUNTERFOIL__LOG__FILTER: `a=b=c`: error parsing level filter: expected one of "off", "error", "warn", "info", "debug", "trace", or a number 0-5
      COUNTERFOIL__PEPPER: 64 hexadecimal digits, as `openssl rand -hex 32` prints them
      COUNTERFOIL__ENGINE__LEASEMS: there is no such setting; did you mean engine.lease_ms?
      sever.listen in counterfoil.toml: there is no such setting; did you mean server.listen?
    next: counterfoil doctor
    --- exit 2
    "#);
    assert!(!home.path().join("made").exists());
    Ok(())
}

#[test]
fn a_host_for_others_needs_its_secret() -> anyhow::Result<()> {
    let home = tempfile::tempdir()?;
    let said = run(counterfoil(home.path()).args(["serve", "--data-dir", "data"]));
    insta::assert_snapshot!(said.text(home.path()), @r#"
    --- stderr
    error: the configuration has a fault
      COUNTERFOIL__PEPPER: missing, and there is no HOME/data/pepper: all hosts of a database share one secret, 64 hexadecimal digits, as `openssl rand -hex 32` prints them
    next: counterfoil doctor
    --- exit 2
    "#);
    Ok(())
}

#[test]
fn the_strongest_layer_wins_and_doctor_says_which_it_was() -> anyhow::Result<()> {
    let home = tempfile::tempdir()?;
    fs::write(
        home.path().join("other.toml"),
        "[server]\nlisten = \"127.0.0.1:1\"\n[engine]\nlease_ms = 3000\npoll_ms = 70\nrunners = 3\n[data]\ndir = \"file\"\n",
    )?;
    let said = run(counterfoil(home.path())
        .args(["-o", "json", "doctor", "--config", "other.toml", "--data-dir", "flag"])
        .env("COUNTERFOIL__SERVER__LISTEN", "127.0.0.1:2")
        .env("COUNTERFOIL__DATA__DIR", "environment")
        .env("COUNTERFOIL__DATABASE__URL", "postgres://u:weak@127.0.0.1:1/b")
        .env("DATABASE_URL", "postgres://u:secret@127.0.0.1:1/a")
        .env("COUNTERFOIL__PEPPER", "0".repeat(64)));
    let document = said.json();
    let settings = document["settings"].as_array().expect("a list");
    let lines: Vec<String> = settings
        .iter()
        .map(|setting| {
            let text = |name: &str| setting[name].as_str().unwrap_or_default().to_owned();
            format!("{} = {} ({})", text("key"), text("value"), text("origin"))
        })
        .collect();
    insta::assert_snapshot!(lines.join("\n").replace(&*home.path().to_string_lossy(), "HOME"), @r#"
    data.blocks_bytes_max = 4294967296 (default)
    data.dir = flag (--data-dir)
    database.connections_max = 16 (default)
    database.url = postgres://u:***@127.0.0.1:1/a (DATABASE_URL)
    effects.absence_margin_ms = 5000 (default)
    effects.allow_loopback = false (default)
    effects.answer_wait_ms = 1 (default)
    effects.private_networks = none (default)
    effects.timeout_ms = 30000 (default)
    engine.drain_ms = 10000 (default)
    engine.in_flight_max = 256 (default)
    engine.lease_ms = 3000 (engine.lease_ms in other.toml)
    engine.poll_ms = 70 (engine.poll_ms in other.toml)
    engine.renew_ms = 1000 (default)
    engine.runners = 3 (engine.runners in other.toml)
    limits.cpu_ms_max = 1000 (default)
    limits.memory_bytes_max = 67108864 (default)
    limits.wall_ms_max = 120000 (default)
    log.filter = info,sqlx=warn (default)
    log.format = text (default)
    pepper = given, not shown (COUNTERFOIL__PEPPER)
    pepper_file = HOME/flag/pepper (default)
    retention.audit_days = for ever (default)
    retention.events_days = for ever (default)
    retention.finished_runs_days = for ever (default)
    retention.requests_days = for ever (default)
    secret_keys_file = HOME/flag/secret-keys (default)
    server.cookies_secure = false (default)
    server.listen = 127.0.0.1:2 (COUNTERFOIL__SERVER__LISTEN)
    "#);
    let database =
        document["checks"].as_array().expect("a list").iter().find(|check| check["subject"] == "database");
    let database = database.expect("it is looked at");
    assert_eq!(database["state"], "fault", "nobody listens there: {database}");
    assert_eq!((said.code, &document["healthy"]), (Some(1), &serde_json::json!(false)));
    assert!(!said.stdout.contains("secret@") && !said.stderr.contains("secret@"), "{said:?}");
    Ok(())
}
