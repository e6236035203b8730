//! A `counterfoil dev` of its own, and the commands that find it by its data directory.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use counterfoil_testkit::provider::{Act, Provider, ProviderConfig};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::program::{Said, counterfoil, run};
use crate::world::guest;

struct Dev {
    home: TempDir,
    data: PathBuf,
    child: Child,
    banner: Value,
}

impl Dev {
    fn start() -> anyhow::Result<Self> {
        let home = tempfile::tempdir()?;
        // As root, Postgres runs as another user, who must come to its data.
        fs::set_permissions(home.path(), fs::Permissions::from_mode(0o755))?;
        let data = home.path().join("data");
        fs::DirBuilder::new().mode(0o755).create(&data)?;
        let (child, banner) = launch(home.path(), &data)?;
        Ok(Self { home, data, child, banner })
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = counterfoil(self.home.path());
        command.arg("--data-dir").arg(&self.data).args(args);
        command
    }

    fn run(&self, args: &[&str]) -> Said {
        run(&mut self.command(args))
    }

    fn write(&self, name: &str, content: &Value) -> anyhow::Result<()> {
        Ok(fs::write(self.home.path().join(name), content.to_string())?)
    }

    /// Asks it to stop, and waits until it has.
    fn stop(&mut self) -> anyhow::Result<ExitStatus> {
        kill(Pid::from_raw(i32::try_from(self.child.id())?), Signal::SIGTERM)?;
        Ok(self.child.wait()?)
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        // A test that fails leaves it running.
        let _ = self.stop();
    }
}

fn launch(home: &Path, data: &Path) -> anyhow::Result<(Child, Value)> {
    let log = fs::File::create(home.join("dev.log"))?;
    let mut child = counterfoil(home)
        .args(["-o", "json", "dev", "--listen", "127.0.0.1:0", "--data-dir"])
        .arg(data)
        .env("COUNTERFOIL__LOG__FILTER", "warn")
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()?;
    let stdout = BufReader::new(child.stdout.take().context("a pipe")?);
    let mut text = String::new();
    for line in stdout.lines() {
        text.push_str(&line?);
        if let Ok(banner) = serde_json::from_str(&text) {
            return Ok((child, banner));
        }
    }
    let status = child.wait()?;
    let log = fs::read_to_string(home.join("dev.log"))?;
    anyhow::bail!("dev ended with {status} before it was ready: {text}{log}")
}

/// The names of a list's first item.
fn names(list: &Value) -> String {
    let item = list["items"][0].as_object();
    item.map_or_else(
        || "none".to_owned(),
        |item| item.keys().map(String::as_str).collect::<Vec<_>>().join(" "),
    )
}

#[test]
fn dev_leaves_a_key_that_the_other_commands_find() -> anyhow::Result<()> {
    let mut dev = Dev::start()?;
    let key = dev.banner["key"].as_str().context("a new key is shown")?.to_owned();
    assert_eq!(fs::metadata(dev.data.join("dev.json"))?.permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::metadata(dev.data.join("pepper"))?.permissions().mode() & 0o777, 0o600);

    let created = dev.run(&["-o", "json", "key", "create", "--scope", "viewer", "--label", "a test"]).json();
    let viewer = created["key"].as_str().context("shown once")?;
    let id = created["id"].as_str().context("it has an id")?;
    let forbidden = dev.run(&["run", "start", "a", "--key", viewer]);
    assert_eq!((forbidden.code, forbidden.stdout.as_str()), (Some(6), ""), "{}", forbidden.stderr);
    assert!(forbidden.stderr.contains("(forbidden)"), "{}", forbidden.stderr);
    assert_eq!(dev.run(&["run", "list", "--key", viewer]).code, Some(0));
    assert_eq!(dev.run(&["key", "revoke", id]).stdout, format!("{id} is revoked\n"));
    let revoked = dev.run(&["run", "list", "--key", viewer]);
    assert_eq!(revoked.code, Some(6));
    assert!(revoked.stderr.contains("(unauthenticated)"), "{}", revoked.stderr);

    // Another tenant, made in the database of the host that runs, sees nothing of this one.
    let tenant = dev.run(&["-o", "json", "tenant", "create", "acme"]).json();
    let theirs = tenant["key"].as_str().context("shown once")?;
    let keys = dev.run(&["-o", "json", "key", "list", "--key", theirs]).json();
    assert_eq!(keys["items"].as_array().map(Vec::len), Some(1), "{keys}");
    assert_eq!(dev.run(&["tenant", "create", "acme"]).code, Some(6));

    // The host that comes next on this directory knows the key still.
    assert_eq!(dev.stop()?.code(), Some(0), "a host that is told to stop ends well");
    let (child, banner) = launch(dev.home.path(), &dev.data)?;
    dev.child = child;
    assert_eq!(banner["key"], Value::Null);
    assert_eq!(dev.run(&["run", "list", "--key", &key]).code, Some(0));
    Ok(())
}

