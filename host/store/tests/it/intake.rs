//! What people put in: events, requests, blocks, workflows, connections, keys.

use std::time::Duration;

use counterfoil_domain::block::WantedLimits;
use counterfoil_domain::fair_share::Share;
use counterfoil_domain::id::{Digest, EventId, KeyId, TenantId};
use counterfoil_store::Page;
use counterfoil_store::block::NewBlock;
use counterfoil_store::event::{NewEvent, Recorded};
use counterfoil_store::idempotency::Begun;
use counterfoil_store::key::KeyRow;
use counterfoil_store::tenant::{Created, LimitsChange};
use counterfoil_store::workflow::{Activated, Activation, ActivePlan, NewVersion};
use serde_json::json;
use uuid::Uuid;

use crate::world::{LEASE, World, one, person, version};

fn new_event(n: u128) -> NewEvent {
    NewEvent {
        id: EventId(Uuid::from_u128(n)),
        event_type: "lead.created".into(),
        record: Some(format!("r-{n}")),
        data: json!({ "z": -0.0, "a": "nul \u{0}" }),
    }
}

#[tokio::test]
async fn an_event_is_published_once_by_whoever_holds_it() {
    let world = World::new().await;
    let (store, tenant) = (&world.store, world.tenant);
    let recorded = store.record_events(tenant, &[new_event(1), new_event(2)]).await.expect("records");
    assert_eq!(recorded, [Recorded::New, Recorded::New]);
    // Recorded again, it stays as it was, and what was not taken is told: also of what comes twice in a batch.
    let other = NewEvent { data: json!("other"), ..new_event(1) };
    let moved = NewEvent { event_type: "lead.moved".into(), record: None, ..new_event(3) };
    let again = [other, new_event(3), new_event(2), moved];
    assert_eq!(
        store.record_events(tenant, &again).await.expect("records"),
        [
            Recorded::Differs(vec!["data"]),
            Recorded::New,
            Recorded::Known,
            Recorded::Differs(vec!["type", "record"])
        ]
    );

    let held = store.hold_events(2, LEASE, None).await.expect("holds");
    let ids: Vec<_> = held.iter().map(|event| (event.tenant, event.id)).collect();
    assert_eq!(held.len(), 2);
    assert!(held.iter().all(|event| event.data == Ok(new_event(1).data) && event.hold == held[0].hold));
    let rest = one(store.hold_events(10, Duration::ZERO, None).await.expect("holds"));
    assert!(!ids.contains(&(rest.tenant, rest.id)));

    // While it is extended it is nobody else's; one that ran out is.
    let of_rest = [(rest.tenant, rest.id)];
    assert_eq!(store.extend_hold(rest.hold, &of_rest, LEASE).await.expect("extends"), 1);
    assert_eq!(store.hold_events(10, LEASE, None).await.expect("holds"), []);
    assert_eq!(store.extend_hold(held[0].hold, &of_rest, LEASE).await.expect("answers"), 0);
    assert_eq!(store.extend_hold(rest.hold, &of_rest, Duration::ZERO).await.expect("extends"), 1);
    let taken = one(store.hold_events(10, LEASE, None).await.expect("holds"));
    assert_eq!((taken.id, taken.hold == rest.hold), (rest.id, false));
    let late = store.publish_events(rest.hold, &[(rest.tenant, rest.id)]).await.expect("answers");
    assert_eq!(late, 0);
    assert_eq!(store.publish_events(held[0].hold, &ids).await.expect("publishes"), 2);
    assert_eq!(store.publish_events(held[0].hold, &ids).await.expect("answers"), 0);
    assert_eq!(store.publish_events(taken.hold, &[(taken.tenant, taken.id)]).await.expect("publishes"), 1);
    assert_eq!(store.hold_events(10, LEASE, None).await.expect("holds"), []);
    assert_eq!(store.counts().await.expect("counts").pending_events, 0);
}

/// However much one tenant has recorded before, the next batch has room for every other's.
#[tokio::test]
async fn publishers_take_the_events_of_tenants_in_turns() {
    let world = World::new().await;
    let store = &world.store;
    let mut tenants = [2, 3, 1].map(|n| TenantId(Uuid::from_u128(n)));
    for (n, tenant) in tenants.iter().enumerate() {
        store.create_tenant(*tenant, &format!("tenant-{n}")).await.expect("creates");
        let count = if n == 0 { 20 } else { 3 };
        let events: Vec<NewEvent> = (0..count).map(|n| new_event(n + 1)).collect();
        store.record_events(*tenant, &events).await.expect("records");
    }
    tenants.sort_by_key(|tenant| tenant.0);
    let held = async |limit, after| {
        let mut held = store.hold_events(limit, LEASE, after).await.expect("holds");
        held.sort_by_key(|event| event.tenant.0);
        held.into_iter().map(|event| event.tenant).collect::<Vec<_>>()
    };
    let [one, two, three] = tenants;
    assert_eq!(held(6, None).await, [one, one, two, two, three, three]);
    assert_eq!(held(1, Some(one)).await, [two]);
    assert_eq!(held(2, Some(two)).await, [one, three], "less room than tenants");
}

