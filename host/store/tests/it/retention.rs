//! What is forgotten of finished runs, when, and what is not.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::Utc;
use counterfoil_domain::effect::Safety;
use counterfoil_domain::id::{EffectId, EventId, LineageId, RunId};
use counterfoil_domain::receipt::request::Scope;
use counterfoil_domain::receipt::request::content_key;
use counterfoil_store::admission::{Admission, Admitted, Dedup};
use counterfoil_store::event::NewEvent;
use counterfoil_store::receipt::{Dispatch, DispatchVerdict};
use counterfoil_store::retention::{KeepFor, OwnRetention, Retention};
use counterfoil_store::run::Trigger;
use counterfoil_store::settle::{RunEndState, Settlement};
use serde_json::json;
use sqlx::Row as _;
use uuid::Uuid;

use crate::world::{LEASE, World, answer, first, one, person, receipt, run_end, settlement};

/// Runs are kept for a minute, walks begin at once.
const RETENTION: Retention = Retention {
    keep: KeepFor { runs: Some(Duration::from_mins(1)), events: None, requests: None, audit: None },
    replayable_for: Duration::from_hours(24),
    walk_every: Duration::ZERO,
    page: 3,
    prune_page: 3,
};

/// Runs are kept for ever, anything else for a minute.
const PRUNING: Retention = Retention {
    keep: KeepFor {
        runs: None,
        events: Some(Duration::from_mins(1)),
        requests: Some(Duration::from_mins(1)),
        audit: Some(Duration::from_mins(1)),
    },
    ..RETENTION
};

/// Every table that has rows of runs.
const OF_RUNS: [&str; 9] = [
    "runs",
    "settled_steps",
    "step_attempts",
    "signals",
    "approvals",
    "invariant_results",
    "receipts",
    "receipt_history",
    "worker_tasks",
];

/// Walks to the end, and clears away what is left. Returns how many runs were forgotten.
async fn forget(world: &World, retention: Retention) -> u64 {
    world.store.set_out_walks(&retention).await.expect("sets out");
    let mut forgotten = 0;
    loop {
        // What has aged behind its back is older than its id says.
        let now = Utc::now() + Duration::from_hours(240);
        let walked = world.store.walk(&retention, now).await.expect("walks").expect("is due");
        forgotten += walked.forgotten;
        if walked.looked_at < u64::from(retention.page) {
            break;
        }
    }
    while world.store.clear_forgotten().await.expect("clears") {}
    forgotten
}

/// A run that ended so, a while ago, having sent one effect.
async fn ended(world: &World, admission: &Admission, state: RunEndState, ago: &str) -> (RunId, EffectId) {
    assert_eq!(world.store.admit(admission).await.expect("admits"), Admitted::Started(admission.run));
    let step = one(world.claim(LEASE).await);
    let sent = world.send(&step, receipt(&step, 0, Safety::AtMostOnce)).await;
    settle(world, &step, &sent, state).await;
    age(world, admission.run, ago).await;
    (admission.run, sent.id)
}

async fn settle(
    world: &World,
    step: &counterfoil_store::step::Claimed,
    sent: &counterfoil_domain::receipt::Receipt,
    state: RunEndState,
) {
    let end = Some(run_end(state));
    let settlement = Settlement { end, writes: answer(sent), ..settlement(step) };
    world.store.settle(&settlement).await.expect("settles");
}

async fn age(world: &World, run: RunId, ago: &str) {
    let statement = format!("UPDATE runs SET ended_at = now() - interval '{ago}' WHERE id = '{}'", run.0);
    assert_eq!(world.execute(&statement).await.expect("ages"), 1);
}

/// Rows of a run in every table, those of its steps and receipts included.
async fn rows(world: &World) -> Vec<(&'static str, i64)> {
    let mut rows = vec![];
    for table in OF_RUNS {
        let count = world.number(&format!("SELECT count(*) FROM {table}")).await;
        if count > 0 {
            rows.push((table, count));
        }
    }
    rows
}

