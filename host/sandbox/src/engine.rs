//! The one constructor of an engine, and the settings that every process must agree on.

use std::num::NonZeroUsize;

use counterfoil_domain::limits::{BACKTRACE_FRAMES_MAX, MEMORY_BYTES_MAX, StepLimits};
use serde::{Deserialize, Serialize};
use wasmtime::{
    Config, Enabled, Engine, InstanceAllocationStrategy, OptLevel, PoolingAllocationConfig,
    WasmBacktraceDetails, WasmFeatures,
};

use crate::compile::Effort;
use crate::scan::{CORE_INSTANCES_MAX, MEMORIES_MAX, TABLES_MAX};

/// Guest frames: deep enough for a recursive-descent parser, small enough for thousands of waiting steps.
pub(crate) const WASM_STACK_BYTES_MAX: usize = 512 << 10;
/// A fiber's whole stack: what is left above the guest's part is for host functions, which run on it too.
const FIBER_STACK_BYTES: usize = 2 << 20;
/// Kept mapped in a slot that is given back: most blocks touch less, and then need no system call to reset.
const MEMORY_KEEP_RESIDENT_BYTES: usize = 2 << 20;
/// The same of a fiber's stack: what a small block and the host functions under it touch.
const STACK_KEEP_RESIDENT_BYTES: usize = 64 << 10;
/// The same of a table: all of it, at the size of a pointer an element.
const TABLE_ELEMENT_BYTES: usize = size_of::<usize>();
/// Memory slots of one process: each reserves over 4 GiB of address space, of which there are 128 TiB.
const MEMORY_SLOTS_MAX: u32 = 25_000;
/// The runtime's own records of one component: more than the scan's counts can come to, so that nothing is refused
/// for it after it was compiled.
const RECORDS_BYTES_MAX: usize = 16 << 20;
/// Memory mappings that the rest of the process may need.
const MAPPINGS_SPARE: u64 = 4_000;

/// What toolchains emit, and nothing else: each further proposal is one more way for guests to differ or to break out.
const FEATURES: WasmFeatures = WasmFeatures::WASM2
    .union(WasmFeatures::EXTENDED_CONST)
    .union(WasmFeatures::COMPONENT_MODEL)
    // For the engine's own code between components that are linked in one; the scan refuses it to modules.
    .union(WasmFeatures::MULTI_MEMORY)
    .difference(WasmFeatures::GC_TYPES);

/// Where instances get their memories, tables and stacks from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Allocation {
    /// Slots that are reserved at start and reset after use: four times faster to instantiate.
    Pooled,
    /// Mapped when asked for: for tests and for machines with little address space.
    OnDemand,
}

/// Instances that this machine's limit on memory mappings leaves room for, or `None` where there is no such limit.
///
/// Running out of mappings breaks the whole process, so a pool is refused that could get there.
pub fn pooled_slots_max() -> Option<u32> {
    let mappings_max = std::fs::read_to_string("/proc/sys/vm/max_map_count").ok()?;
    Some(slots_within(mappings_max.trim().parse().ok()?))
}

/// Two mappings for each fiber's stack, and one for each memory slot of an instance.
fn slots_within(mappings_max: u64) -> u32 {
    let slots = mappings_max.saturating_sub(MAPPINGS_SPARE) / (2 + u64::from(MEMORIES_MAX));
    u32::try_from(slots).unwrap_or(u32::MAX).min(MEMORY_SLOTS_MAX / MEMORIES_MAX)
}

/// Builds the engine of this process.
///
/// # Errors
/// If the machine cannot give the pool its address space.
pub(crate) fn engine(allocation: Allocation, slots: u32, limits: &StepLimits) -> wasmtime::Result<Engine> {
    let mut config = config();
    config.allocation_strategy(match allocation {
        Allocation::Pooled => InstanceAllocationStrategy::Pooling(pool(slots, limits)),
        Allocation::OnDemand => InstanceAllocationStrategy::OnDemand,
    });
    Engine::new(&config)
}

