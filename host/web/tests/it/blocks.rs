use std::time::Duration;

use axum::body::Body;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use counterfoil_domain::block::with_manifest;
use counterfoil_domain::id::{Digest, TenantId};
use counterfoil_domain::key::Scope;
use counterfoil_domain::limits::UPLOAD_BYTES_MAX;
use futures::StreamExt as _;
use serde_json::Value;
use uuid::Uuid;

use crate::told;
use crate::world::World;

#[tokio::test]
async fn an_upload_becomes_a_version_that_is_found_in_every_way() {
    let world = World::new().await;
    let key = world.key(Scope::Author);
    let first = world.ask(key, "POST", "/v1/blocks/charge-card", &[], "charges").await.with(201);
    let again = world.ask(key, "POST", "/v1/blocks/charge-card", &[], "charges").await.with(200);
    assert_eq!((first["new"].as_bool(), again["new"].as_bool()), (Some(true), Some(false)));
    world.ask(key, "POST", "/v1/blocks/charge-card", &[], "charges better").await.with(201);
    world.ask(key, "POST", "/v1/blocks/enrich-lead", &[], "reads").await.with(201);

    let mut shown = vec![first];
    for path in ["", "/charge-card", "/charge-card/versions", "/charge-card/schema"] {
        shown.push(world.get(&format!("/v1/blocks{path}")).await.with(200));
    }
    insta::assert_snapshot!(told::json(&Value::Array(shown)));
}

#[tokio::test]
async fn whatever_is_no_block_is_refused_and_leaves_nothing() {
    let world = World::new().await;
    let key = world.key(Scope::Author);
    let refused =
        world.ask(key, "POST", "/v1/blocks/bad", &[], "imports wasi:sockets/tcp wasi:cli/stdin").await;
    insta::assert_snapshot!(told::json(&refused.with(422)));
    world.ask(key, "POST", "/v1/blocks/Bad", &[], "charges").await.with(400);
    let large = vec![0; usize::try_from(UPLOAD_BYTES_MAX).expect("fits") + 1];
    assert_eq!(world.ask(key, "POST", "/v1/blocks/bad", &[], large).await.with(413)["code"], "too_large");
    assert_eq!(world.get("/v1/blocks").await.with(200)["items"], Value::Array(vec![]));
}

#[tokio::test]
async fn a_manifest_beside_an_upload_is_a_part_of_the_version() {
    let world = World::new().await;
    let key = world.key(Scope::Author);
    let upload = async |manifest: Option<&str>| {
        let encoded = manifest.map(|manifest| BASE64_STANDARD.encode(manifest));
        let headers: Vec<_> = encoded.iter().map(|text| ("counterfoil-manifest", text.as_str())).collect();
        let uploaded = world.ask(key, "POST", "/v1/blocks/plain", &headers, "program").await.with(201);
        uploaded["digest"].as_str().expect("a digest").to_owned()
    };
    let digest = |bytes: &[u8]| Digest::of(bytes).to_string();
    assert_eq!(upload(None).await, digest(b"program"));
    for manifest in [r#"{"name":"a"}"#, r#"{"name":"b"}"#] {
        assert_eq!(upload(Some(manifest)).await, digest(&with_manifest(b"program", manifest.as_bytes())));
    }
    let headers = [("counterfoil-manifest", "{}")];
    let refused = world.ask(key, "POST", "/v1/blocks/plain", &headers, "program").await;
    assert_eq!(refused.with(400)["code"], "bad_request");
}

#[tokio::test]
async fn a_list_goes_on_where_its_page_ended() {
    let world = World::new().await;
    let names = ["a", "b", "c", "d", "e"];
    for name in names {
        world.ask(world.key(Scope::Author), "POST", &format!("/v1/blocks/{name}"), &[], name).await.with(201);
    }
    let (mut found, mut after) = (Vec::new(), String::new());
    loop {
        let page = world.get(&format!("/v1/blocks?limit=2&after={after}")).await.with(200);
        let items = page["items"].as_array().expect("a list");
        found.extend(items.iter().map(|item| item["name"].as_str().expect("a name").to_owned()));
        match page["next"].as_str() {
            Some(next) => after = next.into(),
            None => break,
        }
    }
    assert_eq!(found, names);
    for query in ["limit=0", "limit=201", "limit=x", "after=%00"] {
        let refused = world.get(&format!("/v1/blocks?{query}")).await;
        assert_eq!(refused.with(400)["code"], "bad_request", "{query}");
    }
    world.get("/v1/runs?after=nonsense").await.with(400);
}

/// Whoever sends slowly stops his own uploads only; and when all places are held by such, they come free by themselves.
#[tokio::test]
async fn uploads_that_arrive_slowly_stop_nobody_else() {
    let world = World::new().await;
    let mut slow = futures::stream::FuturesUnordered::new();
    for number in 0..64 {
        let keys = world.new_tenant(TenantId(Uuid::now_v7()), &format!("slow-{number}")).await;
        let key = keys[&Scope::Author].clone();
        let world = &world;
        slow.push(async move {
            let first = futures::stream::iter([Ok::<_, std::io::Error>("some")]);
            let body = Body::from_stream(first.chain(futures::stream::pending()));
            world.ask(&key, "POST", "/v1/blocks/slow", &[], body).await
        });
        if number == 9 {
            let others = world.ask(world.key(Scope::Author), "POST", "/v1/blocks/quick", &[], "reads");
            tokio::select! {
                biased;
                ended = slow.next() => panic!("{:?}", ended.map(|answer| answer.text)),
                answer = others => answer.with(201),
            };
        }
    }
    let others = world.ask(world.key(Scope::Author), "POST", "/v1/blocks/quick", &[], "reads more");
    let (quick, slow) =
        tokio::join!(tokio::time::timeout(Duration::from_mins(1), others), slow.collect::<Vec<_>>());
    quick.expect("a place came free").with(201);
    for answer in slow {
        let refused = answer.with(400);
        assert!(refused["detail"].as_str().is_some_and(|detail| detail.contains("too slowly")), "{refused}");
    }
}
