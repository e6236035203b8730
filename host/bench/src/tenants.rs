//! Claims with ten thousand tenants that have work due: what the host decides, and what the database does.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::ensure;
use counterfoil_domain::fair_share::{Contender, Due, Share, Turns};
use counterfoil_domain::id::{HostId, TenantId};
use counterfoil_store::step::{ClaimRequest, Take};
use counterfoil_testkit::postgres::TestDatabase;
use counterfoil_testkit::work::Work;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::measure::{Samples, number, rounded};
use crate::world::World;

const TENANTS: i32 = 10_000;
const STEPS_PER_TENANT: i32 = 10;
const ROOM: u32 = 512;
const LOOKS: usize = 60;
const LEASE: Duration = Duration::from_mins(10);

/// Ten thousand tenants with ten steps due each.
async fn crowd(world: &World) -> anyhow::Result<Work> {
    let work = Work::over(TestDatabase::on(&world.server()).await?).await?;
    let mut connection = work.database.connect().await;
    sqlx::query(
        "INSERT INTO open_steps (tenant_id, id, run_id, workflow_id, lineage, node, wait, vt)
         SELECT t.id, gen_random_uuid(), gen_random_uuid(), t.id, gen_random_uuid(), 'a', 'ready', now()
         FROM (SELECT gen_random_uuid() AS id FROM generate_series(1, $1)) t, generate_series(1, $2)",
    )
    .bind(TENANTS)
    .bind(STEPS_PER_TENANT)
    .execute(&mut connection)
    .await?;
    sqlx::query("VACUUM ANALYZE open_steps").execute(&mut connection).await?;
    Ok(work)
}

pub(crate) async fn measure(world: &World) -> anyhow::Result<Map<String, Value>> {
    let work = crowd(world).await?;
    let lines = work.store.due().await?;
    ensure!(lines.len() == usize::try_from(TENANTS)?, "{} lines", lines.len());
    let (mut looks, mut marked) = (Samples::default(), Samples::default());
    for line in lines.iter().take(20) {
        let begun = Instant::now();
        work.store.due().await?;
        looks.add(begun.elapsed());
        let begun = Instant::now();
        work.store.due_of(&[line.queue.tenant]).await?;
        marked.add(begun.elapsed());
    }

    let (mut turns, mut in_flight) = (Turns::default(), HashMap::<TenantId, u32>::new());
    let (mut deciding, mut claiming, mut claimed) = (Samples::default(), Samples::default(), 0);
    let begun = Instant::now();
    for _ in 0..LOOKS {
        let at = Instant::now();
        let contender = |key, in_flight| Contender { key, in_flight, share: Share::default() };
        let due = lines.iter().map(|line| {
            let held = in_flight.get(&line.queue.tenant).copied().unwrap_or(0);
            Due {
                tenant: contender(line.queue.tenant, held),
                workflows: vec![Contender {
                    key: line.queue.workflow,
                    in_flight: held,
                    share: Share::default(),
                }],
            }
        });
        let granted = turns.grant(due.collect(), ROOM);
        deciding.add(at.elapsed());
        let takes: Vec<Take> = granted.into_iter().map(|(queue, places)| Take::of(queue, places)).collect();
        let request = ClaimRequest { host: HostId(Uuid::now_v7()), lease: LEASE, takes, without: vec![] };
        let at = Instant::now();
        let steps = work.store.claim(&request).await?;
        claiming.add(at.elapsed());
        claimed += steps.len();
        for step in steps {
            *in_flight.entry(step.fence.tenant).or_default() += 1;
        }
    }
    let per_s = (number(claimed) / begun.elapsed().as_secs_f64()).round();
    let (decide, claim) = (deciding.quantile_ms(0.5), claiming.quantile_ms(0.5));
    let (look, mark) = (looks.quantile_ms(0.5), marked.quantile_ms(0.5));
    println!(
        "{TENANTS} tenants with work due: {per_s} claims/s; {decide} ms to share {ROOM} places, {claim} ms to claim them; a look at everybody {look} ms, at one {mark} ms"
    );
    let mut found = Map::new();
    found.insert(
        "claims_with_10000_tenants".into(),
        json!({
            "claims_per_s": per_s,
            "share_512_places_ms": rounded(decide),
            "claim_512_steps_ms": claim,
            "look_at_everybody_ms": look,
            "look_at_one_tenant_ms": mark,
        }),
    );
    Ok(found)
}
