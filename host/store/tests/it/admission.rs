//! What starts a run, how often, and what is said where it starts none.

use std::collections::BTreeSet;

use counterfoil_domain::code::Code;
use counterfoil_domain::id::{EventId, RunId, WorkflowId};
use counterfoil_store::admission::{Admission, Admitted, Dedup, Refusal};
use counterfoil_store::event::NewEvent;
use counterfoil_store::run::{RunState, Trigger};
use counterfoil_store::settle::{RunEndState, SettleVerdict, SettledState, Settlement};
use serde_json::json;
use uuid::Uuid;

use crate::world::{LEASE, World, one, run_end, settled, settlement};

/// An event that is recorded.
async fn event(world: &World, record: Option<&str>) -> EventId {
    let id = EventId(Uuid::now_v7());
    let event = NewEvent {
        id,
        event_type: "lead.created".into(),
        record: record.map(Into::into),
        data: json!({ "id": 7 }),
    };
    world.store.record_events(world.tenant, &[event]).await.expect("records");
    id
}

fn by_event(world: &World, event: EventId, record: &str, dedup: Dedup) -> Admission {
    Admission {
        start_key: format!("workflow_event:{event}"),
        trigger: Trigger::Event { event, ordinal: 0 },
        record: Some(record.into()),
        dedup,
        ..world.admission(&["a"])
    }
}

/// Eight at once, for one record: of each, what it came to.
async fn rush(world: &World, record: &str, dedup: Dedup) -> Vec<Admitted> {
    let mut admissions = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let admission = by_event(world, event(world, Some(record)).await, record, dedup);
        let store = world.store.clone();
        admissions.spawn(async move { store.admit(&admission).await.expect("answers") });
    }
    admissions.join_all().await
}

