//! Reads the structure of a component without compiling it: what it would cost to compile and to instantiate.

mod tree;
mod types;

use counterfoil_domain::code::Code;
use counterfoil_domain::limits::{StepLimits, UPLOAD_BYTES_MAX};
use counterfoil_domain::ports::Refused;
use wasmparser::{BinaryReaderError, ComponentExternalKind, Parser};

use crate::refusal::{refused, shown};
use tree::Tree;

/// Functions of all core modules, as written and multiplied out, and adapter functions. A Python runtime has 25,000.
pub(crate) const FUNCTIONS_MAX: u64 = 40_000;
/// Types, core and component, as written.
pub(crate) const TYPES_MAX: u64 = 20_000;
/// One function's code: compiling is worse than linear in it.
pub(crate) const BODY_BYTES_MAX: u64 = 1 << 20;
/// Locals of one function: register allocation is worse than linear in them.
pub(crate) const LOCALS_MAX: u64 = 5_000;
/// Components inside components.
pub(crate) const NESTING_MAX: usize = 256;
/// Core instances of one component, nested ones multiplied out. A Python runtime has 38.
pub(crate) const CORE_INSTANCES_MAX: u32 = 150;
/// Component instances, multiplied out: empty ones cost the compiler memory too.
pub(crate) const COMPONENT_INSTANCES_MAX: u64 = 1_000;
/// Aliases, instances, imports and exports, multiplied out: the compiler looks at each.
pub(crate) const ITEMS_MAX: u64 = 100_000;
/// Imports, exports, globals and segments of all core modules, as written and multiplied out: the runtime keeps a
/// record of each for each instance, which no limit on memory sees.
pub(crate) const ENTRIES_MAX: u64 = 100_000;
/// Linear memories of one component, multiplied out. The pool holds so many for every slot.
pub(crate) const MEMORIES_MAX: u32 = 4;
/// Tables of one component, multiplied out. The pool holds so many for every slot.
pub(crate) const TABLES_MAX: u32 = 4;

/// What a component asks for and offers at its outside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Outline {
    pub(crate) imports: Vec<Extern>,
    pub(crate) exports: Vec<Extern>,
    /// What it says of itself in a section of its own, for a program that cannot be asked.
    pub(crate) manifest: Option<Vec<u8>>,
}

/// One import or export of the outermost component.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Extern {
    pub(crate) name: String,
    pub(crate) kind: ComponentExternalKind,
}

/// Scans a component in one pass over its bytes.
///
/// # Errors
/// `component_too_large` for what is beyond a count or a size, `component_invalid` for what is no component.
pub(crate) fn scan(bytes: &[u8], limits: &StepLimits) -> Result<Outline, Refused> {
    let bytes_len = bytes.len() as u64;
    if bytes_len > UPLOAD_BYTES_MAX {
        return Err(refused(
            Code::ComponentTooLarge,
            format!(
                "the component has {bytes_len} bytes; at most {UPLOAD_BYTES_MAX} are taken. \
                 Strip its debug information, or split the block."
            ),
        ));
    }
    if Parser::is_core_wasm(bytes) {
        return Err(refused(
            Code::ComponentInvalid,
            "this is a core module, not a component. Build it with `counterfoil block build`, which encodes a \
             component.",
        ));
    }
    if !Parser::is_component(bytes) {
        return Err(refused(
            Code::ComponentInvalid,
            "this is not a WebAssembly component: its first eight bytes are not a component's.",
        ));
    }
    let mut tree = Tree::new(bytes, limits);
    for payload in Parser::new(0).parse_all(bytes) {
        tree.payload(payload.map_err(|error| unreadable(&error))?)?;
    }
    Ok(tree.into_outline())
}

