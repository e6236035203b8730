//! Machine code that can be run: memory that nobody can change any more, and that another process can be given.

use std::io;

use wasmtime::Engine;
use wasmtime::component::Component;

use crate::artifact::Artifact;

#[cfg(not(target_os = "linux"))]
use self::plain::Memory;
#[cfg(target_os = "linux")]
use self::sealed::Memory;

/// Machine code of one component.
pub(crate) struct MachineCode {
    memory: Memory,
    bytes_len: usize,
}

impl MachineCode {
    /// Of what was just compiled, or read back and found to be ours.
    ///
    /// # Errors
    /// If this machine has no memory for it.
    pub(crate) fn of(artifact: &Artifact) -> io::Result<Self> {
        let bytes = artifact.bytes();
        Ok(Self { memory: Memory::of(bytes)?, bytes_len: bytes.len() })
    }

    pub(crate) fn bytes_len(&self) -> usize {
        self.bytes_len
    }

    /// Makes the code runnable.
    ///
    /// # Errors
    /// If the engine is another one than it was compiled for, or its pool cannot hold such a component.
    #[expect(unsafe_code, reason = "loads machine code, which only this host can have made")]
    pub(crate) fn load(&self, engine: &Engine) -> wasmtime::Result<Component> {
        let bytes = self.memory.read(self.bytes_len)?;
        // SAFETY: the bytes come from `Engine::precompile_component`, unchanged. They were just made by it, or read back
        // under an authentication code whose key only this host's cache directory holds; and where they came from another
        // process, that is the host, which started this one, and they are sealed.
        unsafe { Component::deserialize(engine, bytes) }
    }
}

#[cfg(target_os = "linux")]
mod sealed {
    use std::fs::File;
    use std::io::{self, Seek as _, SeekFrom, Write as _};
    use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
    use std::os::unix::fs::FileExt as _;

    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, memfd_create};

    use super::MachineCode;

    const SEALS: SealFlags =
        SealFlags::WRITE.union(SealFlags::GROW).union(SealFlags::SHRINK).union(SealFlags::SEAL);

    pub(super) struct Memory(File);

    impl Memory {
        pub(super) fn of(bytes: &[u8]) -> io::Result<Self> {
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
            let mut file = File::from(memfd_create("counterfoil-code", flags)?);
            file.write_all(bytes)?;
            fcntl_add_seals(&file, SEALS)?;
            Ok(Self(file))
        }

        pub(super) fn read(&self, bytes_len: usize) -> io::Result<Vec<u8>> {
            let mut bytes = vec![0; bytes_len];
            self.0.read_exact_at(&mut bytes, 0)?;
            Ok(bytes)
        }
    }

    impl MachineCode {
        /// What the host has handed over to this process.
        ///
        /// # Errors
        /// If it is not sealed, so that somebody could change it while it runs.
        pub(crate) fn received(descriptor: OwnedFd) -> io::Result<Self> {
            if fcntl_get_seals(&descriptor)? != SEALS {
                return Err(io::Error::other("the machine code that was handed over is not sealed"));
            }
            let mut file = File::from(descriptor);
            let bytes_len = usize::try_from(file.seek(SeekFrom::End(0))?).map_err(io::Error::other)?;
            Ok(Self { memory: Memory(file), bytes_len })
        }

        /// For another process, which can read it and nothing else.
        pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
            self.memory.0.as_fd()
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod plain {
    use std::io;

    pub(super) struct Memory(Vec<u8>);

    impl Memory {
        pub(super) fn of(bytes: &[u8]) -> io::Result<Self> {
            Ok(Self(bytes.to_vec()))
        }

        pub(super) fn read(&self, _bytes_len: usize) -> io::Result<Vec<u8>> {
            Ok(self.0.clone())
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::fs::File;
    use std::io::Write as _;

    use super::*;

    #[test]
    fn what_another_process_is_given_cannot_be_changed() {
        let code = MachineCode::of(&Artifact::compiled(b"code".to_vec())).expect("memory");
        let given = || code.descriptor().try_clone_to_owned().expect("a descriptor");
        let mut file = File::from(given());
        assert!(file.write_all(b"other").is_err());
        assert!(file.set_len(1).is_err() && file.set_len(100).is_err());
        let received = MachineCode::received(given()).expect("sealed");
        assert_eq!(received.memory.read(received.bytes_len()).expect("read"), b"code");
        let open = rustix::fs::memfd_create("open", rustix::fs::MemfdFlags::CLOEXEC).expect("memory");
        assert!(MachineCode::received(open).is_err());
    }
}
