//! `block test` and `block inspect` with real components, in the sandbox of a host and without a host.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use counterfoil_domain::effect::{EffectCall, EffectRequest, HttpRequest};
use counterfoil_testkit::guest::{EFFECT_AT, EFFECT_RESULT_AT, Guest, component};
use serde_json::{Value, json};

use crate::program::{Said, counterfoil, run};
use crate::world::guest;

fn scenarios(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guest-examples").join(name).join("scenarios")
}

fn test(home: &Path, component: &Path, scenarios: &Path, more: &[&str]) -> Said {
    let mut command = counterfoil(home);
    command.args(["block", "test"]).arg(component).arg("--scenarios").arg(scenarios).args(more);
    run(&mut command)
}

#[test]
fn the_scenarios_of_the_examples_hold_with_the_component_that_a_host_runs() -> anyhow::Result<()> {
    let home = tempfile::tempdir()?;
    for (name, count, reruns) in [
        ("charge-card", 2, 4),
        ("charge-card-verified", 2, 4),
        ("count-order", 1, 4),
        ("enrich-lead", 1, 2),
        ("place-order", 1, 4),
        ("two-effects", 1, 3),
    ] {
        let said = test(home.path(), &guest(name)?, &scenarios(name), &["-o", "json"]);
        assert_eq!(said.code, Some(0), "{name}: {}", said.text(home.path()));
        let record = said.json();
        let played = record["scenarios"].as_array().map(Vec::as_slice).unwrap_or_default();
        let rerun: u64 = played.iter().filter_map(|played| played["reruns"].as_u64()).sum();
        assert_eq!((played.len(), rerun, &record["failed"]), (count, reruns, &json!(0)), "{name}: {record}");
    }
    Ok(())
}

#[test]
fn what_does_not_hold_is_shown_where_it_is_written() -> anyhow::Result<()> {
    let home = tempfile::tempdir()?;
    let file = home.path().join("lost.yaml");
    let text = fs::read_to_string(scenarios("charge-card").join("lost-answer.yaml"))?;
    let (charge, other) = (guest("charge-card")?, guest("enrich-lead")?);
    for (from, to, block, code, expected) in [
        (
            "",
            "",
            &charge,
            0,
            "ok      a charge whose answer is lost is not sent again\n--- stderr\n1 of 1 scenarios hold",
        ),
        (
            "state: unknown",
            "state: committed",
            &charge,
            1,
            "expected  \"committed\"\n          found     \"unknown\"\n",
        ),
        ("output: { id: ch_1 }", "output: { id: ch_2 }", &charge, 1, "/lost.yaml:18:21: it came otherwise\n"),
        ("evidence: the", "evidence: ''\n      # the", &charge, 1, "say how it is known"),
        (
            "to: charge,",
            "to: charged,",
            &charge,
            1,
            "no answer is scripted for call 1, `POST /charges` of the effect `charge`",
        ),
        (
            "answers:\n",
            "answers:\n  - { to: \"POST /refunds\", status: 200 }\n",
            &charge,
            1,
            "expected  a call that this answers\n          found     none\n",
        ),
        ("expect:\n", "drop_answer: [7]\nexpect:\n", &charge, 1, "expected  a call of this number\n"),
        ("effect: charge,", "efect: charge,", &charge, 2, "lost.yaml:9:9: there is no `efect` here"),
        (
            "",
            "",
            &other,
            1,
            "the failure input_invalid: the input is not what the block takes: /: \"domain\" is a required",
        ),
    ] {
        fs::write(&file, text.replacen(from, to, 1))?;
        let said = test(home.path(), block, &file, &[]);
        assert_eq!(said.code, Some(code), "{to}: {}", said.text(home.path()));
        let text = said.text(home.path());
        assert!(text.contains(expected), "{to}: {text}");
    }
    let refused = fs::read_to_string(scenarios("charge-card").join("refused.yaml"))?;
    fs::write(&file, refused.replace("failed: rejected", "output: 1"))?;
    let text = test(home.path(), &charge, &file, &[]).text(home.path());
    assert!(
        text.contains("was told  `POST /charges` of `charge`: the receiver refused it with 402"),
        "{text}"
    );
    let nowhere = test(home.path(), &charge, &home.path().join("nowhere"), &[]);
    assert_eq!(nowhere.code, Some(1), "{}", nowhere.text(home.path()));
    Ok(())
}

