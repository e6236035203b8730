//! The seam outside Wasm: a block compiles and can be called there, and what it asks of its host goes
//! to the host that stands in on the thread.

use std::cell::RefCell;

use crate::context::{Level, Place};
use crate::effect::{EffectError, EmitEffect, HttpEffect, MailEffect, StorageEffect, WorkerEffect};
use crate::http::Answer;

/// Stands for a host, as far as it says what it does.
pub(crate) trait Host {
    fn perform(&mut self, effect: HttpEffect) -> Result<Answer, EffectError> {
        unexpected(&effect)
    }
    fn emit(&mut self, effect: EmitEffect) -> Result<(), EffectError> {
        unexpected(&effect)
    }
    fn storage(&mut self, effect: StorageEffect) -> Result<Option<Vec<u8>>, EffectError> {
        unexpected(&effect)
    }
    fn mail(&mut self, effect: MailEffect) -> Result<String, EffectError> {
        unexpected(&effect)
    }
    fn worker(&mut self, effect: WorkerEffect) -> Result<String, EffectError> {
        unexpected(&effect)
    }
    fn place(&mut self) -> Place {
        unexpected(&"its place")
    }
    fn started_at_ms(&mut self) -> u64 {
        unexpected(&"its time")
    }
    fn random(&mut self, len: u32) -> Vec<u8> {
        unexpected(&len)
    }
    fn log(&mut self, level: Level, message: &str) {
        unexpected::<()>(&(level, message));
    }
}

fn unexpected<T>(asked: &dyn std::fmt::Debug) -> T {
    panic!("the host on this thread does not say what it does when it is asked for {asked:?}")
}

thread_local! {
    static HOST: RefCell<Option<Box<dyn Host>>> = const { RefCell::new(None) };
}

/// Runs `act` with `host` standing in on this thread, also if it unwinds.
pub(crate) fn with<T>(host: impl Host + 'static, act: impl FnOnce() -> T) -> T {
    struct Leaves;
    impl Drop for Leaves {
        fn drop(&mut self) {
            HOST.take();
        }
    }
    HOST.set(Some(Box::new(host)));
    let _leaves = Leaves;
    act()
}

pub(crate) fn perform(effect: HttpEffect) -> Result<Answer, EffectError> {
    ask("make an HTTP call", |host| host.perform(effect))
}

pub(crate) fn emit(effect: EmitEffect) -> Result<(), EffectError> {
    ask("emit an event", |host| host.emit(effect))
}

pub(crate) fn storage(effect: StorageEffect) -> Result<Option<Vec<u8>>, EffectError> {
    ask("look after stored values", |host| host.storage(effect))
}

pub(crate) fn mail(effect: MailEffect) -> Result<String, EffectError> {
    ask("send mail", |host| host.mail(effect))
}

pub(crate) fn worker(effect: WorkerEffect) -> Result<String, EffectError> {
    ask("hand over work", |host| host.worker(effect))
}

pub(crate) fn place() -> Place {
    ask("say where the step stands", |host| host.place())
}

pub(crate) fn started_at_ms() -> u64 {
    ask("say when the step started", |host| host.started_at_ms())
}

pub(crate) fn random(len: u32) -> Vec<u8> {
    ask("give random bytes", |host| host.random(len))
}

pub(crate) fn log(level: Level, message: &str) {
    HOST.with_borrow_mut(|host| match host {
        Some(host) => host.log(level, message),
        None => eprintln!("{level:?} {message}"),
    });
}

/// Any error given back in place of a missing host would be a false statement about a call, and a block
/// could swallow it.
fn ask<T>(what: &str, act: impl FnOnce(&mut dyn Host) -> T) -> T {
    HOST.with_borrow_mut(|host| match host {
        Some(host) => act(host.as_mut()),
        None => panic!("no host on this thread to {what}: the block runs outside Counterfoil"),
    })
}
