//! What the guard costs: the same effect, and the end of its step, with the receipt and without it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use counterfoil_domain::block::EffectGrant;
use counterfoil_domain::effect::{EffectCall, EffectReply, EffectRequest, HttpRequest, Safety};
use counterfoil_domain::outbound::AddressPolicy;
use counterfoil_domain::ports::{EffectPort as _, NoFaults};
use counterfoil_effects::client::{Client, ClientConfig, NameServers};
use counterfoil_effects::secrets::Secrets;
use counterfoil_effects::{ExecutionContext, Guard, GuardConfig};
use counterfoil_store::settle::{RunEnd, RunEndState, SettleVerdict, SettledState, SettledStep, Settlement};
use counterfoil_testkit::postgres::TestDatabase;
use counterfoil_testkit::provider::{Provider, ProviderConfig};
use counterfoil_testkit::work::Work;
use serde_json::{Map, Value, json};

use crate::measure::{Samples, rounded};
use crate::world::World;

/// Of each of the two, in turn, so that both meet the same noise.
const EFFECTS: usize = 400;
const LEASE: Duration = Duration::from_secs(20);

/// Receipts of other steps in the run whose dispatches are timed.
const RECEIPTS_IN_RUN: [usize; 2] = [10, 5_000];

pub(crate) async fn measure(world: &World) -> anyhow::Result<Map<String, Value>> {
    let work = Work::over(TestDatabase::on(&world.server()).await?).await?;
    let provider = Provider::start(ProviderConfig::default()).await?;
    work.connect("p", &provider.url(), json!({})).await?;
    let guards = [guard(&work, true)?, guard(&work, false)?];
    let mut samples = [Samples::default(), Samples::default()];
    for n in 0..EFFECTS * 2 {
        work.admit("charge").await?;
        samples[n % 2].add(one_step(&work, &guards[n % 2]).await?);
    }
    let [with, without] = samples.map(|samples| samples.quantile_ms(0.5));
    let cost_us = ((with - without) * 1_000.0).round();
    println!("an effect with its receipt {with} ms, without {without} ms: the guard costs {cost_us} µs");
    let mut found = Map::new();
    found.insert("guard_cost_us".into(), json!(cost_us));
    found.insert("guard_ratio".into(), json!(rounded(with / without)));
    let mut dispatch = Map::new();
    for receipts in RECEIPTS_IN_RUN {
        let median = dispatch_ms(world, receipts).await?;
        println!("a dispatch with {receipts} receipts in its run: {median} ms");
        dispatch.insert(receipts.to_string(), json!(median));
    }
    found.insert("dispatch_ms_by_receipts_in_run".into(), Value::Object(dispatch));
    Ok(found)
}

fn guard(work: &Work, receipts: bool) -> anyhow::Result<Guard> {
    let client = Client::new(ClientConfig {
        policy: AddressPolicy { loopback: true, private: vec![] },
        name_servers: NameServers::System,
        extra_roots: vec![],
        first_byte_alone: false,
    })?;
    let config = GuardConfig {
        lease: LEASE,
        timeout: Duration::from_secs(5),
        // The answer goes with the end of its step, as it does behind a block that ends at once.
        answer_wait: Duration::from_secs(1),
        absence_margin: Duration::ZERO,
        record_for: Duration::from_mins(1),
        receipts,
    };
    // Its connection has no secrets, so that the file is never read.
    let secrets = Secrets::new("no-secrets".into(), |_| {});
    Ok(Guard::new(work.store.clone(), client, secrets, config, Arc::new(NoFaults)))
}

