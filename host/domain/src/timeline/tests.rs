use std::fmt::Write as _;

use chrono::TimeDelta;
use uuid::Uuid;

use super::*;

/// `ms` after the run was admitted.
fn at(ms: i64) -> DateTime<Utc> {
    DateTime::UNIX_EPOCH + TimeDelta::milliseconds(ms)
}

fn step(id: u128, node: &str, state: StepState) -> StepFacts {
    StepFacts {
        step: StepId(Uuid::from_u128(id)),
        node: node.into(),
        iteration: Vec::new(),
        state,
        attempt: 1,
        queued_at: at(0),
        waits: Waits::Never,
        started_at: None,
        settled_at: None,
        executions: Vec::new(),
    }
}

fn execution(attempt: u32, from: i64, to: i64, ended: Ended) -> Execution {
    Execution { attempt, from: at(from), to: at(to), ended }
}

fn facts(steps: Vec<StepFacts>, now: i64, ended_at: Option<i64>) -> RunFacts {
    RunFacts {
        admitted_at: at(0),
        ended_at: ended_at.map(at),
        now: at(now),
        order: ["first", "second", "third"].map(Into::into).to_vec(),
        steps,
        effects: Vec::new(),
    }
}

fn told(timeline: &Timeline) -> String {
    let ms = |at: DateTime<Utc>| at.timestamp_millis();
    let mut text = String::new();
    for entry in &timeline.entries {
        let _ = writeln!(text, "{} {:?} {}", entry.node, entry.iteration, entry.state);
        for span in &entry.spans {
            let to = span.to.map_or("…".into(), |to| ms(to).to_string());
            let ended = span.ended.map_or(String::new(), |ended| format!(": {}", ended.name()));
            let (phase, attempt, length) = (span.phase.name(), span.attempt, span.ms);
            let _ = writeln!(text, "  {phase} {}–{to} ({length} ms) attempt {attempt}{ended}", ms(span.from));
        }
        for effect in &entry.effects {
            let to = effect.to.map_or("…".into(), |to| ms(to).to_string());
            let _ = writeln!(text, "  effect {} {}–{to}", effect.state, ms(effect.from));
        }
    }
    for segment in timeline.axis.segments() {
        let mark = if segment.folded { "~" } else { "-" };
        let (from, to) = (ms(segment.from), ms(segment.to));
        let _ = writeln!(text, "{mark} {from}–{to} at {:.3}–{:.3}", segment.left, segment.right);
    }
    text
}

