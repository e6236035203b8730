//! Compiled components on disk: written whole, named by component and engine, and believed only with our own mark.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::io::{self, Read, Write};
use std::path::Path;

use cap_std::ambient_authority;
use cap_std::fs::{Dir, OpenOptions, OpenOptionsExt, PermissionsExt};
use counterfoil_domain::id::Digest;
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest as _, Sha256};
use wasmtime::Engine;
use wasmtime::component::Component;

const KEY_FILE: &str = "key";
const KEY_BYTES: usize = 32;
const MARK_BYTES: usize = 32;
/// Changes when what the mark is made over does.
const MARK_TAG: &[u8] = b"counterfoil-artifact-v1\0";

/// What compiled code depends on besides the component: the runtime's version, the processor, the settings.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct EngineId(pub(crate) [u8; 32]);

impl EngineId {
    pub(crate) fn of(engine: &Engine) -> Self {
        let mut hasher = Sha256Hasher(Sha256::new());
        engine.precompile_compatibility_hash().hash(&mut hasher);
        Self(hasher.0.finalize().into())
    }
}

impl fmt::Debug for EngineId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

/// Takes what a `Hash` feeds it; the standard hasher's sixty-four bits may differ between versions of Rust.
struct Sha256Hasher(Sha256);

impl Hasher for Sha256Hasher {
    fn write(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    fn finish(&self) -> u64 {
        let digest = self.0.clone().finalize();
        u64::from_le_bytes(std::array::from_fn(|index| digest[index]))
    }
}

/// Machine code that this host made itself: fresh from the compiler, or read back with a mark that holds.
pub(crate) struct Artifact(Vec<u8>);

impl Artifact {
    /// What the compiler, a child of this process, has just handed over.
    pub(crate) fn compiled(code: Vec<u8>) -> Self {
        Self(code)
    }

    pub(crate) fn bytes_len(&self) -> usize {
        self.0.len()
    }

    /// Makes the code runnable.
    ///
    /// # Errors
    /// If the engine is another one than it was compiled for, or its pool cannot hold such a component.
    #[expect(unsafe_code, reason = "loads machine code, which only this host can have made")]
    pub(crate) fn load(&self, engine: &Engine) -> wasmtime::Result<Component> {
        // SAFETY: the bytes come from `Engine::precompile_component`, unchanged. They were either just made by it, or
        // read back under an authentication code whose key only this host's cache directory holds.
        unsafe { Component::deserialize(engine, &self.0) }
    }
}

/// Why the directory of artifacts cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// It cannot be made, opened, read or written.
    #[error("the artifact cache cannot be used")]
    Io(#[from] io::Error),
    /// The operating system has no randomness for its key.
    #[error("no random bytes for the key of the artifact cache")]
    Random(#[source] getrandom::Error),
    /// Its key file is not what was written.
    #[error(
        "the file `key` in the artifact cache is not {KEY_BYTES} bytes that only its owner may read; delete the cache directory, it is made anew"
    )]
    Key,
}

/// Why a file in the directory is no artifact for this host.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unusable {
    #[error("it cannot be read")]
    Io(#[from] io::Error),
    #[error("it is damaged, or was made by another host or engine: its authentication code does not hold")]
    Foreign,
}

/// The directory of artifacts of one engine. Several hosts may share it.
pub(crate) struct ArtifactStore {
    dir: Dir,
    key: [u8; KEY_BYTES],
    engine: EngineId,
}

impl ArtifactStore {
    /// Opens the directory, and makes it and its key on first use.
    pub(crate) fn open(path: &Path, engine: EngineId) -> Result<Self, CacheError> {
        Dir::create_ambient_dir_all(path, ambient_authority())?;
        let dir = Dir::open_ambient_dir(path, ambient_authority())?;
        let key = match read_key(&dir) {
            Err(CacheError::Io(error)) if error.kind() == io::ErrorKind::NotFound => make_key(&dir)?,
            key => key?,
        };
        Ok(Self { dir, key, engine })
    }

    /// Reads an artifact back, if there is one.
    ///
    /// # Errors
    /// If it cannot be read, or is not ours, whole, of this component and of this engine.
    pub(crate) fn read(&self, component: Digest) -> Result<Option<Artifact>, Unusable> {
        let mut bytes = match self.dir.read(self.name(component)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            bytes => bytes?,
        };
        let (mark, code) = bytes.split_at_checked(MARK_BYTES).ok_or(Unusable::Foreign)?;
        self.mac(component, code).verify_slice(mark).map_err(|_| Unusable::Foreign)?;
        bytes.drain(..MARK_BYTES);
        Ok(Some(Artifact(bytes)))
    }

    /// Writes an artifact so that no reader, and no crash, meets half of it.
    pub(crate) fn write(&self, component: Digest, artifact: &Artifact) -> Result<(), CacheError> {
        let mark = self.mac(component, &artifact.0).finalize().into_bytes();
        let temporary = write_aside(&self.dir, &[&mark, &artifact.0])?;
        self.dir.rename(&temporary, &self.dir, self.name(component))?;
        sync(&self.dir)?;
        Ok(())
    }

    fn name(&self, component: Digest) -> String {
        format!("{component}.{}", hex::encode(&self.engine.0[..8]))
    }

    fn mac(&self, component: Digest, code: &[u8]) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.key).expect("a key of any length will do");
        // All parts but the last have a fixed length.
        for part in [MARK_TAG, &component.0, &self.engine.0, code] {
            mac.update(part);
        }
        mac
    }
}