const STEPS: [(&str, &str, i32); 3] = [
    ("ends", r#"{ "set": { "done": true } }"#, 0),
    ("fails", r#"{ "stop": { "outcome": "failed", "message": "no" } }"#, 3),
    ("waits", r#"{ "delay": "1h" }"#, 5),
];

#[test]
fn the_exit_code_tells_what_became_of_the_run() -> anyhow::Result<()> {
    let dev = Dev::start()?;
    for (name, step, code) in STEPS {
        let step: Value = serde_json::from_str(step)?;
        dev.write("workflow.json", &json!({ "name": name, "steps": [ { "only": step } ] }))?;
        let saved = dev.run(&["-o", "json", "workflow", "push", "workflow.json", "--activate"]);
        assert_eq!((saved.code, &saved.json()["active"]), (Some(0), &json!(1)), "{}", saved.stderr);
        let said = dev.run(&["-o", "json", "run", "start", name, "--wait", "--timeout", "3s"]);
        assert_eq!(said.code, Some(code), "{name}: {said:?}");
        let run = said.json()["run"]["id"].as_str().context("an id")?.to_owned();
        let shown = dev.run(&["run", "show", &run]);
        assert_eq!(shown.code, Some(0));
        assert!(shown.stdout.starts_with(&format!("{run}  {name} v1  ")), "{}", shown.stdout);
        if code == 5 {
            assert_eq!(dev.run(&["-o", "json", "run", "cancel", &run]).json()["state"], "cancelled");
            assert_eq!(dev.run(&["run", "watch", &run]).code, Some(3));
            assert_eq!(dev.run(&["run", "cancel", &run]).code, Some(6), "it has ended");
        }
    }
    // Another version of the last one, with an effect.
    let emit = json!({ "name": "waits", "steps": [ { "only": { "emit": { "event": "a.b" } } } ] });
    dev.write("workflow.json", &emit)?;
    let refused = dev.run(&["workflow", "push", "workflow.json", "--activate"]);
    assert_eq!((refused.code, refused.stdout.as_str()), (Some(6), ""), "{}", refused.stderr);
    assert!(refused.stderr.contains("\n  step only: kind changed (it has effects)\n"), "{}", refused.stderr);
    let next = "  what is different in full: counterfoil workflow diff waits\nnext: counterfoil workflow activate waits --version 2 --accept\n";
    assert!(refused.stderr.ends_with(next), "{}", refused.stderr);
    let diff = dev.run(&["workflow", "diff", "waits"]);
    assert_eq!(
        diff.stdout,
        "waits: v1 to v2\n! step only changed  (it has effects)\n      kind: \"delay\" -> \"emit\"\n"
    );
    assert_eq!(
        dev.run(&["workflow", "diff", "waits", "v1", "2"]),
        diff,
        "as they are shown, or as they are counted"
    );
    for args in [&["diff", "waits", "1", "7"][..], &["activate", "waits", "--version", "v7"]] {
        let missing = dev.run(&[&["workflow"], args].concat());
        let (code, stderr) = (missing.code, missing.stderr);
        assert!(stderr.contains("there is no version 7 of workflow `waits`: its newest is 2\n"), "{stderr}");
        assert!(stderr.ends_with("next: counterfoil workflow show waits\n") && code == Some(1), "{stderr}");
    }
    let share =
        |args: &[&str]| dev.run(&[&["-o", "json", "workflow", "share", "waits"], args].concat()).json();
    assert_eq!(share(&["--in-flight-max", "5"]), json!({ "weight": 1, "in_flight_max": 5 }));
    assert_eq!(share(&["--weight", "2"]), json!({ "weight": 2, "in_flight_max": 5 }));
    assert_eq!(share(&[]), json!({ "weight": 2, "in_flight_max": 5 }), "nothing is reset in passing");
    assert_eq!(dev.run(&["workflow", "activate", "waits", "--accept"]).code, Some(0));
    let missing = dev.run(&["run", "start", "nothing"]);
    assert_eq!(missing.code, Some(1), "{}", missing.stderr);
    assert!(
        missing.stderr.contains("there is no workflow \"nothing\" for this key's tenant"),
        "{}",
        missing.stderr
    );
    dev.write("workflow.json", &json!({ "name": "idle", "steps": [ { "only": { "set": 1 } } ] }))?;
    assert_eq!(dev.run(&["workflow", "push", "workflow.json"]).code, Some(0));
    let idle = dev.run(&["run", "start", "idle"]);
    assert_eq!(idle.code, Some(6));
    assert!(idle.stderr.ends_with("next: counterfoil workflow activate idle\n"), "{}", idle.stderr);
    let alone = json!([ { "a": { "workflow": "nobody" } }, { "b": { "http": { "connection": "none", "method": "GET", "url": "/" } } } ]);
    dev.write("workflow.json", &json!({ "name": "alone", "steps": alone }))?;
    let warned = dev.run(&["workflow", "push", "workflow.json"]);
    assert_eq!(warned.code, Some(0), "{}", warned.stderr);
    for warning in [
        "warning: workflow.json:1:43: no version of a workflow `nobody` is active: the step fails until one is\n",
        "there is no connection `none`: the step cannot call through it until it is set\n",
    ] {
        assert!(warned.stderr.contains(warning), "{}", warned.stderr);
    }
    Ok(())
}

#[test]
fn what_is_asked_is_shown_with_its_form_and_its_wait_is_told_as_one() -> anyhow::Result<()> {
    let dev = Dev::start()?;
    let ask =
        json!({ "approval": { "title": "Refund?", "form": { "type": "object", "required": ["limit"] } } });
    dev.write("ask.json", &json!({ "name": "ask", "steps": [ { "ok": ask } ] }))?;
    assert_eq!(dev.run(&["workflow", "push", "ask.json", "--activate"]).code, Some(0));
    let run = dev.run(&["-o", "json", "run", "start", "ask"]).json();
    let run = run["id"].as_str().context("an id")?;
    let deadline = Instant::now() + Duration::from_secs(30);
    let id = loop {
        let open = dev.run(&["-o", "json", "approval", "list"]).json();
        if let Some(id) = open["items"][0]["id"].as_str() {
            break id.to_owned();
        }
        ensure!(Instant::now() < deadline, "nothing is asked: {open}");
    };
    let shown = dev.run(&["approval", "show", &id]);
    let form = "form      {\"type\":\"object\",\"required\":[\"limit\"]}\n";
    assert!(shown.stdout.contains(form), "{}", shown.stdout);
    assert_eq!(shown.stderr, format!("next: counterfoil approval approve {id} --answer JSON\n"));
    assert_eq!(dev.run(&["approval", "approve", &id, "--answer", "{}"]).code, Some(2));
    let approved = dev.run(&["approval", "approve", &id, "--answer", "{\"limit\":1}"]);
    assert_eq!(approved.code, Some(0), "{}", approved.stderr);
    assert!(approved.stdout.contains("answer    {\"limit\":1}\n"), "{}", approved.stdout);
    assert_eq!(dev.run(&["run", "watch", run, "--timeout", "30s"]).code, Some(0));
    let timeline = dev.run(&["-o", "json", "run", "show", run]).json();
    let spans = timeline["entries"][0]["spans"].as_array().context("what it did")?;
    let phases: Vec<&str> = spans.iter().filter_map(|span| span["phase"].as_str()).collect();
    assert_eq!(phases, ["waiting", "running"], "{timeline}");
    Ok(())
}

#[test]
fn beside_a_dev_the_commands_tell_of_it() -> anyhow::Result<()> {
    let mut dev = Dev::start()?;
    let doctor = dev.run(&["-o", "json", "doctor"]).json();
    let loopback = doctor["settings"].as_array().and_then(|settings| {
        settings.iter().find(|setting| setting["key"] == "effects.allow_loopback").cloned()
    });
    assert_eq!(loopback.context("the setting")?["value"], "true");
    let url = dev.banner["api"].as_str().context("its address")?.trim_end_matches("v1").to_owned();
    let settings = "the settings here are those that `counterfoil dev` would read if it were started now";
    assert_eq!(host_in(&doctor)?, format!("fine: one answers at {url}, and is ready; {settings}"));

    // What a host has against a manifest is told with its file, as it is without a host.
    let program = guest("plain-copy")?;
    let program = program.to_str().context("a path")?;
    for (manifest, places) in [
        (
            json!({ "name": "plain-copy", "input": { "type": "text" }, "output": true }),
            &["/input/type: this is no JSON Schema"][..],
        ),
        (
            json!({ "name": 7, "input": true, "credits": "1" }),
            &["3 faults\n", "`output` is missing\n", "/name: a text", "/credits: a whole number"],
        ),
    ] {
        dev.write("plain.json", &manifest)?;
        let said = dev.run(&["block", "push", program, "--manifest", "plain.json"]);
        assert_eq!((said.code, said.stdout.as_str()), (Some(6), ""), "{}", said.stderr);
        assert!(said.stderr.starts_with("uploading plain-copy ("), "{}", said.stderr);
        for told in [&["error: plain.json: "], places].concat() {
            assert!(said.stderr.contains(told), "{told}: {}", said.stderr);
        }
        assert!(said.stderr.ends_with("next: correct plain.json, and the same again\n"), "{}", said.stderr);
    }
    dev.write("plain.json", &json!({ "name": "copied", "input": true, "output": true }))?;
    let renamed = dev.run(&["block", "push", program, "--manifest", "plain.json"]);
    assert_eq!(renamed.code, Some(0), "{}", renamed.stderr);
    let told = "it calls itself \"copied\"; workflows find it as `plain-copy`, the name of this upload\n";
    assert!(renamed.stderr.ends_with(told), "{}", renamed.stderr);
    // What describes itself wants no other manifest, however right.
    let charge = guest("charge-card")?;
    let charge = charge.to_str().context("a path")?;
    let needless = dev.run(&["block", "push", charge, "--manifest", "plain.json"]);
    assert_eq!(needless.code, Some(6), "{}", needless.stderr);
    assert!(needless.stderr.ends_with("next: the same without --manifest\n"), "{}", needless.stderr);
    let own = dev.run(&["block", "push", charge]);
    assert!(own.code == Some(0) && !own.stderr.contains("calls itself"), "{}", own.stderr);

    dev.stop()?;
    let doctor = dev.run(&["-o", "json", "doctor"]).json();
    assert_eq!(host_in(&doctor)?, format!("note: none answers at {url}; {settings}"));
    Ok(())
}

/// What a doctor says of the host.
fn host_in(doctor: &Value) -> anyhow::Result<String> {
    let checks = doctor["checks"].as_array().context("a list")?;
    let host = checks.iter().find(|check| check["subject"] == "host").context("the host")?;
    let text = |field: &str| host[field].as_str().unwrap_or_default();
    Ok(format!("{}: {}", text("state"), text("detail")))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_effect_is_found_resolved_and_gone_on_from() -> anyhow::Result<()> {
    let provider = Provider::start(ProviderConfig::default()).await?;
    provider.script("/charges", Act::dropped());
    let url = provider.url();
    tokio::task::spawn_blocking(move || resolve(&url)).await??;
    let calls = provider.calls();
    ensure!(calls.len() == 1, "the call was made once: {calls:?}");
    Ok(())
}

fn resolve(provider: &str) -> anyhow::Result<()> {
    let dev = Dev::start()?;
    assert_eq!(dev.run(&["connection", "set", "payments", "--base-url", provider]).code, Some(0));
    let call =
        json!({ "connection": "payments", "method": "POST", "url": "/charges", "body": { "cents": 7 } });
    dev.write("charge.json", &json!({
        "name": "charge", "triggers": [{ "event": "shop.order.placed", "dedup": "every_time" }], "steps": [{ "pay": { "http": call } }],
    }))?;
    assert_eq!(dev.run(&["workflow", "push", "charge.json", "--activate"]).code, Some(0));

    let unheard = dev.run(&["event", "send", "nobody.listens", "--wait", "--timeout", "1s"]);
    assert_eq!((unheard.code, unheard.stdout.as_str()), (Some(5), ""), "{unheard:?}");
    let unheard =
        unheard.stderr.split_whitespace().find(|word| word.starts_with("evt_")).context("its id")?;
    let shown = dev.run(&["event", "show", unheard]);
    let told = "no active workflow had a trigger for `nobody.listens`\n";
    assert!(shown.code == Some(0) && shown.stdout.ends_with(told), "{shown:?}");
    let again = dev.run(&["event", "send", "nobody.listens", "--id", unheard, "--data", "1"]);
    let told = "warning: an event of this id was recorded before with another data: that one stands";
    assert!(again.code == Some(0) && again.stderr.contains(told), "{again:?}");
    let sent = dev.run(&["-o", "json", "event", "send", "shop.order.placed", "--wait", "--timeout", "30s"]);
    assert_eq!(sent.code, Some(0), "{sent:?}");
    let outcomes = sent.json();
    let run = outcomes["outcomes"][0]["run"].as_str().context("it starts a run")?;
    let blocked = dev.run(&["run", "watch", run, "--timeout", "30s"]);
    assert_eq!(blocked.code, Some(4), "{blocked:?}");

    let effects = dev.run(&["-o", "json", "effect", "list", "--state", "unknown"]).json();
    let effect = effects["items"][0]["id"].as_str().context("it is listed")?;
    assert!(
        blocked.stderr.ends_with(&format!("next: counterfoil effect show {effect}\n")),
        "{}",
        blocked.stderr
    );
    let shown = dev.run(&["effect", "show", effect]);
    let advice = format!("\nfind out what happened, then: counterfoil effect resolve {effect}\n");
    assert!(shown.stdout.contains(&advice), "{}", shown.stdout);

    let resolution = [
        "effect",
        "resolve",
        effect,
        "--outcome",
        "verified",
        "--evidence",
        "the log",
        "--body",
        "{\"id\":1}",
    ];
    let dry = dev.run(&[&resolution[..], &["--dry-run"]].concat());
    assert!(dry.stdout.starts_with(&format!("{effect} would be verified\n")), "{dry:?}");
    assert_eq!(dev.run(&["run", "watch", run]).code, Some(4), "nothing has changed");
    let early = ["effect", "resolve", effect, "--outcome", "abandoned", "--evidence", "the log"];
    assert_eq!(dev.run(&early).code, Some(6), "the request may still arrive");

    let left = dev.run(&[&resolution[..], &["--no-resume"]].concat());
    assert!(left.stderr.ends_with(&format!("next: counterfoil run resume {run}\n")), "{left:?}");
    assert_eq!(dev.run(&["run", "resume", run]).stdout, format!("a step of {run} goes on\n"));
    assert_eq!(dev.run(&["run", "watch", run, "--timeout", "30s"]).code, Some(0));
    assert_eq!(dev.run(&resolution).code, Some(6), "it is unknown no more");

    let lost = dev.run(&["effect", "list", "--state", "lost"]);
    let told = "the query cannot be read: `state`: `lost` is not known here; write one of `planned`";
    assert!(lost.code == Some(2) && lost.stderr.contains(told), "{}", lost.stderr);
    let ftp = dev.run(&["connection", "set", "files", "--base-url", "ftp://example.com"]);
    let told = "a connection's begins with https://, http://, smtps:// or smtp://";
    assert!(ftp.code == Some(2) && ftp.stderr.contains(told), "{}", ftp.stderr);
    let mut lists = vec![];
    for noun in ["run", "effect", "workflow", "connection", "block", "key"] {
        let said = dev.run(&["-o", "json", noun, "list"]);
        assert_eq!((said.code, said.stderr.as_str()), (Some(0), ""), "{noun}");
        lists.push(format!("{noun}: {}", names(&said.json())));
    }
    insta::assert_snapshot!(lists.join("\n"), @r#"
    run: id workflow version state record trigger event_id admitted_at ended_at
    effect: id run workflow node iteration slot dispatch_number kind safety connection state summary reason prepared_at dispatched_at answered_at resolved_at absence_known_at
    workflow: id name paused active newest
    connection: name base_url allowed_hosts abilities rate in_flight_max secrets updated_at
    block: none
    key: id prefix scope label created_at revoked_at
    "#);
    Ok(())
}
