//! Begins a block from one of the guest examples.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use counterfoil_domain::workflow::{NAME_LEN_MAX, is_name};

use crate::exit::{Exit, Failure};

/// What a new block begins as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Template {
    /// One call that must not be made twice.
    ChargeCard,
    /// One read, then the output.
    EnrichLead,
}

/// An example's files.
struct Example {
    /// The function's name.
    name: &'static str,
    source: &'static str,
    /// A scenario, and its file's name.
    scenario: (&'static str, &'static str),
}

macro_rules! example {
    ($name:literal, $dir:literal, $scenario:literal) => {
        Example {
            name: $name,
            source: include_str!(concat!("../../../../guest-examples/", $dir, "/src/lib.rs")),
            scenario: (
                concat!("scenarios/", $scenario),
                include_str!(concat!("../../../../guest-examples/", $dir, "/scenarios/", $scenario)),
            ),
        }
    };
}

impl Template {
    const fn example(self) -> Example {
        match self {
            Self::ChargeCard => example!("charge_card", "charge-card", "lost-answer.yaml"),
            Self::EnrichLead => example!("enrich_lead", "enrich-lead", "looked-up.yaml"),
        }
    }
}

/// Words that cargo takes for a package's name and that a function or a crate cannot have.
const RESERVED: [&str; 56] = [
    "abstract",
    "alloc",
    "as",
    "async",
    "await",
    "become",
    "box",
    "break",
    "const",
    "continue",
    "core",
    "crate",
    "do",
    "dyn",
    "else",
    "enum",
    "extern",
    "false",
    "final",
    "fn",
    "for",
    "gen",
    "if",
    "impl",
    "in",
    "let",
    "loop",
    "macro",
    "match",
    "mod",
    "move",
    "mut",
    "override",
    "priv",
    "proc-macro",
    "pub",
    "ref",
    "return",
    "self",
    "static",
    "std",
    "struct",
    "super",
    "test",
    "trait",
    "true",
    "try",
    "type",
    "typeof",
    "unsafe",
    "unsized",
    "use",
    "virtual",
    "where",
    "while",
    "yield",
];

