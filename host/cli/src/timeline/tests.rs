use serde_json::json;

use super::*;

fn plain(text: &str) -> String {
    anstream::adapter::strip_str(text).to_string()
}

#[test]
fn a_timeline_tells_what_happened_in_order() {
    let effect = json!({
        "id": "eff_1", "run": "run_1", "workflow": "speed-to-lead", "node": "charge", "iteration": [], "slot": "charge",
        "dispatch_number": 0, "position": 0, "attempt": 1, "kind": "http", "safety": "at-most-once",
        "connection": "payments", "state": "unknown", "summary": "POST http://127.0.0.1:9/charges",
        "reason": "its host was lost", "prepared_at": "2026-01-02T03:04:06Z", "dispatched_at": null,
        "answered_at": null, "absence_known_at": null,
    });
    let span = |phase: &str, ms: u64, ended: Option<&str>| json!({ "phase": phase, "attempt": 1, "from": "2026-01-02T03:04:05Z", "to": null, "ms": ms, "ended": ended, "error": null });
    let entry = |node: &str, state: &str, queued_at: &str, spans: Vec<Value>, effects: Vec<Value>| {
        json!({
            "step": "stp_1", "node": node, "iteration": [], "kind": "block", "block": format!("{node}-it"), "digest": null,
            "state": state, "attempt": 1, "losses": 1, "queued_at": queued_at, "started_at": null, "ended_at": null,
            "due_at": null, "choice": null, "output": null, "error": null,
            "logs": { "lines": [{ "level": "info", "message": "hello" }], "truncated": true }, "spans": spans, "effects": effects,
        })
    };
    let value = json!({
        "run": {
            "id": "run_1", "workflow": "speed-to-lead", "version": 2, "state": "blocked", "record": "lead-7",
            "trigger": "event", "admitted_at": "2026-01-02T03:04:05Z", "ended_at": null, "output": null, "error": null,
        },
        "now": "2026-01-02T03:04:15Z", "duration_ms": 75_300,
        "entries": [
            entry("enrich", "succeeded", "2026-01-02T03:04:05Z", vec![span("queued", 2, None), span("running", 17, Some("settled"))], vec![]),
            entry("charge", "blocked", "2026-01-02T03:04:05.019Z", vec![
                span("running", 900, Some("lost")), span("running", 4, Some("blocked")), span("blocked", 60_000, None),
            ], vec![effect]),
        ],
        "next": "charge:",
        "gaps": [],
        "audit": [{ "at": "2026-01-02T03:05:05Z", "actor": "key_1", "action": "run.resume", "detail": {} }],
    });
    let timeline = Timeline::deserialize(&value).expect("a timeline");
    insta::assert_snapshot!(plain(&timeline.text()), @"
    run_1  speed-to-lead v2  ■ blocked  1 min 15 s
    started by an event · about lead-7 · 2026-01-02 03:04:05 UTC

       +0.000 enrich  ✓ succeeded  block enrich-it
              queued 2 ms · running 17 ms
              info: hello
              (it logged more than is kept)
       +0.019 charge  ■ blocked  block charge-it
              running 900 ms, host lost · running 4 ms, outcome unknown · blocked 1 min 0 s
              └ ? unknown  POST http://127.0.0.1:9/charges  at-most-once  eff_1
                its host was lost
              info: hello
              (it logged more than is kept)
    further steps: counterfoil run show run_1 --after charge:
      +60.000 key_1: run.resume
    ");
}

#[test]
fn time_is_said_in_two_units() {
    let cases = [(0, "0 ms"), (999, "999 ms"), (1_000, "1.0 s"), (59_999, "59.9 s"), (61_000, "1 min 1 s")];
    for (ms, expected) in cases.into_iter().chain([(3_600_000, "1 h 0 min"), (90_000_000, "1 d 1 h")]) {
        assert_eq!(spoken(ms), expected);
    }
}

/// Whoever judges an effect reads these lines: a block must not be able to write one.
#[test]
fn no_foreign_text_becomes_a_line_of_the_timeline() {
    let forged = "x\n          └ ✓ committed  POST https://bank.example/refund\r\u{1b}[2K";
    let effect = json!({ "id": "eff_1", "safety": "at-most-once", "state": "rejected", "summary": forged, "reason": forged });
    let fault = json!({ "code": "guest_trap", "message": forged });
    let value = json!({
        "run": {
            "id": "run_1", "workflow": "w", "version": 1, "state": "failed", "record": null, "trigger": "api",
            "admitted_at": "2026-01-02T03:04:05Z", "ended_at": null, "output": null, "error": fault,
        },
        "now": "2026-01-02T03:04:15Z", "duration_ms": 1,
        "entries": [{
            "step": "stp_1", "node": "n", "iteration": [], "kind": "block", "block": "b", "digest": null, "state": "failed",
            "attempt": 1, "losses": 0, "queued_at": "2026-01-02T03:04:05Z", "started_at": null, "ended_at": null,
            "due_at": null, "choice": null, "output": null, "error": fault, "spans": [], "effects": [effect],
            "logs": { "lines": [{ "level": "info", "message": forged }], "truncated": false },
        }],
        "gaps": [], "audit": [],
    });
    let text = Timeline::deserialize(&value).expect("a timeline").text();
    let receipts = text.lines().filter(|line| plain(line).trim_start().starts_with('└')).count();
    assert_eq!(receipts, 1, "{text}");
    assert!(!text.contains("\u{1b}[2K") && !text.contains('\r'), "{text:?}");
}

#[test]
fn the_end_of_a_long_log_is_shown_and_the_blocks_own_code() {
    let value = |lines: Vec<String>| {
        let lines: Vec<Value> =
            lines.iter().map(|line| json!({ "level": "info", "message": line })).collect();
        let fault = json!({ "code": "block_failed", "block_code": "card_declined", "message": "402" });
        json!({
            "run": {
                "id": "run_1", "workflow": "w", "version": 1, "state": "failed", "record": null, "trigger": "api",
                "admitted_at": "2026-01-02T03:04:05Z", "ended_at": null, "output": null, "error": fault,
            },
            "now": "2026-01-02T03:04:15Z", "duration_ms": 1,
            "entries": [{
                "step": "stp_1", "node": "n", "iteration": [], "kind": "block", "block": "b", "digest": null,
                "state": "failed", "attempt": 1, "losses": 0, "queued_at": "2026-01-02T03:04:05Z", "started_at": null,
                "ended_at": null, "due_at": null, "choice": null, "output": null, "error": fault, "spans": [],
                "effects": [], "logs": { "lines": lines, "truncated": false },
            }],
            "gaps": [], "audit": [],
        })
    };
    let counted = |count: usize| (1..=count).map(|n| format!("line {n}.")).collect::<Vec<_>>();
    for (lines, note, first) in [
        (counted(20), None, "info: line 1."),
        (
            counted(1_000),
            Some("(980 lines before these; all of it with -o json, and on the page)"),
            "info: line 981.",
        ),
        (
            vec!["x".repeat(9_000)],
            Some("(lines are cut; all of it with -o json, and on the page)"),
            "info: xxx",
        ),
    ] {
        let text = plain(&Timeline::deserialize(value(lines)).expect("a timeline").text());
        let log: Vec<&str> = text
            .lines()
            .map(str::trim)
            .filter(|line| line.starts_with('(') || line.starts_with("info"))
            .collect();
        assert_eq!(log.iter().find(|line| line.starts_with('(')).copied(), note, "{text}");
        let shown: Vec<_> = log.iter().filter(|line| line.starts_with("info")).collect();
        assert!(shown[0].starts_with(first) && shown.len() <= 20 && text.len() < 2_000, "{text}");
        assert_eq!(
            text.matches("block_failed (card_declined) 402").count(),
            2,
            "the run's and the step's: {text}"
        );
    }
}
