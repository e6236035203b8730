use counterfoil_store::tenant::LimitsChange;
use serde_json::json;

use crate::world::World;

#[tokio::test]
async fn what_a_block_may_use_is_the_least_of_what_its_host_and_its_tenant_grant() {
    let world = World::new().await;
    let shown = world.get("/v1/limits").await.with(200);
    assert_eq!(shown["tenant"], json!({ "memory_bytes_max": null, "cpu_ms_max": null, "wall_ms_max": null }));
    assert_eq!((&shown["host"]["cpu_ms_max"], &shown["in_force"]), (&json!(700), &shown["host"]));
    let change = LimitsChange {
        memory_bytes_max: Some(Some(1 << 20)),
        cpu_ms_max: Some(Some(900)),
        ..LimitsChange::default()
    };
    let by = counterfoil_domain::receipt::Actor::Host;
    world.store.set_tenant_limits(world.tenant, change, &by).await.expect("sets");
    let narrowed = world.get("/v1/limits").await.with(200);
    assert_eq!(
        narrowed["tenant"],
        json!({ "memory_bytes_max": 1 << 20, "cpu_ms_max": 900, "wall_ms_max": null })
    );
    let mut expected = shown["host"].clone();
    expected["memory_bytes_max"] = json!(1 << 20);
    assert_eq!((&narrowed["in_force"], &narrowed["host"]), (&expected, &shown["host"]));
}
