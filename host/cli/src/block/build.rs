//! Builds a block: the crate by plain cargo, then a component of what cargo wrote.

use std::fs::{self, Permissions};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use serde::Deserialize;

use self::process::Line;
use self::toolchain::{Machine, Toolchain};

mod encode;
mod process;
mod toolchain;

/// The first build compiles the standard library and the bindings' generator, on a slow machine too.
const BUILD_TIME_MAX: Duration = Duration::from_mins(30);

/// Reading a manifest takes cargo a blink; a lock on its package cache may keep it.
const METADATA_TIME_MAX: Duration = Duration::from_mins(5);

/// A block, built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Built {
    /// The crate's name.
    pub(crate) name: String,
    /// Where the component is.
    pub(crate) path: PathBuf,
    /// How long it is.
    pub(crate) bytes_len: u64,
}

/// Builds the crate in `dir` and writes its component to `out`, by default to `block/NAME.wasm` in cargo's
/// target directory. `progress` is told what is going on, a line at a time.
///
/// # Errors
///
/// Nothing on this machine compiles for the Wasm target, the crate does not compile (the error carries what
/// the compiler said), or it holds no block.
pub(crate) fn build(dir: &Path, out: Option<&Path>, progress: &dyn Fn(&str)) -> anyhow::Result<Built> {
    let dir = fs::canonicalize(dir).with_context(|| format!("there is no directory {}", dir.display()))?;
    let manifest = dir.join("Cargo.toml");
    if !manifest.is_file() {
        bail!("{} is no crate: it has no Cargo.toml", dir.display());
    }
    let package = package(&manifest)?;
    let toolchain = Machine::this().toolchain(&dir, progress)?;
    progress(&format!("building {} with {}", package.name, toolchain.describe()));
    let core = compile(&toolchain, &manifest, progress)?;
    let core = fs::read(&core).with_context(|| format!("cannot read {}", core.display()))?;
    let component =
        encode::component(&core).with_context(|| format!("cannot make a block of {}", package.name))?;

    let path = match out {
        Some(out) => out.to_owned(),
        None => package.target_dir.join("block").join(format!("{}.wasm", package.name)),
    };
    write_whole(&path, &component).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(Built { name: package.name, path, bytes_len: component.len() as u64 })
}

/// What is known of a crate before it is compiled.
struct Package {
    name: String,
    target_dir: PathBuf,
}

/// The part of `cargo metadata` that is used.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<MetadataPackage>,
    target_directory: PathBuf,
}

#[derive(Deserialize)]
struct MetadataPackage {
    name: String,
    manifest_path: PathBuf,
    targets: Vec<Target>,
}

#[derive(Deserialize)]
struct Target {
    kind: Vec<String>,
}

impl Target {
    fn is_cdylib(&self) -> bool {
        self.kind.iter().any(|kind| kind == "cdylib")
    }
}

fn package(manifest: &Path) -> anyhow::Result<Package> {
    let mut command = Command::new("cargo");
    command.args(["metadata", "--no-deps", "--format-version", "1", "--manifest-path"]).arg(manifest);
    let (mut answer, mut said) = (String::new(), Vec::new());
    let status = process::run(&mut command, METADATA_TIME_MAX, |line| match line {
        Line::Out(text) => answer = text,
        Line::Err(text) => said.push(text),
    })?;
    if !status.success() {
        bail!("cargo cannot read {}:\n{}", manifest.display(), said.join("\n"));
    }
    let metadata: Metadata = serde_json::from_str(&answer).context("cannot read cargo's metadata")?;
    let names: Vec<_> = metadata.packages.iter().map(|package| package.name.clone()).collect();
    let package = metadata.packages.into_iter().find(|package| package.manifest_path == manifest);
    let package = package.ok_or_else(|| {
        anyhow!("{} is a workspace: build one of its crates ({})", manifest.display(), names.join(", "))
    })?;
    if !package.targets.iter().any(Target::is_cdylib) {
        bail!("{} is not a component: add `[lib]` with `crate-type = [\"cdylib\"]`", package.name);
    }
    Ok(Package { name: package.name, target_dir: metadata.target_directory })
}

/// The messages of `cargo build` that are used.
#[derive(Deserialize)]
#[serde(tag = "reason")]
enum Message {
    #[serde(rename = "compiler-artifact")]
    Artifact { manifest_path: PathBuf, target: Target, filenames: Vec<PathBuf> },
    #[serde(rename = "compiler-message")]
    Said { message: Diagnostic },
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
struct Diagnostic {
    level: String,
    rendered: Option<String>,
}

/// Compiles the crate's library; the path of its core module.
fn compile(toolchain: &Toolchain, manifest: &Path, progress: &dyn Fn(&str)) -> anyhow::Result<PathBuf> {
    let mut command = toolchain.cargo_build();
    command.args(["--lib", "--message-format=json", "--manifest-path"]).arg(manifest);
    if let Some(dir) = manifest.parent() {
        command.current_dir(dir);
    }
    let mut compiled = Compiled { manifest, module: None, errors: String::new() };
    let status = process::run(&mut command, BUILD_TIME_MAX, |line| compiled.hear(line, progress))?;
    if !status.success() {
        bail!("the crate does not compile:\n{}", compiled.errors.trim_end());
    }
    compiled.module.context("cargo wrote no module")
}

/// What cargo has said so far.
struct Compiled<'a> {
    manifest: &'a Path,
    module: Option<PathBuf>,
    errors: String,
}

impl Compiled<'_> {
    fn hear(&mut self, line: Line, progress: &dyn Fn(&str)) {
        let text = match line {
            Line::Out(text) => text,
            Line::Err(text) => {
                // Cargo's own errors, such as a dependency that cannot be had, are on this stream alone.
                if text.starts_with("error") || !self.errors.is_empty() {
                    self.errors.push_str(&text);
                    self.errors.push('\n');
                }
                progress(text.trim());
                return;
            }
        };
        match serde_json::from_str(&text) {
            Ok(Message::Artifact { manifest_path, target, filenames })
                if manifest_path == self.manifest && target.is_cdylib() =>
            {
                let is_module = |path: &PathBuf| path.extension().is_some_and(|end| end == "wasm");
                self.module = filenames.into_iter().find(is_module);
            }
            Ok(Message::Said { message: Diagnostic { level, rendered: Some(rendered) } }) => {
                if level == "error" {
                    self.errors.push_str(&rendered);
                } else {
                    progress(rendered.trim_end());
                }
            }
            // A build script or a macro may print what it likes.
            Ok(_) | Err(_) => {}
        }
    }
}

/// Writes a file so that it is there whole or not at all.
fn write_whole(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let dir = match path.parent() {
        Some(dir) if dir != Path::new("") => dir,
        _ => Path::new("."),
    };
    fs::create_dir_all(dir)?;
    let readable = Permissions::from_mode(0o644);
    let mut file = tempfile::Builder::new().permissions(readable).tempfile_in(dir)?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    Ok(())
}

#[cfg(test)]
mod tests;