#[tokio::test]
async fn a_finished_run_that_is_past_its_time_is_forgotten_whole() {
    let world = World::new().await;
    let (kept, kept_effect) =
        ended(&world, &world.admission(&["a"]), RunEndState::Succeeded, "30 seconds").await;
    let before = rows(&world).await;
    let mut gone = vec![];
    for _ in 0..7 {
        gone.push(ended(&world, &world.admission(&["a"]), RunEndState::Succeeded, "2 minutes").await);
    }
    let (run, effect) = gone[0];
    let more = format!(
        "WITH s AS (SELECT * FROM settled_steps WHERE run_id = '{run}'),
         a AS (INSERT INTO step_attempts (tenant_id, run_id, step_id, lease_id, attempt, host_id, started_at, ended)
             SELECT tenant_id, run_id, id, id, 1, id, now(), 'lost' FROM s),
         g AS (INSERT INTO signals (tenant_id, run_id, id, kind, name, data, sent_by)
             SELECT tenant_id, run_id, id, 'signal', 'go', '1', 'ada' FROM s),
         p AS (INSERT INTO approvals (tenant_id, id, run_id, node, title, detail)
             SELECT tenant_id, id, run_id, node, 'May it?', '{{}}' FROM s),
         i AS (INSERT INTO invariant_results (tenant_id, id, invariant_id, run_id, step_id, content_key, held_by)
             SELECT tenant_id, id, 'once', run_id, id, '', id FROM s),
         h AS (INSERT INTO receipt_history (tenant_id, receipt_id, id, from_state, to_state, actor, evidence)
             SELECT tenant_id, '{effect}', id, 'unknown', 'committed', 'ada', '' FROM s)
         INSERT INTO worker_tasks (tenant_id, id, step_id, queue, input, claim_until, timeout)
             SELECT tenant_id, '{effect}', id, 'q', '1', now(), '1 hour' FROM s",
        run = run.0,
        effect = effect.0,
    );
    assert_eq!(world.execute(&more).await.expect("inserts"), 1);
    assert_eq!(rows(&world).await.len(), OF_RUNS.len(), "every table has something to forget");

    assert_eq!(forget(&world, RETENTION).await, 7);
    assert_eq!(rows(&world).await, before);
    assert_eq!(world.number("SELECT count(*) FROM forgotten_runs").await, 0);
    for (run, effect) in gone {
        assert_eq!(world.store.run(world.tenant, run).await.expect("reads"), None);
        assert_eq!(world.timeline(run).await, None);
        assert_eq!(world.store.receipt(world.tenant, effect).await.expect("reads"), None);
    }
    assert!(world.store.run(world.tenant, kept).await.expect("reads").is_some());
    assert!(world.store.receipt(world.tenant, kept_effect).await.expect("reads").is_some());
}

/// Each for another reason, and each goes when that is over.
#[tokio::test]
async fn a_run_stays_while_anything_of_it_is_open() {
    let world = World::new().await;
    let admission = || world.admission(&["a"]);
    let (failed, _) = ended(&world, &admission(), RunEndState::Failed, "2 hours").await;

    let (unknown, effect) = ended(&world, &admission(), RunEndState::Cancelled, "30 hours").await;
    let lose = "UPDATE receipts SET state = 'unknown', unresolved = true, answer_kind = NULL";
    let known = "UPDATE receipts SET state = 'abandoned', unresolved = false";
    let of = |effect: EffectId| format!("WHERE id = '{}'", effect.0);
    world.execute(&format!("{lose} {}", of(effect))).await.expect("loses");

    let (parent, _) = ended(&world, &admission(), RunEndState::Succeeded, "30 seconds").await;
    let (child, _) = ended(&world, &admission(), RunEndState::Succeeded, "2 hours").await;
    let below = format!(
        "UPDATE runs SET trigger = 'run', parent_run_id = '{0}', parent_step_id = '{0}' WHERE id = '{1}'",
        parent.0, child.0
    );
    world.execute(&below).await.expect("is a child");

    let event = EventId(Uuid::now_v7());
    let new = NewEvent { id: event, event_type: "lead.created".into(), record: None, data: json!({}) };
    world.store.record_events(world.tenant, &[new]).await.expect("records");
    let trigger = Trigger::Event { event, ordinal: 0 };
    let (by_event, _) =
        ended(&world, &Admission { trigger, ..admission() }, RunEndState::Succeeded, "2 hours").await;

    let start_key = "api:k-1".to_owned();
    let (by_key, _) =
        ended(&world, &Admission { start_key, ..admission() }, RunEndState::Succeeded, "2 hours").await;
    world.store.begin_request(world.tenant, "k-1", [1; 32]).await.expect("begins");

    let open = world.start(&["a"]).await;

    let forget = async || forget(&world, RETENTION).await;
    assert_eq!(forget().await, 0);
    let is_there = async |run: RunId| world.store.run(world.tenant, run).await.expect("reads").is_some();

    age(&world, failed, "25 hours").await;
    assert_eq!((forget().await, is_there(failed).await), (1, false), "no replay any more");
    world.execute(&format!("{known} {}", of(effect))).await.expect("is known");
    assert_eq!((forget().await, is_there(unknown).await), (1, false), "its outcome is known");
    age(&world, parent, "2 minutes").await;
    // The parent comes first in a walk, and its child in the next.
    assert_eq!((forget().await + forget().await, is_there(child).await), (2, false), "its parent is gone");
    let published = "UPDATE events SET pending = false, published_at = now()";
    world.execute(published).await.expect("publishes");
    assert_eq!((forget().await, is_there(by_event).await), (1, false), "its event comes no more");
    world.store.finish_request(world.tenant, "k-1", 201, b"{}").await.expect("finishes");
    assert_eq!((forget().await, is_there(by_key).await), (1, false), "a repeat gets the kept answer");
    assert!(is_there(open).await);
}

