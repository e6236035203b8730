//! Compares what a component imports and exports with what the host offers and needs, by name.

use counterfoil_domain::code::Code;
use counterfoil_domain::ports::Refused;
use wasmparser::ComponentExternalKind;
use wasmtime::Engine;
use wasmtime::component::Component;
use wasmtime::component::types::ComponentItem;

use crate::offers::Offer;
use crate::refusal::{refused, shown, whole};
use crate::scan::{Extern, Outline};

/// What a block exports that knows what it is.
pub(crate) const STEP: &str = "counterfoil:block/step@0.1.0";

/// What a program exports for the command line of WASI, whose releases are one to the host.
const COMMAND: (&str, &str) = ("wasi:cli/run", "0.2.");

/// Imports named in a refusal; a component may have a hundred thousand.
const DETAILS_MAX: usize = 50;

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
    if is_step(outline) || is_command(outline) {
        return Ok(());
    }
    Err(Refused {
        details: vec![whole(format!("missing: {STEP}"))],
        ..refused(
            Code::ExportMissing,
            format!(
                "the component does not export `{STEP}`. Build it from a block SDK, or export `describe` and `run` of \
                 that interface, or `run` of `wasi:cli/run`."
            ),
        )
    })
}

/// Whether the block can say what it is.
pub(crate) fn is_step(outline: &Outline) -> bool {
    exports(outline).any(|export| export == STEP)
}

fn is_command(outline: &Outline) -> bool {
    let (interface, version) = COMMAND;
    exports(outline)
        .filter_map(|export| export.split_once('@'))
        .any(|(exported, of)| exported == interface && of.starts_with(version))
}

fn exports(outline: &Outline) -> impl Iterator<Item = &str> {
    let interfaces = outline.exports.iter().filter(|export| export.kind == ComponentExternalKind::Instance);
    interfaces.map(|export| export.name.as_str())
}

fn objection(import: &Extern) -> Option<String> {
    let name = shown(&import.name);
    let Some(offer) = Offer::of(&import.name) else {
        return Some(format!("unknown: {name}"));
    };
    let version = import.name.split_once('@').map_or("", |(_, version)| version);
    if !offer.has_version(version) {
        return Some(format!("wrong version: {name} (the host offers {})", offer.version()));
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
        let Some(offer) = Offer::of(name) else { continue };
        for (function, item) in instance.exports(engine) {
            let is_function = matches!(item.ty, ComponentItem::ComponentFunc(_));
            if is_function && !offer.has_function(function) {
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
    let message = format!(
        "the component imports what the host does not offer: {}. A block may import the block contract, and of WASI \
         0.2 what needs no system behind it.",
        details.join("; "),
    );
    Refused { code: Code::ImportUnknown, message, details: details.into_iter().map(whole).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outline(imports: &[(&str, ComponentExternalKind)], exports: &[&str]) -> Outline {
        let instance = ComponentExternalKind::Instance;
        Outline {
            imports: imports
                .iter()
                .map(|(name, kind)| Extern { name: (*name).into(), kind: *kind })
                .collect(),
            exports: exports.iter().map(|name| Extern { name: (*name).into(), kind: instance }).collect(),
            manifest: None,
        }
    }

    #[test]
    fn every_offending_import_is_named_in_its_group() {
        use ComponentExternalKind::{Func, Instance};
        let imports = [
            ("wasi:keyvalue/store@0.2.0", Instance),
            ("wasi:io/poll@0.3.0", Instance),
            ("wasi:io/error@0.2.9", Instance),
            ("counterfoil:block/effects@0.2.0", Instance),
            ("counterfoil:block/context@0.1.0", Func),
            ("counterfoil:block/effects", Instance),
            ("\u{1b}[2J", Func),
        ];
        let refused = check_names(&outline(&imports, &[STEP])).expect_err("refused");
        assert_eq!(refused.code, Code::ImportUnknown);
        assert_eq!(
            refused.details.iter().map(|detail| detail.why.as_str()).collect::<Vec<_>>(),
            [
                "unknown: \\u{1b}[2J",
                "unknown: wasi:keyvalue/store@0.2.0",
                "wrong type: counterfoil:block/context@0.1.0 is a func, not an interface",
                "wrong version: counterfoil:block/effects (the host offers 0.1.0)",
                "wrong version: counterfoil:block/effects@0.2.0 (the host offers 0.1.0)",
                "wrong version: wasi:io/poll@0.3.0 (the host offers 0.2)",
            ]
        );
        assert!(refused.details.iter().all(|detail| refused.message.contains(&detail.why)), "{refused}");
    }

    #[test]
    fn a_flood_of_imports_gives_a_bounded_refusal() {
        let names: Vec<String> = (0..10_000).map(|index| format!("a:b/c{index}")).collect();
        let imports: Vec<_> =
            names.iter().map(|name| (name.as_str(), ComponentExternalKind::Instance)).collect();
        let refused = check_names(&outline(&imports, &[STEP])).expect_err("refused");
        assert_eq!(refused.details.len(), DETAILS_MAX + 1);
        assert_eq!(refused.details.last().map(|detail| detail.why.as_str()), Some("and 9950 more"));
    }

    #[test]
    fn further_exports_are_ignored_and_the_step_is_required() {
        for exports in [&["x:y/z@1.0.0", STEP][..], &["wasi:cli/run@0.2.0"], &["wasi:cli/run@0.2.9", STEP]] {
            assert_eq!(check_names(&outline(&[], exports)), Ok(()), "{exports:?}");
        }
        for exports in [&[][..], &["counterfoil:block/step@0.2.0"], &["wasi:cli/run@0.3.0"]] {
            assert_eq!(
                check_names(&outline(&[], exports)).map_err(|refused| refused.code),
                Err(Code::ExportMissing)
            );
        }
    }
}
