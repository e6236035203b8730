//! The nesting of components and modules, and what each costs once it is instantiated.

use counterfoil_domain::block::MANIFEST_SECTION;
use counterfoil_domain::code::Code;
use counterfoil_domain::limits::{MANIFEST_BYTES_MAX, StepLimits};
use counterfoil_domain::ports::Refused;
use wasmparser::{
    ComponentAlias, ComponentExport, ComponentExternalKind, ComponentImport, ComponentInstance,
    ComponentOuterAliasKind, ComponentTypeRef, CoreType, FunctionBody, Instance, Payload, TypeRef,
};

use super::{
    BODY_BYTES_MAX, COMPONENT_INSTANCES_MAX, CORE_INSTANCES_MAX, ENTRIES_MAX, Extern, FUNCTIONS_MAX,
    ITEMS_MAX, LOCALS_MAX, MEMORIES_MAX, NESTING_MAX, Outline, TABLES_MAX, TYPES_MAX, types, unreadable,
};
use crate::refusal::refused;

/// What one instantiation brings into being, everything below it included. Sums saturate: they are only compared.
#[derive(Debug, Clone, Copy, Default)]
struct Cost {
    core_instances: u64,
    component_instances: u64,
    functions: u64,
    entries: u64,
    adapters: u64,
    items: u64,
    memories: u64,
    memory_bytes: u64,
    tables: u64,
    table_elements: u64,
}

impl Cost {
    fn add(&mut self, other: &Self) {
        for (sum, part) in [
            (&mut self.core_instances, other.core_instances),
            (&mut self.component_instances, other.component_instances),
            (&mut self.functions, other.functions),
            (&mut self.entries, other.entries),
            (&mut self.adapters, other.adapters),
            (&mut self.items, other.items),
            (&mut self.memories, other.memories),
            (&mut self.memory_bytes, other.memory_bytes),
            (&mut self.tables, other.tables),
            (&mut self.table_elements, other.table_elements),
        ] {
            *sum = sum.saturating_add(part);
        }
    }

    fn check(&self, limits: &StepLimits) -> Result<(), Refused> {
        for (count, max, what) in [
            (self.core_instances, u64::from(CORE_INSTANCES_MAX), "instances of core modules"),
            (self.component_instances, COMPONENT_INSTANCES_MAX, "instances of nested components"),
            (self.functions, FUNCTIONS_MAX, FUNCTIONS),
            (self.entries, ENTRIES_MAX, ENTRIES),
            (self.adapters, FUNCTIONS_MAX, "adapter functions"),
            (self.items, ITEMS_MAX, "aliases, instances, imports and exports"),
            (self.memories, u64::from(MEMORIES_MAX), "linear memories"),
            (self.memory_bytes, limits.memory_bytes_max, "bytes of linear memory at start"),
            (self.tables, u64::from(TABLES_MAX), "tables"),
            (self.table_elements, limits.table_elements_max, "table elements at start"),
        ] {
            if count > max {
                return Err(too_many(count, max, &format!("{what}, nested ones multiplied out")));
            }
        }
        Ok(())
    }
}

const FUNCTIONS: &str = "functions";
const ENTRIES: &str = "imports, exports, globals and segments of core modules";

fn at_most(count: u64, max: u64, what: &str) -> Result<(), Refused> {
    if count > max { Err(too_many(count, max, what)) } else { Ok(()) }
}

fn too_many(count: u64, max: u64, what: &str) -> Refused {
    refused(
        Code::ComponentTooLarge,
        format!("the component has {count} {what}; at most {max} are taken. Split the block."),
    )
}

/// One component or module that is being read. What is not `Some` in an index space is only known at link time.
#[derive(Default)]
struct Frame {
    is_module: bool,
    /// Those that a module has itself, and those that it is given.
    memories: u64,
    cost: Cost,
    modules: Vec<Option<Cost>>,
    components: Vec<Option<Cost>>,
}

pub(super) struct Tree<'b> {
    bytes: &'b [u8],
    limits: &'b StepLimits,
    /// What is being read, and around it, from the outermost in, what is still open.
    top: Frame,
    around: Vec<Frame>,
    functions: u64,
    types: u64,
    entries: u64,
    outline: Outline,
}

impl<'b> Tree<'b> {
    /// A tree whose outermost component is open.
    pub(super) fn new(bytes: &'b [u8], limits: &'b StepLimits) -> Self {
        Self {
            bytes,
            limits,
            top: Frame::default(),
            around: Vec::new(),
            functions: 0,
            types: 0,
            entries: 0,
            outline: Outline { imports: Vec::new(), exports: Vec::new(), manifest: None },
        }
    }

    pub(super) fn into_outline(self) -> Outline {
        self.outline
    }

