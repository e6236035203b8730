//! Compiled components on disk: written whole, named by component and engine, and believed only with our own mark.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::io::{self, Read, Write};
use std::path::Path;
use std::time::{Duration, SystemTime};

use cap_std::ambient_authority;
use cap_std::fs::{Dir, OpenOptions, OpenOptionsExt, PermissionsExt};
use counterfoil_domain::id::Digest;
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest as _, Sha256};
use wasmtime::Engine;

const KEY_FILE: &str = "key";
const KEY_BYTES: usize = 32;
const MARK_BYTES: usize = 32;
/// Changes when what the mark is made over does.
const MARK_TAG: &[u8] = b"counterfoil-artifact-v1\0";

/// Writing one takes seconds; what is older was left behind.
const TEMPORARY_FOR_MAX: Duration = Duration::from_hours(1);

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

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
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

/// The directory of artifacts of one engine. Several hosts may share it, those of other versions among them.
pub(crate) struct ArtifactStore {
    dir: Dir,
    key: [u8; KEY_BYTES],
    engine: EngineId,
    bytes_max: u64,
}

impl ArtifactStore {
    /// Opens the directory, and makes it and its key on first use.
    pub(crate) fn open(path: &Path, engine: EngineId, bytes_max: u64) -> Result<Self, CacheError> {
        Dir::create_ambient_dir_all(path, ambient_authority())?;
        let dir = Dir::open_ambient_dir(path, ambient_authority())?;
        let key = match read_key(&dir) {
            Err(CacheError::Io(error)) if error.kind() == io::ErrorKind::NotFound => make_key(&dir)?,
            key => key?,
        };
        Ok(Self { dir, key, engine, bytes_max })
    }