fn unreadable(error: &BinaryReaderError) -> Refused {
    refused(
        Code::ComponentInvalid,
        format!("the component cannot be read at byte {}: {}", error.offset(), shown(error.message())),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan_text(text: &str) -> Result<Outline, Refused> {
        scan(&wat::parse_str(text).expect("the text is well formed"), &StepLimits::DEFAULT)
    }

    fn repeat(count: usize, item: &str) -> String {
        item.repeat(count)
    }

    /// The text is accepted at its limit and refused one over, with a word on what there is too much of.
    fn check(what: &str, limit: u64, text: impl Fn(usize) -> String) {
        let limit = usize::try_from(limit).expect("64 bits");
        assert_eq!(scan_text(&text(limit)).err(), None, "{what}");
        let refused = scan_text(&text(limit + 1)).expect_err(what);
        assert_eq!(refused.code, Code::ComponentTooLarge, "{what}");
        assert!(refused.message.contains(what), "{what}: {refused}");
    }

    #[test]
    fn what_is_no_component_is_refused_with_its_reason() {
        let core = wat::parse_str("(module)").expect("a module");
        let component = wat::parse_str("(component (core module (func)))").expect("a component");
        let cases: [(&[u8], &str); 4] = [
            (b"", "first eight bytes"),
            (b"#!/bin/sh echo", "first eight bytes"),
            (&core, "core module"),
            (&component[..component.len() - 3], "cannot be read at byte"),
        ];
        for (bytes, reason) in cases {
            let refused = scan(bytes, &StepLimits::DEFAULT).expect_err(reason);
            assert_eq!(refused.code, Code::ComponentInvalid, "{refused}");
            assert!(refused.message.contains(reason), "{refused}");
        }
    }

    #[test]
    fn an_upload_ends_at_its_size() {
        let bytes = vec![0; usize::try_from(UPLOAD_BYTES_MAX).expect("64 bits") + 1];
        let code = |bytes: &[u8]| scan(bytes, &StepLimits::DEFAULT).expect_err("zeroes").code;
        assert_eq!(code(&bytes), Code::ComponentTooLarge);
        assert_eq!(code(&bytes[1..]), Code::ComponentInvalid);
    }

    #[test]
    fn what_is_written_in_modules_and_types_is_counted() {
        let core = |items: String| format!("(component (core module {items}))");
        check("functions", FUNCTIONS_MAX, |count| core(repeat(count, "(func)")));
        check("types", TYPES_MAX, |count| core(repeat(count, "(type (func))")));
        check("types", TYPES_MAX, |count| {
            // The type of the instance is one itself.
            format!("(component (type (instance {})))", repeat(count - 1, "(type string)"))
        });
        check("locals", LOCALS_MAX, |count| core(format!("(func (local{}))", repeat(count, " i32"))));
        check("globals", ENTRIES_MAX, |count| core(repeat(count, "(global i32 (i32.const 0))")));
        // Two bytes of every body: its count of locals, and its end.
        check("bytes in one function", BODY_BYTES_MAX, |count| {
            core(format!("(func {})", repeat(count - 2, "nop ")))
        });
    }

    #[test]
    fn what_is_instantiated_is_counted() {
        let instances = |module: &str, count| {
            format!(
                "(component (core module $m {module}) {})",
                repeat(count, "(core instance (instantiate $m))")
            )
        };
        check("core modules", u64::from(CORE_INSTANCES_MAX), |count| instances("", count));
        check("functions", FUNCTIONS_MAX / 2, |count| {
            format!(
                "(component (core module $m {}) (core instance (instantiate $m)) (core instance (instantiate $m)))",
                repeat(count, "(func)")
            )
        });
        check("linear memories", u64::from(MEMORIES_MAX), |count| instances("(memory 1)", count));
        check("tables", u64::from(TABLES_MAX), |count| instances("(table 1 funcref)", count));
        check("nested components", COMPONENT_INSTANCES_MAX, |count| {
            format!("(component (component $c) {})", repeat(count, "(instance (instantiate $c))"))
        });
        check("aliases", ITEMS_MAX / 2, |count| {
            // Two instantiations of what is written once, and four items around.
            let aliases = repeat(count - 2, "(alias outer 1 $m (core module))");
            format!(
                "(component (core module $m) (component $c {aliases}) (instance (instantiate $c)) (instance (instantiate $c)))"
            )
        });
        check("bytes of linear memory", StepLimits::DEFAULT.memory_bytes_max >> 16, |pages| {
            format!(
                "(component (core module $m (memory 1)) (core module $n (memory {}))
                   (core instance (instantiate $m)) (core instance (instantiate $n)))",
                pages - 1
            )
        });
        check("table elements", StepLimits::DEFAULT.table_elements_max, |elements| {
            format!(
                "(component (core module $m (table {elements} funcref)) (core instance (instantiate $m)))"
            )
        });
    }

    #[test]
    fn nested_types_end_at_their_depth_and_do_not_take_the_stack() {
        // A type section of one type that holds instance types of one declaration each, and a string at the bottom.
        let nested = |depth: usize| {
            let types = [[0x42, 1, 1].repeat(depth), vec![0x73]].concat();
            let section_len = u32::try_from(types.len() + 1).expect("small");
            let section = [&[7][..], &leb(section_len), &[1], &types].concat();
            [HEADER, &section].concat()
        };
        let scan = |depth| scan(&nested(depth), &StepLimits::DEFAULT).map_err(|refused| refused.code);
        let depth_max = types::TYPE_NESTING_MAX - 1;
        assert!(scan(depth_max).is_ok());
        for depth in [depth_max + 1, 650_000] {
            assert_eq!(scan(depth), Err(Code::ComponentTooLarge), "{depth}");
        }
    }

    const HEADER: &[u8] = b"\0asm\x0d\0\x01\0";

    fn leb(value: u32) -> [u8; 3] {
        assert!(value < 1 << 21);
        let bits = value.to_le_bytes();
        [bits[0] | 0x80, (value >> 7).to_le_bytes()[0] | 0x80, (value >> 14).to_le_bytes()[0]]
    }

    #[test]
    fn nesting_ends_at_its_depth() {
        // As bytes: the text format itself does not go so deep.
        let nested = |depth: usize| {
            (1..depth).fold(HEADER.to_vec(), |inner, _| {
                [HEADER, &[4], &leb(u32::try_from(inner.len()).expect("small")), &inner].concat()
            })
        };
        assert!(scan(&nested(NESTING_MAX), &StepLimits::DEFAULT).is_ok());
        let refused = scan(&nested(NESTING_MAX + 1), &StepLimits::DEFAULT).expect_err("one over");
        assert_eq!(refused.code, Code::ComponentTooLarge);
        assert!(refused.message.contains("256 components deep"), "{refused}");
    }

    #[test]
    fn nested_instantiation_is_multiplied_out() {
        // Each level instantiates the one before twice: a kilobyte of text, four million instances.
        let mut level = "(component $c (core module $m) (core instance (instantiate $m)))".to_owned();
        for _ in 0..22 {
            level = format!("(component $c {level} (instance (instantiate $c)) (instance (instantiate $c)))");
        }
        let refused = scan_text(&level).expect_err("a bomb");
        assert_eq!(refused.code, Code::ComponentTooLarge);
        assert!(refused.message.contains("core modules"), "{refused}");
    }

    #[test]
    fn a_component_is_counted_through_aliases_and_exports() {
        let bomb = |instantiations: usize| {
            format!(
                "(component
                   (core module $m)
                   (component $inner
                     (alias outer 1 $m (core module $o))
                     (export $x \"x\" (core module $o))
                     {})
                   {})",
                repeat(10, "(core instance (instantiate $x))"),
                repeat(instantiations, "(instance (instantiate $inner))"),
            )
        };
        assert!(scan_text(&bomb(15)).is_ok());
        assert!(scan_text(&bomb(16)).is_err());
    }

    #[test]
    fn what_is_only_known_once_linked_cannot_be_counted_and_is_refused() {
        for text in [
            "(component (import \"m\" (core module $m)) (core instance (instantiate $m)))",
            "(component (import \"c\" (component $c)) (instance (instantiate $c)))",
            "(component (component $a (core module $m) (export \"m\" (core module $m))) (instance $i (instantiate $a))
               (alias export $i \"m\" (core module $m)) (core instance (instantiate $m)))",
        ] {
            let refused = scan_text(text).expect_err(text);
            assert_eq!(refused.code, Code::ComponentInvalid);
            assert!(refused.message.contains("only known once"), "{refused}");
        }
    }

    #[test]
    fn the_outline_names_only_the_outermost() {
        let outline = scan_text(
            "(component
               (import \"a:b/c@1.0.0\" (instance $i))
               (component (import \"inner\" (func)))
               (export \"d:e/f@2.0.0\" (instance $i)))",
        )
        .expect("accepted");
        let instance = |name: &str| Extern { name: name.into(), kind: ComponentExternalKind::Instance };
        assert_eq!(
            outline,
            Outline {
                imports: vec![instance("a:b/c@1.0.0")],
                exports: vec![instance("d:e/f@2.0.0")],
                manifest: None
            }
        );
    }
}
