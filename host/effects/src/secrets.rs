//! Secrets of connections: sealed where they come in, opened where they go out, and nowhere else.
//!
//! A secret is sealed with XChaCha20-Poly1305, to its tenant, connection and name. Its nonce is random: 24 bytes are
//! enough for that, however many are sealed.

mod ring;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use chacha20poly1305::aead::{Aead as _, Payload};
use chacha20poly1305::{KeyInit as _, XChaCha20Poly1305, XNonce};
use counterfoil_domain::connection::{SealedSecret, SecretName, secret_place};
use counterfoil_domain::id::TenantId;
use counterfoil_domain::ports::{NoSecretKey, SecretSealer};
use counterfoil_store::connection::Connection;
use secrecy::{ExposeSecret as _, SecretString};

pub use self::ring::{KeyFileError, KeyRing};

const NONCE_BYTES: usize = 24;
/// What is shorter is not hidden where a receiver repeats it: it is found by chance in answers that do not hold it.
pub const HIDDEN_BYTES_MIN: usize = 8;

/// Seals and opens with the keys of one file. Clones share what was read of it.
#[derive(Clone)]
pub struct Secrets {
    file: Arc<Path>,
    ring: Arc<Mutex<Option<Arc<KeyRing>>>>,
    random: fn(&mut [u8]),
}

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Secrets").field("file", &self.file).finish_non_exhaustive()
    }
}

/// Why a secret does not open. Nothing of it is told.
#[derive(Debug, thiserror::Error)]
pub enum Unopened {
    /// The keys cannot be had.
    #[error("the key file cannot be used")]
    KeyFile(#[from] KeyFileError),
    /// It is sealed with a key that the file does not hold.
    #[error("`{name}` is sealed with the key `{key}`, which {} does not hold", file.display())]
    KeyMissing {
        /// Of the secret.
        name: SecretName,
        /// The key's id.
        key: String,
        /// The key file.
        file: PathBuf,
    },
    /// It was changed, or moved from another tenant, connection or name; or the key of this id is another one.
    #[error(
        "`{name}` does not open with the key `{key}`: the row was changed or moved, or the key is another one"
    )]
    Refused {
        /// Of the secret.
        name: SecretName,
        /// The key's id.
        key: String,
    },
}

impl Secrets {
    /// Secrets under the keys of `file`, which need not be there as long as nothing is sealed. `random` fills a slice with
    /// random bytes.
    pub fn new(file: PathBuf, random: fn(&mut [u8])) -> Self {
        Self { file: file.into(), ring: Arc::default(), random }
    }

    /// Opens every secret of a connection.
    ///
    /// # Errors
    /// [`Unopened`] with the first that does not open: a call without it would be another call.
    pub fn open(&self, tenant: TenantId, connection: &Connection) -> Result<Opened, Unopened> {
        let mut opened = Opened::default();
        for secret in &connection.secrets {
            let text = self.open_one(tenant, &connection.name, secret)?;
            match &secret.name {
                SecretName::Header(name) => opened.headers.push((name.clone(), text)),
                SecretName::Username => opened.username = Some(text),
                SecretName::Password => opened.password = Some(text),
            }
        }
        Ok(opened)
    }

    /// Seals a secret anew with the first key.
    ///
    /// # Errors
    /// [`Unopened`]: it does not open, or there is no key.
    pub fn reseal(
        &self,
        tenant: TenantId,
        connection: &str,
        secret: &SealedSecret,
    ) -> Result<SealedSecret, Unopened> {
        let text = self.open_one(tenant, connection, secret)?;
        // Read anew: it may have been changed since this process began.
        Ok(self.seal_one(&*self.read()?, tenant, connection, &secret.name, &text))
    }

    fn open_one(
        &self,
        tenant: TenantId,
        connection: &str,
        secret: &SealedSecret,
    ) -> Result<SecretString, Unopened> {
        let SealedSecret { name, key, sealed } = secret;
        let ring = self.ring_with(key)?.ok_or_else(|| Unopened::KeyMissing {
            name: name.clone(),
            key: key.clone(),
            file: self.file.to_path_buf(),
        })?;
        let refused = || Unopened::Refused { name: name.clone(), key: key.clone() };
        let cipher = ring.key(key).map(|key| XChaCha20Poly1305::new(key.into())).ok_or_else(refused)?;
        let (nonce, text) = sealed.split_first_chunk::<NONCE_BYTES>().ok_or_else(refused)?;
        let place = secret_place(tenant, connection, name);
        let text = cipher
            .decrypt(&XNonce::from(*nonce), Payload { msg: text, aad: &place })
            .ok()
            .and_then(|bytes| String::from_utf8(bytes).ok());
        text.map(SecretString::from).ok_or_else(refused)
    }