/// Claims a step, makes its one effect and settles it; how long the two took together.
async fn one_step(work: &Work, guard: &Guard) -> anyhow::Result<Duration> {
    let claimed = work.claim(LEASE).await?;
    let grant = EffectGrant {
        kind: "http".into(),
        safety: Safety::AtMostOnce,
        connections: vec!["p".into()],
        hosts: vec![],
    };
    guard.begin(ExecutionContext {
        fence: claimed.fence,
        run: claimed.run,
        workflow: work.workflow,
        place: claimed.place.clone(),
        attempt: claimed.attempt,
        is_first: claimed.is_first_of_lineage(),
        grants: Some(vec![grant]),
        invariants: [].into(),
    });
    let request = EffectRequest::Http(HttpRequest {
        method: "POST".into(),
        url: "/charges".into(),
        headers: vec![("content-type".into(), "application/json".into())],
        body: br#"{"cents":500}"#.to_vec(),
    });
    let call = EffectCall {
        request,
        key: Some("charge".into()),
        connection: Some("p".into()),
        safety: None,
        idempotency_key: None,
        timeout_ms: None,
        extra: vec![],
    };
    let begun = Instant::now();
    let reply = guard.perform(claimed.fence.lease, call).await;
    ensure!(matches!(reply, EffectReply::Answered(_)), "{reply:?}");
    let finished = guard.finish(claimed.fence.lease).await;
    let settlement = Settlement {
        fence: claimed.fence,
        run: claimed.run,
        lineage: claimed.place.lineage,
        writes: finished.writes,
        own: finished.own,
        settled: SettledStep {
            step: claimed.fence.step,
            node: claimed.place.node.clone(),
            iteration: vec![],
            state: SettledState::Succeeded,
            output: Some(json!({ "id": "ch_1" })),
            error: None,
            choice: None,
        },
        logs: None,
        inline: vec![],
        containers: counterfoil_store::container::Containers::default(),
        open: vec![],
        keep: None,
        end: Some(RunEnd { state: RunEndState::Succeeded, output: Some(json!(null)), error: None }),
    };
    let verdict = work.store.settle(&settlement).await?;
    let took = begun.elapsed();
    ensure!(verdict == (SettleVerdict::Settled { next: None }), "{verdict:?}");
    Ok(took)
}

/// The median time to the provider and back of effects in a run that has so many receipts already.
async fn dispatch_ms(world: &World, receipts: usize) -> anyhow::Result<f64> {
    const SAMPLES: usize = 200;
    let database = TestDatabase::on(&world.server()).await?;
    let work = Work::over(database).await?;
    let provider = Provider::start(ProviderConfig::default()).await?;
    work.connect("p", &provider.url(), json!({})).await?;
    let guard = guard(&work, true)?;
    work.admit("charge").await?;
    one_step(&work, &guard).await.context("the receipt that is copied")?;
    let mut connection = work.database.connect().await;
    // Steps of one run, as a map over many items makes them, each with the receipt of its effect.
    sqlx::query(
        "INSERT INTO receipts (tenant_id, id, lineage, run_id, step_id, epoch, node, iteration, slot_label,
             dispatch_number, position, attempt, kind, safety, connection, destination, request_hash, content_key,
             idempotency_key, preview, state, lease_id, dispatched_at, absence_known_at, answered_at, answer_kind,
             answer_status, answer_headers, answer_body, answer_truncated, reason)
         SELECT tenant_id, gen_random_uuid(), lineage, run_id, step_id, epoch, node, ARRAY[n], slot_label,
             dispatch_number, position, attempt, kind, safety, connection, destination, request_hash, content_key,
             idempotency_key, preview, state, lease_id, dispatched_at, absence_known_at, answered_at, answer_kind,
             answer_status, answer_headers, answer_body, answer_truncated, reason
         FROM receipts, generate_series(1, $1) n",
    )
    .bind(i32::try_from(receipts)?)
    .execute(&mut connection)
    .await?;
    sqlx::query("ANALYZE receipts").execute(&mut connection).await?;
    let mut samples = Samples::default();
    for n in 0..SAMPLES {
        let node = "charge";
        work.admit(node).await?;
        // The step that is timed belongs to the run that has the receipts.
        sqlx::query(
            "WITH one AS (SELECT lineage FROM receipts LIMIT 1), moved AS (
                 UPDATE open_runs r SET lineage = gen_random_uuid() FROM one WHERE r.lineage = one.lineage
             )
             UPDATE open_steps s SET lineage = one.lineage, iteration = ARRAY[$1] FROM one",
        )
        .bind(i32::try_from(1_000_000 + n)?)
        .execute(&mut connection)
        .await?;
        samples.add(one_step(&work, &guard).await?);
    }
    Ok(samples.quantile_ms(0.5))
}
