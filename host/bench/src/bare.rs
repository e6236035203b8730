//! The runtime alone, with a host that answers at once and bounds nothing.

wasmtime::component::bindgen!({ path: "../../wit", world: "block" });

use counterfoil::block::{context, effects};

/// What every charge is answered.
pub(crate) const CHARGED: &[u8] = br#"{"id":"ch_1"}"#;

/// A host that answers at once, and does nothing else.
pub(crate) struct Host;

impl effects::Host for Host {
    fn perform(&mut self, _effect: effects::Effect) -> Result<effects::Answer, effects::Failure> {
        Ok(effects::Answer::Http(effects::HttpResponse {
            status: 201,
            headers: Vec::new(),
            body: CHARGED.into(),
            truncated: false,
        }))
    }
}

impl context::Host for Host {
    fn place(&mut self) -> context::StepPlace {
        context::StepPlace { lineage: String::new(), node: String::new(), iteration: Vec::new() }
    }

    fn started_at(&mut self) -> u64 {
        0
    }

    fn random(&mut self, len: u32) -> Vec<u8> {
        vec![0; len as usize]
    }

    fn log(&mut self, _level: context::Level, _message: String) {}
}