    fn seal_one(
        &self,
        ring: &KeyRing,
        tenant: TenantId,
        connection: &str,
        name: &SecretName,
        text: &SecretString,
    ) -> SealedSecret {
        let (id, key) = ring.first();
        let mut nonce = [0; NONCE_BYTES];
        (self.random)(&mut nonce);
        let place = secret_place(tenant, connection, name);
        let payload = Payload { msg: text.expose_secret().as_bytes(), aad: &place };
        let text = XChaCha20Poly1305::new(key.into())
            .encrypt(&XNonce::from(nonce), payload)
            .expect("a secret is far shorter than what can be sealed at once");
        let sealed = [nonce.as_slice(), &text].concat();
        SealedSecret { name: name.clone(), key: id.to_owned(), sealed }
    }

    /// The keys as they were last read, if `key` is among them; else as they are now.
    fn ring_with(&self, key: &str) -> Result<Option<Arc<KeyRing>>, KeyFileError> {
        let known = self.ring.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(ring) = known.filter(|ring| ring.key(key).is_some()) {
            return Ok(Some(ring));
        }
        Ok(Some(self.read()?).filter(|ring| ring.key(key).is_some()))
    }

    /// Reads the file, a few lines, where a task may wait for it.
    fn read(&self) -> Result<Arc<KeyRing>, KeyFileError> {
        let ring = Arc::new(KeyRing::read(&self.file)?);
        *self.ring.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&ring));
        Ok(ring)
    }
}

#[async_trait]
impl SecretSealer for Secrets {
    async fn seal(
        &self,
        tenant: TenantId,
        connection: &str,
        secrets: Vec<(SecretName, SecretString)>,
    ) -> Result<Vec<SealedSecret>, NoSecretKey> {
        // The first key is the newest only in the file: another process may have put one before it.
        let ring = self.read().map_err(|error| {
            let message = format!("{error}: `counterfoil secret add-key` makes a key");
            tracing::error!(error = &error as &dyn std::error::Error, "secrets cannot be sealed here");
            NoSecretKey { message }
        })?;
        let seal =
            |(name, text): &(SecretName, SecretString)| self.seal_one(&ring, tenant, connection, name, text);
        Ok(secrets.iter().map(seal).collect())
    }
}

/// The secrets of one connection, in memory for one call.
#[derive(Debug, Clone, Default)]
pub struct Opened {
    headers: Vec<(String, SecretString)>,
    username: Option<SecretString>,
    password: Option<SecretString>,
}

impl Opened {
    /// Header fields to add, names in lower case.
    pub fn headers(&self) -> &[(String, SecretString)] {
        &self.headers
    }

    /// Username and password, where there are both.
    pub fn credentials(&self) -> Option<(&SecretString, &SecretString)> {
        self.username.as_ref().zip(self.password.as_ref())
    }

    /// Overwrites with asterisks whatever in `text` repeats a secret, so that a receiver that echoes what it was sent
    /// shows it to nobody: each value, each of its words, and either as it is written in JSON. What is encoded in another
    /// way is not recognised. `truncated` says that the text was cut, possibly within a secret.
    pub fn hide(&self, text: &mut [u8], truncated: bool) {
        let headers = self.headers.iter().map(|(_, value)| value);
        for secret in headers.chain(&self.username).chain(&self.password) {
            let value = secret.expose_secret();
            for word in std::iter::once(value).chain(value.split(' ')) {
                hide_word(text, word.as_bytes(), truncated);
                if word.contains(['"', '\\', '/']) {
                    for escaped in escaped(word) {
                        hide_word(text, escaped.expose_secret().as_bytes(), truncated);
                    }
                }
            }
        }
    }
}

impl Opened {
    /// The same for a text that is whole.
    pub fn without(&self, text: String) -> String {
        let mut bytes = text.into_bytes();
        self.hide(&mut bytes, false);
        // What is overwritten is a whole word of characters.
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// Both ways in which a text that holds a quote, a backslash or a slash is written in JSON.
fn escaped(word: &str) -> [SecretString; 2] {
    let plain = word.replace('\\', "\\\\").replace('"', "\\\"");
    let slashes = plain.replace('/', "\\/");
    [plain.into(), slashes.into()]
}

fn hide_word(text: &mut [u8], word: &[u8], truncated: bool) {
    if word.len() < HIDDEN_BYTES_MIN {
        return;
    }
    let mut begin = 0;
    while let Some(found) = text.get(begin..).and_then(|rest| find(rest, word)) {
        begin += found;
        text[begin..begin + word.len()].fill(b'*');
        begin += word.len();
    }
    if truncated {
        let cut = (HIDDEN_BYTES_MIN..word.len()).rev().find(|length| text.ends_with(&word[..*length]));
        if let Some(length) = cut {
            let end = text.len();
            text[end - length..].fill(b'*');
        }
    }
}

fn find(text: &[u8], word: &[u8]) -> Option<usize> {
    let first = *word.first()?;
    let mut begin = 0;
    while let Some(found) = text.get(begin..)?.iter().position(|byte| *byte == first) {
        begin += found;
        if text[begin..].starts_with(word) {
            return Some(begin);
        }
        begin += 1;
    }
    None
}

#[cfg(test)]
mod tests;
