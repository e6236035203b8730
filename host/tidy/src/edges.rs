//! Who may depend on whom, and on what.

use toml::{Table, Value};

use crate::{Finding, Tree, finding};

/// A crate of ours.
struct Room {
    dir: &'static str,
    package: &'static str,
    /// Directories of the rooms that it may import.
    imports: &'static [&'static str],
    /// Whether it may depend on what belongs to another room.
    exempt: bool,
}

const EVERYTHING: &[&str] =
    &["host/domain", "host/store", "host/effects", "host/sandbox", "host/engine", "host/web"];

const fn room(dir: &'static str, package: &'static str, imports: &'static [&'static str]) -> Room {
    Room { dir, package, imports, exempt: false }
}

const fn exempt(dir: &'static str, package: &'static str, imports: &'static [&'static str]) -> Room {
    Room { dir, package, imports, exempt: true }
}

const ROOMS: &[Room] = &[
    room("host/domain", "counterfoil-domain", &[]),
    room("host/store", "counterfoil-store", &["host/domain"]),
    room("host/effects", "counterfoil-effects", &["host/domain", "host/store"]),
    room("host/sandbox", "counterfoil-sandbox", &["host/domain"]),
    room("host/engine", "counterfoil-engine", &["host/domain", "host/store", "host/effects"]),
    room("host/web", "counterfoil-web", &["host/domain", "host/store"]),
    room("host/cli", "counterfoil", EVERYTHING),
    exempt("host/testkit", "counterfoil-testkit", &["host/domain", "host/store"]),
    // What it measures against is the provider and the databases of the tests.
    exempt(
        "host/bench",
        "counterfoil-bench",
        &[
            "host/domain",
            "host/store",
            "host/effects",
            "host/sandbox",
            "host/engine",
            "host/web",
            "host/testkit",
        ],
    ),
    room("host/tidy", "counterfoil-tidy", &[]),
    room("sdk/rust", "counterfoil-sdk", &["sdk/rust-macros"]),
    room("sdk/rust-macros", "counterfoil-sdk-macros", &[]),
];

/// The room whose tests every other room's tests may use.
const TESTKIT: &str = "host/testkit";

/// Rooms that another's tests alone may import: those of the program hold the SDK's rules to the host's.
const FOR_TESTS: &[(&str, &str)] = &[("host/cli", "sdk/rust")];

/// Crates that one room alone may depend on. A name that ends with `*` stands for all that begin so.
const OWNERS: &[(&str, &[&str])] = &[
    ("host/store", &["sqlx*", "tokio-postgres"]),
    (
        "host/effects",
        &[
            "hyper",
            "hyper-*",
            "hickory-*",
            "lettre",
            "rustls*",
            "tokio-rustls",
            "webpki-roots",
            "reqwest",
            "ureq",
        ],
    ),
    ("host/sandbox", &["wasmtime*", "cap-std*", "cranelift*", "wasmparser"]),
    ("host/web", &["axum*", "askama*"]),
    ("host/cli", &["clap*", "anyhow"]),
];

/// What the tests of every room may use: `testkit` speaks of errors so.
const IN_TESTS: &[&str] = &["anyhow"];

/// What a room must not know, whoever owns it: clocks, random sources, processes and threads are arguments there.
const NEVER: &[(&str, &[&str])] =
    &[("host/domain", &["tokio*", "async-std", "smol", "rand*", "getrandom", "nix", "rustix", "tempfile"])];

/// Names that the domain's own lints must ban, since the standard library has them.
const BANNED_IN_DOMAIN: &[&str] = &[
    "std::env::var",
    "std::fs::read",
    "std::time::Instant::now",
    "std::time::SystemTime::now",
    "uuid::Uuid::now_v7",
];

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for (path, text) in tree.manifests() {
        match text.parse::<Table>() {
            Ok(manifest) => check_manifest(path, &manifest, &mut found),
            Err(error) => found.push(finding(path, format!("cannot be read: {error}"))),
        }
    }
    for room in ROOMS {
        let path = format!("{}/Cargo.toml", room.dir);
        if tree.get(&path).is_none() {
            found.push(finding(path, "is missing, and the architecture has this room"));
        }
    }
    let bans = tree.get("host/domain/clippy.toml").unwrap_or_default();
    for name in BANNED_IN_DOMAIN.iter().filter(|name| !bans.contains(&format!("\"{name}\""))) {
        found.push(finding("host/domain/clippy.toml", format!("must ban `{name}`: it is an argument there")));
    }
    found
}

