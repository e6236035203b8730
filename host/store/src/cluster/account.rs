//! As whom the server runs. Postgres refuses root.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::unistd::{Uid, User, geteuid};

use super::error::ClusterError;

/// Tried in this order. `postgres` comes with Debian's package; `nobody` is everywhere.
const USERS: &[&str] = &["postgres", "nobody"];

/// As whom the server runs, and who owns what it touches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Account {
    /// The user of this process, which is not root.
    Same,
    /// Another one, which this process, being root, may become.
    Other { uid: u32, gid: u32 },
}

impl Account {
    /// The owner of what is at `dir` already, if that is not root; else the first of [`USERS`] that exists.
    pub(super) fn for_home(dir: &Path) -> Result<Self, ClusterError> {
        if !geteuid().is_root() {
            return Ok(Self::Same);
        }
        match std::fs::metadata(dir) {
            Ok(found) if !Uid::from_raw(found.uid()).is_root() => {
                Ok(Self::Other { uid: found.uid(), gid: found.gid() })
            }
            _ => USERS
                .iter()
                .find_map(|name| User::from_name(name).ok().flatten())
                .map(|user| Self::Other { uid: user.uid.as_raw(), gid: user.gid.as_raw() })
                .ok_or(ClusterError::NoAccount),
        }
    }

    /// Whether it can come to what is in `dir`, by the permissions of every directory on the way.
    pub(super) fn reaches(self, dir: &Path) -> std::io::Result<bool> {
        let Self::Other { uid, gid } = self else { return Ok(true) };
        for directory in dir.canonicalize()?.ancestors() {
            if !may_search(uid, gid, &directory.metadata()?) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// The class that applies is the first that fits: an owner without the bit stays outside, whatever others may.
fn may_search(uid: u32, gid: u32, directory: &Metadata) -> bool {
    let class = match () {
        () if directory.uid() == uid => 0o100,
        () if directory.gid() == gid => 0o010,
        () => 0o001,
    };
    directory.mode() & class != 0
}