/// An application that shares the database records an event in its own transaction.
#[tokio::test]
async fn an_application_may_emit_in_its_own_transaction() {
    let world = World::new().await;
    let emit = |tenant: TenantId| {
        let call = r#"counterfoil.emit_event($1, 'lead.created', '{"id": 5}', 'r-5')"#;
        sqlx::query_scalar::<_, Uuid>(sqlx::AssertSqlSafe(format!("SELECT {call}"))).bind(tenant.0)
    };
    let mut undone = world.pool.begin().await.expect("begins");
    emit(world.tenant).fetch_one(&mut *undone).await.expect("emits");
    undone.rollback().await.expect("rolls back");
    assert_eq!(world.store.hold_events(10, LEASE, None).await.expect("holds"), []);
    let id = emit(world.tenant).fetch_one(&world.pool).await.expect("emits");
    let held = one(world.store.hold_events(10, LEASE, None).await.expect("holds"));
    assert_eq!((held.id.0, held.data, held.record.as_deref()), (id, Ok(json!({ "id": 5 })), Some("r-5")));
    assert!(emit(TenantId(Uuid::now_v7())).fetch_one(&world.pool).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_request_gets_the_first_ones_answer() {
    let world = World::new().await;
    let (store, tenant) = (&world.store, world.tenant);
    let begin =
        |hash: u8| async move { store.begin_request(tenant, "k", [hash; 32]).await.expect("answers") };
    let (one, other) = tokio::join!(begin(1), begin(1));
    assert_eq!([&one, &other].iter().filter(|begun| **begun == &Begun::New).count(), 1, "{one:?} {other:?}");
    assert_eq!(begin(1).await, Begun::Running);
    assert_eq!(begin(2).await, Begun::OtherRequest);

    // Dropped, it is as if it had never been.
    store.drop_request(tenant, "k").await.expect("drops");
    assert_eq!(begin(2).await, Begun::New);

    // Its host died: after a minute somebody else may have it.
    world
        .execute("UPDATE idempotent_requests SET begun_at = now() - interval '61 seconds'")
        .await
        .expect("waits");
    assert_eq!(begin(1).await, Begun::OtherRequest);
    assert_eq!(begin(2).await, Begun::New);
    assert_eq!(begin(2).await, Begun::Running);

    store.finish_request(tenant, "k", 201, b"{}").await.expect("keeps");
    store.finish_request(tenant, "k", 500, b"late").await.expect("answers");
    store.drop_request(tenant, "k").await.expect("answers");
    world
        .execute("UPDATE idempotent_requests SET begun_at = now() - interval '1 hour'")
        .await
        .expect("waits");
    assert_eq!(begin(2).await, Begun::Done { status: 201, body: b"{}".to_vec() });
    assert_eq!(begin(1).await, Begun::OtherRequest);
}

#[tokio::test]
async fn every_upload_is_a_version_and_the_last_is_the_newest() {
    let world = World::new().await;
    let (store, tenant) = (&world.store, world.tenant);
    let put = |name: &'static str, bytes: &'static [u8]| async move {
        let descriptor = json!({ "of": bytes.len() });
        let imports = ["counterfoil:block/effects@0.1.0".to_owned()];
        let (digest, descriptor, imports) = (Digest::of(bytes), &descriptor, &imports);
        let block = NewBlock { name, digest, bytes, descriptor, imports, verifies: false };
        store.put_block(tenant, &block).await.expect("keeps")
    };
    let names = ["b".to_owned(), "absent".into()];
    let newest = || async { store.newest_blocks(tenant, &names).await.expect("reads") };
    assert!(put("b", b"one").await);
    assert!(put("b", b"three").await);
    assert_eq!(newest().await, [("b".to_owned(), Digest::of(b"three"))].into());
    // An older version that is uploaded again is what its author wants now.
    assert!(!put("b", b"one").await);
    assert_eq!(newest().await, [("b".to_owned(), Digest::of(b"one"))].into());
    assert!(put("a", b"one").await);

    let listed = store.blocks(tenant, Page { after: None, limit: 1 }).await.expect("lists");
    assert_eq!(one(listed.clone()).name, "a");
    let listed =
        store.blocks(tenant, Page { after: Some(listed[0].cursor()), limit: 9 }).await.expect("lists");
    assert_eq!(
        (one(listed.clone()).name.as_str(), listed[0].digest, listed[0].bytes_len),
        ("b", Digest::of(b"one"), 3)
    );
    let versions = store.block_versions(tenant, "b").await.expect("lists");
    assert_eq!(versions.iter().map(|version| version.bytes_len).collect::<Vec<_>>(), [3, 5]);
    assert_eq!(
        store.component(tenant, Digest::of(b"three")).await.expect("reads").as_deref(),
        Some(&b"three"[..])
    );
    assert_eq!(
        store.descriptor(tenant, Digest::of(b"three")).await.expect("reads"),
        Some(json!({ "of": 5 }))
    );
}

#[tokio::test]
async fn a_definition_that_changed_is_the_next_version() {
    let world = World::new().await;
    let (store, tenant) = (&world.store, world.tenant);
    let same = store.save_workflow(tenant, "flow", &version(1)).await.expect("saves");
    assert_eq!(
        (same.workflow, same.version, same.number, same.unchanged),
        (world.workflow, world.version, 1, true)
    );
    let second = store.save_workflow(tenant, "flow", &version(2)).await.expect("saves");
    assert_eq!((second.workflow, second.number, second.unchanged), (world.workflow, 2, false));
    // Back to what it was is a version too.
    let third = store.save_workflow(tenant, "flow", &version(1)).await.expect("saves");
    assert_eq!((third.number, third.unchanged), (3, false));

    let active = store.active(tenant, "flow").await.expect("reads").expect("active");
    assert_eq!((active.version, active.number, active.paused), (world.version, 1, false));
    assert_eq!(active.plan, json!({ "plan": 1 }));
    let full = store.version_number(tenant, "flow", 2).await.expect("reads").expect("exists");
    assert_eq!(store.version(tenant, second.version).await.expect("reads"), Some(full.clone()));
    assert_eq!((full.workflow_name.as_str(), full.source.as_str(), full.number), ("flow", "n: 2", 2));
    assert_eq!(store.version_number(tenant, "flow", 9).await.expect("reads"), None);

    let view = store.workflow(tenant, "flow").await.expect("reads").expect("exists");
    let numbers: Vec<_> = view.versions.iter().map(|version| version.number).collect();
    assert_eq!((numbers, view.active, view.paused), (vec![3, 2, 1], Some(1), false));
    let listed = one(store.workflows(tenant, Page { after: None, limit: 5 }).await.expect("lists"));
    assert_eq!((listed.active, listed.newest), (Some(1), 3));
}

#[tokio::test(flavor = "multi_thread")]
async fn two_who_save_at_once_get_two_numbers() {
    let world = World::new().await;
    let mut authors = tokio::task::JoinSet::new();
    for n in 10..18 {
        let (store, tenant) = (world.store.clone(), world.tenant);
        authors
            .spawn(async move { store.save_workflow(tenant, "rushed", &version(n)).await.expect("saves") });
    }
    let saved = authors.join_all().await;
    let mut numbers: Vec<_> = saved.iter().map(|saved| saved.number).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, [1, 2, 3, 4, 5, 6, 7, 8]);
    assert!(saved.iter().all(|other| other.workflow == saved[0].workflow));
}

#[tokio::test]
async fn the_active_version_is_the_one_that_events_meet() {
    let world = World::new().await;
    let (store, tenant) = (&world.store, world.tenant);
    store.save_workflow(tenant, "flow", &version(2)).await.expect("saves");
    let activate = |number, triggers: Vec<String>| async move {
        let activation = Activation { number, triggers: &triggers, ..Activation::default() };
        store.activate(tenant, "flow", activation, &person()).await.expect("answers")
    };
    let Activated::Active { version, number: 2, .. } =
        activate(None, vec!["x".into(), "lead.won".into(), "x".into()]).await
    else {
        panic!("not active")
    };
    let bound = |event_type: &'static str| async move {
        let bindings = store.bindings(tenant, event_type).await.expect("reads");
        bindings.iter().map(|binding| (binding.version, binding.ordinal, binding.paused)).collect::<Vec<_>>()
    };
    assert_eq!(bound("lead.created").await, []);
    assert_eq!(bound("x").await, [(version, 0, false), (version, 2, false)]);
    assert_eq!(bound("lead.won").await, [(version, 1, false)]);
    assert!(store.set_paused(tenant, "flow", true).await.expect("pauses"));
    assert_eq!(bound("lead.won").await, [(version, 1, true)]);
    assert!(!store.set_paused(tenant, "none", true).await.expect("answers"));

    assert_eq!(activate(Some(7), vec![]).await, Activated::NotFound);
    assert!(matches!(activate(Some(1), vec![]).await, Activated::Active { number: 1, .. }));
    assert_eq!(bound("x").await, []);
    assert_eq!(world.number("SELECT count(*) FROM audit WHERE action = 'workflow.activate'").await, 3);
}

