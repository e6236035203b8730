use std::time::Instant;

use counterfoil_domain::ports::StepRunner;
use counterfoil_sandbox::Allocation;
use counterfoil_testkit::guest::Guest;

use crate::port::Script;
use crate::{House, job, output, sandbox};

#[tokio::test]
#[ignore = "prints a figure; says something only in a release build on a quiet machine"]
async fn instantiate_run_and_drop() {
    for allocation in [Allocation::Pooled, Allocation::OnDemand] {
        let cache = tempfile::tempdir().expect("a directory");
        let sandbox = sandbox(cache.path(), allocation, Script::unused());
        let house = House { sandbox, cache };
        let component = house.prepared(&Guest::echo()).await;
        let mut nanos = Vec::new();
        for _ in 0..2_000 {
            let started = Instant::now();
            let report = house.sandbox.run(job(component)).await;
            nanos.push(started.elapsed().as_nanos());
            assert_eq!(report.end, output("{}"));
        }
        nanos.sort_unstable();
        println!("{allocation:?}: median {} µs, p99 {} µs", nanos[1_000] / 1_000, nanos[1_980] / 1_000);
    }
}