#[tokio::test]
async fn a_record_has_its_one_run_for_ever() {
    let world = World::new().await;
    let about = |record: &str| Admission {
        record: Some(record.into()),
        dedup: Dedup::OncePerRecord,
        ..world.admission(&["a"])
    };
    ended(&world, &about("r-1"), RunEndState::Succeeded, "2 minutes").await;
    assert_eq!(forget(&world, RETENTION).await, 1);
    // Alone, and with others.
    for record in ["r-1", "r-2"] {
        let mut admissions = tokio::task::JoinSet::new();
        for _ in 0..4 {
            let (admission, store) = (about(record), world.store.clone());
            admissions.spawn(async move { store.admit(&admission).await.expect("answers") });
        }
        let admitted = admissions.join_all().await;
        let started = admitted.iter().filter(|admitted| matches!(admitted, Admitted::Started(_))).count();
        assert_eq!(started, usize::from(record == "r-2"), "{record}: {admitted:?}");
    }
}

/// What guards beyond its lineage stays, with the name of what it was sent for, and goes on guarding.
#[tokio::test]
async fn a_receipt_that_guards_outlives_its_run() {
    let world = World::new().await;
    for scope in ["lineage", "workflow"] {
        let admission = world.admission(&["a"]);
        let try_one = async |admission: &Admission, key: Option<[u8; 16]>| {
            world.store.admit(admission).await.expect("admits");
            let step = one(world.claim(LEASE).await);
            let mut sent = receipt(&step, 0, Safety::AtMostOnce);
            let request = &mut sent.request;
            let lineage = Scope::Lineage(LineageId(admission.run.0));
            request.content_key = key.unwrap_or_else(|| {
                let scope = if scope == "lineage" { lineage } else { Scope::Workflow(world.workflow) };
                content_key(scope, &request.kind, &request.destination, &request.request_hash)
            });
            let dispatch = Dispatch { guard: Some("once"), ..first(&step, &sent) };
            let verdict = world.store.dispatch(&dispatch).await.expect("answers");
            (step, sent, verdict)
        };
        let (step, mut sent, verdict) = try_one(&admission, None).await;
        let DispatchVerdict::Dispatched { at } = verdict else { panic!("not sent: {verdict:?}") };
        sent.standing = counterfoil_domain::receipt::Standing::Dispatched { lease: step.fence.lease, at };
        settle(&world, &step, &sent, RunEndState::Succeeded).await;
        // A re-send of the same slot, which does not guard beside the first.
        let resent = Uuid::now_v7();
        world
            .execute(&format!(
                "INSERT INTO receipts SELECT (jsonb_populate_record(r,
                     jsonb_build_object('id', '{resent}'::uuid, 'dispatch_number', 1, 'guarded', false))).*
                 FROM receipts r WHERE id = '{}'",
                sent.id.0
            ))
            .await
            .expect("inserts");
        age(&world, admission.run, "2 minutes").await;
        assert_eq!(forget(&world, RETENTION).await, 1);

        let left = world.store.receipt(world.tenant, sent.id).await.expect("reads");
        let story = world.store.receipt(world.tenant, resent.into()).await.expect("reads");
        assert_eq!(story.is_some(), left.is_some(), "a slot's dispatches stay or go together");
        if scope == "lineage" {
            assert_eq!(left, None, "nothing can meet it any more");
            continue;
        }
        let left = left.expect("stays");
        assert_eq!((left.workflow.as_str(), left.run_has_ended), ("flow", true));
        let again = world.admission(&["a"]);
        let (.., verdict) = try_one(&again, Some(sent.request.content_key)).await;
        assert_eq!(verdict, DispatchVerdict::Duplicate { held_by: sent.id });
    }
    assert_eq!(world.number("SELECT count(*) FROM forgotten_runs WHERE is_clear").await, 1);
}

