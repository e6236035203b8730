use super::*;

/// A machine in a directory, whose programs are scripts.
struct Machinery {
    root: tempfile::TempDir,
    rustup_allowed: bool,
}

impl Machinery {
    fn new() -> Self {
        Self { root: tempfile::tempdir().expect("a directory"), rustup_allowed: true }
    }

    /// Written by a process of its own: while another test forks, a file that this one has open for writing
    /// cannot be run.
    fn file(&self, path: &str, content: &str) {
        const WRITE: &str = r#"mkdir -p "${0%/*}" && printf %s "$1" >"$0" && chmod 755 "$0""#;
        let path = self.root.path().join(path);
        let written = Command::new("/bin/sh").arg("-c").arg(WRITE).arg(path).arg(content).status();
        assert!(written.expect("a shell").success());
    }

    fn program(&self, path: &str, script: &str) {
        self.file(path, &format!("#!/bin/sh\ncd {}\n{script}\n", self.root.path().display()));
    }

    fn rustc(&self) {
        self.program(
            "rustc",
            r#"[ "$*" = "--print target-libdir --target wasm32-unknown-unknown" ] && echo "$PWD/lib""#,
        );
    }

    fn debian(&self, version: &str) {
        self.program("debian/bin/rustc", &format!("echo '{version}'"));
        for part in ["bin/cargo", "bin/rust-lld", "lib/rustlib/src/rust/library/Cargo.lock"] {
            self.file(&format!("debian/{part}"), "");
        }
    }

    fn find(&self) -> anyhow::Result<Toolchain> {
        let root = self.root.path();
        let machine = Machine {
            rustc: root.join("rustc"),
            rustup: root.join("rustup"),
            rustup_allowed: self.rustup_allowed,
            debian: root.join("debian"),
        };
        machine.toolchain(root, &|_| ())
    }

    fn rustup_ran(&self) -> bool {
        self.root.path().join("rustup-ran").exists()
    }
}

const RUSTUP_ADDS: &str = "touch rustup-ran; mkdir -p lib && touch lib/libstd-1.rlib";
const RUSTUP_FAILS: &str = "touch rustup-ran; echo 'error: no network' >&2; exit 1";
const DEBIAN_VERSION: &str = "rustc 1.96.0 (ac68faa20 2026-05-25) (built from a source tarball)";

#[test]
fn a_target_that_is_there_is_used_and_nothing_is_changed() -> anyhow::Result<()> {
    let machine = Machinery::new();
    machine.rustc();
    machine.file("lib/libstd-0123.rlib", "");
    machine.program("rustup", RUSTUP_ADDS);
    machine.debian(DEBIAN_VERSION);
    assert_eq!(machine.find()?, Toolchain::Active);
    assert!(!machine.rustup_ran());
    Ok(())
}

#[test]
fn a_missing_target_is_added_by_rustup() -> anyhow::Result<()> {
    let machine = Machinery::new();
    machine.rustc();
    machine.file("lib/libcore-0123.rlib", "");
    machine.program("rustup", RUSTUP_ADDS);
    machine.debian(DEBIAN_VERSION);
    assert_eq!(machine.find()?, Toolchain::Active);
    assert!(machine.rustup_ran());
    Ok(())
}

#[test]
fn debian_is_used_where_rustup_does_not_help() -> anyhow::Result<()> {
    for (rustup, rustup_allowed, ran) in [
        (None, true, false),
        (Some(RUSTUP_FAILS), true, true),
        (Some("touch rustup-ran"), true, true),
        (Some(RUSTUP_ADDS), false, false),
    ] {
        let machine = Machinery { rustup_allowed, ..Machinery::new() };
        machine.rustc();
        if let Some(script) = rustup {
            machine.program("rustup", script);
        }
        machine.debian(DEBIAN_VERSION);
        assert_eq!(machine.find()?, Toolchain::Debian(machine.root.path().join("debian")));
        assert_eq!(machine.rustup_ran(), ran, "{rustup:?}");
    }
    Ok(())
}

#[test]
fn where_nothing_helps_one_line_says_why_and_what_to_install() {
    const INSTALL: &str = "Run `rustup target add wasm32-unknown-unknown`, or \
        `apt-get install --no-install-recommends rustc-web cargo-web rust-web-src rust-web-llvm lld-22`";
    let bare = Machinery::new();

    let offline = Machinery::new();
    offline.rustc();
    offline.program("rustup", RUSTUP_FAILS);
    offline.debian("rustc 1.63.0");

    let forbidden = Machinery { rustup_allowed: false, ..Machinery::new() };
    forbidden.rustc();
    forbidden.debian(DEBIAN_VERSION);
    fs::remove_file(forbidden.root.path().join("debian/bin/rust-lld")).expect("it was there");

    for (machine, why) in [
        (bare, "there is no rustc; there is no rustup; Debian's packages lack DIR/debian/bin/rustc"),
        (
            offline,
            "rustc has not that target; rustup could not add it (error: no network); \
             DIR/debian/bin/rustc is \"rustc 1.63.0\", and 1.85 is needed",
        ),
        (
            forbidden,
            "rustc has not that target; rustup is left alone, since COUNTERFOIL_NO_RUSTUP is set; \
             Debian's packages lack DIR/debian/bin/rust-lld",
        ),
    ] {
        let error = machine.find().expect_err(why).to_string();
        let error = error.replace(&machine.root.path().display().to_string(), "DIR");
        assert_eq!(error, format!("nothing here compiles for {TARGET}: {why}. {INSTALL}"));
    }
}