fn read_key(dir: &Dir) -> Result<[u8; KEY_BYTES], CacheError> {
    let file = dir.open(KEY_FILE)?;
    if file.metadata()?.permissions().mode() & 0o077 != 0 {
        return Err(CacheError::Key);
    }
    let mut bytes = Vec::new();
    file.take(KEY_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    bytes.try_into().map_err(|_| CacheError::Key)
}

/// Of several hosts that make the key at once, one succeeds and all use its key.
fn make_key(dir: &Dir) -> Result<[u8; KEY_BYTES], CacheError> {
    let mut key = [0; KEY_BYTES];
    getrandom::fill(&mut key).map_err(CacheError::Random)?;
    let temporary = write_aside(dir, &[&key])?;
    // A link, unlike a rename, does not replace.
    let linked = dir.hard_link(&temporary, dir, KEY_FILE);
    dir.remove_file(&temporary)?;
    match linked {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => read_key(dir),
        linked => {
            linked?;
            sync(dir)?;
            Ok(key)
        }
    }
}

/// Writes a file that only its owner may read, under a name that nobody looks for.
fn write_aside(dir: &Dir, parts: &[&[u8]]) -> Result<String, CacheError> {
    let mut suffix = [0; 8];
    getrandom::fill(&mut suffix).map_err(CacheError::Random)?;
    let name = format!(".{}", hex::encode(suffix));
    let mut file = dir.open_with(&name, OpenOptions::new().write(true).create_new(true).mode(0o600))?;
    let written = parts.iter().try_for_each(|part| file.write_all(part)).and_then(|()| file.sync_all());
    if let Err(error) = written {
        // The first error is the one to tell; a file that stays behind is in nobody's way.
        let _ = dir.remove_file(&name);
        return Err(error.into());
    }
    Ok(name)
}

/// Makes the directory's entries durable.
fn sync(dir: &Dir) -> io::Result<()> {
    // The handle itself is one for looking up names only.
    dir.open(".")?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMPONENT: Digest = Digest([7; 32]);

    fn store(path: &Path, engine: u8) -> ArtifactStore {
        ArtifactStore::open(path, EngineId([engine; 32])).expect("opens")
    }

    /// The code that the store believes in.
    fn code(store: &ArtifactStore, component: Digest) -> Option<Vec<u8>> {
        match store.read(component) {
            Ok(artifact) => artifact.map(|artifact| artifact.0),
            Err(Unusable::Foreign) => None,
            Err(Unusable::Io(error)) => panic!("{error}"),
        }
    }

    #[test]
    fn what_was_written_is_read_back_by_every_host_of_the_same_directory() {
        let dir = tempfile::tempdir().expect("a directory");
        let (one, other) = (store(dir.path(), 1), store(dir.path(), 1));
        assert_eq!(code(&one, COMPONENT), None);
        one.write(COMPONENT, &Artifact(b"code".to_vec())).expect("written");
        assert_eq!(code(&other, COMPONENT).as_deref(), Some(&b"code"[..]));
        let names: Vec<_> = std::fs::read_dir(dir.path())
            .expect("listed")
            .map(|entry| entry.expect("entry").file_name())
            .collect();
        assert_eq!(names.len(), 2, "no temporary file stays: {names:?}");
    }

    #[test]
    fn any_flipped_byte_and_any_cut_is_noticed() {
        let dir = tempfile::tempdir().expect("a directory");
        let store = store(dir.path(), 1);
        store.write(COMPONENT, &Artifact(b"code".to_vec())).expect("written");
        let path = dir.path().join(store.name(COMPONENT));
        let whole = std::fs::read(&path).expect("read");
        for index in 0..whole.len() {
            let mut flipped = whole.clone();
            flipped[index] ^= 1;
            std::fs::write(&path, &flipped).expect("written");
            assert_eq!(code(&store, COMPONENT), None, "byte {index} flipped");
            std::fs::write(&path, &whole[..index]).expect("written");
            assert_eq!(code(&store, COMPONENT), None, "cut at {index}");
        }
        std::fs::write(&path, &whole).expect("written");
        assert!(code(&store, COMPONENT).is_some());
    }

    #[test]
    fn an_artifact_of_another_component_engine_or_key_is_not_believed() {
        let dir = tempfile::tempdir().expect("a directory");
        let other_dir = tempfile::tempdir().expect("a directory");
        let [ours, other_engine] = [1, 2].map(|engine| store(dir.path(), engine));
        let other_key = store(other_dir.path(), 1);
        ours.write(COMPONENT, &Artifact(b"code".to_vec())).expect("written");
        let from = dir.path().join(ours.name(COMPONENT));
        for (reader, dir, component) in [
            (&ours, &dir, Digest([8; 32])),
            (&other_engine, &dir, COMPONENT),
            (&other_key, &other_dir, COMPONENT),
        ] {
            std::fs::copy(&from, dir.path().join(reader.name(component))).expect("copied");
            assert_eq!(code(reader, component), None);
        }
        assert!(code(&ours, COMPONENT).is_some());
    }

    #[test]
    fn a_key_that_others_can_read_or_that_is_cut_is_not_used() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().expect("a directory");
        store(dir.path(), 1);
        let key = dir.path().join(KEY_FILE);
        let mode = std::fs::metadata(&key).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let refused = || matches!(ArtifactStore::open(dir.path(), EngineId([1; 32])), Err(CacheError::Key));
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).expect("set");
        assert!(refused());
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).expect("set");
        assert!(!refused());
        std::fs::write(&key, [0; KEY_BYTES - 1]).expect("written");
        assert!(refused());
    }
}
