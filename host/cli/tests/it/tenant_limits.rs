//! What a block may use: the least of what it asks for, what its tenant has, and what the operator grants.

use anyhow::ensure;
use counterfoil_testkit::guest::Guest;
use counterfoil_testkit::host::Host;
use counterfoil_testkit::tenant::PEPPER;
use serde_json::{Value, json};

use crate::program::{counterfoil, run};
use crate::world::World;

const OPERATOR_MS: u64 = 120;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_narrowest_limit_holds_from_the_next_step_on() -> anyhow::Result<()> {
    let world = World::new("narrow").await?;
    let config = world.host(15_000).with("COUNTERFOIL__LIMITS__CPU_MS_MAX", &OPERATOR_MS);
    let host = Host::start(&config, &world.key).await?;
    let (home, url) = (world.directory.path(), world.database.url());
    let set = |limit: &str| {
        run(counterfoil(home)
            .args(["-o", "json", "tenant", "limits", "narrow", "--cpu-ms-max", limit])
            .env("DATABASE_URL", &url)
            .env("COUNTERFOIL__LIMITS__CPU_MS_MAX", OPERATOR_MS.to_string()))
    };
    for block in [None, Some(30), Some(9_999)] {
        let name = format!("endless-{}", block.unwrap_or(0));
        let limits = block.map_or(json!({}), |ms: u64| json!({ "cpu_ms_max": ms }));
        let descriptor = json!({ "name": "endless", "input": true, "output": true, "limits": limits });
        let guest = Guest::running("(loop $for-ever (br $for-ever)) (unreachable)");
        let caller = host.as_holder_of(&world.key);
        let guest = guest.describing(&descriptor.to_string());
        let reply = caller.upload(&name, guest.build()).await?;
        ensure!(reply.status < 300, "{}", reply.json()?);
        caller
            .activate(&json!({ "name": name, "steps": [{ "only": { "block": name, "input": 1 } }] }))
            .await?;
        for tenant in ["none", "60", "9999"] {
            let said = set(tenant);
            let own = tenant.parse::<u64>().ok();
            let granted = own.unwrap_or(OPERATOR_MS).min(OPERATOR_MS);
            let told = said.json();
            assert_eq!(
                (&told["own"]["cpu_ms_max"], &told["in_force"]["cpu_ms_max"]),
                (&json!(own), &json!(granted)),
                "{said:?}"
            );
            let ended = caller.run_to_end(&name, &Value::Null).await?;
            let in_force = block.unwrap_or(granted).min(granted);
            let file = home.join("block.wasm");
            std::fs::write(&file, guest.build())?;
            let inspected = run(counterfoil(home)
                .args(["-o", "json", "block", "inspect"])
                .arg(&file)
                .args(["--url", host.base(), "--key", &world.key]));
            ensure!(inspected.json()["limits"]["cpu_ms_max"] == in_force, "{inspected:?}");
            assert_eq!(ended["error"]["code"], "cpu_limit", "{ended}");
            let message = ended["error"]["message"].as_str().unwrap_or_default();
            assert!(message.contains(&format!(" its {in_force} ms of CPU")), "{block:?}, {tenant}: {ended}");
        }
    }
    host.kill().await
}

