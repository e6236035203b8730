//! The tables refuse what no state machine of ours would do.

use counterfoil_domain::effect::Safety;

use crate::world::{World, receipt, settlement};

/// SQLSTATE of a CHECK that does not hold, and of a key that exists.
const CHECK: &str = "23514";
const UNIQUE: &str = "23505";

#[tokio::test]
async fn illegal_rows_are_refused() {
    let world = World::new().await;
    let (step, _) = world.dispatched().await;
    world.store.settle(&settlement(&world.step().await)).await.expect("settles");
    let other = world.step().await;
    world.send(&other, receipt(&other, 0, Safety::AtMostOnce)).await;
    let own = step.fence.step.0;
    for (refusal, statement) in [
        (CHECK, "UPDATE receipts SET state = 'sent'".into()),
        (CHECK, "UPDATE receipts SET state = 'unknown'".into()),
        (CHECK, "UPDATE receipts SET unresolved = true".into()),
        (CHECK, "UPDATE receipts SET state = 'committed'".into()),
        (CHECK, "UPDATE receipts SET state = 'rejected'".into()),
        (CHECK, "UPDATE receipts SET answer_kind = 'http'".into()),
        (CHECK, "UPDATE receipts SET dispatched_at = NULL".into()),
        (CHECK, "UPDATE receipts SET lease_id = NULL".into()),
        (CHECK, "UPDATE receipts SET absence_known_at = NULL".into()),
        (CHECK, "UPDATE receipts SET safety = 'read-only'".into()),
        (CHECK, "UPDATE receipts SET released = true".into()),
        (CHECK, "UPDATE receipts SET guarded = true, released = true".into()),
        (CHECK, "UPDATE receipts SET guarded = true, state = 'planned', dispatched_at = NULL".into()),
        (CHECK, "UPDATE receipts SET slot_label = 'x'".into()),
        (CHECK, "UPDATE receipts SET slot_ordinal = NULL".into()),
        (CHECK, "UPDATE receipts SET request_hash = '\\x00'".into()),
        (UNIQUE, "UPDATE receipts SET guarded = true, content_key = decode(repeat('00', 16), 'hex')".into()),
        (CHECK, format!("UPDATE open_steps SET wait = 'blocked' WHERE id = '{own}'")),
        (CHECK, format!("UPDATE open_steps SET wait = 'asleep' WHERE id = '{own}'")),
        (CHECK, format!("UPDATE open_steps SET lease_id = NULL WHERE id = '{own}'")),
        (CHECK, format!("UPDATE open_steps SET first_started_at = NULL WHERE id = '{own}'")),
        (CHECK, "UPDATE settled_steps SET state = 'failed'".into()),
        (CHECK, "UPDATE settled_steps SET state = 'skipped'".into()),
        (CHECK, "UPDATE settled_steps SET error = '{}'".into()),
        (CHECK, "UPDATE runs SET state = 'succeeded'".into()),
        (CHECK, "UPDATE runs SET ended_at = now()".into()),
        (CHECK, "UPDATE runs SET output = '1'".into()),
        (CHECK, "UPDATE runs SET event_id = id".into()),
        (CHECK, "UPDATE open_runs SET exclusive = true".into()),
        (CHECK, "UPDATE open_runs SET open_steps = -1".into()),
        (CHECK, "INSERT INTO deliveries SELECT id, id, id, id FROM tenants".into()),
        (CHECK, "INSERT INTO api_keys SELECT id, id, 'p', decode(repeat('00', 32), 'hex'), 'root', '' FROM tenants".into()),
        (CHECK, "INSERT INTO stored_values SELECT id, '', '', id FROM tenants".into()),
        (CHECK, "INSERT INTO stored_values SELECT id, repeat('ä', 257), '', id FROM tenants".into()),
        (CHECK, "INSERT INTO stored_values SELECT id, 'k', decode(repeat('00', 65537), 'hex'), id FROM tenants".into()),
        (CHECK, "INSERT INTO tenants VALUES (gen_random_uuid(), 'Acme')".into()),
        (UNIQUE, "INSERT INTO tenants VALUES (gen_random_uuid(), 'acme')".into()),
    ] {
        let statement: String = statement;
        let refused = world.execute(&statement).await;
        let code = match &refused {
            Err(sqlx::Error::Database(refused)) => refused.code(),
            _ => None,
        };
        assert_eq!(code.as_deref(), Some(refusal), "{statement}: {refused:?}");
    }
}