fn check_manifest(path: &str, manifest: &Table, found: &mut Vec<Finding>) {
    let mut wrong = |says: String| found.push(finding(path, says));
    let Some(room) = ROOMS.iter().find(|room| path == format!("{}/Cargo.toml", room.dir)) else {
        return wrong("is of a room that the architecture does not have".to_owned());
    };
    if manifest.get("package").and_then(|package| package.get("name")) != Some(&room.package.into()) {
        wrong(format!("must name its package `{}`", room.package));
    }
    if manifest.get("lints").and_then(|lints| lints.get("workspace")) != Some(&true.into()) {
        wrong("must say `[lints] workspace = true`".to_owned());
    }
    for dependency in dependencies(manifest) {
        let Dependency { name, kind } = dependency;
        let ours = ROOMS.iter().find(|room| room.package == name);
        if let Some(other) = ours {
            let for_tests =
                kind == Kind::Dev && (other.dir == TESTKIT || FOR_TESTS.contains(&(room.dir, other.dir)));
            if !(room.imports.contains(&other.dir) || for_tests) {
                wrong(format!("must not depend on `{name}`: the architecture has no such edge"));
            }
        }
        let owner = OWNERS.iter().find(|(_, names)| matches_any(names, &name));
        let allowed = room.exempt || (kind == Kind::Dev && IN_TESTS.contains(&name.as_str()));
        if let Some((owner, _)) = owner.filter(|(owner, _)| *owner != room.dir && !allowed) {
            wrong(format!("must not depend on `{name}`, which belongs to {owner}"));
        }
        if NEVER.iter().any(|(dir, names)| *dir == room.dir && matches_any(names, &name)) {
            wrong(format!("must not depend on `{name}`: this room knows nothing of it"));
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Normal,
    Build,
    Dev,
}

struct Dependency {
    /// The package's, also where it is imported under another name.
    name: String,
    kind: Kind,
}

fn dependencies(manifest: &Table) -> Vec<Dependency> {
    const SECTIONS: [(&str, Kind); 3] = [
        ("dependencies", Kind::Normal),
        ("build-dependencies", Kind::Build),
        ("dev-dependencies", Kind::Dev),
    ];
    let targets = manifest.get("target").and_then(Value::as_table).into_iter().flat_map(Table::values);
    let places: Vec<&Table> = std::iter::once(manifest).chain(targets.filter_map(Value::as_table)).collect();
    let mut all = Vec::new();
    for (section, kind) in SECTIONS {
        let tables = places.iter().filter_map(|place| place.get(section)).filter_map(Value::as_table);
        for (key, value) in tables.flatten() {
            let renamed = value.get("package").and_then(Value::as_str);
            all.push(Dependency { name: renamed.unwrap_or(key).to_owned(), kind });
        }
    }
    all
}

fn matches_any(patterns: &[&str], name: &str) -> bool {
    patterns.iter().any(|pattern| match pattern.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => name == *pattern,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn says(path: &str, dependencies: &str) -> Vec<String> {
        let room = ROOMS.iter().find(|room| path.starts_with(&format!("{}/", room.dir))).expect("a room");
        let text = format!(
            "[package]\nname = \"{}\"\n[lints]\nworkspace = true\n[dependencies]\n{dependencies}\n",
            room.package
        );
        let mut found = Vec::new();
        check_manifest(path, &text.parse().expect("TOML"), &mut found);
        found.into_iter().map(|finding| finding.says).collect()
    }

    #[test]
    fn an_edge_is_in_the_architecture_or_refused() {
        let no_edge = |name| vec![format!("must not depend on `{name}`: the architecture has no such edge")];
        for (path, dependency, expected) in [
            ("host/engine/Cargo.toml", "counterfoil-effects.workspace = true", vec![]),
            (
                "host/engine/Cargo.toml",
                "counterfoil-sandbox.workspace = true",
                no_edge("counterfoil-sandbox"),
            ),
            ("host/web/Cargo.toml", "counterfoil-engine.workspace = true", no_edge("counterfoil-engine")),
            ("host/store/Cargo.toml", "counterfoil-testkit.workspace = true", no_edge("counterfoil-testkit")),
            ("host/store/Cargo.toml", "[dev-dependencies]\ncounterfoil-testkit.workspace = true", vec![]),
            (
                "host/domain/Cargo.toml",
                "[build-dependencies]\ns = { package = \"counterfoil-store\", path = \"../store\" }",
                no_edge("counterfoil-store"),
            ),
            (
                "host/web/Cargo.toml",
                "[target.'cfg(unix)'.dependencies]\ncounterfoil-sandbox.workspace = true",
                no_edge("counterfoil-sandbox"),
            ),
            ("host/cli/Cargo.toml", "counterfoil-sdk.workspace = true", no_edge("counterfoil-sdk")),
            ("host/cli/Cargo.toml", "[dev-dependencies]\ncounterfoil-sdk.workspace = true", vec![]),
            ("host/tidy/Cargo.toml", "counterfoil-domain.workspace = true", no_edge("counterfoil-domain")),
            ("sdk/rust/Cargo.toml", "counterfoil-domain.workspace = true", no_edge("counterfoil-domain")),
        ] {
            assert_eq!(says(path, dependency), expected, "{path}: {dependency}");
        }
    }

    #[test]
    fn what_a_room_owns_no_other_room_has() {
        for (path, dependency, owner) in [
            ("host/store/Cargo.toml", "sqlx", None),
            ("host/engine/Cargo.toml", "sqlx", Some("host/store")),
            ("host/testkit/Cargo.toml", "sqlx", None),
            ("host/bench/Cargo.toml", "wasmtime", None),
            ("host/cli/Cargo.toml", "wasmtime-wasi", Some("host/sandbox")),
            ("host/web/Cargo.toml", "hyper-util", Some("host/effects")),
            ("host/cli/Cargo.toml", "reqwest", Some("host/effects")),
            ("host/store/Cargo.toml", "anyhow", Some("host/cli")),
            ("sdk/rust/Cargo.toml", "anyhow", Some("host/cli")),
            ("host/cli/Cargo.toml", "axum", Some("host/web")),
        ] {
            let expected =
                owner.map(|owner| format!("must not depend on `{dependency}`, which belongs to {owner}"));
            assert_eq!(says(path, &format!("{dependency} = \"1\"")), Vec::from_iter(expected), "{path}");
        }
        let in_tests = "[dev-dependencies]\nanyhow = \"1\"\nsqlx = \"0.9\"";
        assert_eq!(
            says("host/engine/Cargo.toml", in_tests),
            ["must not depend on `sqlx`, which belongs to host/store"]
        );
        assert_eq!(
            says("host/domain/Cargo.toml", "tokio-util = \"1\""),
            ["must not depend on `tokio-util`: this room knows nothing of it"]
        );
    }

    #[test]
    fn a_manifest_has_a_room_and_the_lints_of_the_workspace() {
        let tree = Tree::of([
            ("host/attic/Cargo.toml", "[package]\nname = \"attic\"\n"),
            ("host/web/Cargo.toml", "[package]\nname = \"web\"\n"),
            ("host/store/Cargo.toml", "[package"),
        ]);
        let found: Vec<String> = check(&tree).iter().map(ToString::to_string).collect();
        for expected in [
            "host/attic/Cargo.toml: is of a room that the architecture does not have",
            "host/web/Cargo.toml: must name its package `counterfoil-web`",
            "host/web/Cargo.toml: must say `[lints] workspace = true`",
            "host/engine/Cargo.toml: is missing, and the architecture has this room",
            "host/domain/clippy.toml: must ban `std::time::SystemTime::now`: it is an argument there",
        ] {
            assert!(found.iter().any(|found| found == expected), "{expected}\nnot in {found:#?}");
        }
        assert!(found.iter().any(|found| found.starts_with("host/store/Cargo.toml: cannot be read")));
    }
}