    /// Reads an artifact back, if there is one.
    ///
    /// # Errors
    /// If it cannot be read, or is not ours, whole, of this component and of this engine.
    pub(crate) fn read(&self, component: Digest) -> Result<Option<Artifact>, Unusable> {
        let file = match self.dir.open(self.name(component)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?.into_std(),
        };
        let mut bytes = Vec::new();
        (&file).read_to_end(&mut bytes)?;
        let (mark, code) = bytes.split_at_checked(MARK_BYTES).ok_or(Unusable::Foreign)?;
        self.mac(component, code).verify_slice(mark).map_err(|_| Unusable::Foreign)?;
        bytes.drain(..MARK_BYTES);
        file.set_modified(SystemTime::now())?;
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

    /// Removes what was used longest ago, until the rest is within its limit. What is `in_use` counts as used now, and
    /// what is being written by any host is left alone.
    pub(crate) fn make_room(&self, in_use: &[Digest]) -> Result<Evicted, CacheError> {
        if self.kept()?.iter().map(|kept| kept.bytes_len).sum::<u64>() <= self.bytes_max {
            return Ok(Evicted::default());
        }
        let now = SystemTime::now();
        for component in in_use {
            match self.dir.open(self.name(*component)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                file => file?.into_std().set_modified(now)?,
            }
        }
        let mut kept = self.kept()?;
        // Hosts that do this at once agree on the order.
        kept.sort_by(|one, other| (one.used_at, &one.name).cmp(&(other.used_at, &other.name)));
        let mut bytes_len: u64 = kept.iter().map(|kept| kept.bytes_len).sum();
        let mut evicted = Evicted::default();
        for kept in kept {
            if bytes_len <= self.bytes_max {
                break;
            }
            match self.dir.remove_file(&kept.name) {
                // Another host was quicker.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                removed => removed?,
            }
            bytes_len -= kept.bytes_len;
            evicted.artifacts += 1;
            evicted.bytes_len += kept.bytes_len;
        }
        Ok(evicted)
    }

    /// The artifacts of all engines; and removes what a host that was killed did not come to rename.
    fn kept(&self) -> Result<Vec<Kept>, CacheError> {
        let mut all = Vec::new();
        for entry in self.dir.entries()? {
            let entry = entry?;
            let metadata = match entry.metadata() {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                metadata => metadata?,
            };
            let Ok(name) = entry.file_name().into_string() else { continue };
            let used_at = metadata.modified()?.into_std();
            if is_artifact(&name) {
                all.push(Kept { name, used_at, bytes_len: metadata.len() });
            } else if is_temporary(&name) && used_at.elapsed().is_ok_and(|age| age > TEMPORARY_FOR_MAX) {
                match self.dir.remove_file(&name) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    removed => removed?,
                }
            }
        }
        Ok(all)
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

/// A file in the directory.
struct Kept {
    name: String,
    used_at: SystemTime,
    bytes_len: u64,
}

/// What was removed.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Evicted {
    pub(crate) artifacts: usize,
    pub(crate) bytes_len: u64,
}

fn is_artifact(name: &str) -> bool {
    let is_hex = |text: &str, len| text.len() == len && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    name.split_once('.').is_some_and(|(component, engine)| is_hex(component, 64) && is_hex(engine, 16))
}

fn is_temporary(name: &str) -> bool {
    name.starts_with('.')
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
        ArtifactStore::open(path, EngineId([engine; 32]), u64::MAX).expect("opens")
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

    /// First bytes of the components that are kept for this engine.
    fn kept(store: &ArtifactStore) -> Vec<u8> {
        let read = |id: &u8| code(store, Digest([*id; 32])).is_some();
        (0..100).filter(read).collect()
    }

    #[test]
    fn what_was_used_longest_ago_makes_room() {
        let dir = tempfile::tempdir().expect("a directory");
        // Room for five of a hundred bytes, and their marks.
        let bytes_max = 5 * (100 + MARK_BYTES as u64);
        let open =
            |engine| ArtifactStore::open(dir.path(), EngineId([engine; 32]), bytes_max).expect("opens");
        let (ours, other_version) = (open(1), open(2));
        let start = SystemTime::now() - Duration::from_hours(1);
        let write = |store: &ArtifactStore, id: u8, used_at_s| {
            let component = Digest([id; 32]);
            store.write(component, &Artifact(vec![id; 100])).expect("written");
            let file = std::fs::File::open(dir.path().join(store.name(component))).expect("opened");
            file.set_modified(start + Duration::from_secs(used_at_s)).expect("set");
        };
        write(&other_version, 1, 1);
        for (id, used_at_s) in [(2, 5), (3, 3), (4, 4), (5, 2)] {
            write(&ours, id, used_at_s);
        }
        let in_use = |ids: &[u8]| ids.iter().map(|id| Digest([*id; 32])).collect::<Vec<_>>();
        assert_eq!(ours.make_room(&[]).expect("room"), Evicted::default(), "exactly full");
        // To be read is to be used; also by a host that keeps it in memory from then on.
        assert!(code(&ours, Digest([5; 32])).is_some());
        write(&ours, 6, 6);
        write(&ours, 7, 7);
        let evicted = ours.make_room(&in_use(&[3, 7])).expect("room");
        assert_eq!(evicted, Evicted { artifacts: 2, bytes_len: 2 * (100 + MARK_BYTES as u64) });
        assert!(kept(&other_version).is_empty());
        assert_eq!(kept(&ours), [2, 3, 5, 6, 7]);
    }

    #[test]
    fn what_is_being_written_stays_and_what_was_left_behind_goes() {
        let dir = tempfile::tempdir().expect("a directory");
        let store = ArtifactStore::open(dir.path(), EngineId([1; 32]), 0).expect("opens");
        let [written, left] = [(); 2].map(|()| write_aside(&store.dir, &[b"half"]).expect("written"));
        let long_ago = SystemTime::now() - TEMPORARY_FOR_MAX - Duration::from_mins(1);
        let at = |name: &str| dir.path().join(name);
        std::fs::File::open(at(&left)).expect("opened").set_modified(long_ago).expect("set");
        store.write(COMPONENT, &Artifact(b"code".to_vec())).expect("written");
        assert_eq!(store.make_room(&[]).expect("room").artifacts, 1);
        let there = [&written, &left, KEY_FILE].map(|name| at(name).exists());
        assert_eq!(there, [true, false, true]);
    }

    #[test]
    fn hosts_that_write_read_and_make_room_at_once_never_meet_half_an_artifact() {
        let dir = tempfile::tempdir().expect("a directory");
        let artifact = |id: u8| Artifact(vec![id; 10_000]);
        std::thread::scope(|scope| {
            for host in 0..4 {
                let path = dir.path();
                scope.spawn(move || {
                    let store = ArtifactStore::open(path, EngineId([1; 32]), 50_000).expect("opens");
                    for round in 0..100_usize {
                        let id = [3, 1, 4, 1, 5, 9, 2, 6, 5, 8][(round + 3 * host) % 10];
                        let component = Digest([id; 32]);
                        if let Some(code) = code(&store, component) {
                            assert_eq!(code, artifact(id).0);
                        } else {
                            store.write(component, &artifact(id)).expect("written");
                        }
                        store.make_room(&[component]).expect("room");
                    }
                });
            }
        });
        let store = ArtifactStore::open(dir.path(), EngineId([1; 32]), 50_000).expect("opens");
        store.make_room(&[]).expect("room");
        assert!((1..=4).contains(&kept(&store).len()), "{:?}", kept(&store));
    }

    #[test]
    fn a_key_that_others_can_read_or_that_is_cut_is_not_used() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().expect("a directory");
        store(dir.path(), 1);
        let key = dir.path().join(KEY_FILE);
        let mode = std::fs::metadata(&key).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let refused =
            || matches!(ArtifactStore::open(dir.path(), EngineId([1; 32]), u64::MAX), Err(CacheError::Key));
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).expect("set");
        assert!(refused());
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).expect("set");
        assert!(!refused());
        std::fs::write(&key, [0; KEY_BYTES - 1]).expect("written");
        assert!(refused());
    }
}
