//! From a submission to its first effect, one run at a time, on an idle host.

use std::time::{Duration, Instant};

use counterfoil_testkit::provider::{Provider, ProviderConfig};
use serde_json::{Map, Value, json};

use crate::load;
use crate::measure::{Samples, number, rounded};
use crate::world::World;

const RUNS: usize = 300;
/// Not counted: the first runs load the block and plan every statement.
const WARM_UP: usize = 30;

pub(crate) async fn measure(world: &World) -> anyhow::Result<Map<String, Value>> {
    let provider = Provider::start(ProviderConfig::default()).await?;
    let host = world.host(&provider, 64).await?;
    let workflow = load::furnish(world, &host, load::Shape::Blocks, 1).await?;
    let (mut first_effect, mut whole) = (Samples::default(), Samples::default());
    let mut flushes = 0;
    for n in 0..WARM_UP + RUNS {
        if n == WARM_UP {
            flushes = load::flushes_so_far(world).await?;
        }
        let begun = Instant::now();
        let input = json!({ "order": format!("o-{n}"), "cents": 500 });
        let starting = host.start_run(&workflow, &input);
        let called = async {
            let arrived = provider.wait_until(|calls| calls.len() > n).await;
            (begun.elapsed(), arrived)
        };
        let (run, (took, arrived)) = tokio::join!(starting, called);
        arrived?;
        let run = run?;
        load::wait_for_end(world, &run).await?;
        let ended = begun.elapsed();
        if n >= WARM_UP {
            first_effect.add(took);
            whole.add(ended);
        }
    }
    let flushes = load::flushes_so_far(world).await? - flushes;
    let per_run = rounded(number(usize::try_from(flushes)?) / number(RUNS));
    let (p50, p99) = (first_effect.quantile_ms(0.5), first_effect.quantile_ms(0.99));
    println!("submission to first effect: p50 {p50} ms, p99 {p99} ms; {per_run} flushes a run of one step");
    let mut found = Map::new();
    found.insert("first_effect_ms".into(), json!({ "p50": p50, "p99": p99 }));
    found.insert(
        "one_step_run_ms".into(),
        json!({ "p50": whole.quantile_ms(0.5), "p99": whole.quantile_ms(0.99) }),
    );
    found.insert("flushes_per_idle_run".into(), json!(per_run));
    host.kill().await?;
    Ok(found)
}

/// Between two looks at what nobody announces: well below what is measured.
pub(crate) const LOOK_EVERY: Duration = Duration::from_micros(200);