/// Creates the crate of the block `name` in a new directory of that name in `parent`, and returns its path.
///
/// Inside a checkout of this repository the crate takes the SDK from there; elsewhere from the checkout that this program
/// was built from, if that is still there; else by its version.
///
/// # Errors
///
/// The name is no block's, or the directory is there already.
pub(crate) fn new(parent: &Path, name: &str, template: Template) -> anyhow::Result<PathBuf> {
    check_name(name)?;
    let parent =
        fs::canonicalize(parent).with_context(|| format!("there is no directory {}", parent.display()))?;
    let dir = parent.join(name);
    fs::create_dir(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
    for part in ["src", "scenarios"] {
        fs::create_dir(dir.join(part))?;
    }
    let Example { name: example, source, scenario: (scenario_path, scenario) } = template.example();
    let function = name.replace('-', "_");
    for (path, content) in [
        ("Cargo.toml", manifest(name, &sdk(&dir, Path::new(BUILT_FROM)))),
        ("src/lib.rs", source.replace(example, &function)),
        (scenario_path, scenario.to_owned()),
        (".gitignore", "/target\n".to_owned()),
    ] {
        let path = dir.join(path);
        fs::write(&path, content).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(dir)
}

fn check_name(name: &str) -> anyhow::Result<()> {
    if !is_name(name) {
        let what = format!(
            "{name:?} names no block: a letter comes first, then `a` to `z`, `0` to `9` and `-`, \
             {NAME_LEN_MAX} at most"
        );
        return Err(Failure::new(Exit::Usage, what).into());
    }
    if RESERVED.contains(&name) {
        let what = format!("{name:?} means something to Rust: choose another name");
        return Err(Failure::new(Exit::Usage, what).into());
    }
    Ok(())
}

/// The checkout that this program was built from.
const BUILT_FROM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

fn has_sdk(checkout: &Path) -> bool {
    checkout.join("sdk/rust/Cargo.toml").is_file() && checkout.join("wit/block.wit").is_file()
}

/// The SDK's line in the manifest of a crate in `dir`.
fn sdk(dir: &Path, built_from: &Path) -> String {
    let mut path = String::new();
    for ancestor in dir.ancestors() {
        if has_sdk(ancestor) {
            return format!("counterfoil-sdk = {{ path = \"{path}sdk/rust\" }}");
        }
        path.push_str("../");
    }
    match fs::canonicalize(built_from) {
        Ok(checkout) if has_sdk(&checkout) => {
            format!("counterfoil-sdk = {{ path = \"{}\" }}", checkout.join("sdk/rust").display())
        }
        _ => format!("counterfoil-sdk = \"{}\"", env!("CARGO_PKG_VERSION")),
    }
}

fn manifest(name: &str, sdk: &str) -> String {
    format!(
        r#"[package]
name = "{name}"
version = "0.1.0"
edition = "2024"
publish = false

[lib]
crate-type = ["cdylib"]

[dependencies]
{sdk}
schemars = {{ version = "1", default-features = false, features = ["derive", "std"] }}
serde = {{ version = "1", features = ["derive"] }}

[profile.release]
opt-level = "s"
lto = true
codegen-units = 1
panic = "abort"
# Names stay, so that a trap's backtrace can be read.
strip = "debuginfo"

# A block stands by itself, also inside another workspace's directory.
[workspace]
"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_block_is_its_example_under_another_name() -> anyhow::Result<()> {
        let parent = tempfile::tempdir()?;
        for (name, template, function, url) in [
            (
                "refund-card",
                Template::ChargeCard,
                "fn refund_card(input: Charge)",
                "http::post(\"/charges\")",
            ),
            ("score2", Template::EnrichLead, "fn score2(input: Lead)", "http::get(format!(\"/companies/"),
        ] {
            let dir = new(parent.path(), name, template)?;
            assert_eq!(dir, fs::canonicalize(parent.path())?.join(name));
            let source = fs::read_to_string(dir.join("src/lib.rs"))?;
            assert!(source.contains(function) && source.contains(url), "{source}");
            let tested = format!("Step::<{}>::new(", name.replace('-', "_"));
            assert!(source.contains(&tested), "it has a test of its own: {source}");
            assert_eq!(fs::read_dir(dir.join("scenarios"))?.count(), 1);
            let manifest = fs::read_to_string(dir.join("Cargo.toml"))?;
            assert!(manifest.starts_with(&format!("[package]\nname = \"{name}\"\n")), "{manifest}");
            let checkout = fs::canonicalize(BUILT_FROM)?;
            let from_there =
                format!("\ncounterfoil-sdk = {{ path = \"{}\" }}\n", checkout.join("sdk/rust").display());
            assert!(manifest.contains(&from_there), "{manifest}");
            let by_version = concat!("counterfoil-sdk = \"", env!("CARGO_PKG_VERSION"), "\"");
            assert_eq!(sdk(&dir, parent.path()), by_version, "that checkout is gone");
            assert_eq!(fs::read_to_string(dir.join(".gitignore"))?, "/target\n");

            let again = new(parent.path(), name, template).expect_err("it is there");
            assert!(again.to_string().starts_with("cannot create "), "{again}");
        }
        Ok(())
    }

    #[test]
    fn inside_a_checkout_the_sdk_is_the_checkout_s() -> anyhow::Result<()> {
        let checkout = tempfile::tempdir()?;
        for path in ["sdk/rust/Cargo.toml", "wit/block.wit"] {
            let path = checkout.path().join(path);
            fs::create_dir_all(path.parent().context("a parent")?)?;
            fs::write(path, "")?;
        }
        for (parent, path) in [("", "../sdk/rust"), ("my/blocks", "../../../sdk/rust")] {
            let parent = checkout.path().join(parent);
            fs::create_dir_all(&parent)?;
            let dir = new(&parent, "a-block", Template::ChargeCard)?;
            let manifest = fs::read_to_string(dir.join("Cargo.toml"))?;
            assert!(
                manifest.contains(&format!("\ncounterfoil-sdk = {{ path = \"{path}\" }}\n")),
                "{manifest}"
            );
            assert!(dir.join(path).join("Cargo.toml").is_file());
        }
        Ok(())
    }

    #[test]
    fn a_name_that_cannot_be_a_block_s_is_refused_before_anything_is_written() -> anyhow::Result<()> {
        let parent = tempfile::tempdir()?;
        for name in ["", "-a", "1a", &"a".repeat(65), "A", "a_b", "a/b", "..", "ä", "match", "std", "while"]
        {
            assert!(new(parent.path(), name, Template::ChargeCard).is_err(), "{name:?}");
        }
        assert_eq!(fs::read_dir(parent.path())?.count(), 0);
        Ok(())
    }
}
