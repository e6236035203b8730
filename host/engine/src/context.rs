//! What an execution must know of its run: the plan that the run is pinned to, and what has come of its steps so far.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use counterfoil_domain::block::Descriptor;
use counterfoil_domain::expression::Scope;
use counterfoil_domain::id::{Digest, Place, RunId, TenantId, WorkflowVersionId, step_id};
use counterfoil_domain::schema::Schema;
use counterfoil_domain::workflow::advance::{Outputs, about_run};
use counterfoil_domain::workflow::plan::Plan;
use counterfoil_store::run::RunContext;
use counterfoil_store::step::Claimed;
use counterfoil_store::{Store, StoreError};
use serde_json::Value;

/// Plans and descriptors kept in memory: they never change, so that only room bounds how long.
const KEPT_MAX: usize = 1_000;
/// Schemas of blocks kept in memory: of thousands that are as schemas are, or of a few that are made to be large.
const KEPT_SCHEMAS_BYTES_MAX: usize = 64 << 20;

/// Immutable values that executions need again and again.
pub(crate) struct Plans {
    store: Store,
    by_version: Mutex<HashMap<(TenantId, WorkflowVersionId), Arc<Plan>>>,
    blocks: Mutex<HashMap<(TenantId, Digest), Arc<KnownBlock>>>,
}

/// What a block says of itself.
pub(crate) struct KnownBlock {
    pub(crate) descriptor: Descriptor,
    /// What its input is checked against. Blocks that were uploaded before schemas were read may have one that cannot be.
    pub(crate) input: Option<Schema>,
}

/// A run as its executions see it.
pub(crate) struct RunState {
    pub(crate) plan: Arc<Plan>,
    pub(crate) context: RunContext,
    about: Value,
    /// The item of the innermost map around the step at hand, and the iteration that it is of.
    item: Option<(Vec<u32>, Value)>,
}

/// Something that should be in the database is not, or cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadError {
    #[error("the database could not be read")]
    Store(#[from] StoreError),
    #[error("{what} of run {run} is not there")]
    Missing { what: &'static str, run: RunId },
    #[error("{what} of run {run} cannot be read")]
    Unreadable { what: &'static str, run: RunId, source: serde_json::Error },
}

impl Plans {
    pub(crate) fn new(store: Store) -> Self {
        Self { store, by_version: Mutex::default(), blocks: Mutex::default() }
    }

    /// A run and the plan that it is pinned to; reads what is not known of them.
    pub(crate) async fn run(&self, step: &Claimed, known: Option<RunContext>) -> Result<RunState, LoadError> {
        let context = match known {
            Some(context) => context,
            None => self.run_context(step).await?,
        };
        let plan = self.plan(step.fence.tenant, context.version, step.run).await?;
        let about = about_run(context.lineage);
        Ok(RunState { plan, context, about, item: None })
    }

    /// What the iteration of a step sees of its run now.
    pub(crate) async fn run_context(&self, step: &Claimed) -> Result<RunContext, LoadError> {
        let (run, iteration) = (step.run, step.place.iteration.clone());
        let mut read = self.store.run_contexts(&[(step.fence.tenant, run, iteration.clone())]).await?;
        read.remove(&(run, iteration)).ok_or(LoadError::Missing { what: "the row", run })
    }

    /// Has the item at hand that a step of a map is for.
    pub(crate) async fn item(&self, step: &Claimed, state: &mut RunState) -> Result<(), LoadError> {
        let iteration = &step.place.iteration;
        let Some((index, around)) = iteration.split_last() else { return Ok(()) };
        if state.item.as_ref().is_some_and(|(known, _)| known == iteration) {
            return Ok(());
        }
        let missing = LoadError::Missing { what: "the map", run: step.run };
        let Some(map) = state.plan.map_around(&step.place.node) else { return Err(missing) };
        let map = step_id(step.run, map, around);
        let item = self.store.item(step.fence.tenant, map, *index).await?.ok_or(missing)?;
        state.item = Some((iteration.clone(), item));
        Ok(())
    }

    /// The plan of a workflow version; `run` is who asks, for the error.
    pub(crate) async fn plan(
        &self,
        tenant: TenantId,
        version: WorkflowVersionId,
        run: RunId,
    ) -> Result<Arc<Plan>, LoadError> {
        if let Some(plan) = locked(&self.by_version).get(&(tenant, version)) {
            return Ok(Arc::clone(plan));
        }
        let row =
            self.store.version(tenant, version).await?.ok_or(LoadError::Missing { what: "the plan", run })?;
        let plan = serde_json::from_value(row.plan).map_err(|source| LoadError::Unreadable {
            what: "the plan",
            run,
            source,
        })?;
        Ok(keep(&self.by_version, (tenant, version), plan))
    }

    /// What a block says of itself.
    pub(crate) async fn block(
        &self,
        tenant: TenantId,
        component: Digest,
        run: RunId,
    ) -> Result<Arc<KnownBlock>, LoadError> {
        if let Some(block) = locked(&self.blocks).get(&(tenant, component)) {
            return Ok(Arc::clone(block));
        }
        let what = "the descriptor of a block";
        let value =
            self.store.descriptor(tenant, component).await?.ok_or(LoadError::Missing { what, run })?;
        let descriptor: Descriptor =
            serde_json::from_value(value).map_err(|source| LoadError::Unreadable { what, run, source })?;
        let written = descriptor.input.clone();
        // A large one takes a while to be read. One that could not be is not looked at.
        let input = tokio::task::spawn_blocking(move || Schema::new(&written).ok()).await.unwrap_or_default();
        let block = KnownBlock { descriptor, input };
        let bytes = |block: &KnownBlock| block.input.as_ref().map_or(0, Schema::bytes_max);
        let mut kept = locked(&self.blocks);
        let all: usize = kept.values().map(|kept| bytes(kept)).sum();
        if all + bytes(&block) > KEPT_SCHEMAS_BYTES_MAX {
            kept.clear();
        }
        drop(kept);
        Ok(keep(&self.blocks, (tenant, component), block))
    }
}

impl RunState {
    /// What expressions of a step see.
    pub(crate) fn scope<'a>(&'a self, place: &Place) -> Scope<'a> {
        self.scope_with(place, None)
    }

    /// What they see behind a step that has just come to this.
    pub(crate) fn scope_behind<'a>(&'a self, place: &'a Place, output: &'a Value) -> Scope<'a> {
        self.scope_with(place, Some((&place.node, &place.iteration, output)))
    }

    fn scope_with<'a>(&'a self, place: &Place, own: Option<(&'a str, &'a [u32], &'a Value)>) -> Scope<'a> {
        let mut scope = Scope::new(&self.context.event, &self.context.input, &self.about);
        let outputs = self.context.outputs.iter();
        let mut outputs: Outputs<'a> =
            outputs.map(|(node, at, output, _)| (node.as_str(), at.as_slice(), output)).collect();
        outputs.extend(own);
        self.plan.show(&mut scope, &outputs, &place.node, &place.iteration);
        if let (Some((_, item)), Some(index)) = (&self.item, place.iteration.last()) {
            scope.set_item(*index, item.clone());
        }
        scope
    }
}

fn keep<K: std::hash::Hash + Eq, V>(kept: &Mutex<HashMap<K, Arc<V>>>, key: K, value: V) -> Arc<V> {
    let value = Arc::new(value);
    let mut kept = locked(kept);
    if kept.len() >= KEPT_MAX {
        kept.clear();
    }
    kept.insert(key, Arc::clone(&value));
    value
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every value in these maps is whole by itself, whatever panicked beside it.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