fn call(request: EffectRequest, key: Option<&str>) -> EffectCall {
    EffectCall {
        request,
        key: key.map(Into::into),
        connection: None,
        safety: None,
        idempotency_key: None,
        timeout_ms: None,
        extra: vec![],
    }
}

#[test]
fn work_for_a_worker_is_played_as_a_host_has_it_done() -> anyhow::Result<()> {
    let home = tempfile::tempdir()?;
    let work = EffectRequest::Worker { queue: "papers".into(), input: r#"{"order":"o-1"}"#.into() };
    let mut guest = Guest::echo();
    let output = guest.text("1");
    let body =
        format!("(call $perform (i32.const {EFFECT_AT}) (i32.const {EFFECT_RESULT_AT})) (call $ok {output})");
    let descriptor = r#"{"name":"handing","input":true,"output":true,"effects":[{"kind":"worker","safety":"at-most-once"}]}"#;
    let mut handing = call(work, Some("label"));
    handing.extra = vec![("claim-within-ms".into(), "60000".into())];
    handing.timeout_ms = Some(60_000);
    let block = home.path().join("handing.wasm");
    fs::write(&block, guest.running_instead(body).describing(descriptor).holding(&handing).build())?;
    let done = json!({ "to": "label", "status": 200, "json": { "pages": 3 } });
    let refused = json!({ "to": "label", "status": 422, "json": { "code": "no-paper", "message": "" } });
    let receipts = |states: &[&str]| -> Value {
        let receipt = |state| json!({ "effect": "label", "kind": "worker", "attempt": 1, "state": state });
        states.iter().map(receipt).collect()
    };
    let seen = json!([{ "effect": "label", "request": "worker papers", "json": { "order": "o-1" } }]);
    let goes_on = json!({ "output": 1, "receipts": receipts(&["committed"]), "calls": seen });
    let blocked = json!({ "blocked": true, "receipts": receipts(&["unknown"]) });
    let again = json!({ "output": 1, "receipts": receipts(&["abandoned", "committed"]) });
    let absent = json!({ "effect": "label", "outcome": "abandoned", "evidence": "it is not there" });
    let then = json!([{ "advance": "2m20s", "resolve": absent, "expect": again }]);
    for (name, scenario) in [
        ("it is done", json!({ "answers": [done], "expect": goes_on })),
        ("a host dies", json!({ "answers": [done], "crash_before_answer": [1], "expect": goes_on })),
        (
            "its worker refuses",
            json!({ "answers": [refused], "expect": { "output": 1, "receipts": receipts(&["rejected"]) } }),
        ),
        (
            "nobody takes it",
            json!({
                "answers": [{ "not_sent": true }],
                "expect": { "output": 1, "calls": [], "receipts": receipts(&["rejected"]) },
            }),
        ),
        (
            "its worker is lost",
            json!({ "answers": [done], "drop_answer": [1], "expect": blocked, "then": then }),
        ),
    ] {
        let file = home.path().join("work.json");
        let mut scenario = scenario;
        scenario["input"] = json!({});
        fs::write(&file, scenario.to_string())?;
        let said = test(home.path(), &block, &file, &[]);
        assert_eq!(said.code, Some(0), "{name}: {}", said.text(home.path()));
    }
    Ok(())
}

/// A call that the guest makes as often as it is told to.
fn calling(times: u32) -> Guest {
    let look = HttpRequest {
        method: "GET".into(),
        url: "https://a.example.com/".into(),
        headers: vec![],
        body: vec![],
    };
    let call = call(EffectRequest::Http(look), None);
    let mut guest = Guest::echo();
    let output = guest.text("1");
    let body = format!(
        "(local $i i32)
         (loop $again
           (call $perform (i32.const {EFFECT_AT}) (i32.const {EFFECT_RESULT_AT}))
           (local.set $i (i32.add (local.get $i) (i32.const 1)))
           (br_if $again (i32.lt_u (local.get $i) (i32.const {times}))))
         (call $ok {output})"
    );
    let descriptor = r#"{"name":"calling","input":true,"output":true,"effects":[{"kind":"http","safety":"read-only","hosts":["a.example.com"]}]}"#;
    guest.running_instead(body).describing(descriptor).holding(&call)
}

#[test]
fn a_block_meets_the_limits_of_a_host_on_its_authors_machine() -> anyhow::Result<()> {
    let home = tempfile::tempdir()?;
    let endless = Guest::running("(loop $for-ever (br $for-ever)) (unreachable)");
    let greedy = |mib: u32| {
        let mut guest = Guest::echo();
        let output = guest.text("1");
        guest.running_instead(format!(
            "(if (i32.lt_s (memory.grow (i32.const {})) (i32.const 0)) (then (unreachable))) (call $ok {output})",
            mib * 16
        ))
    };
    let all = |count: usize| {
        let each = (0..count).map(|nth| json!({ "effect": format!("#{nth}") })).collect::<Vec<_>>();
        json!({ "output": 1, "calls": each })
    };
    let failed = |code: &str| json!({ "failed": code });
    for (guest, flags, expect) in [
        // The limits of a host, with no flag at all.
        (endless.clone(), &[][..], failed("cpu_limit")),
        (greedy(60), &[], json!({ "output": 1 })),
        (greedy(64), &[], failed("memory_limit")),
        (calling(1), &[], all(1)),
        (calling(64), &[], all(64)),
        (calling(70), &[], all(64)),
        // And of a tenant that is granted less.
        (greedy(8), &["--memory-mib", "8"], failed("memory_limit")),
        (greedy(7), &["--memory-mib", "8"], json!({ "output": 1 })),
        (endless.clone(), &["--cpu-ms", "50"], failed("cpu_limit")),
        (endless, &["--wall-ms", "50"], failed("wall_limit")),
        // More than a host grants is not to be had.
        (greedy(64), &["--memory-mib", "4096"], failed("memory_limit")),
    ] {
        let (block, file) = (home.path().join("guest.wasm"), home.path().join("limit.json"));
        fs::write(&block, guest.build())?;
        let answers = json!([{ "status": 200 }]);
        fs::write(&file, json!({ "input": {}, "answers": answers, "expect": expect }).to_string())?;
        let said = test(home.path(), &block, &file, flags);
        assert_eq!(said.code, Some(0), "{flags:?} {expect}: {}", said.text(home.path()));
    }
    Ok(())
}

#[test]
fn the_scenarios_of_a_program_are_played_with_its_manifest() -> anyhow::Result<()> {
    let home = tempfile::tempdir()?;
    let (program, manifest) = (guest("plain-copy")?, home.path().join("plain.json"));
    let scenarios = home.path().join("copies.yaml");
    fs::write(&scenarios, "input: { a: 1 }\nexpect: { output: { a: 1 } }\n")?;
    let missing = test(home.path(), &program, &scenarios, &[]);
    assert_eq!(missing.code, Some(6), "{}", missing.text(home.path()));
    assert!(missing.stderr.contains("(manifest_missing)"), "{}", missing.stderr);
    let descriptor =
        |limits: Value| json!({ "name": "plain", "input": true, "output": true, "limits": limits });
    for (limits, memory_bytes_max) in
        [(json!({}), 64 << 20), (json!({ "memory_bytes_max": 32 << 20 }), 32 << 20)]
    {
        fs::write(&manifest, descriptor(limits).to_string())?;
        let more = ["-o", "json", "--manifest", &manifest.to_string_lossy()];
        let said = test(home.path(), &program, &scenarios, &more);
        assert_eq!(said.code, Some(0), "{}", said.text(home.path()));
        let record = said.json();
        assert_eq!((&record["block"], &record["failed"]), (&json!("plain"), &json!(0)), "{record}");
        assert_eq!(record["limits"]["memory_bytes_max"], memory_bytes_max, "{record}");
    }
    // What is wrong with it is told where it is.
    for (wrong, place) in [
        (
            json!({ "effects": [{ "kind": "http", "safety": "twice" }] }),
            "/effects/0/safety: `twice` is not known here",
        ),
        (json!({ "input": { "type": "text" } }), "/input/type: this is no JSON Schema that can be used"),
    ] {
        let mut broken = descriptor(json!({}));
        broken.as_object_mut().expect("an object").extend(wrong.as_object().expect("an object").clone());
        fs::write(&manifest, broken.to_string())?;
        let said = test(home.path(), &program, &scenarios, &["--manifest", &manifest.to_string_lossy()]);
        let text = said.text(home.path());
        assert!(text.contains("error: HOME/plain.json: ") && text.contains(place), "{text}");
        assert!(text.contains("next: correct HOME/plain.json") && said.code == Some(6), "{text}");
    }
    Ok(())
}

#[test]
fn a_component_is_inspected_as_an_upload_is() -> anyhow::Result<()> {
    let home = tempfile::tempdir()?;
    let inspect = |path: &Path, more: &[&str]| {
        run(counterfoil(home.path()).args(["block", "inspect"]).arg(path).args(more))
    };
    let said = inspect(&guest("charge-card-verified")?, &["-o", "json"]);
    let record = said.json();
    assert_eq!(said.code, Some(0), "{}", said.text(home.path()));
    assert_eq!(record["descriptor"]["name"], "charge-card-verified");
    // Their order is the linker's.
    let exports: BTreeSet<&str> =
        record["exports"].as_array().expect("a list").iter().filter_map(Value::as_str).collect();
    let expected = ["counterfoil:block/reconcile@0.1.0", "counterfoil:block/step@0.1.0"];
    assert_eq!(exports, BTreeSet::from(expected));
    assert_eq!(record["limits"]["memory_bytes_max"], 64 << 20);
    assert!(record["compile_ms"].is_u64() && record["bytes_len"].as_u64() > Some(10_000), "{record}");

    let modest = home.path().join("modest.wasm");
    let wanting = r#"{"name":"modest","input":true,"output":true,"limits":{"memory_bytes_max":1048576,"cpu_ms_max":9999999}}"#;
    fs::write(&modest, Guest::echo().describing(wanting).build())?;
    let limits: Value = inspect(&modest, &["-o", "json"]).json()["limits"].clone();
    assert_eq!((&limits["memory_bytes_max"], &limits["cpu_ms_max"]), (&json!(1 << 20), &json!(1_000)));

    let manifest = home.path().join("manifest.json");
    fs::write(&manifest, "{ \"name\": ")?;
    let said = inspect(&modest, &["--manifest", &manifest.to_string_lossy()]);
    assert_eq!(said.code, Some(2), "{}", said.text(home.path()));
    assert!(said.stderr.contains("manifest.json is not JSON: EOF while parsing"), "{}", said.stderr);

    let broken = home.path().join("broken.wasm");
    for (bytes, code) in [
        (b"\0asm".to_vec(), "component_invalid"),
        (component("(component (import \"acme:db/query@1.0.0\" (instance)))"), "import_unknown"),
        (component("(component)"), "export_missing"),
        (Guest::echo().describing("{").build(), "descriptor_invalid"),
    ] {
        fs::write(&broken, bytes)?;
        let said = inspect(&broken, &["-o", "json"]);
        assert_eq!((said.code, &said.json()["code"]), (Some(6), &json!(code)), "{}", said.text(home.path()));
        assert!(said.stderr.contains(&format!("advice: docs/advice/{code}.md")), "{}", said.stderr);
    }
    Ok(())
}