#[tokio::test]
async fn an_activation_that_was_judged_by_what_is_not_active_any_more_changes_nothing() {
    let world = World::new().await;
    let (store, tenant) = (&world.store, world.tenant);
    let seen = |plans: Vec<ActivePlan>| {
        plans.into_iter().map(|active| (active.workflow, active.version)).collect::<Vec<_>>()
    };
    let before = seen(store.active_plans(tenant).await.expect("reads"));
    assert_eq!(before, [(world.workflow, world.version)]);
    store.save_workflow(tenant, "other", &version(3)).await.expect("saves");
    let triggers = ["lead.won".to_owned()];
    let accepted = ["step a: added".to_owned()];
    let judged =
        Activation { triggers: &triggers, seen: Some(&before), accepted: &accepted, number: Some(1) };
    let other = store.activate(tenant, "other", judged, &person()).await.expect("answers");
    assert!(matches!(other, Activated::Active { number: 1, .. }), "{other:?}");
    let told = "SELECT count(*) FROM audit WHERE detail->'accepted'->>0 = 'step a: added'";
    assert_eq!(world.number(told).await, 1);
    let moved = store.activate(tenant, "flow", judged, &person()).await.expect("answers");
    assert_eq!(moved, Activated::Moved);
    assert_eq!(store.bindings(tenant, "lead.won").await.expect("reads").len(), 1);
    let now = seen(store.active_plans(tenant).await.expect("reads"));
    let judged = Activation { seen: Some(&now), ..judged };
    let done = store.activate(tenant, "flow", judged, &person()).await.expect("answers");
    assert!(matches!(done, Activated::Active { .. }), "{done:?}");
}

