//! What must hold on any machine, however busy it is and however the programs were built: shares and counts, no times.

use serde_json::{Map, Value, json};

use crate::load::{self, Shape};
use crate::measure::rounded;
use crate::world::World;
use crate::{latency, quiet};

const RUNS: usize = 3_000;
const BURST: usize = 16_000;

/// A figure, the worst that it may be, and which way is worse.
struct Bar {
    name: &'static str,
    worst: f64,
    is_most: bool,
}

const BARS: [Bar; 4] = [
    // A receipt that is answered on another page costs every index an entry.
    Bar { name: "hot_ratio", worst: 0.95, is_most: false },
    Bar { name: "flushes_per_step", worst: 0.05, is_most: true },
    Bar { name: "quiet_tenant_batches", worst: 2.0, is_most: true },
    // One to admit the run, two for its step, and what the server's own writer of the log does meanwhile.
    Bar { name: "flushes_per_idle_run", worst: 3.5, is_most: true },
];

/// Takes the figures that have a bar.
pub(crate) async fn measure(world: &World) -> anyhow::Result<Map<String, Value>> {
    let mut found = latency::measure(world).await?;
    let load = load::steps_per_second(world, Shape::Blocks, RUNS).await?;
    found.insert("flushes_per_step".into(), json!(rounded(load.flushes_per_step)));
    found.insert("hot_ratio".into(), json!(rounded(load.hot_ratio)));
    found.extend(quiet::measure(world, BURST).await?);
    Ok(found)
}

/// The bars that these figures miss, in words. A figure that was not taken misses none.
pub(crate) fn missed(found: &Map<String, Value>) -> Vec<String> {
    let missed = |Bar { name, worst, is_most }: &Bar| {
        let figure = found.get(*name)?.as_f64()?;
        let is_missed = if *is_most { figure > *worst } else { figure < *worst };
        let at = if *is_most { "most" } else { "least" };
        is_missed.then(|| format!("{name} is {figure}, and must be at {at} {worst}"))
    };
    BARS.iter().filter_map(missed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_that_is_missed_is_named() {
        let figures = |hot: f64, flushes: f64| {
            Map::from_iter([("hot_ratio".into(), json!(hot)), ("flushes_per_step".into(), json!(flushes))])
        };
        assert_eq!(missed(&figures(0.95, 0.05)), [""; 0]);
        assert_eq!(
            missed(&figures(0.949, 0.051)),
            [
                "hot_ratio is 0.949, and must be at least 0.95",
                "flushes_per_step is 0.051, and must be at most 0.05"
            ]
        );
    }
}
