//! Which version of a workflow new runs are of.

use std::sync::Arc;

use counterfoil_domain::code::Code;
use counterfoil_domain::workflow::diff::Change;
use counterfoil_domain::workflow::{Plan, cycle_message};
use counterfoil_store::workflow::{Activated, Activation, ActivePlan};

use super::diff::{between, told};
use super::save::links;
use super::{ActiveVersion, full_version};
use crate::api::runs::{plan_of, read_plan};
use crate::auth::Principal;
use crate::problem::{FieldError, Problem};
use crate::state::App;

/// Others may be activated while one is judged; each needs a person, so that many at once are none.
const TRIES_MAX: u32 = 5;

/// Activates a version, if it starts no workflow without end, and if what it changes of side effects is accepted.
pub(super) async fn activate(
    app: &App,
    who: &Principal,
    name: &str,
    number: u32,
    accepts: bool,
) -> Result<ActiveVersion, Problem> {
    let full = full_version(app, who, name, number).await?;
    let plan = plan_of(app, who, full.plan).await?;
    let triggers: Vec<String> = plan.triggers().iter().map(|trigger| trigger.event.clone()).collect();
    for _ in 0..TRIES_MAX {
        let active = app.store.active_plans(who.tenant).await?;
        let seen: Vec<_> = active.iter().map(|active| (active.workflow, active.version)).collect();
        let risks = risks(app, who, &plan, active).await?;
        if !risks.is_empty() && !accepts {
            return Err(refused(number, &risks));
        }
        let accepted: Vec<String> = risks.iter().map(told).collect();
        let activation =
            Activation { number: Some(number), triggers: &triggers, seen: Some(&seen), accepted: &accepted };
        match app.store.activate(who.tenant, name, activation, &who.actor()).await? {
            Activated::Active { version, number, .. } => {
                return Ok(ActiveVersion { name: name.into(), version: number, version_id: version });
            }
            Activated::NotFound => return Err(Problem::not_found()),
            Activated::Moved => {}
        }
    }
    Err(Problem::new(Code::Conflict, "other versions are being activated at the same time; try again"))
}

/// What touches side effects, of what is different from the active version.
///
/// # Errors
/// If it would start itself, by way of what is active.
async fn risks(
    app: &App,
    who: &Principal,
    plan: &Arc<Plan>,
    active: Vec<ActivePlan>,
) -> Result<Vec<Change>, Problem> {
    let new = Arc::clone(plan);
    let judge = move || {
        check_cycle(&new, &active)?;
        let old = active.iter().find(|active| active.name == new.workflow());
        old.map(|old| read_plan(&old.plan).map(Arc::new)).transpose()
    };
    let Some(old) = app.aside.compute(who.tenant, judge).await?? else { return Ok(vec![]) };
    let diff = between(app, who, old, Arc::clone(plan)).await?;
    Ok(diff.changes.into_iter().filter(|change| change.risk.is_some()).collect())
}

fn check_cycle(plan: &Plan, active: &[ActivePlan]) -> Result<(), Problem> {
    let Some(way) = plan.way_back(&links(active)) else { return Ok(()) };
    let detail = cycle_message(&way);
    let error = FieldError::new(Code::Cycle, "", detail.clone());
    Err(Problem::new(Code::DefinitionInvalid, detail).with_errors(vec![error]))
}

fn refused(number: u32, risks: &[Change]) -> Problem {
    let count = match risks.len() {
        1 => "1 change that touches".to_owned(),
        more => format!("{more} changes that touch"),
    };
    let detail = format!("version {number} has {count} side effects; activate it with `accept`");
    let errors = risks.iter().map(|change| FieldError::new(Code::SideEffectsChanged, "", told(change)));
    Problem::new(Code::SideEffectsChanged, detail).with_errors(errors.collect())
}
