//! From the text of a definition to a saved version.

use std::collections::BTreeMap;
use std::sync::Arc;

use counterfoil_domain::block::Descriptor;
use counterfoil_domain::code::Code;
use counterfoil_domain::id::{Digest, WorkflowVersionId};
use counterfoil_domain::workflow::{self, Authored, Links, PROBLEMS_MAX, Surroundings, Version, is_name};
use counterfoil_store::workflow::{ActivePlan, NewVersion};
use serde::{Deserialize as _, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::diff::{WorkflowDiff, active_diff};
use crate::api::runs::read_plan;
use crate::auth::Principal;
use crate::problem::{FieldError, Problem};
use crate::state::App;

/// The version that a definition is now.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Saved {
    name: String,
    /// Its number, from 1.
    version: u32,
    #[schema(value_type = String)]
    version_id: WorkflowVersionId,
    /// The newest version was this already.
    pub(super) unchanged: bool,
    /// Number of the version that new runs are of.
    active: Option<u32>,
    /// What is different from that version; absent if none is active, or this one is.
    #[serde(skip_serializing_if = "Option::is_none")]
    diff: Option<WorkflowDiff>,
    /// What of it will fail as things are; absent if nothing is known to.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<FieldError>,
}

/// A definition that holds.
#[derive(Debug, Serialize)]
pub(super) struct Checked {
    pub(super) name: String,
    pub(super) valid: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) warnings: Vec<FieldError>,
}

/// A definition that holds, compiled.
pub(super) struct Held {
    pub(super) version: Version,
    /// What of it will fail as things are.
    pub(super) warnings: Vec<FieldError>,
}

/// Checks a definition against the blocks that there are, and compiles it.
pub(super) async fn compile(
    app: &App,
    who: &Principal,
    name: &str,
    source: &Arc<str>,
) -> Result<Held, Problem> {
    if !is_name(name) {
        return Err(Problem::bad_request(
            "a workflow's name is a lowercase letter, then letters, digits and hyphens",
        ));
    }
    let text = Arc::clone(source);
    let read = move || Authored::read(&text).map(|authored| (authored.blocks(), authored));
    let (names, authored) =
        app.aside.compute(who.tenant, read).await?.map_err(|problem| invalid(vec![problem]))?;
    let names: Vec<String> = names.into_iter().collect();
    let around = Around::of(app, who, &names).await?;
    let name = name.to_owned();
    app.aside.compute(who.tenant, move || held(&authored, &name, &around)).await?
}

/// A definition for `name`, compiled, if it holds.
fn held(authored: &Authored, name: &str, around: &Around) -> Result<Held, Problem> {
    let version = authored.compile(&around.blocks).map_err(invalid)?;
    if let Some(problem) = authored.cycle(&version, &links(&around.active)) {
        return Err(invalid(vec![problem]));
    }
    if version.definition.name != name {
        let detail =
            format!("the definition's name is `{}`, the path's is `{name}`", version.definition.name);
        return Err(Problem::bad_field("/name", detail));
    }
    let warnings = authored.warnings(&version.definition, &around.surroundings());
    Ok(Held { version, warnings: warnings.into_iter().map(told).collect() })
}

/// What there is around a workflow that uses these blocks, as it is stored.
struct Around {
    blocks: BTreeMap<String, Digest>,
    described: BTreeMap<Digest, Value>,
    active: Vec<ActivePlan>,
    connections: Vec<String>,
}

impl Around {
    async fn of(app: &App, who: &Principal, blocks: &[String]) -> Result<Self, Problem> {
        let blocks = app.store.newest_blocks(who.tenant, blocks).await?;
        let digests: Vec<Digest> = blocks.values().copied().collect();
        let described = app.store.descriptors(who.tenant, &digests).await?;
        let active = app.store.active_plans(who.tenant).await?;
        let connections = app.store.connections(who.tenant).await?;
        Ok(Self {
            blocks,
            described: described.into_iter().collect(),
            active,
            connections: connections.into_iter().map(|connection| connection.name).collect(),
        })
    }

    fn surroundings(&self) -> Surroundings {
        // Of a descriptor that a newer host wrote, nothing is known.
        let described = |(name, digest): (&String, &Digest)| {
            Some((name.clone(), Descriptor::deserialize(self.described.get(digest)?).ok()?))
        };
        Surroundings {
            active: self.active.iter().map(|active| active.name.clone()).collect(),
            connections: self.connections.iter().cloned().collect(),
            blocks: self.blocks.iter().filter_map(described).collect(),
        }
    }
}

/// How the active workflows start each other.
pub(super) fn links(active: &[ActivePlan]) -> BTreeMap<String, Links> {
    // One that a newer host wrote is not in the way of this one's.
    let links = |active: &ActivePlan| Some((active.name.clone(), read_plan(&active.plan).ok()?.links()));
    active.iter().filter_map(links).collect()
}

fn invalid(problems: Vec<workflow::Problem>) -> Problem {
    let count = problems.len();
    let detail = match count {
        1 => "1 problem".to_owned(),
        PROBLEMS_MAX => format!("{PROBLEMS_MAX} problems, and perhaps more"),
        _ => format!("{count} problems"),
    };
    Problem::new(Code::DefinitionInvalid, detail).with_errors(problems.into_iter().map(told).collect())
}

fn told(problem: workflow::Problem) -> FieldError {
    FieldError {
        code: problem.code,
        pointer: problem.pointer,
        detail: problem.message,
        line: Some(problem.line),
        column: Some(problem.column),
    }
}

/// Saves a version, unless the newest is the same.
pub(super) async fn save(
    app: &App,
    who: &Principal,
    name: &str,
    source: &str,
    Held { version, warnings }: Held,
) -> Result<Saved, Problem> {
    let Version { canonical, plan, .. } = version;
    let plan = Arc::new(plan);
    let diff = active_diff(app, who, name, &plan).await?;
    let (workflow, id, source) = (app.new_id().into(), app.new_id().into(), source.to_owned());
    let new = move || {
        let written = json!(*plan);
        NewVersion {
            workflow,
            version: id,
            definition_hash: hash(&canonical, &written),
            definition: serde_json::from_str(&canonical).unwrap_or(Value::Null),
            source,
            listened: plan.listened(),
            plan: written,
        }
    };
    let new = app.aside.compute(who.tenant, new).await?;
    let saved = app.store.save_workflow(who.tenant, name, &new).await?;
    if !saved.unchanged {
        let detail = json!({ "workflow": name, "version": saved.number });
        app.store
            .record_audit(who.tenant, &who.actor(), "workflow.save", Some(saved.version.0), &detail)
            .await?;
    }
    let active = diff.as_ref().map(|(active, _)| *active);
    Ok(Saved {
        name: name.into(),
        version: saved.number,
        version_id: saved.version,
        unchanged: saved.unchanged,
        active,
        diff: diff
            .filter(|(active, _)| *active != saved.number)
            .map(|(active, diff)| WorkflowDiff::new(name, active, saved.number, diff)),
        warnings,
    })
}

/// Over the definition and what its plan pins, so that a newer version of a block makes a new version of the workflow.
fn hash(canonical: &str, plan: &Value) -> [u8; 32] {
    Digest::of(format!("{canonical}\0{plan}").as_bytes()).0
}