/// The database derives the key of a lineage as `domain` does.
#[tokio::test]
async fn the_key_of_a_lineage_is_the_same_on_both_sides() {
    let world = World::new().await;
    let lineage = LineageId(Uuid::now_v7());
    for kind in ["http", "mäil"] {
        let row = sqlx::query("SELECT counterfoil.lineage_content_key($1, $2, $3, $4)")
            .bind(lineage.0)
            .bind(kind)
            .bind([7_u8; 32].as_slice())
            .bind([9_u8; 32].as_slice())
            .fetch_one(&world.pool)
            .await
            .expect("computes");
        let theirs: Vec<u8> = row.get(0);
        assert_eq!(theirs, content_key(Scope::Lineage(lineage), kind, &[7; 32], &[9; 32]));
    }
}

#[tokio::test]
async fn a_tenants_own_time_comes_before_the_operators_and_nothing_goes_without_either() {
    let world = World::new().await;
    let forever = Retention { keep: KeepFor::default(), ..RETENTION };
    ended(&world, &world.admission(&["a"]), RunEndState::Succeeded, "3 days").await;
    world.store.set_out_walks(&forever).await.expect("sets out");
    assert_eq!(world.store.walk(&forever, Utc::now()).await.expect("walks"), None);
    assert_eq!(world.store.retention_lag().await.expect("reads"), None);

    let own = async |days| {
        let set = world.store.set_tenant_retention("acme", OwnRetention { days }, &person()).await;
        assert!(set.expect("sets"));
        assert_eq!(world.store.tenant_retention("acme").await.expect("reads"), Some(OwnRetention { days }));
    };
    own(Some(4)).await;
    assert_eq!(forget(&world, RETENTION).await, 0, "longer than the operator's");
    own(Some(2)).await;
    assert_eq!(forget(&world, forever).await, 1, "although the operator says nothing");
    assert!(world.store.retention_lag().await.expect("reads").is_some());
    own(None).await;
    world.store.set_out_walks(&forever).await.expect("sets out");
    assert_eq!(world.store.retention_lag().await.expect("reads"), None, "nobody walks any more");
}

/// Two hosts at once take different tenants or none, and each run is forgotten once.
#[tokio::test(flavor = "multi_thread")]
async fn hosts_that_forget_at_once_do_not_stand_in_each_others_way() {
    let world = World::new().await;
    for _ in 0..20 {
        ended(&world, &world.admission(&["a"]), RunEndState::Succeeded, "2 minutes").await;
    }
    world.store.set_out_walks(&RETENTION).await.expect("sets out");
    let mut hosts = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let store = world.other_store().await;
        hosts.spawn(async move {
            let mut forgotten = 0;
            for _ in 0..50 {
                let walked = store.walk(&RETENTION, Utc::now()).await.expect("walks");
                forgotten += walked.unwrap_or_default().forgotten;
                store.clear_forgotten().await.expect("clears");
            }
            forgotten
        });
    }
    assert_eq!(hosts.join_all().await.iter().sum::<u64>(), 20);
    while world.store.clear_forgotten().await.expect("clears") {}
    assert_eq!(rows(&world).await, []);
}

