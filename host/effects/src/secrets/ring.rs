//! The keys that secrets are sealed with, in a file of their own.
//!
//! ```text
//! # The first key seals, every one opens.
//! 5f1c09ab 8d3f…  (64 hexadecimal digits)
//! 0e77d241 41b2…
//! ```

use std::fmt::Write as _;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use secrecy::{ExposeSecret as _, SecretBox, SecretString};

/// Longest id of a key.
const ID_BYTES_MAX: usize = 32;
/// Bytes of a key, and of the id that a new one gets.
const KEY_BYTES: usize = 32;
const NEW_ID_BYTES: usize = 4;

/// A key of XChaCha20-Poly1305.
type Key = [u8; KEY_BYTES];

/// Why there are no keys.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// There is no file.
    #[error("there is no key file {}", .0.display())]
    Missing(PathBuf),
    /// It cannot be read.
    #[error("the key file {} cannot be read", file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It holds something else than keys.
    #[error("line {line} of the key file {} is not an id and 64 hexadecimal digits", file.display())]
    Malformed {
        /// The file.
        file: PathBuf,
        /// From 1.
        line: usize,
    },
    /// One id stands before two keys.
    #[error("the key file {} has two keys of the id `{id}`", file.display())]
    IdTwice {
        /// The file.
        file: PathBuf,
        /// The id.
        id: String,
    },
    /// It holds nothing.
    #[error("the key file {} holds no key", .0.display())]
    Empty(PathBuf),
}

/// Keys by their ids. There is at least one.
pub struct KeyRing {
    keys: Vec<(String, SecretBox<Key>)>,
}

impl std::fmt::Debug for KeyRing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.ids()).finish()
    }
}

impl KeyRing {
    /// Reads the keys of a file.
    ///
    /// # Errors
    /// [`KeyFileError`]: it is not there, or not a file of keys.
    pub fn read(file: &Path) -> Result<Self, KeyFileError> {
        match fs::read_to_string(file) {
            Ok(text) => Self::parse(&SecretString::from(text), file),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                Err(KeyFileError::Missing(file.to_owned()))
            }
            Err(source) => Err(KeyFileError::Unreadable { file: file.to_owned(), source }),
        }
    }

    fn parse(text: &SecretString, file: &Path) -> Result<Self, KeyFileError> {
        let mut keys: Vec<(String, SecretBox<Key>)> = vec![];
        for (index, line) in text.expose_secret().lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (id, key) = read_line(line)
                .ok_or_else(|| KeyFileError::Malformed { file: file.to_owned(), line: index + 1 })?;
            if keys.iter().any(|(known, _)| *known == id) {
                return Err(KeyFileError::IdTwice { file: file.to_owned(), id });
            }
            keys.push((id, key));
        }
        if keys.is_empty() { Err(KeyFileError::Empty(file.to_owned())) } else { Ok(Self { keys }) }
    }

    /// The keys of `others`, behind a new one.
    pub fn with_new(others: Option<Self>, random: fn(&mut [u8])) -> Self {
        let mut id = [0; NEW_ID_BYTES];
        random(&mut id);
        let key = SecretBox::init_with_mut(|key: &mut Key| random(key.as_mut_slice()));
        let mut keys = vec![(hex::encode(id), key)];
        keys.extend(others.into_iter().flat_map(|others| others.keys));
        Self { keys }
    }

    /// As it stands in the file.
    pub fn to_text(&self) -> SecretString {
        let mut text = String::from(
            "# Keys that the secrets of connections are sealed with. The first seals, every one opens.\n",
        );
        for (id, key) in &self.keys {
            // Writing to a text cannot fail.
            let _ = writeln!(text, "{id} {}", hex::encode(key.expose_secret()));
        }
        text.into()
    }

    /// The ids, the first one first.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.keys.iter().map(|(id, _)| id.as_str())
    }

    /// The id of the key that seals.
    pub fn first_id(&self) -> &str {
        self.first().0
    }

    pub(super) fn first(&self) -> (&str, &Key) {
        let (id, key) = &self.keys[0];
        (id, key.expose_secret())
    }

    pub(super) fn key(&self, id: &str) -> Option<&Key> {
        self.keys.iter().find(|(known, _)| known == id).map(|(_, key)| key.expose_secret())
    }
}

fn read_line(line: &str) -> Option<(String, SecretBox<Key>)> {
    let (id, digits) = line.split_once(' ')?;
    let fits = (1..=ID_BYTES_MAX).contains(&id.len())
        && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    let digits = digits.trim();
    if !fits || digits.len() != 2 * KEY_BYTES {
        return None;
    }
    let mut is_right = true;
    let key = SecretBox::init_with_mut(|key: &mut Key| {
        is_right = hex::decode_to_slice(digits, key.as_mut_slice()).is_ok();
    });
    is_right.then(|| (id.to_owned(), key))
}
