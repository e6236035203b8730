//! Messages over a socket: each is its length and its bytes, and may come with one descriptor.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::mpsc;

use crate::machine_code::MachineCode;

/// An effect's body of a megabyte, and all that a guest can put around it.
const MESSAGE_BYTES_MAX: usize = 16 << 20;
/// Sent at once, if there is so much.
const BATCH_BYTES: usize = 64 << 10;
const LENGTH_BYTES: usize = size_of::<u32>();

#[derive(Debug, thiserror::Error)]
pub(super) enum SocketError {
    #[error("the socket failed: {0}")]
    Io(#[from] io::Error),
    #[error("a message has {0} bytes; at most {MESSAGE_BYTES_MAX} are taken")]
    TooLong(usize),
    #[error("a message cannot be read: {0}")]
    Unreadable(postcard::Error),
    #[error("a message broke off")]
    Cut,
}

/// A message on its way, with the code that goes with it.
pub(super) struct Outgoing {
    bytes: Vec<u8>,
    code: Option<Arc<MachineCode>>,
}

impl Outgoing {
    /// # Errors
    /// If it is longer than a message may be.
    pub(super) fn new(message: &impl Serialize, code: Option<Arc<MachineCode>>) -> Result<Self, SocketError> {
        let bytes = postcard::to_extend(message, vec![0; LENGTH_BYTES]).map_err(SocketError::Unreadable)?;
        let len = bytes.len() - LENGTH_BYTES;
        match u32::try_from(len) {
            Ok(prefix) if len <= MESSAGE_BYTES_MAX => {
                let mut bytes = bytes;
                bytes[..LENGTH_BYTES].copy_from_slice(&prefix.to_le_bytes());
                Ok(Self { bytes, code })
            }
            _ => Err(SocketError::TooLong(len)),
        }
    }
}

/// Sends what is put into `outgoing`, in that order, as much at once as is there, until there will be no more.
pub(super) async fn send(
    socket: &UnixStream,
    mut outgoing: mpsc::UnboundedReceiver<Outgoing>,
) -> io::Result<()> {
    let mut batch = Vec::new();
    while let Some(first) = outgoing.recv().await {
        let mut next = Some(first);
        while let Some(Outgoing { bytes, code }) = next {
            if let Some(code) = code {
                write(socket, &batch, None).await?;
                batch.clear();
                write(socket, &bytes, Some(&code)).await?;
            } else {
                batch.extend(bytes);
            }
            next = if batch.len() < BATCH_BYTES { outgoing.try_recv().ok() } else { None };
        }
        write(socket, &batch, None).await?;
        batch.clear();
        // One long message must not be remembered by the room that it took.
        batch.shrink_to(BATCH_BYTES);
    }
    Ok(())
}

async fn write(socket: &UnixStream, mut bytes: &[u8], code: Option<&MachineCode>) -> io::Result<()> {
    let mut descriptor = code.map(MachineCode::descriptor);
    while !bytes.is_empty() {
        let sent = socket
            .async_io(Interest::WRITABLE, || {
                // A peer that is gone is an error here, and no signal.
                let Some(descriptor) = &descriptor else {
                    return Ok(rustix::net::send(socket, bytes, SendFlags::NOSIGNAL)?);
                };
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
                let mut ancillary = SendAncillaryBuffer::new(&mut space);
                ancillary.push(SendAncillaryMessage::ScmRights(std::slice::from_ref(descriptor)));
                Ok(sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL)?)
            })
            .await?;
        // It went with the first byte.
        descriptor = None;
        bytes = &bytes[sent..];
    }
    Ok(())
}

/// The receiving end.
pub(super) struct Incoming {
    socket: Arc<UnixStream>,
    /// What has arrived and was not taken lies from `taken` to `arrived`. What is behind it is room that is not cleared again for
    /// each message.
    bytes: Vec<u8>,
    taken: usize,
    arrived: usize,
    /// None where descriptors are not taken.
    descriptors: Option<VecDeque<OwnedFd>>,
}

impl Incoming {
    pub(super) fn new(socket: Arc<UnixStream>, takes_descriptors: bool) -> Self {
        let descriptors = takes_descriptors.then(VecDeque::new);
        Self { socket, bytes: Vec::new(), taken: 0, arrived: 0, descriptors }
    }

    /// The next message, or `None` if the other side has ended.
    pub(super) async fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, SocketError> {
        loop {
            if let Some(message) = self.take()? {
                return postcard::from_bytes(message).map(Some).map_err(SocketError::Unreadable);
            }
            self.make_room();
            if self.receive().await? == 0 {
                return if self.arrived == 0 { Ok(None) } else { Err(SocketError::Cut) };
            }
        }
    }

    /// The descriptor that came with the message taken last, if one came.
    pub(super) fn descriptor(&mut self) -> Option<OwnedFd> {
        self.descriptors.as_mut()?.pop_front()
    }

    /// Has what was not taken at the beginning, and room for a batch behind it.
    fn make_room(&mut self) {
        self.bytes.copy_within(self.taken..self.arrived, 0);
        self.arrived -= self.taken;
        self.taken = 0;
        let wanted = self.arrived + BATCH_BYTES;
        if self.bytes.len() < wanted {
            self.bytes.resize(wanted, 0);
        } else if self.bytes.len() > 2 * wanted {
            // One long message must not be remembered by the room that it took.
            self.bytes.truncate(wanted);
            self.bytes.shrink_to_fit();
        }
    }

    fn take(&mut self) -> Result<Option<&[u8]>, SocketError> {
        let Some((prefix, rest)) = self.bytes[self.taken..self.arrived].split_first_chunk::<LENGTH_BYTES>()
        else {
            return Ok(None);
        };
        let len = u32::from_le_bytes(*prefix) as usize;
        if len > MESSAGE_BYTES_MAX {
            return Err(SocketError::TooLong(len));
        }
        let message = rest.get(..len);
        if message.is_some() {
            self.taken += LENGTH_BYTES + len;
        }
        Ok(message)
    }

    async fn receive(&mut self) -> io::Result<usize> {
        let (socket, descriptors) = (&self.socket, &mut self.descriptors);
        let room = &mut self.bytes[self.arrived..];
        let received =
            socket.async_io(Interest::READABLE, || receive(socket, room, descriptors.as_mut())).await?;
        self.arrived += received;
        Ok(received)
    }
}

fn receive(
    socket: impl AsFd,
    room: &mut [u8],
    descriptors: Option<&mut VecDeque<OwnedFd>>,
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    // Without room for a descriptor the kernel drops it.
    let space = if descriptors.is_some() { &mut space[..] } else { &mut [] };
    let mut ancillary = RecvAncillaryBuffer::new(space);
    let received = recvmsg(socket, &mut [IoSliceMut::new(room)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let taken = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    if let Some(descriptors) = descriptors {
        descriptors.extend(taken.flatten());
    }
    Ok(received.bytes)
}
