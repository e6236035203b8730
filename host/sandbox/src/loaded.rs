//! The blocks that this process can run, with everything looked up that does not differ between their executions.

use std::sync::Arc;

use counterfoil_domain::code::Code;
use counterfoil_domain::id::Digest;
use counterfoil_domain::ports::{RECONCILE_INTERFACE, Refused};
use moka::future::Cache;
use wasmtime::component::{Component, InstancePre, Linker};
use wasmtime::{Engine, Store};

use crate::bindings::exports::counterfoil::block::{reconcile, step};
use crate::blocks::{NotReady, READY_BYTES_MAX, blocking};
use crate::host::HostState;
use crate::machine_code::MachineCode;
use crate::refusal::{refused, shown};
use crate::wasi::run;
use crate::{imports, offers};

/// A component with everything looked up that does not differ between its executions.
pub(crate) struct ReadyBlock {
    instances: InstancePre<HostState>,
    entry: Entry,
    /// `None` if the block cannot be asked what became of its effects.
    reconcile: Option<reconcile::GuestIndices>,
    bytes_len: usize,
}

/// What the host calls of a block.
enum Entry {
    Step(step::GuestIndices),
    /// A program for the command line of WASI, which knows nothing of blocks.
    Command(run::GuestIndices),
}

/// The same, of one instance.
pub(crate) enum Callee {
    Step(step::Guest),
    Command(run::Guest),
}

impl ReadyBlock {
    /// Brings a fresh instance into being. Start functions of the guest run here.
    pub(crate) async fn instantiate(
        &self,
        store: &mut Store<HostState>,
    ) -> wasmtime::Result<wasmtime::component::Instance> {
        self.instances.instantiate_async(store).await
    }

    /// # Errors
    /// If a function that is to be called has other parameters or results than its interface says.
    pub(crate) fn callee(
        &self,
        store: &mut Store<HostState>,
        instance: &wasmtime::component::Instance,
    ) -> wasmtime::Result<Callee> {
        match &self.entry {
            Entry::Step(step) => step.load(store, instance).map(Callee::Step),
            Entry::Command(run) => run.load(store, instance).map(Callee::Command),
        }
    }

    /// `None` if the block has no `verify`.
    ///
    /// # Errors
    /// If it has other parameters or results than the contract says.
    pub(crate) fn reconcile(
        &self,
        store: &mut Store<HostState>,
        instance: &wasmtime::component::Instance,
    ) -> wasmtime::Result<Option<reconcile::Guest>> {
        self.reconcile.as_ref().map(|reconcile| reconcile.load(store, instance)).transpose()
    }
}

/// What was loaded, while there is room.
pub(crate) struct Loaded {
    engine: Engine,
    linker: Linker<HostState>,
    blocks: Cache<Digest, Arc<ReadyBlock>>,
}

impl Loaded {
    /// # Errors
    /// If the host's own interfaces cannot be linked.
    pub(crate) fn new(engine: &Engine) -> wasmtime::Result<Self> {
        Ok(Self {
            linker: offers::linker(engine)?,
            blocks: Cache::builder()
                .max_capacity(READY_BYTES_MAX)
                .weigher(|_, block: &Arc<ReadyBlock>| u32::try_from(block.bytes_len).unwrap_or(u32::MAX))
                .build(),
            engine: engine.clone(),
        })
    }

    pub(crate) async fn find(&self, component: Digest) -> Option<Arc<ReadyBlock>> {
        self.blocks.get(&component).await
    }

    /// A block that is loaded now, if it was not.
    pub(crate) async fn load(
        &self,
        component: Digest,
        code: &Arc<MachineCode>,
    ) -> Result<Arc<ReadyBlock>, Arc<NotReady>> {
        let load = async {
            let (engine, loading) = (self.engine.clone(), Arc::clone(code));
            // Made for this engine and within the scan's counts, so that what fails here is the machine.
            let loaded = blocking(move || loading.load(&engine)).await?.map_err(|error| {
                NotReady::Unavailable(format!(
                    "a compiled component cannot be loaded: {}",
                    shown(&format!("{error:#}"))
                ))
            })?;
            Ok(Arc::new(self.link(&loaded, code.bytes_len())?))
        };
        self.blocks.try_get_with(component, load).await
    }

    fn link(&self, component: &Component, bytes_len: usize) -> Result<ReadyBlock, Refused> {
        imports::check_functions(&self.engine, component)?;
        let instances =
            self.linker.instantiate_pre(component).map_err(|error| imports::wrong_types(&error))?;
        let lacks = |interface: &str, error: &wasmtime::Error| {
            let reason = shown(&error.to_string());
            refused(
                Code::ExportMissing,
                format!("the component lacks a function of the {interface} interface: {reason}"),
            )
        };
        let entry = match component.get_export_index(None, imports::STEP) {
            Some(_) => {
                Entry::Step(step::GuestIndices::new(&instances).map_err(|error| lacks("step", &error))?)
            }
            None => Entry::Command(run::GuestIndices::new(&instances).map_err(|error| lacks("run", &error))?),
        };
        let reconcile = match component.get_export_index(None, RECONCILE_INTERFACE) {
            Some(_) => {
                let found = reconcile::GuestIndices::new(&instances);
                Some(found.map_err(|error| lacks("reconcile", &error))?)
            }
            None => None,
        };
        Ok(ReadyBlock { instances, entry, reconcile, bytes_len })
    }
}
