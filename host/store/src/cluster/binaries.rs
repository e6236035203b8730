//! Where Postgres is installed.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::error::{ClusterError, VERSION_MIN};

/// Directories whose entries each hold an installed version, and where in an entry its programs are. Neither Debian
/// nor Homebrew puts the server's programs on the `PATH`.
const INSTALLED_BY: &[(&str, &str)] = &[
    ("/usr/lib/postgresql", "bin"),
    ("/opt/homebrew/opt", "bin"),
    ("/usr/local/opt", "bin"),
    ("/home/linuxbrew/.linuxbrew/opt", "bin"),
    ("/usr", "bin"),
];

/// The server's programs, of one version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Binaries {
    bin: PathBuf,
    /// Major version.
    pub(super) version: u32,
}

impl Binaries {
    pub(super) fn postgres(&self) -> PathBuf {
        self.bin.join("postgres")
    }

    pub(super) fn initdb(&self) -> PathBuf {
        self.bin.join("initdb")
    }

    /// `None` if `bin` has no server: the client's packages alone have `psql`, and a `pg_config` that names a place
    /// where nothing is.
    fn at(bin: &Path) -> Option<Self> {
        if !bin.join("initdb").is_file() {
            return None;
        }
        let said = output(&bin.join("postgres"), "--version")?;
        Some(Self { bin: bin.to_owned(), version: parse_version(&said)? })
    }
}

/// Every usable version, the one to prefer first: what the user has put on the `PATH`, then what `pg_config` names,
/// then the newest installed.
pub(super) fn find() -> Result<Vec<Binaries>, ClusterError> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut bins: Vec<PathBuf> = std::env::split_paths(&path).collect();
    bins.extend(output(Path::new("pg_config"), "--bindir").map(|said| said.trim().into()));

    let mut found: Vec<Binaries> = bins.iter().filter_map(|bin| Binaries::at(bin)).collect();
    found.extend(installed(INSTALLED_BY));
    found.retain(|binaries| binaries.version >= VERSION_MIN);
    if found.is_empty() { Err(ClusterError::NoBinaries) } else { Ok(found) }
}

/// The first of `available`; of those that can work on the data, if there is some.
pub(super) fn choose(
    available: Vec<Binaries>,
    made_by: Option<u32>,
    data: &Path,
) -> Result<Binaries, ClusterError> {
    let mut available = available.into_iter();
    match made_by {
        None => available.next().ok_or(ClusterError::NoBinaries),
        Some(made_by) => available
            .find(|binaries| binaries.version == made_by)
            .ok_or_else(|| ClusterError::OtherVersion { dir: data.to_owned(), made_by }),
    }
}

/// Newest first.
fn installed(places: &[(&str, &str)]) -> Vec<Binaries> {
    let mut found: Vec<Binaries> = places
        .iter()
        .filter_map(|(parent, bin)| Some((std::fs::read_dir(parent).ok()?, bin)))
        .flat_map(|(entries, bin)| entries.flatten().map(move |entry| entry.path().join(bin)))
        .filter_map(|bin| Binaries::at(&bin))
        .collect();
    found.sort_by_key(|binaries| std::cmp::Reverse(binaries.version));
    found
}

fn output(program: &Path, arg: &str) -> Option<String> {
    let output = Command::new(program).arg(arg).stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// `postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)`, `postgres (PostgreSQL) 18beta1`.
fn parse_version(said: &str) -> Option<u32> {
    let version = said.split_whitespace().nth(2)?;
    let digits = version.find(|c: char| !c.is_ascii_digit()).unwrap_or(version.len());
    version[..digits].parse().ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_version_is_read_however_it_is_decorated() {
        for (said, version) in [
            ("postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)\n", Some(15)),
            ("postgres (PostgreSQL) 17.5\n", Some(17)),
            ("postgres (PostgreSQL) 18beta1\n", Some(18)),
            ("postgres (PostgreSQL) devel\n", None),
            ("", None),
        ] {
            assert_eq!(parse_version(said), version, "{said:?}");
        }
    }

    #[test]
    fn the_newest_installed_server_comes_first_and_what_is_no_server_is_passed_over() {
        let root = tempfile::tempdir().expect("a directory");
        let program = |path: &str, version: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("made");
            std::fs::write(&path, format!("#!/bin/sh\necho 'postgres (PostgreSQL) {version}'\n"))
                .expect("written");
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("set");
        };
        for version in ["9.6.1", "15.2", "17.0"] {
            program(&format!("{version}/bin/postgres"), version);
            program(&format!("{version}/bin/initdb"), version);
        }
        program("client-only/bin/psql", "18.0");
        program("no-initdb/bin/postgres", "18.0");

        let parent = root.path().to_str().expect("utf-8");
        let versions: Vec<u32> = installed(&[(parent, "bin"), ("/nowhere", "bin")])
            .into_iter()
            .map(|binaries| binaries.version)
            .collect();
        assert_eq!(versions, [17, 15, 9]);
    }
}