/// Builds an engine that runs nothing: what it compiles is good for every engine of this program.
///
/// # Errors
/// If this machine is none that is compiled for.
pub(crate) fn compiling_engine(effort: Effort) -> wasmtime::Result<Engine> {
    let mut config = config();
    // The allocator of registers stays the same. The single-pass one is ten times quicker on what is made to be slow,
    // but its makers do not stand by it as a wall, and a stranger could choose it by being slow.
    config.cranelift_opt_level(match effort {
        Effort::Optimised => OptLevel::Speed,
        Effort::Unoptimised => OptLevel::None,
    });
    Engine::new(&config)
}

/// What decides the meaning or the layout of compiled code is fixed here and nowhere else: an artifact is good only for
/// engines that agree on it.
fn config() -> Config {
    let mut config = Config::new();
    config
        .wasm_features(WasmFeatures::all().difference(FEATURES), false)
        .wasm_features(FEATURES, true)
        // Switched on it costs a quarter of a host call; components use the synchronous ABI only.
        .concurrency_support(false)
        // Costs less than fuel and needs no count to be agreed on.
        .epoch_interruption(true)
        .consume_fuel(false)
        // The bits of a NaN differ between processors, and a guest's requests may depend on them.
        .cranelift_nan_canonicalization(true)
        // Compiling must not take the cores of the steps that run, and gives the same bytes each time.
        .parallel_compilation(false)
        .max_wasm_stack(WASM_STACK_BYTES_MAX)
        .async_stack_size(FIBER_STACK_BYTES)
        .async_stack_zeroing(true)
        // Reading a guest's debug information would be the host's work on the guest's data.
        .wasm_backtrace_details(WasmBacktraceDetails::Disable)
        .wasm_backtrace_max_frames(NonZeroUsize::new(BACKTRACE_FRAMES_MAX));
    config
}

/// Sized so that a slot's permit is enough: no component within the scan's counts can exhaust it.
fn pool(slots: u32, limits: &StepLimits) -> PoolingAllocationConfig {
    let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
    let mut pool = PoolingAllocationConfig::new();
    pool.total_component_instances(slots)
        .total_stacks(slots)
        .total_core_instances(slots.saturating_mul(CORE_INSTANCES_MAX))
        .total_memories(slots.saturating_mul(MEMORIES_MAX))
        .total_tables(slots.saturating_mul(TABLES_MAX))
        .max_core_instances_per_component(CORE_INSTANCES_MAX)
        .max_memories_per_component(MEMORIES_MAX)
        .max_tables_per_component(TABLES_MAX)
        .max_tables_per_module(TABLES_MAX)
        .max_core_instance_size(RECORDS_BYTES_MAX)
        .max_component_instance_size(RECORDS_BYTES_MAX)
        // What was accepted under a larger limit is loaded still, and refused where it asks for more than is granted now.
        .max_memory_size(size(MEMORY_BYTES_MAX))
        .table_elements(size(limits.table_elements_max))
        .linear_memory_keep_resident(MEMORY_KEEP_RESIDENT_BYTES)
        .table_keep_resident(size(limits.table_elements_max).saturating_mul(TABLE_ELEMENT_BYTES))
        .async_stack_keep_resident(STACK_KEEP_RESIDENT_BYTES)
        .max_unused_warm_slots(slots)
        .pagemap_scan(Enabled::Auto);
    pool
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_stays_within_the_mappings_of_the_process() {
        for (mappings_max, slots) in
            [(0, 0), (4_000, 0), (4_006, 1), (65_530, 6_250), (10_000, 1_000), (u64::MAX, 6_250)]
        {
            assert_eq!(slots_within(mappings_max), slots, "{mappings_max}");
        }
    }

    #[test]
    fn a_small_pool_and_the_on_demand_form_agree_on_compiled_code() {
        let engines = [Allocation::Pooled, Allocation::OnDemand].map(|allocation| {
            let engine = engine(allocation, 2, &StepLimits::DEFAULT).expect("an engine");
            crate::artifact::EngineId::of(&engine)
        });
        assert_eq!(engines[0], engines[1]);
    }
}
