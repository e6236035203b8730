//! What the host offers and what it needs, by name: one list for the check of an upload and for the linker.

use counterfoil_domain::code::Code;
use counterfoil_domain::ports::Refused;
use wasmparser::ComponentExternalKind;
use wasmtime::Engine;
use wasmtime::component::types::ComponentItem;
use wasmtime::component::{Component, HasSelf, Linker};

use crate::bindings::counterfoil::block::{context, effects};
use crate::host::HostState;
use crate::refusal::{refused, shown};
use crate::scan::{Extern, Outline};

/// One interface that a block may import.
struct Offer {
    interface: &'static str,
    version: &'static str,
    functions: &'static [&'static str],
    link: fn(&mut Linker<HostState>) -> wasmtime::Result<()>,
}

const OFFERS: &[Offer] = &[
    Offer {
        interface: "counterfoil:block/effects",
        version: "0.1.0",
        functions: &["perform"],
        link: |linker| effects::add_to_linker::<_, HasSelf<HostState>>(linker, |state| state),
    },
    Offer {
        interface: "counterfoil:block/context",
        version: "0.1.0",
        functions: &["place", "started-at", "random", "log"],
        link: |linker| context::add_to_linker::<_, HasSelf<HostState>>(linker, |state| state),
    },
];

/// What every block must export.
const STEP: &str = "counterfoil:block/step@0.1.0";

/// Imports named in a refusal; a component may have a hundred thousand.
const DETAILS_MAX: usize = 50;

/// The linker with everything on the list and nothing else.
///
/// # Errors
/// Only if the list names something twice.
pub(crate) fn linker(engine: &Engine) -> wasmtime::Result<Linker<HostState>> {
    let mut linker = Linker::new(engine);
    for offer in OFFERS {
        (offer.link)(&mut linker)?;
    }
    Ok(linker)
}

/// Compares the names at a component's outside with the list, before it is compiled.
///
/// # Errors
/// `import_unknown` with every offending import, `export_missing` without the step interface.
pub(crate) fn check_names(outline: &Outline) -> Result<(), Refused> {
    let mut details: Vec<String> = outline.imports.iter().filter_map(objection).collect();
    if !details.is_empty() {
        // Groups stand together: unknown, wrong version.
        details.sort();
        return Err(import_refusal(details));
    }
    let is_step = |export: &Extern| export.name == STEP && export.kind == ComponentExternalKind::Instance;
    if outline.exports.iter().any(is_step) {
        return Ok(());
    }
    Err(Refused {
        details: vec![format!("missing: {STEP}")],
        ..refused(
            Code::ExportMissing,
            format!(
                "the component does not export `{STEP}`. Build it from the block SDK, or export `describe` and `run` \
                 of that interface."
            ),
        )
    })
}

fn objection(import: &Extern) -> Option<String> {
    let name = shown(&import.name);
    let (interface, version) = import.name.split_once('@').unwrap_or((&import.name, ""));
    let Some(offer) = OFFERS.iter().find(|offer| offer.interface == interface) else {
        return Some(format!("unknown: {name}"));
    };
    if version != offer.version {
        return Some(format!("wrong version: {name} (the host offers {})", offer.version));
    }
    (import.kind != ComponentExternalKind::Instance)
        .then(|| format!("wrong type: {name} is a {}, not an interface", import.kind.desc()))
}

/// Compares the functions inside the imported interfaces with the list, once their types are known.
///
/// # Errors
/// `import_unknown` with every function that its interface does not have.
pub(crate) fn check_functions(engine: &Engine, component: &Component) -> Result<(), Refused> {
    let mut details = Vec::new();
    let component = component.component_type();
    for (name, import) in component.imports(engine) {
        let ComponentItem::ComponentInstance(instance) = import.ty else { continue };
        let offer = OFFERS
            .iter()
            .find(|offer| name.split_once('@').is_some_and(|(interface, _)| interface == offer.interface));
        let Some(offer) = offer else { continue };
        for (function, item) in instance.exports(engine) {
            let is_function = matches!(item.ty, ComponentItem::ComponentFunc(_));
            if is_function && !offer.functions.contains(&function) {
                details.push(format!("wrong type: {name} has no function `{}`", shown(function)));
            }
        }
    }
    if details.is_empty() { Ok(()) } else { Err(import_refusal(details)) }
}

/// The refusal for a function whose parameters or results are not those of the interface.
pub(crate) fn wrong_types(error: &wasmtime::Error) -> Refused {
    import_refusal(vec![format!("wrong type: {}", shown(&format!("{error:#}")))])
}

