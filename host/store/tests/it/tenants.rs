//! Another tenant's id answers exactly like an id that does not exist.

use counterfoil_domain::id::{Digest, EventId, KeyId};
use counterfoil_domain::receipt::Actor;
use counterfoil_domain::receipt::resolution::Outcome;
use counterfoil_store::Page;
use counterfoil_store::block::{BlockVersion, NewBlock};
use counterfoil_store::connection::{NewConnection, SecretChanges};
use counterfoil_store::event::NewEvent;
use counterfoil_store::key::KeyRow;
use counterfoil_store::receipt::EffectFilter;
use counterfoil_store::run::RunFilter;
use serde_json::json;
use uuid::Uuid;

use crate::world::{World, person, resolution};

const READS: [&str; 26] = [
    "journal",
    "receipt",
    "effects",
    "effects of a run",
    "unknown effects",
    "resolve",
    "resume",
    "run",
    "runs",
    "open runs",
    "run context",
    "timeline",
    "cancel",
    "event",
    "bindings",
    "workflow",
    "workflows",
    "version",
    "version by number",
    "active",
    "pause",
    "blocks",
    "component",
    "descriptor",
    "connection",
    "keys",
];

struct Ids {
    receipt: counterfoil_domain::receipt::Receipt,
    event: EventId,
    key: KeyId,
    digest: Digest,
}

/// What `tenant` is told of what the first tenant has.
async fn told(world: &World, ids: &Ids, tenant: counterfoil_domain::id::TenantId, read: &str) -> String {
    let store = &world.store;
    let page = Page { after: None, limit: 10 };
    let run = ids.receipt.run;
    let by = person();
    match read {
        "journal" => format!("{:?}", store.journal(tenant, &ids.receipt.place).await),
        "receipt" => format!("{:?}", store.receipt(tenant, ids.receipt.id).await),
        "effects" => format!("{:?}", store.effects(tenant, EffectFilter::default(), page).await),
        "effects of a run" => {
            let filter = EffectFilter { run: Some(run), state: None };
            format!("{:?}", store.effects(tenant, filter, page).await)
        }
        "unknown effects" => {
            let state = Some(counterfoil_domain::receipt::ReceiptState::Unknown);
            format!("{:?}", store.effects(tenant, EffectFilter { state, run: None }, page).await)
        }
        "resolve" => {
            let decide = |receipt: &_, now| {
                let what = resolution(Outcome::Committed);
                counterfoil_domain::receipt::resolution::resolve(receipt, what, person(), now)
            };
            format!("{:?}", store.resolve(tenant, ids.receipt.id, decide, true, &by).await)
        }
        "resume" => format!("{:?}", store.resume(tenant, run, &by).await),
        "run" => format!("{:?}", store.run(tenant, run).await),
        "runs" => format!("{:?}", store.runs(tenant, &RunFilter::default(), page).await),
        "open runs" => {
            let filter =
                RunFilter { state: Some(counterfoil_store::run::RunState::Blocked), ..RunFilter::default() };
            format!("{:?}", store.runs(tenant, &filter, page).await)
        }
        "run context" => format!("{:?}", store.run_context(tenant, run).await),
        "timeline" => format!("{:?}", store.timeline_head(tenant, run).await),
        "cancel" => format!("{:?}", store.cancel_run(tenant, run, &by).await),
        "event" => format!("{:?}", store.event(tenant, ids.event).await),
        "bindings" => format!("{:?}", store.bindings(tenant, "lead.created").await),
        "workflow" => format!("{:?}", store.workflow(tenant, "flow").await),
        "workflows" => format!("{:?}", store.workflows(tenant, page).await),
        "version" => format!("{:?}", store.version(tenant, world.version).await),
        "version by number" => format!("{:?}", store.version_number(tenant, "flow", 1).await),
        "active" => format!("{:?}", store.active(tenant, "flow").await),
        "pause" => format!("{:?}", store.set_paused(tenant, "flow", false).await),
        "blocks" => {
            let versions: Result<Vec<BlockVersion>, _> = store.block_versions(tenant, "block").await;
            let newest = store.newest_blocks(tenant, &["block".into()]).await;
            format!("{:?} {versions:?} {newest:?}", store.blocks(tenant, page).await)
        }
        "component" => format!("{:?}", store.component(tenant, ids.digest).await),
        "descriptor" => format!("{:?}", store.descriptor(tenant, ids.digest).await),
        "connection" => {
            format!("{:?} {:?}", store.connection(tenant, "c").await, store.connections(tenant).await)
        }
        "keys" => format!("{:?} {:?}", store.keys(tenant).await, store.revoke_key(tenant, ids.key).await),
        other => panic!("no read is called {other}"),
    }
}

#[tokio::test]
async fn a_tenant_sees_nothing_of_another() {
    let world = World::new().await;
    let (_, receipt) = world.blocked().await;
    let ids = Ids {
        receipt,
        event: EventId(Uuid::now_v7()),
        key: KeyId(Uuid::now_v7()),
        digest: Digest::of(b"block"),
    };
    let (store, own) = (&world.store, world.tenant);
    let event =
        NewEvent { id: ids.event, event_type: "lead.created".into(), record: None, data: json!({ "id": 1 }) };
    store.record_events(own, &[event]).await.expect("records");
    let (digest, descriptor) = (ids.digest, &json!({}));
    let block =
        NewBlock { name: "block", digest, bytes: b"block", descriptor, imports: &[], verifies: false };
    store.put_block(own, &block).await.expect("keeps");
    let connection = NewConnection {
        name: "c".into(),
        base_url: "https://example.com".into(),
        allowed_hosts: vec![],
        abilities: json!({}),
        rate: None,
        in_flight_max: None,
        secrets: SecretChanges::default(),
    };
    store.set_connection(own, &connection, &Actor::Host).await.expect("sets");
    let key = KeyRow {
        tenant: own,
        id: ids.key,
        prefix: "p".into(),
        hash: [0; 32],
        scope: "admin".into(),
        label: "l".into(),
        created_at: chrono::DateTime::UNIX_EPOCH,
        revoked_at: None,
    };
    store.create_key(&key).await.expect("keeps");

    let other = counterfoil_domain::id::TenantId(Uuid::now_v7());
    store.create_tenant(other, "other").await.expect("creates");
    let nobody = counterfoil_domain::id::TenantId(Uuid::now_v7());
    let before = world.dump().await;
    for read in READS {
        let theirs = told(&world, &ids, other, read).await;
        assert_eq!(theirs, told(&world, &ids, nobody, read).await, "{read}");
        assert!(theirs.starts_with("Ok("), "{read}: {theirs}");
        assert_eq!(world.dump().await, before, "{read}");
    }
    // And yet there is something to see: each of these can fail.
    for read in READS.into_iter().filter(|read| *read != "resolve" && *read != "cancel") {
        let owners = told(&world, &ids, own, read).await;
        assert_ne!(owners, told(&world, &ids, other, read).await, "{read}");
    }
}
