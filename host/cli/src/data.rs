//! The data directory: what the host keeps that is not in its database.
//!
//! ```text
//! postgres/   the private cluster, where no database is configured
//! blocks/     compiled components; may be removed at any time
//! pepper      the installation's secret, where none is configured
//! secret-keys what secrets of connections are sealed with, where no other file is configured
//! dev.json    where `dev` listens and the key that it made, for the commands of the same user
//! ```

use std::fs::{self, DirBuilder, Permissions};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use crate::config::DataConfig;

impl DataConfig {
    /// Home of the private cluster.
    pub(crate) fn cluster_dir(&self) -> PathBuf {
        self.dir.join("postgres")
    }

    /// Compiled components.
    pub(crate) fn blocks_dir(&self) -> PathBuf {
        self.dir.join("blocks")
    }

    /// The pepper that `dev` makes.
    pub(crate) fn pepper_file(&self) -> PathBuf {
        self.dir.join("pepper")
    }

    /// The keys that secrets are sealed with.
    pub(crate) fn secret_keys_file(&self) -> PathBuf {
        self.dir.join("secret-keys")
    }

    fn dev_file(&self) -> PathBuf {
        self.dir.join("dev.json")
    }

    /// Makes the directory, for its owner alone. Where that is root, Postgres runs as another user, who may pass through
    /// to its own part and see nothing else: every other part is its owner's alone.
    pub(crate) fn create(&self) -> anyhow::Result<()> {
        let mode = if nix::unistd::geteuid().is_root() { 0o711 } else { 0o700 };
        for (dir, mode) in [(&self.dir, mode), (&self.blocks_dir(), 0o700)] {
            DirBuilder::new()
                .recursive(true)
                .mode(mode)
                .create(dir)
                .with_context(|| format!("cannot make the data directory {}", dir.display()))?;
        }
        Ok(())
    }
}

/// What `dev` leaves for the other commands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DevFile {
    /// Where it listens, or last did.
    pub(crate) url: String,
    /// An admin key of the tenant `dev`.
    pub(crate) key: String,
    /// The database that it uses, or last did.
    pub(crate) database_url: String,
}

impl DevFile {
    /// `None` if there is none.
    pub(crate) fn read(data: &DataConfig) -> anyhow::Result<Option<Self>> {
        let path = data.dev_file();
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                return Ok(None);
            }
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
        };
        serde_json::from_slice(&text)
            .with_context(|| format!("{} is damaged: remove it", path.display()))
            .map(Some)
    }

    pub(crate) fn write(&self, data: &DataConfig) -> anyhow::Result<()> {
        write_private(&data.dev_file(), &serde_json::to_vec_pretty(self)?)
    }
}

/// Writes a file that only its owner reads, whole or not at all.
pub(crate) fn write_private(path: &Path, content: &[u8]) -> anyhow::Result<()> {
    let write = || {
        let dir = path.parent().unwrap_or(Path::new("."));
        let mut file =
            tempfile::Builder::new().permissions(Permissions::from_mode(0o600)).tempfile_in(dir)?;
        file.write_all(content)?;
        file.as_file().sync_all()?;
        file.persist(path).map_err(|error| error.error)
    };
    write().map(drop).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_dev_leaves_is_for_its_owner_alone() -> anyhow::Result<()> {
        let home = tempfile::tempdir()?;
        let data = DataConfig { dir: home.path().join("a/b"), blocks_bytes_max: u64::MAX };
        assert_eq!(DevFile::read(&data)?, None);
        data.create()?;
        let file = DevFile {
            url: "http://127.0.0.1:1/".into(),
            key: "cf_…".into(),
            database_url: "postgres://".into(),
        };
        for _ in 0..2 {
            file.write(&data)?;
            assert_eq!(DevFile::read(&data)?, Some(file.clone()));
        }
        assert_eq!(fs::metadata(data.dev_file())?.permissions().mode() & 0o777, 0o600);
        // Others may pass through root's directory to the cluster, and list nothing; the parts are closed.
        let passable = if nix::unistd::geteuid().is_root() { 0o711 } else { 0o700 };
        assert_eq!(fs::metadata(&data.dir)?.permissions().mode() & 0o777, passable);
        assert_eq!(fs::metadata(data.blocks_dir())?.permissions().mode() & 0o777, 0o700);
        let mut names = fs::read_dir(&data.dir)?
            .map(|entry| Ok(entry?.file_name()))
            .collect::<std::io::Result<Vec<_>>>()?;
        names.sort();
        assert_eq!(names, ["blocks", "dev.json"], "and nothing half-written");
        Ok(())
    }
}