fn import_refusal(mut details: Vec<String>) -> Refused {
    let more = details.len().saturating_sub(DETAILS_MAX);
    details.truncate(DETAILS_MAX);
    if more > 0 {
        details.push(format!("and {more} more"));
    }
    let offered: Vec<String> =
        OFFERS.iter().map(|offer| format!("{}@{}", offer.interface, offer.version)).collect();
    let message = format!(
        "the component imports what the host does not offer: {}. A block may import {} only; build it for \
         `wasm32-unknown-unknown`, where nothing else is linked in.",
        details.join("; "),
        offered.join(" and "),
    );
    Refused { code: Code::ImportUnknown, message, details }
}

#[cfg(test)]
mod tests {
    use counterfoil_domain::ports::RECONCILE_INTERFACE;

    use super::*;

    fn outline(imports: &[(&str, ComponentExternalKind)], exports: &[&str]) -> Outline {
        let instance = ComponentExternalKind::Instance;
        Outline {
            imports: imports
                .iter()
                .map(|(name, kind)| Extern { name: (*name).into(), kind: *kind })
                .collect(),
            exports: exports.iter().map(|name| Extern { name: (*name).into(), kind: instance }).collect(),
        }
    }

    #[test]
    fn the_list_is_the_contract() {
        let mut resolve = wit_parser::Resolve::default();
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../wit");
        let (package, _) = resolve.push_path(path).expect("the contract parses");
        let world = |name| {
            let world = resolve.select_world(&[package], Some(name)).expect("the world");
            &resolve.worlds[world]
        };
        let named = |items: &wit_parser::IndexMap<wit_parser::WorldKey, wit_parser::WorldItem>| -> Vec<(String, Vec<String>)> {
            items
                .iter()
                .map(|(key, item)| {
                    let wit_parser::WorldItem::Interface { id, .. } = item else { panic!("{key:?} is no interface") };
                    let functions = resolve.interfaces[*id].functions.keys().cloned().collect();
                    (resolve.name_world_key(key), functions)
                })
                .collect()
        };
        let offered: Vec<(String, Vec<String>)> = OFFERS
            .iter()
            .map(|offer| {
                let functions = offer.functions.iter().map(ToString::to_string).collect();
                (format!("{}@{}", offer.interface, offer.version), functions)
            })
            .collect();
        for (name, exports) in [("block", &[STEP][..]), ("verifying-block", &[RECONCILE_INTERFACE, STEP])] {
            assert_eq!(offered, named(&world(name).imports), "{name}");
            let exported: Vec<String> =
                named(&world(name).exports).into_iter().map(|(name, _)| name).collect();
            assert_eq!(exported, exports, "{name}");
        }
    }

    #[test]
    fn every_offending_import_is_named_in_its_group() {
        use ComponentExternalKind::{Func, Instance};
        let imports = [
            ("wasi:sockets/tcp@0.2.0", Instance),
            ("counterfoil:block/effects@0.2.0", Instance),
            ("counterfoil:block/context@0.1.0", Func),
            ("counterfoil:block/effects", Instance),
            ("\u{1b}[2J", Func),
        ];
        let refused = check_names(&outline(&imports, &[STEP])).expect_err("refused");
        assert_eq!(refused.code, Code::ImportUnknown);
        assert_eq!(
            refused.details,
            [
                "unknown: \\u{1b}[2J",
                "unknown: wasi:sockets/tcp@0.2.0",
                "wrong type: counterfoil:block/context@0.1.0 is a func, not an interface",
                "wrong version: counterfoil:block/effects (the host offers 0.1.0)",
                "wrong version: counterfoil:block/effects@0.2.0 (the host offers 0.1.0)",
            ]
        );
        assert!(refused.details.iter().all(|detail| refused.message.contains(detail)), "{refused}");
    }

    #[test]
    fn a_flood_of_imports_gives_a_bounded_refusal() {
        let names: Vec<String> = (0..10_000).map(|index| format!("a:b/c{index}")).collect();
        let imports: Vec<_> =
            names.iter().map(|name| (name.as_str(), ComponentExternalKind::Instance)).collect();
        let refused = check_names(&outline(&imports, &[STEP])).expect_err("refused");
        assert_eq!(refused.details.len(), DETAILS_MAX + 1);
        assert_eq!(refused.details.last().map(String::as_str), Some("and 9950 more"));
    }

    #[test]
    fn further_exports_are_ignored_and_the_step_is_required() {
        assert_eq!(check_names(&outline(&[], &["x:y/z@1.0.0", STEP])), Ok(()));
        for exports in [&[][..], &["counterfoil:block/step@0.2.0"]] {
            assert_eq!(
                check_names(&outline(&[], exports)).map_err(|refused| refused.code),
                Err(Code::ExportMissing)
            );
        }
    }
}