fn started(admitted: &[Admitted]) -> usize {
    admitted.iter().filter(|admitted| matches!(admitted, Admitted::Started(_))).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_starts_as_many_runs_as_its_trigger_allows() {
    let world = World::new().await;
    for (dedup, first, after_end, code) in [
        (Dedup::OncePerRecord, 1, 0, Some(Code::DuplicateTrigger)),
        (Dedup::NotWhileRunning, 1, 1, Some(Code::AlreadyRunning)),
        (Dedup::EveryTime, 8, 8, None),
    ] {
        for round in 0..5 {
            let record = format!("{dedup:?}-{round}");
            let admitted = rush(&world, &record, dedup).await;
            assert_eq!(started(&admitted), first, "{dedup:?}: {admitted:?}");
            let codes: BTreeSet<_> = admitted
                .iter()
                .filter_map(|admitted| match admitted {
                    Admitted::Refused { code, .. } => Some(code.name()),
                    _ => None,
                })
                .collect();
            assert_eq!(codes, code.iter().map(|code| code.name()).collect(), "{dedup:?}");

            for step in world.claim(LEASE).await {
                let end = Some(run_end(RunEndState::Succeeded));
                let verdict = world.store.settle(&Settlement { end, ..settlement(&step) }).await;
                assert!(matches!(verdict, Ok(SettleVerdict::Settled { .. })), "{verdict:?}");
            }
            let admitted = rush(&world, &record, dedup).await;
            assert_eq!(started(&admitted), after_end, "{dedup:?} after the end: {admitted:?}");
        }
    }
    // Each event met the workflow once, and left what came of it.
    assert_eq!(world.number("SELECT count(*) FROM events").await, 3 * 5 * 16);
    assert_eq!(world.number("SELECT count(*) FROM deliveries").await, 3 * 5 * 16);
}

/// Such a run is never among the open ones, so that no unique key of theirs stands in its way.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_has_its_one_run_even_if_that_ends_at_once() {
    let world = World::new().await;
    for round in 0..10 {
        let mut admissions = tokio::task::JoinSet::new();
        for _ in 0..8 {
            let event = event(&world, None).await;
            let admission = Admission {
                open: vec![],
                end: Some(run_end(RunEndState::Succeeded)),
                ..by_event(&world, event, &format!("r-{round}"), Dedup::OncePerRecord)
            };
            let store = world.store.clone();
            admissions.spawn(async move { store.admit(&admission).await.expect("answers") });
        }
        let admitted = admissions.join_all().await;
        assert_eq!(started(&admitted), 1, "round {round}: {admitted:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_key_starts_one_run() {
    let world = World::new().await;
    for round in 0..10 {
        let event = event(&world, None).await;
        let mut admissions = tokio::task::JoinSet::new();
        for _ in 0..8 {
            let admission = by_event(&world, event, "r", Dedup::EveryTime);
            let store = world.store.clone();
            admissions.spawn(async move { store.admit(&admission).await.expect("answers") });
        }
        let admitted = admissions.join_all().await;
        assert_eq!(started(&admitted), 1, "round {round}: {admitted:?}");
        let runs: BTreeSet<RunId> = admitted
            .iter()
            .map(|admitted| match admitted {
                Admitted::Started(run) | Admitted::Exists(run) => *run,
                Admitted::Begun { .. } | Admitted::Refused { .. } => panic!("round {round}: {admitted:?}"),
            })
            .collect();
        let seen = world.store.event(world.tenant, event).await.expect("reads").expect("exists");
        assert_eq!(one(seen.outcomes).run, Some(one(runs.into_iter().collect())));
    }
}

#[tokio::test]
async fn a_refusal_stays() {
    let world = World::new().await;
    let refused = event(&world, None).await;
    let seen = async || world.store.event(world.tenant, refused).await.expect("reads").expect("exists");
    assert_eq!(seen().await.outcomes, []);
    for code in [Code::RuleNotMatched, Code::WorkflowPaused] {
        world.store.refuse(vec![refusal(&world, refused, world.workflow, code)]).await.expect("keeps");
    }
    let outcome = one(seen().await.outcomes);
    assert_eq!(outcome.workflow, "flow");
    assert_eq!(outcome.refusal, Some(("rule_not_matched".into(), "score is 3".into())));
    // A redelivery is told the same.
    let admitted =
        world.store.admit(&by_event(&world, refused, "r", Dedup::EveryTime)).await.expect("answers");
    assert_eq!(admitted, Admitted::Refused { code: Code::RuleNotMatched, detail: "score is 3".into() });
    assert_eq!(world.number("SELECT count(*) FROM runs").await, 0);
}

fn refusal(world: &World, event: EventId, workflow: WorkflowId, code: Code) -> Refusal {
    let (tenant, version) = (world.tenant, world.version);
    Refusal { tenant, event, workflow, version, code, detail: "score is 3".into() }
}

/// What many workflows refuse costs as many flushes as what one does; and what cannot be stored is nobody else's failure.
#[tokio::test(flavor = "multi_thread")]
async fn many_refusals_are_written_together() {
    const WORKFLOWS: u128 = 700;
    let world = World::new().await;
    let workflows: Vec<_> = (1..=WORKFLOWS).map(|n| WorkflowId(Uuid::from_u128(n))).collect();
    let mut refusing = tokio::task::JoinSet::new();
    for n in 0..20 {
        let event = event(&world, None).await;
        let mut refused: Vec<_> = workflows
            .iter()
            .map(|workflow| refusal(&world, event, *workflow, Code::RuleNotMatched))
            .collect();
        if n == 7 {
            refused[3].detail = "no text holds \0".into();
        }
        let store = world.store.clone();
        refusing.spawn(async move { store.refuse(refused).await.is_ok() });
    }
    let kept = refusing.join_all().await;
    assert_eq!(kept.iter().filter(|kept| **kept).count(), 19, "{kept:?}");
    assert_eq!(world.number("SELECT count(*) FROM deliveries").await, 19 * 700);
}

#[tokio::test]
async fn a_call_leaves_no_delivery() {
    let world = World::new().await;
    let call = |start_key: &str| Admission {
        start_key: start_key.into(),
        record: Some("r".into()),
        dedup: Dedup::OncePerRecord,
        ..world.admission(&["a"])
    };
    let first = call("api:1");
    assert_eq!(world.store.admit(&first).await.expect("admits"), Admitted::Started(first.run));
    assert_eq!(world.store.admit(&call("api:1")).await.expect("answers"), Admitted::Exists(first.run));
    let refused = world.store.admit(&call("api:2")).await.expect("answers");
    assert!(matches!(refused, Admitted::Refused { code: Code::DuplicateTrigger, .. }), "{refused:?}");
    assert_eq!(world.number("SELECT count(*) FROM deliveries").await, 0);
}

#[tokio::test]
async fn a_run_may_end_with_its_admission() {
    let world = World::new().await;
    let mut admission = world.admission(&[]);
    admission.inline = vec![settled(admission.run, "set", SettledState::Succeeded)];
    admission.end = Some(run_end(RunEndState::Succeeded));
    world.store.admit(&admission).await.expect("admits");
    let timeline = world.timeline(admission.run).await.expect("exists");
    assert_eq!(timeline.head.run.row.state, RunState::Succeeded);
    assert_eq!(timeline.head.run.output, run_end(RunEndState::Succeeded).output);
    assert_eq!(one(timeline.settled).node, "set");
    assert_eq!(world.number("SELECT count(*) FROM open_runs").await, 0);
}

#[tokio::test]
async fn a_run_is_told_what_it_was_started_with() {
    let world = World::new().await;
    let id = event(&world, Some("r-1")).await;
    let admission = by_event(&world, id, "r-1", Dedup::OncePerRecord);
    world.store.admit(&admission).await.expect("admits");
    let context = world.store.run_context(world.tenant, admission.run).await.expect("reads").expect("exists");
    assert_eq!(
        (context.run, context.lineage.0, context.workflow, context.version, context.outputs),
        (admission.run, admission.run.0, world.workflow, world.version, vec![])
    );
    assert_eq!((&context.event, &context.input), (&admission.event, &admission.input));
    let view = world.store.run(world.tenant, admission.run).await.expect("reads").expect("exists");
    assert_eq!((view.row.record.as_deref(), view.row.trigger), (Some("r-1"), admission.trigger));
    assert_eq!(
        (view.row.state, view.row.workflow_name.as_str(), view.row.version),
        (RunState::Pending, "flow", 1)
    );
}
