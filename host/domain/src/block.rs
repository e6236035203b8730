//! What a block says of itself, and what follows from it.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::effect::Safety;

/// The custom section of a component that says what a program is which cannot say so itself: a [`Descriptor`] as JSON.
/// It is a part of the component, so that the version's digest names both.
pub const MANIFEST_SECTION: &str = "counterfoil:manifest";

/// A component with a manifest, which counts in place of any that it has.
pub fn with_manifest(component: &[u8], manifest: &[u8]) -> Vec<u8> {
    const CUSTOM_SECTION: u8 = 0;
    let name = MANIFEST_SECTION.as_bytes();
    let name_len = leb128(name.len());
    let section_len = leb128(name_len.len() + name.len() + manifest.len());
    [component, &[CUSTOM_SECTION], &section_len, &name_len, name, manifest].concat()
}

/// A length as WebAssembly writes it: seven bits a byte, the lowest first.
fn leb128(mut value: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let [low, ..] = value.to_le_bytes();
        value >>= 7;
        if value == 0 {
            bytes.push(low & 0x7f);
            return bytes;
        }
        bytes.push(low | 0x80);
    }
}

/// The output of a block's `describe`, or its manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Descriptor {
    /// The name it suggests.
    pub name: String,
    /// One line for people.
    #[serde(default)]
    pub summary: String,
    /// JSON Schema of the input.
    pub input: Value,
    /// JSON Schema of the output.
    pub output: Value,
    /// Effects that it may perform: a grant, not a hint.
    #[serde(default)]
    pub effects: Vec<EffectGrant>,
    /// Limits that it asks to be narrowed to.
    #[serde(default)]
    pub limits: WantedLimits,
    /// Price of one step.
    #[serde(default)]
    pub credits: u32,
}

/// One kind of effect that a block may perform.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EffectGrant {
    /// `http`, `emit`, `storage`, `mail`, `model` or `worker`.
    pub kind: String,
    /// What happens when an outcome is open.
    pub safety: Safety,
    /// Connections it may name.
    #[serde(default)]
    pub connections: Vec<String>,
    /// Hosts it may call without a connection.
    #[serde(default)]
    pub hosts: Vec<String>,
}

/// Limits that a block asks for itself, or that its tenant has; they can only narrow those in force.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WantedLimits {
    /// Linear memory.
    pub memory_bytes_max: Option<u64>,
    /// Guest CPU.
    pub cpu_ms_max: Option<u64>,
    /// Whole execution.
    pub wall_ms_max: Option<u64>,
}

impl WantedLimits {
    /// The narrower of what is granted and what is wanted, field by field.
    pub fn narrow(self, granted: crate::limits::StepLimits) -> crate::limits::StepLimits {
        let narrower =
            |wanted: Option<u64>, granted: u64| wanted.map_or(granted, |wanted| wanted.min(granted));
        crate::limits::StepLimits {
            memory_bytes_max: narrower(self.memory_bytes_max, granted.memory_bytes_max),
            cpu_ms_max: narrower(self.cpu_ms_max, granted.cpu_ms_max),
            wall_ms_max: narrower(self.wall_ms_max, granted.wall_ms_max),
            ..granted
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::StepLimits;

    #[test]
    fn a_manifest_is_one_more_section() {
        let long = vec![b'x'; 300];
        let section = [&b"\0\xc1\x02\x14counterfoil:manifest"[..], &long].concat();
        assert_eq!(with_manifest(b"before", &long), [&b"before"[..], &section].concat());
    }

    #[test]
    fn a_block_narrows_what_it_is_granted_and_widens_nothing() {
        let granted =
            StepLimits { memory_bytes_max: 100, cpu_ms_max: 100, wall_ms_max: 100, ..StepLimits::DEFAULT };
        for (wanted, expected) in [(None, 100), (Some(99), 99), (Some(100), 100), (Some(u64::MAX), 100)] {
            let limits = WantedLimits { memory_bytes_max: wanted, cpu_ms_max: wanted, wall_ms_max: wanted };
            let narrowed = StepLimits {
                memory_bytes_max: expected,
                cpu_ms_max: expected,
                wall_ms_max: expected,
                ..granted
            };
            assert_eq!(limits.narrow(granted), narrowed, "{wanted:?}");
        }
    }
}
