//! Nothing of one tenant is visible to another.

use std::collections::BTreeSet;

use anyhow::Context as _;
use serde_json::Value;

use super::api;
use super::database::Database;
use super::{Host, tenant_name};

/// Rows of each kind that are asked for with the other tenant's key.
const SAMPLE: usize = 25;

/// What was asked for, and what should not have been seen.
#[derive(Debug, Default)]
pub(super) struct Strangers {
    pub(super) asked: u64,
    pub(super) seen: Vec<String>,
}

/// Asks for each tenant's newest runs and effects with its own key, and for the same with the other's.
pub(super) async fn look(hosts: &[Host], database: &Database) -> anyhow::Result<Strangers> {
    let base = hosts.first().context("a host serves")?.base();
    let mut found = Strangers::default();
    for kind in ["runs", "effects"] {
        let mut lists: Vec<BTreeSet<String>> = vec![];
        for (_, key) in &database.tenants {
            let listed =
                api::send(base, key, "GET", &format!("/v1/{kind}?limit=200"), None, &Value::Null).await?;
            let listed = listed.json()?;
            let items = listed["items"].as_array().with_context(|| format!("a list of {kind}: {listed}"))?;
            lists.push(items.iter().filter_map(|item| Some(item["id"].as_str()?.to_owned())).collect());
        }
        for (owner, list) in lists.iter().enumerate() {
            let stranger = (owner + 1) % lists.len();
            for id in list.intersection(&lists[stranger]) {
                found.seen.push(format!("{id} is in the lists of both tenants"));
            }
            for id in list.iter().take(SAMPLE) {
                found.asked += 1;
                let path = format!("/v1/{kind}/{id}");
                let own =
                    api::send(base, &database.tenants[owner].1, "GET", &path, None, &Value::Null).await?;
                let other =
                    api::send(base, &database.tenants[stranger].1, "GET", &path, None, &Value::Null).await?;
                if own.status != 200 || other.status != 404 {
                    let (owner, stranger) = (tenant_name(owner), tenant_name(stranger));
                    found.seen.push(format!("{path} of {owner} answers {stranger} with {}", other.status));
                }
            }
        }
    }
    Ok(found)
}
