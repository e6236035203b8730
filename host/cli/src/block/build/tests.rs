use std::cell::RefCell;

use super::super::new::{self, Template};
use super::*;

fn guest_examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guest-examples")
}

fn is_component(path: &Path) -> anyhow::Result<bool> {
    Ok(fs::read(path)?.starts_with(b"\0asm\x0d\0\x01\0"))
}

/// Compiles, so it is slow: one test for all that must compile.
#[test]
fn the_guest_examples_and_a_new_block_build_to_components() -> anyhow::Result<()> {
    let said = RefCell::new(Vec::new());
    let progress = |line: &str| said.borrow_mut().push(line.to_owned());
    let out = tempfile::tempdir()?;
    for name in ["charge-card", "count-order", "enrich-lead", "place-order", "two-effects"] {
        let path = out.path().join("built").join(format!("{name}.wasm"));
        let built = build(&guest_examples().join(name), Some(&path), &progress)?;
        assert_eq!(built, Built { name: name.into(), bytes_len: fs::metadata(&path)?.len(), path });
        assert!(is_component(&built.path)?);
        assert!(built.bytes_len < 256 << 10, "{name} has {} bytes", built.bytes_len);
    }
    assert!(said.borrow().iter().any(|line| line.starts_with("building charge-card with ")));
    let mut written: Vec<_> = fs::read_dir(out.path().join("built"))?
        .map(|entry| entry.map(|entry| entry.file_name()))
        .collect::<Result<_, _>>()?;
    written.sort();
    assert_eq!(
        written,
        ["charge-card.wasm", "count-order.wasm", "enrich-lead.wasm", "place-order.wasm", "two-effects.wasm"]
    );

    // In the checkout's target directory, so that it finds the SDK and what is compiled already.
    let guests_target = guest_examples().join("target");
    fs::create_dir_all(&guests_target)?;
    let parent = tempfile::tempdir_in(&guests_target)?;
    let dir = new::new(parent.path(), "refund-card", Template::ChargeCard)?;
    fs::copy(guest_examples().join("Cargo.lock"), dir.join("Cargo.lock"))?;
    fs::create_dir(parent.path().join(".cargo"))?;
    let config = format!("[build]\ntarget-dir = {guests_target:?}\n");
    fs::write(parent.path().join(".cargo/config.toml"), config)?;
    let built = build(&dir, None, &progress)?;
    assert!(built.path.ends_with("block/refund-card.wasm"), "{}", built.path.display());
    assert!(is_component(&built.path)?);

    fs::write(dir.join("src/lib.rs"), "use counterfoil_sdk::prelude::*;\n#[block]\nfn nothing() {}\n")?;
    let error = format!("{:#}", build(&dir, None, &progress).expect_err("it takes no input"));
    assert!(error.starts_with("the crate does not compile:\nerror: a block returns"), "{error}");

    fs::write(dir.join("src/lib.rs"), "")?;
    let error = format!("{:#}", build(&dir, None, &progress).expect_err("it is empty"));
    assert!(error.ends_with("the crate has no block: mark one function with `#[block]`"), "{error}");
    Ok(())
}

#[test]
fn what_is_no_crate_of_a_block_is_refused_before_it_is_compiled() -> anyhow::Result<()> {
    let empty = tempfile::tempdir()?;
    for (dir, why) in [
        (empty.path().join("nowhere"), "there is no directory "),
        (empty.path().to_owned(), "is no crate: it has no Cargo.toml"),
        (
            guest_examples(),
            "is a workspace: build one of its crates (charge-card, charge-card-verified, count-order, ",
        ),
        (guest_examples().join("../host/domain"), "counterfoil-domain is not a component: add `[lib]`"),
    ] {
        let error = build(&dir, None, &|_| ()).expect_err(why).to_string();
        assert!(error.contains(why), "{error}");
    }
    Ok(())
}

#[test]
fn a_file_is_replaced_whole() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("made/on/the/way/a.wasm");
    for bytes in [&b"first"[..], b"2"] {
        write_whole(&path, bytes)?;
        assert_eq!(fs::read(&path)?, bytes);
        assert_eq!(fs::read_dir(path.parent().context("a parent")?)?.count(), 1);
    }
    assert!(write_whole(dir.path(), b"a directory").is_err());
    assert_eq!(fs::read_dir(dir.path())?.count(), 1);
    Ok(())
}
