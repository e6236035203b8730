use counterfoil_domain::id::Digest;
use counterfoil_domain::ports::{StepEnd, StepRunner, Unprepared};
use counterfoil_sandbox::{Allocation, Sandbox, SandboxConfig};
use counterfoil_testkit::guest::Guest;

use crate::port::Script;
use crate::{config, job, output, sandbox};

#[tokio::test]
async fn another_process_runs_what_was_compiled_before_without_its_bytes() {
    let cache = tempfile::tempdir().expect("a directory");
    let bytes = Guest::echo().build();
    let digest = Digest::of(&bytes);
    let first = sandbox(cache.path(), Allocation::OnDemand, Script::unused());
    first.prepare(digest, bytes).await.expect("accepted");
    // The form of allocation does not enter into compiled code.
    for allocation in [Allocation::OnDemand, Allocation::Pooled] {
        let second = sandbox(cache.path(), allocation, Script::unused());
        assert!(second.is_ready(digest).await);
        assert_eq!(second.run(job(digest)).await.end, output("{}"));
    }
}

#[tokio::test]
async fn a_block_that_was_never_prepared_is_unavailable() {
    let cache = tempfile::tempdir().expect("a directory");
    let sandbox = sandbox(cache.path(), Allocation::OnDemand, Script::unused());
    let digest = Digest::of(b"never seen");
    assert!(!sandbox.is_ready(digest).await);
    assert!(matches!(sandbox.run(job(digest)).await.end, StepEnd::Unavailable { .. }));
}

#[tokio::test]
async fn bytes_that_are_not_those_of_the_digest_are_not_compiled() {
    let cache = tempfile::tempdir().expect("a directory");
    let sandbox = sandbox(cache.path(), Allocation::OnDemand, Script::unused());
    let digest = Digest::of(b"something else");
    let prepared = sandbox.prepare(digest, Guest::echo().build()).await;
    assert!(matches!(prepared, Err(Unprepared::Unavailable { .. })), "{prepared:?}");
    assert!(!sandbox.is_ready(digest).await);
}

#[tokio::test]
async fn a_damaged_artifact_is_never_run_and_is_compiled_again() {
    let cache = tempfile::tempdir().expect("a directory");
    let bytes = Guest::echo().build();
    let digest = Digest::of(&bytes);
    let prepare = async || {
        let sandbox = sandbox(cache.path(), Allocation::OnDemand, Script::unused());
        sandbox.prepare(digest, bytes.clone()).await.expect("accepted");
    };
    prepare().await;
    let artifact = std::fs::read_dir(cache.path())
        .expect("listed")
        .map(|entry| entry.expect("an entry").path())
        .find(|path| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&digest.to_string()))
        })
        .expect("an artifact");
    let whole = std::fs::read(&artifact).expect("read");
    for index in [0, 31, 32, whole.len() / 2, whole.len() - 1] {
        let mut damaged = whole.clone();
        damaged[index] ^= 0x10;
        std::fs::write(&artifact, &damaged).expect("written");
        let other = sandbox(cache.path(), Allocation::OnDemand, Script::unused());
        assert!(!other.is_ready(digest).await, "byte {index}");
        assert!(matches!(other.run(job(digest)).await.end, StepEnd::Unavailable { .. }));
        prepare().await;
        assert_eq!(std::fs::read(&artifact).expect("read"), whole, "the same bytes again");
    }
}

#[tokio::test]
async fn the_directory_stays_within_its_limit_and_what_made_room_is_compiled_again() {
    let cache = tempfile::tempdir().expect("a directory");
    let guests =
        [1, 2, 3].map(|number| Guest::echo().with(&format!("(func (drop (i32.const {number})))")).build());
    let digests = guests.each_ref().map(|bytes| Digest::of(bytes));
    let artifacts = || {
        let entries = std::fs::read_dir(cache.path()).expect("listed").map(|entry| entry.expect("an entry"));
        let sizes = entries.filter(|entry| entry.file_name() != "key");
        sizes.map(|entry| entry.metadata().expect("there").len()).collect::<Vec<_>>()
    };
    let small = sandbox(cache.path(), Allocation::OnDemand, Script::unused());
    small.prepare(digests[0], guests[0].clone()).await.expect("accepted");
    // Each has about the same size: there is room for two, and a bit.
    let cache_bytes_max = artifacts()[0] * 5 / 2;
    let house = || {
        let config = SandboxConfig { cache_bytes_max, ..config(cache.path()) };
        Sandbox::new(config, Script::unused()).expect("a sandbox")
    };
    let first = house();
    for (digest, bytes) in digests.iter().zip(&guests).skip(1) {
        first.prepare(*digest, bytes.clone()).await.expect("accepted");
    }
    assert_eq!(artifacts().len(), 2);
    assert!(artifacts().iter().sum::<u64>() <= cache_bytes_max);
    let second = house();
    let ready = [
        second.is_ready(digests[0]).await,
        second.is_ready(digests[1]).await,
        second.is_ready(digests[2]).await,
    ];
    assert_eq!(ready, [false, true, true], "the first was used longest ago");
    second.prepare(digests[0], guests[0].clone()).await.expect("accepted");
    assert_eq!(second.run(job(digests[0])).await.end, output("{}"));
    assert_eq!(artifacts().len(), 2);
    // What a host has in memory it runs, whatever has become of the file.
    for digest in digests {
        assert_eq!(second.run(job(digest)).await.end, output("{}"));
    }
}
