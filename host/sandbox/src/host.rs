//! The host's side of the block contract: everything that a guest can call.

use std::sync::Arc;

use counterfoil_domain::code::Code;
use counterfoil_domain::effect::{Answer, EffectCall, EffectFailure, EffectReply};
use counterfoil_domain::id::{LeaseId, Place};
use counterfoil_domain::limits::StepLimits;
use counterfoil_domain::ports::EffectPort;
use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use crate::bindings::counterfoil::block::{context, effects};
use crate::limiter::Limiter;
use crate::log::StepLog;
use crate::wasi::Wasi;

/// Random bytes that one call may ask for: enough for any key, small beside what the guest must hold itself.
pub(crate) const RANDOM_BYTES_MAX: u32 = 64 << 10;

/// Calls that one execution passes to the effect port: far more than a step may make effects, and few enough that a flood of
/// them, each refused, costs the guest's CPU and not the host's time.
pub(crate) const CALLS_MAX: u32 = 1_000;

/// Why the host ended a guest in one of its own functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Abort {
    /// The effect port said so; the guest must not learn why.
    #[error("the effect port stopped the step")]
    Stopped,
    #[error("`describe` asked for an effect; it may only describe")]
    EffectInDescribe,
    #[error("it asked for {0} random bytes at once; at most {RANDOM_BYTES_MAX} are given")]
    RandomTooLong(u64),
    #[error("it wrote {0} zeroes at once, more than it was told that there is room for")]
    WriteTooLong(u64),
    #[error("it waits for what can never be there")]
    WaitsForNothing,
    #[error("it used {0}, of which it can have none")]
    Absent(&'static str),
    #[error("it exited with status {0}")]
    Exit(u8),
    #[error("it holds more header fields and bodies of requests and answers than a step may")]
    HoldsTooMuch,
    #[error("it made header fields that are longer together than any request's may be")]
    FieldsTooLong,
    #[error("it wrote nothing to its standard output, where its output is looked for")]
    NoOutput,
    #[error("what it wrote to its standard output is not UTF-8")]
    OutputNotText,
}

impl Abort {
    /// The code of the step's failure.
    pub(crate) fn code(self) -> Code {
        match self {
            Self::Exit(_) => Code::GuestExit,
            Self::HoldsTooMuch => Code::MemoryLimit,
            Self::NoOutput | Self::OutputNotText => Code::OutputInvalid,
            _ => Code::GuestTrap,
        }
    }
}

/// The way to the effect port for one execution.
pub(crate) struct EffectDoor {
    pub(crate) port: Arc<dyn EffectPort>,
    pub(crate) execution: LeaseId,
}

/// What one store holds.
pub(crate) struct HostState {
    /// `None` where no effect is allowed.
    pub(crate) door: Option<EffectDoor>,
    /// Calls that went through it.
    calls: u32,
    pub(crate) place: Place,
    pub(crate) started_at_ms: u64,
    pub(crate) random: ChaCha20Rng,
    pub(crate) log: StepLog,
    pub(crate) limiter: Limiter,
    pub(crate) wasi: Wasi,
    pub(crate) output_bytes_max: u64,
}

impl HostState {
    pub(crate) fn new(
        door: Option<EffectDoor>,
        place: Place,
        started_at_ms: u64,
        seed: [u8; 32],
        limits: &StepLimits,
    ) -> Self {
        Self {
            door,
            calls: 0,
            place,
            started_at_ms,
            random: ChaCha20Rng::from_seed(seed),
            log: StepLog::new(limits),
            limiter: Limiter::new(limits),
            wasi: Wasi::new(seed),
            output_bytes_max: limits.output_bytes_max,
        }
    }

    /// Passes a call to the effect port: the only way out.
    pub(crate) async fn perform(
        &mut self,
        call: EffectCall,
    ) -> wasmtime::Result<Result<Answer, EffectFailure>> {
        let Some(door) = &self.door else { return Err(Abort::EffectInDescribe.into()) };
        if self.calls == CALLS_MAX {
            let reason = format!("effect_limit: a step asks for effects at most {CALLS_MAX} times");
            return Ok(Err(EffectFailure::Limit(reason)));
        }
        self.calls += 1;
        match door.port.perform(door.execution, call).await {
            EffectReply::Answered(answer) => Ok(Ok(answer)),
            EffectReply::Failed(failure) => Ok(Err(failure)),
            EffectReply::Stop => Err(Abort::Stopped.into()),
        }
    }
}

impl effects::Host for HostState {
    async fn perform(
        &mut self,
        effect: effects::Effect,
    ) -> wasmtime::Result<Result<effects::Answer, effects::Failure>> {
        let reply = self.perform(effect.into()).await?;
        Ok(reply.map(Into::into).map_err(Into::into))
    }
}

impl context::Host for HostState {
    fn place(&mut self) -> wasmtime::Result<context::StepPlace> {
        Ok(context::StepPlace {
            lineage: self.place.lineage.to_string(),
            node: self.place.node.clone(),
            iteration: self.place.iteration.clone(),
        })
    }

    fn started_at(&mut self) -> wasmtime::Result<u64> {
        Ok(self.started_at_ms)
    }

    fn random(&mut self, len: u32) -> wasmtime::Result<Vec<u8>> {
        if len > RANDOM_BYTES_MAX {
            return Err(Abort::RandomTooLong(len.into()).into());
        }
        let mut bytes = vec![0; len as usize];
        self.random.fill_bytes(&mut bytes);
        Ok(bytes)
    }

    fn log(&mut self, level: context::Level, message: String) -> wasmtime::Result<()> {
        self.log.push(level.into(), &message);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use counterfoil_domain::id::LineageId;
    use uuid::Uuid;

    use super::context::Host as _;
    use super::*;

    fn state(seed: u8) -> HostState {
        let place = Place { lineage: LineageId(Uuid::nil()), node: "n".into(), iteration: Vec::new() };
        HostState::new(None, place, 0, [seed; 32], &StepLimits::DEFAULT)
    }

    /// Guests rely on it in every replay: the stream may never change. `ChaCha20`, 64-bit counter, no nonce.
    #[test]
    fn the_random_stream_is_fixed_for_ever() {
        let bytes = state(0).random(32).expect("bytes");
        assert_eq!(hex::encode(bytes), "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7");
    }

    #[test]
    fn random_goes_on_where_it_was_and_ends_at_its_limit() {
        let mut one = state(7);
        let parts = [one.random(8).expect("bytes"), one.random(8).expect("bytes")].concat();
        assert_eq!(parts, state(7).random(16).expect("bytes"));
        assert_ne!(parts, state(8).random(16).expect("bytes"));
        assert_eq!(one.random(RANDOM_BYTES_MAX).expect("at the limit").len(), RANDOM_BYTES_MAX as usize);
        let error = one.random(RANDOM_BYTES_MAX + 1).expect_err("one over");
        assert_eq!(error.downcast_ref(), Some(&Abort::RandomTooLong(u64::from(RANDOM_BYTES_MAX) + 1)));
    }
}