/// One round through everything. Returns what is gone of each.
async fn prune(world: &World) -> BTreeMap<&'static str, u64> {
    world.store.set_out_walks(&PRUNING).await.expect("sets out");
    world.execute("UPDATE pruning_rounds SET due_at = now()").await.expect("is due");
    // Long after the test, so that no second round begins.
    let once = Retention { walk_every: Duration::from_hours(1), ..PRUNING };
    let mut gone = BTreeMap::new();
    while let Some(pruned) = world.store.prune(&once).await.expect("prunes") {
        *gone.entry(pruned.what.name()).or_default() += pruned.gone;
    }
    gone
}

/// An event that was published, so long ago, and came to nothing.
async fn event(world: &World, kind: &str, ago: &str) -> EventId {
    let id = EventId(Uuid::now_v7());
    let statement = format!(
        "WITH e AS (
             INSERT INTO events (tenant_id, id, type, data, recorded_at, pending, published_at)
             VALUES ('{tenant}', '{id}', '{kind}', '{{}}', now() - interval '{ago}', false, now())
         )
         INSERT INTO deliveries (tenant_id, event_id, workflow_id, refusal)
         VALUES ('{tenant}', '{id}', '{workflow}', 'rule_not_matched')",
        tenant = world.tenant.0,
        id = id.0,
        workflow = world.workflow.0,
    );
    world.execute(&statement).await.expect("records");
    id
}

#[tokio::test]
async fn what_is_past_its_time_goes_page_by_page_and_the_rest_stays() {
    let world = World::new().await;
    world.execute("UPDATE audit SET at = now() - interval '10 seconds'").await.expect("is young");
    let audited = world.number("SELECT count(*) FROM audit").await;
    for (n, ago) in ["30 seconds", "2 minutes"].into_iter().flat_map(|ago| [ago; 8]).enumerate() {
        event(&world, "x", ago).await;
        world.store.begin_request(world.tenant, &format!("k-{n}"), [1; 32]).await.expect("begins");
        let older = [
            format!("UPDATE idempotent_requests SET begun_at = now() - interval '{ago}' WHERE key = 'k-{n}'"),
            format!(
                "INSERT INTO audit (tenant_id, id, actor, action, at)
                 VALUES ('{}', gen_random_uuid(), 'ada', 'workflow.pause', now() - interval '{ago}')",
                world.tenant.0
            ),
        ];
        for statement in older {
            assert_eq!(world.execute(&statement).await.expect("ages"), 1);
        }
    }
    assert_eq!(prune(&world).await, BTreeMap::from([("audit", 8), ("events", 8), ("requests", 8)]));
    let left = ["events", "deliveries", "idempotent_requests", "audit"];
    for (table, expected) in left.into_iter().zip([8, 8, 8, 8 + audited]) {
        assert_eq!(world.number(&format!("SELECT count(*) FROM {table}")).await, expected, "{table}");
    }
    assert_eq!(prune(&world).await, BTreeMap::from([("audit", 0), ("events", 0), ("requests", 0)]));
    // Without a time, nobody goes through anything.
    world.store.set_out_walks(&Retention { keep: KeepFor::default(), ..PRUNING }).await.expect("sets out");
    assert_eq!(world.store.prune(&PRUNING).await.expect("prunes"), None);
    assert_eq!(world.store.retention_lag().await.expect("reads"), None);
}

