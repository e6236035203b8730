//! The files that rules read.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

/// Names of directories that hold nothing written by people.
const SKIPPED: &[&str] = &[".git", "data", "node_modules", "target"];

/// Endings of the files that rules read.
const READ: &[&str] = &["md", "rs", "sql", "toml"];

/// Texts by path, relative to the root, with `/`.
#[derive(Debug, Default)]
pub struct Tree {
    files: BTreeMap<String, String>,
}

impl Tree {
    /// Reads everything under `root` that a rule may ask for.
    ///
    /// # Errors
    /// If something cannot be read.
    pub fn read(root: &Path) -> io::Result<Self> {
        let mut tree = Self::default();
        tree.read_dir(root, "")?;
        Ok(tree)
    }

    fn read_dir(&mut self, dir: &Path, prefix: &str) -> io::Result<()> {
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = format!("{prefix}{name}");
            if entry.file_type()?.is_dir() {
                if !SKIPPED.contains(&name.as_str()) {
                    self.read_dir(&entry.path(), &format!("{path}/"))?;
                }
            } else if name.rsplit_once('.').is_some_and(|(_, ending)| READ.contains(&ending)) {
                self.files.insert(path, fs::read_to_string(entry.path())?);
            }
        }
        Ok(())
    }

    /// The text of one file.
    pub(crate) fn get(&self, path: &str) -> Option<&str> {
        self.files.get(path).map(String::as_str)
    }

    /// Files directly or anywhere below `dir`, which ends with `/`.
    pub(crate) fn under<'a>(&'a self, dir: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.files
            .range(dir.to_owned()..)
            .take_while(move |(path, _)| path.starts_with(dir))
            .map(|(path, text)| (path.as_str(), text.as_str()))
    }

    /// Names of the directories in `dir`, which ends with `/`.
    pub(crate) fn directories<'a>(&'a self, dir: &'a str) -> Vec<&'a str> {
        let mut names: Vec<&str> = self
            .under(dir)
            .filter_map(|(path, _)| path[dir.len()..].split_once('/'))
            .map(|(name, _)| name)
            .collect();
        names.dedup();
        names
    }

    /// Rust sources of the host and of the SDK: those of crates, their tests, their build scripts.
    pub(crate) fn sources(&self) -> impl Iterator<Item = (&str, &str)> {
        ["host/", "sdk/", "guest-examples/"]
            .into_iter()
            .flat_map(|dir| self.under(dir))
            // Programs that must not compile are whatever they need to be.
            .filter(|(path, _)| ends(path, "rs") && !path.contains("/tests/wrong/"))
    }

    /// Manifests of the host's rooms and of the SDK's crates.
    pub(crate) fn manifests(&self) -> impl Iterator<Item = (&str, &str)> {
        ["host/", "sdk/"]
            .into_iter()
            .flat_map(|dir| self.under(dir))
            .filter(|(path, _)| path.ends_with("/Cargo.toml") && path.matches('/').count() == 2)
    }

    #[cfg(test)]
    pub(crate) fn of<const N: usize>(files: [(&str, &str); N]) -> Self {
        Self { files: files.map(|(path, text)| (path.to_owned(), text.to_owned())).into() }
    }
}

pub(crate) fn ends(path: &str, ending: &str) -> bool {
    path.rsplit_once('.').is_some_and(|(_, found)| found == ending)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_what_people_wrote() {
        let root = tempfile::tempdir().expect("a directory");
        for path in [
            "host/store/src/lib.rs",
            "host/store/Cargo.toml",
            "host/store/target/debug/out.rs",
            "sdk/rust/tests/wrong/no.rs",
            "docs/logo.png",
            ".git/x.md",
        ] {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("made");
            fs::write(path, "text").expect("written");
        }
        let tree = Tree::read(root.path()).expect("read");
        let paths: Vec<&String> = tree.files.keys().collect();
        assert_eq!(paths, ["host/store/Cargo.toml", "host/store/src/lib.rs", "sdk/rust/tests/wrong/no.rs"]);
        assert_eq!(tree.sources().map(|(path, _)| path).collect::<Vec<_>>(), ["host/store/src/lib.rs"]);
        assert_eq!(tree.manifests().map(|(path, _)| path).collect::<Vec<_>>(), ["host/store/Cargo.toml"]);
        assert_eq!(tree.directories("host/"), ["store"]);
    }
}