    pub(super) fn payload(&mut self, payload: Payload<'_>) -> Result<(), Refused> {
        match payload {
            Payload::ModuleSection { .. } => {
                let cost = Cost { core_instances: 1, ..Cost::default() };
                self.enter(Frame { is_module: true, cost, ..Frame::default() })
            }
            Payload::ComponentSection { .. } => self.enter(Frame::default()),
            Payload::End(_) => {
                self.leave();
                Ok(())
            }
            payload if self.top.is_module => self.module_payload(payload),
            Payload::CustomSection(section)
                if self.around.is_empty() && section.name() == MANIFEST_SECTION =>
            {
                let manifest = section.data();
                at_most(manifest.len() as u64, MANIFEST_BYTES_MAX, "bytes of a manifest")?;
                // The last one counts: whoever adds one need not take another out.
                self.outline.manifest = Some(manifest.to_vec());
                Ok(())
            }
            payload => self.component_payload(payload),
        }
    }

    fn enter(&mut self, frame: Frame) -> Result<(), Refused> {
        self.items(1)?;
        if self.around.len() + 1 == NESTING_MAX {
            return Err(refused(
                Code::ComponentTooLarge,
                format!("the component is more than {NESTING_MAX} components deep. Build the block flat."),
            ));
        }
        self.around.push(std::mem::replace(&mut self.top, frame));
        Ok(())
    }

    fn leave(&mut self) {
        let Some(outer) = self.around.pop() else { return };
        let Frame { is_module, mut cost, .. } = std::mem::replace(&mut self.top, outer);
        if is_module {
            self.top.modules.push(Some(cost));
        } else {
            cost.component_instances = cost.component_instances.saturating_add(1);
            self.top.components.push(Some(cost));
        }
    }

    fn module_payload(&mut self, payload: Payload<'_>) -> Result<(), Refused> {
        match payload {
            Payload::TypeSection(types) => {
                for group in types {
                    let group = group.map_err(|error| unreadable(&error))?;
                    self.types(group.types().len() as u64)?;
                }
                Ok(())
            }
            Payload::FunctionSection(functions) => {
                let functions = u64::from(functions.count());
                self.top.cost.add(&Cost { functions, ..Cost::default() });
                self.functions += functions;
                at_most(self.functions, FUNCTIONS_MAX, FUNCTIONS)
            }
            Payload::MemorySection(memories) => {
                for memory in memories {
                    let memory = memory.map_err(|error| unreadable(&error))?;
                    let page_bytes =
                        1_u64.checked_shl(memory.page_size_log2.unwrap_or(16)).unwrap_or(u64::MAX);
                    let bytes = memory.initial.saturating_mul(page_bytes);
                    self.top.cost.add(&Cost { memories: 1, memory_bytes: bytes, ..Cost::default() });
                    self.top.memories += 1;
                }
                self.one_memory()
            }
            Payload::TableSection(tables) => {
                for table in tables {
                    let elements = table.map_err(|error| unreadable(&error))?.ty.initial;
                    self.top.cost.add(&Cost { tables: 1, table_elements: elements, ..Cost::default() });
                }
                Ok(())
            }
            Payload::ImportSection(imports) => {
                self.entries(imports.count())?;
                for import in imports.into_imports() {
                    let import = import.map_err(|error| unreadable(&error))?;
                    self.top.memories += u64::from(matches!(import.ty, TypeRef::Memory(_)));
                }
                self.one_memory()
            }
            Payload::ExportSection(exports) => self.entries(exports.count()),
            Payload::GlobalSection(globals) => self.entries(globals.count()),
            Payload::ElementSection(segments) => self.entries(segments.count()),
            Payload::DataSection(segments) => self.entries(segments.count()),
            Payload::CodeSectionEntry(body) => body_within(&body),
            _ => Ok(()),
        }
    }

    /// The engine takes several, for the code that it puts between components itself.
    fn one_memory(&self) -> Result<(), Refused> {
        if self.top.memories <= 1 {
            return Ok(());
        }
        Err(refused(
            Code::ComponentInvalid,
            "a module of the component has multiple memories. Build it without the multi-memory proposal.",
        ))
    }

    fn component_payload(&mut self, payload: Payload<'_>) -> Result<(), Refused> {
        match payload {
            Payload::CoreTypeSection(types) => {
                for ty in types {
                    self.types(match ty.map_err(|error| unreadable(&error))? {
                        CoreType::Rec(group) => group.types().len() as u64,
                        CoreType::Module(declarations) => declarations.len() as u64 + 1,
                    })?;
                }
                Ok(())
            }
            Payload::ComponentTypeSection(types) => {
                let range = types.range();
                self.types(types::count(&self.bytes[range.clone()], range.start)?)
            }
            Payload::ComponentCanonicalSection(functions) => {
                let adapters = u64::from(functions.count());
                self.top.cost.add(&Cost { adapters, ..Cost::default() });
                self.check()
            }
            Payload::InstanceSection(instances) => {
                self.items(instances.count())?;
                instances.into_iter().try_for_each(|instance| {
                    match instance.map_err(|error| unreadable(&error))? {
                        Instance::Instantiate { module_index, .. } => {
                            self.instantiate(|frame| &frame.modules, module_index)
                        }
                        Instance::FromExports(exports) => self.items(count(exports.len())),
                    }
                })
            }
            Payload::ComponentInstanceSection(instances) => {
                self.items(instances.count())?;
                instances.into_iter().try_for_each(|instance| {
                    match instance.map_err(|error| unreadable(&error))? {
                        ComponentInstance::Instantiate { component_index, .. } => {
                            self.instantiate(|frame| &frame.components, component_index)
                        }
                        ComponentInstance::FromExports(exports) => self.items(count(exports.len())),
                    }
                })
            }
            Payload::ComponentAliasSection(aliases) => {
                self.items(aliases.count())?;
                aliases.into_iter().try_for_each(|alias| {
                    self.alias(&alias.map_err(|error| unreadable(&error))?);
                    Ok(())
                })
            }
            Payload::ComponentImportSection(imports) => {
                self.items(imports.count())?;
                imports.into_iter().try_for_each(|import| {
                    self.import(import.map_err(|error| unreadable(&error))?);
                    Ok(())
                })
            }
            Payload::ComponentExportSection(exports) => {
                self.items(exports.count())?;
                exports.into_iter().try_for_each(|export| {
                    self.export(&export.map_err(|error| unreadable(&error))?);
                    Ok(())
                })
            }
            _ => Ok(()),
        }
    }