#[tokio::test]
async fn keys_and_names_are_found_and_taken_back() {
    let world = World::new().await;
    let (store, tenant) = (&world.store, world.tenant);
    assert_eq!(store.tenant_by_name("acme").await.expect("reads"), Some(tenant));
    assert_eq!(store.tenant_by_name("nobody").await.expect("reads"), None);
    let taken = store.create_tenant(TenantId(Uuid::now_v7()), "acme").await.expect("answers");
    assert_eq!(taken, Created::NameTaken);
    let tenants = store.tenants().await.expect("lists");
    let listed: Vec<_> =
        tenants.iter().map(|row| (row.id, row.name.as_str(), row.share, row.limits)).collect();
    assert_eq!(listed, [(tenant, "acme", Share::default(), WantedLimits::default())]);
    let change = LimitsChange { cpu_ms_max: Some(Some(50)), ..LimitsChange::default() };
    let set = store.set_tenant_limits(tenant, change, &person()).await.expect("sets");
    assert_eq!(set, WantedLimits { cpu_ms_max: Some(50), ..WantedLimits::default() });
    assert_eq!(store.tenants().await.expect("lists")[0].limits, set);
    let kept = "SELECT count(*) FROM audit WHERE action = 'tenant.limits' AND actor = 'person:ada' AND (detail->>'cpu_ms_max')::int = 50";
    assert_eq!(world.number(kept).await, 1);

    let key = KeyRow {
        tenant,
        id: KeyId(Uuid::now_v7()),
        prefix: "abcd".into(),
        hash: [7; 32],
        scope: "operator".into(),
        label: "ci".into(),
        created_at: chrono::DateTime::UNIX_EPOCH,
        revoked_at: None,
    };
    store.create_key(&key).await.expect("keeps");
    let found = store.key_by_prefix("abcd").await.expect("reads").expect("exists");
    assert_eq!(KeyRow { created_at: key.created_at, ..found.clone() }, key);
    assert!(store.revoke_key(tenant, key.id).await.expect("revokes"));
    assert!(!store.revoke_key(tenant, key.id).await.expect("answers"));
    let revoked = one(store.keys(tenant).await.expect("lists"));
    assert_eq!((revoked.id, revoked.revoked_at.is_some()), (key.id, true));
    assert_eq!(store.key_by_prefix("abc").await.expect("reads"), None);
}

#[tokio::test]
async fn a_saved_version_keeps_its_contents_exactly() {
    let world = World::new().await;
    // jsonb would sort these, and lose the sign and the NUL.
    let definition: serde_json::Value =
        serde_json::from_str(r#"{"z": 1.0, "a": -0.0, "text": "a\u0000b", "m": {"y": 1, "x": 2}}"#)
            .expect("JSON");
    let new = NewVersion { definition: definition.clone(), ..version(5) };
    let saved = world.store.save_workflow(world.tenant, "exact", &new).await.expect("saves");
    let read = world.store.version(world.tenant, saved.version).await.expect("reads").expect("exists");
    assert_eq!(read.definition.to_string(), definition.to_string());
}