#[test]
fn a_step_tells_of_every_wait_and_every_execution() {
    let retried = StepFacts {
        attempt: 2,
        started_at: Some(at(60_100)),
        settled_at: Some(at(60_200)),
        executions: vec![execution(1, 10, 40, Ended::Lost), execution(1, 50, 100, Ended::Retry)],
        ..step(1, "first", StepState::Succeeded)
    };
    let delayed = StepFacts {
        queued_at: at(60_200),
        waits: Waits::FirstOfAll,
        started_at: Some(at(90_000)),
        settled_at: Some(at(90_001)),
        ..step(2, "second", StepState::Succeeded)
    };
    let blocked = StepFacts {
        queued_at: at(90_001),
        started_at: Some(at(90_010)),
        executions: vec![execution(1, 90_010, 90_400, Ended::Blocked)],
        ..step(3, "third", StepState::Blocked)
    };
    let mut facts = facts(vec![blocked, delayed, retried], 500_000, None);
    let effect = |id: u128, position, state, from, to: Option<i64>| EffectFacts {
        effect: EffectId(Uuid::from_u128(id)),
        step: StepId(Uuid::from_u128(3)),
        state,
        position,
        dispatch_number: 0,
        from: at(from),
        to: to.map(at),
    };
    facts.effects = vec![
        effect(2, 1, ReceiptState::Unknown, 90_100, None),
        effect(1, 0, ReceiptState::Committed, 90_020, Some(90_090)),
    ];
    insta::assert_snapshot!(told(&timeline(facts)), @r"
    first [] succeeded
      queued 0–10 (10 ms) attempt 1
      running 10–40 (30 ms) attempt 1: lost
      queued 40–50 (10 ms) attempt 1
      running 50–100 (50 ms) attempt 1: retry
      retrying 100–60100 (60000 ms) attempt 2
      running 60100–60200 (100 ms) attempt 2: settled
    second [] succeeded
      waiting 60200–90000 (29800 ms) attempt 1
      running 90000–90001 (1 ms) attempt 1: settled
    third [] blocked
      queued 90001–90010 (9 ms) attempt 1
      running 90010–90400 (390 ms) attempt 1: blocked
      blocked 90400–… (409600 ms) attempt 1
      effect committed 90020–90090
      effect unknown 90100–…
    - 0–100 at 0.000–0.137
    ~ 100–60100 at 0.137–0.197
    - 60100–60200 at 0.197–0.333
    ~ 60200–90000 at 0.333–0.393
    - 90000–90400 at 0.393–0.940
    ~ 90400–500000 at 0.940–1.000
    ");
}

#[test]
fn entries_follow_the_plan_then_the_name_then_the_iteration() {
    let iteration = |id, node: &str, iteration: &[u32]| StepFacts {
        iteration: iteration.into(),
        ..step(id, node, StepState::Skipped)
    };
    let steps = vec![
        iteration(1, "unplanned", &[]),
        iteration(2, "second", &[1, 0]),
        iteration(3, "second", &[0, 7]),
        iteration(4, "first", &[]),
        iteration(5, "another", &[]),
    ];
    let timeline = timeline(facts(steps, 10, Some(10)));
    let order: Vec<String> =
        timeline.entries.iter().map(|entry| format!("{}{:?}", entry.node, entry.iteration)).collect();
    assert_eq!(order, ["first[]", "second[0, 7]", "second[1, 0]", "another[]", "unplanned[]"]);
}

#[test]
fn what_ended_is_closed_and_what_lasts_is_measured_up_to_now() {
    let cases = [
        ("never claimed", step(1, "first", StepState::Pending)),
        ("running", StepFacts { started_at: Some(at(5)), ..step(1, "first", StepState::Running) }),
        (
            "waits for its retry",
            StepFacts {
                started_at: Some(at(5)),
                attempt: 2,
                executions: vec![execution(1, 5, 9, Ended::Retry)],
                ..step(1, "first", StepState::WaitingForRetry)
            },
        ),
        (
            "cancelled while blocked",
            StepFacts {
                started_at: Some(at(5)),
                settled_at: Some(at(80)),
                executions: vec![execution(1, 5, 9, Ended::Blocked)],
                ..step(1, "first", StepState::Cancelled)
            },
        ),
        (
            "took what it had waited for",
            StepFacts {
                waits: Waits::OnceBegun,
                started_at: Some(at(70)),
                settled_at: Some(at(80)),
                executions: vec![execution(1, 5, 9, Ended::HandedBack)],
                ..step(1, "first", StepState::Succeeded)
            },
        ),
        (
            "cancelled while it waited",
            StepFacts {
                waits: Waits::OnceBegun,
                started_at: Some(at(5)),
                settled_at: Some(at(80)),
                ..step(1, "first", StepState::Cancelled)
            },
        ),
        (
            "settled in the moment it was opened",
            StepFacts { settled_at: Some(at(0)), ..step(1, "first", StepState::Skipped) },
        ),
        (
            "a clock that ran backwards",
            StepFacts {
                queued_at: at(20),
                started_at: Some(at(10)),
                settled_at: Some(at(15)),
                ..step(1, "first", StepState::Succeeded)
            },
        ),
    ];
    let mut text = String::new();
    for (name, step) in cases {
        let _ = writeln!(text, "## {name}\n{}", told(&timeline(facts(vec![step], 100, None))));
    }
    insta::assert_snapshot!(text, @r"
    ## never claimed
    first [] pending
      queued 0–… (100 ms) attempt 1
    - 0–100 at 0.000–1.000

    ## running
    first [] running
      queued 0–5 (5 ms) attempt 1
      running 5–… (95 ms) attempt 1
    - 0–100 at 0.000–1.000

    ## waits for its retry
    first [] waiting_for_retry
      queued 0–5 (5 ms) attempt 1
      running 5–9 (4 ms) attempt 1: retry
      retrying 9–… (91 ms) attempt 2
    - 0–100 at 0.000–1.000

    ## cancelled while blocked
    first [] cancelled
      queued 0–5 (5 ms) attempt 1
      running 5–9 (4 ms) attempt 1: blocked
      blocked 9–80 (71 ms) attempt 1
    - 0–100 at 0.000–1.000

    ## took what it had waited for
    first [] succeeded
      waiting 0–5 (5 ms) attempt 1
      running 5–9 (4 ms) attempt 1: handed_back
      waiting 9–70 (61 ms) attempt 1
      running 70–80 (10 ms) attempt 1: settled
    - 0–100 at 0.000–1.000

    ## cancelled while it waited
    first [] cancelled
      waiting 0–80 (80 ms) attempt 1
    - 0–100 at 0.000–1.000

    ## settled in the moment it was opened
    first [] skipped
    - 0–100 at 0.000–1.000

    ## a clock that ran backwards
    first [] succeeded
      running 20–20 (0 ms) attempt 1: settled
    - 0–100 at 0.000–1.000
    ");
}

#[test]
fn the_axis_is_monotonous_and_stays_between_its_edges() {
    let run = |from, to| StepFacts {
        queued_at: at(from),
        started_at: Some(at(from)),
        settled_at: Some(at(to)),
        ..step(1, "first", StepState::Succeeded)
    };
    let day = 86_400_000;
    let cases = [
        vec![],
        vec![run(0, 0)],
        vec![run(0, 100), run(100 + day, 200 + day), run(200 + 3 * day, 250 + 3 * day)],
        (0..100).map(|n| run(n * day, n * day + 10)).collect(),
    ];
    for steps in cases {
        let timeline = timeline(facts(steps, 101 * day, None));
        let moments = (-10..2_000).map(|n| n * day / 20);
        let positions: Vec<f64> = moments.map(|ms| timeline.axis.position(at(ms))).collect();
        assert!(positions.is_sorted(), "{positions:?}");
        assert!(positions.iter().all(|position| (0.0..=1.0).contains(position)));
        let edges: Vec<f64> = timeline.axis.segments().iter().flat_map(|s| [s.left, s.right]).collect();
        assert!(edges.is_sorted(), "{edges:?}");
        assert!((edges.last().copied().unwrap_or(1.0) - 1.0).abs() < 1e-9, "{edges:?}");
    }
}
