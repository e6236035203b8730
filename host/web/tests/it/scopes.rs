//! The scope that each call is described with is the scope that it needs.

use counterfoil_domain::key::Scope;
use serde_json::Value;

use crate::world::World;

/// Every operation under `/v1` of the description: method, path, scope.
pub(crate) fn operations() -> Vec<(String, String, Scope)> {
    let document: Value =
        serde_json::from_str(&counterfoil_web::document().to_json().expect("writes")).expect("JSON");
    let mut operations = Vec::new();
    for (path, item) in document["paths"].as_object().expect("paths") {
        for (method, operation) in item.as_object().expect("operations") {
            if let Some(scope) = operation["security"][0]["key"][0].as_str() {
                let scope = Scope::from_name(scope).expect("a scope");
                operations.push((method.to_uppercase(), path.clone(), scope));
            }
        }
    }
    assert!(operations.len() >= 30, "{operations:?}");
    operations
}

#[tokio::test]
async fn a_call_takes_the_scope_that_it_is_described_with_and_no_narrower() {
    let world = World::new().await;
    for (method, path, needed) in operations() {
        let uri = path.replace("{name}", "nope").replace("{number}", "1").replace("{id}", "nope");
        let keyless = world.ask("", &method, &uri, &[], "").await;
        assert_eq!(keyless.status, 401, "{method} {path} without a key");
        for scope in Scope::ALL {
            let answer = world.ask(world.key(scope), &method, &uri, &[], "").await;
            let forbidden = answer.status == 403;
            assert_eq!(forbidden, !scope.allows(needed), "{method} {path} as {scope}: {}", answer.text);
            if forbidden {
                assert!(answer.text.contains(needed.name()), "{}", answer.text);
            }
            assert!(!answer.status.is_server_error(), "{method} {path} as {scope}: {}", answer.text);
        }
    }
}
