//! Identifiers. Inside they are UUIDs; what people see is a TypeID (`run_01j…`), so that an id says what it names.
//!
//! Source: the TypeID specification 0.3 (UUID in Crockford base32 behind a type prefix).

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use type_safe_id::{DynamicType, TypeSafeId};
use uuid::Uuid;

/// A text that is not an identifier of the expected type.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is not an id of the form `{prefix}_…` (26 characters of base32 after the prefix), nor a UUID"
)]
pub struct InvalidId {
    /// The prefix that was expected.
    pub prefix: &'static str,
    /// What was given, cut to 64 characters.
    pub text: String,
}

fn encode(prefix: &'static str, id: Uuid, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let prefix = DynamicType::new(prefix).map_err(|_| fmt::Error)?;
    write!(f, "{}", TypeSafeId::from_type_and_uuid(prefix, id))
}

fn decode(prefix: &'static str, text: &str) -> Result<Uuid, InvalidId> {
    // What SQL shows.
    if let Ok(id) = Uuid::try_parse(text) {
        return Ok(id);
    }
    let invalid = || InvalidId { prefix, text: text.chars().take(64).collect() };
    // As base32 has it, and as a UUID: the case of a letter says nothing.
    let id: TypeSafeId<DynamicType> = text.to_ascii_lowercase().parse().map_err(|_| invalid())?;
    if id.type_prefix() == prefix { Ok(id.uuid()) } else { Err(invalid()) }
}

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident = $prefix:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub Uuid);

        impl $name {
            /// What its text form begins with, without the underscore.
            pub const PREFIX: &'static str = $prefix;
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                encode(Self::PREFIX, self.0, f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;
            fn from_str(text: &str) -> Result<Self, InvalidId> {
                decode(Self::PREFIX, text).map(Self)
            }
        }

        impl Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }

        impl From<Uuid> for $name {
            fn from(id: Uuid) -> Self {
                Self(id)
            }
        }
    )*};
}

ids! {
    /// The unit of isolation.
    TenantId = "ten";
    /// An API key.
    KeyId = "key";
    /// A workflow, all its versions together.
    WorkflowId = "wf";
    /// One immutable version of a workflow.
    WorkflowVersionId = "wfv";
    /// A typed fact in the outbox.
    EventId = "evt";
    /// One execution of a workflow version.
    RunId = "run";
    /// A run and all its replays. The first run's id is its lineage's id.
    LineageId = "lin";
    /// One node of one run, in one iteration.
    StepId = "stp";
    /// An effect, and the receipt that records it.
    EffectId = "eff";
    /// A question to a person: that of a step, whose id it shares.
    ApprovalId = "apr";
    /// One execution of a step: never reused, never a host's name. Its holder owns the step.
    LeaseId = "lea";
    /// One process that runs steps.
    HostId = "hst";
}

/// The sha256 of a component's bytes: the name of a block version.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// Digest of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        use sha2::Digest as _;
        Self(sha2::Sha256::digest(bytes).into())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A text that is not 64 hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a digest is 64 hexadecimal digits")]
pub struct InvalidDigest;

impl FromStr for Digest {
    type Err = InvalidDigest;
    fn from_str(text: &str) -> Result<Self, InvalidDigest> {
        let mut digest = [0; 32];
        hex::decode_to_slice(text, &mut digest).map_err(|_| InvalidDigest)?;
        Ok(Self(digest))
    }
}

impl Serialize for Digest {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// Where in the work a step stands: the same on every re-run, in every attempt and in every replay.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Place {
    /// The run and all its replays.
    pub lineage: LineageId,
    /// Step names from the outermost in, joined by `/`.
    pub node: String,
    /// Indices of the map iterations around this step, outermost first.
    pub iteration: Vec<u32>,
}

/// The id of a step follows from its run and place, so that creating it twice meets the same row.
///
/// A UUIDv8 over SHA-256 of a domain tag, the run, the node and the iteration path, each behind its length.
pub fn step_id(run: RunId, node: &str, iteration: &[u32]) -> StepId {
    let mut hash = Parts::new(b"counterfoil-step-v1\0");
    hash.part(run.0.as_bytes());
    hash.part(node.as_bytes());
    hash.iteration(iteration);
    StepId(hash.uuid())
}

/// The lineage of the run that a step starts follows from the step's place, so that a replay's child replays the first one.
pub fn child_lineage(place: &Place) -> LineageId {
    let mut hash = Parts::new(b"counterfoil-child-v1\0");
    hash.part(place.lineage.0.as_bytes());
    hash.part(place.node.as_bytes());
    hash.iteration(&place.iteration);
    LineageId(hash.uuid())
}

/// Length-prefixed parts hashed to a name: no two different lists of parts give the same bytes.
pub(crate) struct Parts(sha2::Sha256);

impl Parts {
    pub(crate) fn new(tag: &[u8]) -> Self {
        use sha2::Digest as _;
        Self(sha2::Sha256::new_with_prefix(tag))
    }

    /// # Panics
    /// If a part is 4 GiB or longer; every part is bounded far below that where it enters.
    pub(crate) fn part(&mut self, bytes: &[u8]) {
        use sha2::Digest as _;
        let length = u32::try_from(bytes.len()).expect("a part is bounded where it enters");
        self.0.update(length.to_be_bytes());
        self.0.update(bytes);
    }

    pub(crate) fn iteration(&mut self, iteration: &[u32]) {
        let bytes: Vec<u8> = iteration.iter().flat_map(|index| index.to_be_bytes()).collect();
        self.part(&bytes);
    }

    pub(crate) fn finish(self) -> [u8; 32] {
        use sha2::Digest as _;
        self.0.finalize().into()
    }

    pub(crate) fn uuid(self) -> Uuid {
        let digest = self.finish();
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&digest[..16]);
        uuid::Builder::from_custom_bytes(bytes).into_uuid()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_reads_back_and_another_type_is_refused() {
        let run = RunId(Uuid::from_u128(0x0190_0000_0000_7000_8000_0000_0000_0001));
        let text = run.to_string();
        assert!(text.starts_with("run_"), "{text}");
        assert_eq!(text.parse::<RunId>(), Ok(run));
        assert_eq!(run.0.to_string().parse::<RunId>(), Ok(run), "as SQL shows it");
        for written in [text.to_uppercase(), run.0.to_string().to_uppercase()] {
            assert_eq!(written.parse::<RunId>(), Ok(run), "{written}");
        }
        assert!(text.parse::<TenantId>().is_err());
        assert!("run_".parse::<RunId>().is_err());
    }

    #[test]
    fn a_step_keeps_its_id_and_no_other_place_shares_it() {
        let run = RunId(Uuid::from_u128(7));
        let id = step_id(run, "a/b", &[1, 2]);
        assert_eq!(id, step_id(run, "a/b", &[1, 2]));
        for (node, iteration) in [("a/b", &[1][..]), ("a", &[1, 2]), ("a/b", &[2, 1]), ("a/b1", &[2])] {
            assert_ne!(id, step_id(run, node, iteration), "{node} {iteration:?}");
        }
        assert_eq!(id.0.get_version_num(), 8);
    }
}