    fn instantiate(
        &mut self,
        space: impl Fn(&Frame) -> &Vec<Option<Cost>>,
        index: u32,
    ) -> Result<(), Refused> {
        let Some(Some(cost)) = space(&self.top).get(index as usize).copied() else {
            return Err(refused(
                Code::ComponentInvalid,
                "the component instantiates a module or component that is only known once it is linked, so that its \
                 size cannot be judged. Define it inside the component.",
            ));
        };
        self.top.cost.add(&cost);
        self.check()
    }

    /// An alias of a module or component is a further index for it.
    fn alias(&mut self, alias: &ComponentAlias<'_>) {
        match *alias {
            ComponentAlias::InstanceExport { kind: ComponentExternalKind::Module, .. } => {
                self.top.modules.push(None);
            }
            ComponentAlias::InstanceExport { kind: ComponentExternalKind::Component, .. } => {
                self.top.components.push(None);
            }
            ComponentAlias::Outer { kind: ComponentOuterAliasKind::CoreModule, count, index } => {
                let cost = self.outer(|frame| &frame.modules, count, index);
                self.top.modules.push(cost);
            }
            ComponentAlias::Outer { kind: ComponentOuterAliasKind::Component, count, index } => {
                let cost = self.outer(|frame| &frame.components, count, index);
                self.top.components.push(cost);
            }
            _ => {}
        }
    }

    fn outer(&self, space: impl Fn(&Frame) -> &Vec<Option<Cost>>, count: u32, index: u32) -> Option<Cost> {
        let frame = std::iter::once(&self.top).chain(self.around.iter().rev()).nth(count as usize)?;
        space(frame).get(index as usize).copied().flatten()
    }

    fn import(&mut self, import: ComponentImport<'_>) {
        match import.ty {
            ComponentTypeRef::Module(_) => self.top.modules.push(None),
            ComponentTypeRef::Component(_) => self.top.components.push(None),
            _ => {}
        }
        if self.around.is_empty() {
            let (name, kind) = (import.name.name.to_owned(), import.ty.kind());
            self.outline.imports.push(Extern { name, kind });
        }
    }

    /// An export of a module or component is a further index for it.
    fn export(&mut self, export: &ComponentExport<'_>) {
        let again = |space: &mut Vec<Option<Cost>>| {
            let cost = space.get(export.index as usize).copied().flatten();
            space.push(cost);
        };
        match export.kind {
            ComponentExternalKind::Module => again(&mut self.top.modules),
            ComponentExternalKind::Component => again(&mut self.top.components),
            _ => {}
        }
        if self.around.is_empty() {
            let (name, kind) = (export.name.name.to_owned(), export.kind);
            self.outline.exports.push(Extern { name, kind });
        }
    }

    fn entries(&mut self, more: u32) -> Result<(), Refused> {
        let entries = u64::from(more);
        self.top.cost.add(&Cost { entries, ..Cost::default() });
        self.entries += entries;
        at_most(self.entries, ENTRIES_MAX, ENTRIES)
    }

    fn types(&mut self, more: u64) -> Result<(), Refused> {
        self.types += more;
        at_most(self.types, TYPES_MAX, "types")
    }

    fn items(&mut self, more: u32) -> Result<(), Refused> {
        self.top.cost.add(&Cost { items: u64::from(more), ..Cost::default() });
        self.check()
    }

    fn check(&self) -> Result<(), Refused> {
        self.top.cost.check(self.limits)
    }
}

fn count(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

fn body_within(body: &FunctionBody<'_>) -> Result<(), Refused> {
    at_most(body.range().len() as u64, BODY_BYTES_MAX, "bytes in one function")?;
    let mut locals = 0_u64;
    for group in body.get_locals_reader().map_err(|error| unreadable(&error))? {
        let (count, _) = group.map_err(|error| unreadable(&error))?;
        locals += u64::from(count);
    }
    at_most(locals, LOCALS_MAX, "locals in one function")
}
