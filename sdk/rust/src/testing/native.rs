//! The host that a block meets: the world of its step, at the seam.

use std::cell::RefCell;
use std::panic::resume_unwind;
use std::rc::Rc;
use std::time::SystemTime;

use rand_chacha::rand_core::RngCore as _;

use super::effect::{Call, Given, Recorded};
use super::world::{Stop, World};
use crate::context::{Level, Place};
use crate::effect::{EffectError, EmitEffect, HttpEffect, MailEffect, StorageEffect, WorkerEffect};
use crate::host::native::Host;
use crate::http::Answer;

/// The world, as the block meets it.
pub(super) struct Native(pub(super) Rc<RefCell<World>>);

impl Native {
    fn tell(&self, call: Call) -> Recorded {
        let told = self.0.borrow_mut().effect(call);
        // No hook runs, and nothing is printed: the block is dropped as a sandbox is.
        told.unwrap_or_else(|stop| resume_unwind(Box::new(stop)))
    }
}

impl Host for Native {
    fn perform(&mut self, effect: HttpEffect) -> Result<Answer, EffectError> {
        match self.tell(Call::Http(effect))? {
            Given::Http(answer) => Ok(answer),
            other => wrong(&other),
        }
    }
    fn emit(&mut self, effect: EmitEffect) -> Result<(), EffectError> {
        self.tell(Call::Emit(effect)).map(drop)
    }
    fn storage(&mut self, effect: StorageEffect) -> Result<Option<Vec<u8>>, EffectError> {
        match self.tell(Call::Storage(effect))? {
            Given::Stored(value) => Ok(value),
            other => wrong(&other),
        }
    }
    fn mail(&mut self, effect: MailEffect) -> Result<String, EffectError> {
        match self.tell(Call::Mail(effect))? {
            Given::Mailed(reply) => Ok(reply),
            other => wrong(&other),
        }
    }
    fn worker(&mut self, effect: WorkerEffect) -> Result<String, EffectError> {
        match self.tell(Call::Worker(effect))? {
            Given::Worked(output) => Ok(output),
            other => wrong(&other),
        }
    }
    fn place(&mut self) -> Place {
        self.0.borrow().place.clone()
    }
    fn started_at_ms(&mut self) -> u64 {
        let since = self.0.borrow().started_at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        since.as_millis().try_into().unwrap_or(u64::MAX)
    }
    fn random(&mut self, len: u32) -> Vec<u8> {
        let mut bytes = vec![0; len as usize];
        self.0.borrow_mut().execution.random.fill_bytes(&mut bytes);
        bytes
    }
    fn log(&mut self, level: Level, message: &str) {
        self.0.borrow_mut().execution.logs.push((level, message.to_owned()));
    }
}

/// The script answered in the words of another protocol.
fn wrong<T>(given: &Given) -> T {
    resume_unwind(Box::new(Stop::Unscripted(format!("the scripted answer is of another kind: {given:?}"))))
}