#[tokio::test]
async fn limits_of_a_tenant_are_told_and_refused_in_words() -> anyhow::Result<()> {
    let world = World::new("told").await?;
    let (home, url) = (world.directory.path(), world.database.url());
    let limits = |args: &[&str]| {
        run(counterfoil(home).args(["tenant", "limits"]).args(args).env("DATABASE_URL", &url)).text(home)
    };
    insta::assert_snapshot!(limits(&["told", "--memory-bytes-max", "1048576", "--wall-ms-max", "500"]), @r#"
    tenant                   told
    its own: memory, bytes   1048576
    its own: cpu, ms         none
    its own: wall, ms        500
    in force: memory, bytes  1048576
    in force: cpu, ms        1000
    in force: wall, ms       500
    --- stderr
    in force is what a host does that is configured as this command is
    --- exit 0
    "#);
    // What is not named stays.
    insta::assert_snapshot!(limits(&["told", "--wall-ms-max", "none"]), @r#"
    tenant                   told
    its own: memory, bytes   1048576
    its own: cpu, ms         none
    its own: wall, ms        none
    in force: memory, bytes  1048576
    in force: cpu, ms        1000
    in force: wall, ms       120000
    --- stderr
    in force is what a host does that is configured as this command is
    --- exit 0
    "#);
    insta::assert_snapshot!(limits(&["nobody"]), @r#"
    --- stderr
    error: there is no tenant `nobody`
    next: counterfoil tenant list
    --- exit 1
    "#);
    insta::assert_snapshot!(limits(&["told", "--cpu-ms-max", "9"]), @r#"
    --- stderr
    error: invalid value '9' for '--cpu-ms-max <MS>': at least 10, in which it is counted, or `none`

    For more information, try '--help'.
    --- exit 2
    "#);
    insta::assert_snapshot!(limits(&["told", "--memory-bytes-max", "65535"]), @r#"
    --- stderr
    error: invalid value '65535' for '--memory-bytes-max <BYTES>': at least 65536, one page, or `none`

    For more information, try '--help'.
    --- exit 2
    "#);
    insta::assert_snapshot!(limits(&["told", "--cpu-ms-max", "0"]), @r#"
    --- stderr
    error: invalid value '0' for '--cpu-ms-max <MS>': a whole number from 1 on, or `none`

    For more information, try '--help'.
    --- exit 2
    "#);
    let listed = run(counterfoil(home).args(["-o", "json", "tenant", "list"]).env("DATABASE_URL", &url));
    let items = listed.json()["items"].clone();
    assert_eq!((&items[0]["tenant"], &items[1]), (&json!("told"), &Value::Null), "{listed:?}");
    assert_eq!(
        items[0]["limits"],
        json!({ "memory_bytes_max": 1_048_576, "cpu_ms_max": null, "wall_ms_max": null })
    );
    let table = run(counterfoil(home).args(["tenant", "list"]).env("DATABASE_URL", &url)).text(home);
    assert!(table.starts_with("TENANT  ") && table.contains("\ntold "), "{table}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_whose_keys_are_lost_gets_another_from_the_operator() -> anyhow::Result<()> {
    let world = World::new("lost").await?;
    let (home, url) = (world.directory.path(), world.database.url());
    let key = |tenant: &str| {
        run(counterfoil(home)
            .args(["-o", "json", "tenant", "key", tenant])
            .env("DATABASE_URL", &url)
            .env("COUNTERFOIL__PEPPER", hex::encode(PEPPER)))
    };
    let host = Host::start(&world.host(15_000), &world.key).await?;
    let own = host.call("GET", "/v1/keys", &Value::Null).await?["items"][0]["id"].clone();
    host.call("DELETE", &format!("/v1/keys/{}", own.as_str().unwrap_or_default()), &Value::Null).await?;
    assert!(host.call("GET", "/v1/keys", &Value::Null).await.is_err(), "it was the only one");
    let made = key("lost").json();
    let other = host.as_holder_of(made["key"].as_str().unwrap_or_default());
    let keys = other.call("GET", "/v1/keys", &Value::Null).await?;
    assert_eq!(keys["items"].as_array().map(Vec::len), Some(2), "{keys}");
    let nobody = key("nobody").text(home);
    assert!(nobody.contains("there is no tenant `nobody`"), "{nobody}");
    host.kill().await
}

#[tokio::test]
async fn what_a_tenant_has_is_shown_and_stays_unless_it_is_named() -> anyhow::Result<()> {
    let world = World::bare("shown").await?;
    let (home, url) = (world.directory.path(), world.database.url());
    let tenant =
        |args: &[&str]| run(counterfoil(home).arg("tenant").args(args).env("DATABASE_URL", &url)).text(home);
    for (args, weight, most) in [
        (&[][..], 1, "none"),
        (&["--in-flight-max", "50"], 1, "50"),
        (&["--weight", "3"], 3, "50"),
        (&[], 3, "50"),
        (&["--weight", "1", "--in-flight-max", "none"], 1, "none"),
        (&[], 1, "none"),
    ] {
        let told = tenant(&[&["share", "shown"], args].concat());
        let expected = format!("weight         {weight}\nin flight max  {most}\n--- stderr\n--- exit 0");
        assert_eq!(told, expected, "{args:?}");
    }
    let told = tenant(&["share", "shown", "--weight", "1001"]);
    assert_eq!(told, "--- stderr\nerror: a weight is from 1 to 1000\n--- exit 2");
    insta::assert_snapshot!(tenant(&["retention", "shown"]), @r#"
    tenant          shown
    its own: days   none
    in force: days  for ever
    --- stderr
    in force is what a host does that is configured as this command is
    --- exit 0
    "#);
    Ok(())
}