/// Each for another reason, and each goes when that is over.
#[tokio::test]
async fn an_event_stays_while_anything_needs_it() {
    let world = World::new().await;
    let rows = async |events: &[EventId]| {
        let mut there = vec![];
        for event in events {
            there.push(world.store.event(world.tenant, *event).await.expect("reads").is_some());
        }
        there
    };
    let done = event(&world, "x", "1 hour").await;
    let pending = event(&world, "x", "1 hour").await;
    let hold = format!("UPDATE events SET pending = true, published_at = NULL WHERE id = '{}'", pending.0);
    world.execute(&hold).await.expect("is pending");

    // One that a step emitted.
    let (_, receipt) = world.dispatched().await;
    let emitted = event(&world, "x", "1 hour").await;
    let by = format!("UPDATE receipts SET id = '{}' WHERE id = '{}'", emitted.0, receipt.id.0);
    world.execute(&by).await.expect("is emitted");

    // One that started a run, of which there is a replay too.
    let started = event(&world, "x", "1 hour").await;
    let run = world.start(&["a"]).await;
    let replay = world.start(&["a"]).await;
    let of =
        format!("UPDATE runs SET lineage = '{run}' WHERE id = '{replay}'", run = run.0, replay = replay.0);
    world.execute(&of).await.expect("is of the lineage");
    let by = format!(
        "UPDATE deliveries SET refusal = NULL, run_id = '{}' WHERE event_id = '{}'",
        run.0, started.0
    );
    world.execute(&by).await.expect("is started by it");

    // One that an open run may look back at: not one from before any of them.
    let types = "INSERT INTO listened_types SELECT id, 'heard' FROM tenants";
    world.execute(types).await.expect("listens");
    let heard = event(&world, "heard", "1 hour").await;
    let before = event(&world, "heard", "3 days").await;

    let all = [done, before, pending, started, emitted, heard];
    assert_eq!(prune(&world).await["events"], 2);
    assert_eq!(rows(&all).await, [false, false, true, true, true, true]);

    let publish = "UPDATE events SET pending = false, published_at = now() WHERE pending";
    world.execute(publish).await.expect("publishes");
    world.execute(&format!("DELETE FROM receipts WHERE id = '{}'", emitted.0)).await.expect("is forgotten");
    world.execute(&format!("DELETE FROM runs WHERE id = '{}'", run.0)).await.expect("is forgotten");
    assert_eq!(prune(&world).await["events"], 2);
    assert_eq!(rows(&all).await, [false, false, false, true, false, true], "its replay is there still");

    world.execute("DELETE FROM runs").await.expect("are forgotten");
    world.execute("DELETE FROM open_runs").await.expect("are over");
    assert_eq!(prune(&world).await["events"], 2);
    assert_eq!(world.number("SELECT count(*) FROM events").await, 0);
    assert_eq!(world.number("SELECT count(*) FROM deliveries").await, 0);
}

/// An audit row is part of its run's timeline.
#[tokio::test]
async fn audit_rows_stay_with_their_run() {
    let world = World::new().await;
    let run = world.start(&["a"]).await;
    let rows = format!(
        "INSERT INTO audit (tenant_id, id, actor, action, run_id)
         SELECT '{}', gen_random_uuid(), 'ada', 'run.cancel', run FROM UNNEST(ARRAY['{}'::uuid, gen_random_uuid()]) run",
        world.tenant.0, run.0,
    );
    world.execute(&rows).await.expect("inserts");
    let others = world.number("SELECT count(*) FROM audit WHERE action <> 'run.cancel'").await;
    world.execute("UPDATE audit SET at = now() - interval '1 day'").await.expect("ages");
    assert_eq!(prune(&world).await["audit"], others.cast_unsigned() + 1);
    let mine = format!("SELECT count(*) FROM audit WHERE run_id = '{}'", run.0);
    assert_eq!((world.number(&mine).await, world.number("SELECT count(*) FROM audit").await), (1, 1));
}

/// Once answers are not kept for ever, a run whose key nobody may repeat any more stands in nobody's way.
#[tokio::test]
async fn a_run_whose_key_is_past_its_time_can_be_forgotten() {
    let world = World::new().await;
    let admission = Admission { start_key: "api:k-1".into(), ..world.admission(&["a"]) };
    let (run, _) = ended(&world, &admission, RunEndState::Succeeded, "2 minutes").await;
    let keep = KeepFor { requests: Some(Duration::from_mins(5)), ..RETENTION.keep };
    let retention = Retention { keep, ..RETENTION };
    assert_eq!(forget(&world, retention).await, 0, "a repeat may come");
    let admitted =
        format!("UPDATE runs SET admitted_at = now() - interval '6 minutes' WHERE id = '{}'", run.0);
    world.execute(&admitted).await.expect("ages");
    assert_eq!(
        forget(&world, RETENTION).await,
        0,
        "where answers are kept for ever, it may come at any time"
    );
    assert_eq!(forget(&world, retention).await, 1);
}
