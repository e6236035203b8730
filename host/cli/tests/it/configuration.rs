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
        .env("COUNTERFOIL__LOG__FORMAT", "xml")
        .env("COUNTERFOIL__LOG__FILTER", "a=b=c")
        .env("COUNTERFOIL__PEPPER", "short")
        .env("COUNTERFOIL__ENGINE__LEASEMS", "1")
        .env("COUNTERFOIL_CRASH_AT", "somewhere"));
    insta::assert_snapshot!(said.text(home.path()), @"");
    assert!(!home.path().join("made").exists());
    Ok(())
}

#[test]
fn a_host_for_others_needs_its_secret() -> anyhow::Result<()> {
    let home = tempfile::tempdir()?;
    let said = run(counterfoil(home.path()).args(["serve", "--data-dir", "data"]));
    insta::assert_snapshot!(said.text(home.path()), @"");
    Ok(())
}

#[test]
fn the_strongest_layer_wins_and_doctor_says_which_it_was() -> anyhow::Result<()> {
    let home = tempfile::tempdir()?;
    fs::write(
        home.path().join("other.toml"),
        "[server]\nlisten = \"127.0.0.1:1\"\n[engine]\nlease_ms = 3000\npoll_ms = 70\n[data]\ndir = \"file\"\n",
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
    insta::assert_snapshot!(lines.join("\n").replace(&*home.path().to_string_lossy(), "HOME"), @"");
    let database =
        document["checks"].as_array().expect("a list").iter().find(|check| check["subject"] == "database");
    let database = database.expect("it is looked at");
    assert_eq!(database["state"], "fault", "nobody listens there: {database}");
    assert_eq!((said.code, &document["healthy"]), (Some(1), &serde_json::json!(false)));
    assert!(!said.stdout.contains("secret@") && !said.stderr.contains("secret@"), "{said:?}");
    Ok(())
}
