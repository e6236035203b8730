//! Makes a component of the core module that the compiler wrote.

use anyhow::{Context as _, bail};
use counterfoil_sandbox::is_offered;
use wit_component::{ComponentEncoder, DecodedWasm, decode};

/// What a host asks of a block.
const STEP: &str = "counterfoil:block/step@0.1.0";

/// Or of a program that is one without knowing it.
const COMMAND: &str = "wasi:cli/run@0.2.";

/// Encodes a core module, which carries its own interface, as a component.
///
/// # Errors
///
/// The module holds no block, or needs what a host does not offer.
pub(super) fn component(core: &[u8]) -> anyhow::Result<Vec<u8>> {
    let component = ComponentEncoder::default()
        .validate(true)
        .module(core)
        .and_then(|mut encoder| encoder.encode())
        .context("the module does not make a component: it may need what a host does not offer")?;
    let (imports, exports) = interfaces(&component)?;
    if !exports.iter().any(|export| export == STEP || export.starts_with(COMMAND)) {
        bail!("the crate has no block: mark one function with `#[block]`");
    }
    let unknown: Vec<_> = imports.iter().filter(|import| !is_offered(import)).collect();
    if !unknown.is_empty() {
        bail!("a host does not offer what the block imports: {unknown:?}");
    }
    Ok(component)
}

/// The names of what a component imports and exports.
fn interfaces(component: &[u8]) -> anyhow::Result<(Vec<String>, Vec<String>)> {
    let DecodedWasm::Component(resolve, world) = decode(component)? else {
        bail!("the encoder wrote no component");
    };
    let world = &resolve.worlds[world];
    let imports = world.imports.keys().map(|key| resolve.name_world_key(key)).collect();
    let exports = world.exports.keys().map(|key| resolve.name_world_key(key)).collect();
    Ok((imports, exports))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: [u8; 8] = *b"\0asm\x01\0\0\0";

    #[test]
    fn a_module_without_a_block_is_told_how_to_have_one() {
        let error = component(&HEADER).expect_err("it is empty");
        assert_eq!(error.to_string(), "the crate has no block: mark one function with `#[block]`");
    }

    #[test]
    fn an_import_that_no_host_offers_is_named() {
        let types = b"\x01\x04\x01\x60\0\0";
        let import = b"\x02\x0c\x01\x03env\x04time\0\0";
        let module = [&HEADER[..], types, import].concat();
        let error = format!("{:#}", component(&module).expect_err("nobody offers env"));
        assert!(error.contains("`env`"), "{error}");
    }

    #[test]
    fn bytes_that_are_no_module_are_refused() {
        assert!(component(b"#!/bin/sh").is_err());
    }
}
