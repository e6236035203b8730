//! The directory of the socket. The path of a socket has a small limit, and a home may be deep.

use std::fmt::Write;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use nix::unistd::{geteuid, mkdtemp};

use super::account::Account;
use super::error::ClusterError;
use super::home::Home;
use super::{NAME, PORT};

/// Of a socket's whole path: `sun_path` is 108 bytes on Linux, the last of them a zero, and 104 elsewhere.
const SOCKET_PATH_BYTES_MAX: usize = if cfg!(target_os = "linux") { 107 } else { 103 };

/// Where the socket is.
#[derive(Debug)]
pub(super) struct SocketDir {
    pub(super) dir: PathBuf,
}

impl SocketDir {
    /// The home, or a short directory that the home links to.
    pub(super) fn open(home: &Home) -> Result<Self, ClusterError> {
        let socket = home.dir.join(format!(".s.PGSQL.{PORT}"));
        if socket.as_os_str().len() <= SOCKET_PATH_BYTES_MAX {
            return Ok(Self { dir: home.dir.clone() });
        }
        let link = home.dir.join("socket");
        if let Ok(dir) = fs::read_link(&link)
            && is_private(&dir, home.account)
        {
            return Ok(Self { dir });
        }
        let dir = mkdtemp("/tmp/counterfoil-XXXXXX")
            .map_err(|errno| ClusterError::io("make a directory in", "/tmp")(errno.into()))?;
        if let Account::Other { uid, gid } = home.account {
            chown(&dir, Some(uid), Some(gid)).map_err(ClusterError::io("change the owner of", &dir))?;
        }
        match fs::remove_file(&link) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(ClusterError::io("remove", &link)(error));
            }
            _ => {}
        }
        symlink(&dir, &link).map_err(ClusterError::io("make the link", &link))?;
        Ok(Self { dir })
    }

    /// In the form that both `psql` and sqlx read.
    pub(super) fn url(&self) -> String {
        let host = percent_encode(self.dir.as_os_str().as_bytes());
        format!("postgres:///{NAME}?host={host}&port={PORT}&user={NAME}&sslmode=disable")
    }
}

/// Others can write to `/tmp`: a directory there that was left from before is used only if it is still ours alone.
fn is_private(dir: &Path, account: Account) -> bool {
    let owner = match account {
        Account::Same => geteuid().as_raw(),
        Account::Other { uid, .. } => uid,
    };
    fs::symlink_metadata(dir).is_ok_and(|found| {
        found.is_dir() && found.uid() == owner && found.permissions().mode() & 0o777 == 0o700
    })
}

fn percent_encode(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(byte) {
            text.push(char::from(*byte));
        } else {
            // Writing to a string does not fail.
            let _ = write!(text, "%{byte:02X}");
        }
        text
    })
}
