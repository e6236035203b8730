//! What a receipt is called. A retry, a crash, a second host and a replay must all land on the same row, so nothing of an
//! attempt, a lease or a moment is in the name.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::id::{EffectId, Parts, Place, TenantId};

/// Which effect of a step: the label that the guest gave, else the ordinal among its unlabelled calls.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SlotKey {
    /// Given by the guest.
    Label(String),
    /// Counted from 0 over the unlabelled calls.
    Ordinal(u64),
}

impl fmt::Display for SlotKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Label(label) => f.write_str(label),
            Self::Ordinal(ordinal) => write!(f, "#{ordinal}"),
        }
    }
}

/// A slot: a place in the work, in one ownership generation, and a key in it.
#[derive(Debug, Clone, Copy)]
pub struct Slot<'a> {
    /// Whose work.
    pub tenant: TenantId,
    /// Ownership generation of the run.
    pub epoch: u64,
    /// Which step.
    pub place: &'a Place,
    /// Which effect of it.
    pub key: &'a SlotKey,
}

/// The ownership generation of every run of this database.
pub const EPOCH: u64 = 0;

impl Slot<'_> {
    /// The id of the slot's receipt with this dispatch number: a UUIDv8 over SHA-256 of length-prefixed parts.
    pub fn receipt_id(&self, dispatch_number: u64) -> EffectId {
        let mut name = Parts::new(b"counterfoil-effect-v1\0");
        name.part(self.tenant.0.as_bytes());
        name.part(self.place.lineage.0.as_bytes());
        name.part(&self.epoch.to_be_bytes());
        name.part(self.place.node.as_bytes());
        name.iteration(&self.place.iteration);
        let key = match self.key {
            SlotKey::Label(label) => [&[0], label.as_bytes()].concat(),
            SlotKey::Ordinal(ordinal) => [&[1][..], &ordinal.to_be_bytes()].concat(),
        };
        name.part(&key);
        name.part(&dispatch_number.to_be_bytes());
        EffectId(name.uuid())
    }
}

/// The seed of a guest's random source: a function of its place alone.
pub fn guest_seed(tenant: TenantId, place: &Place) -> [u8; 32] {
    let mut seed = Parts::new(b"counterfoil-seed-v1\0");
    seed.part(tenant.0.as_bytes());
    seed.part(place.lineage.0.as_bytes());
    seed.part(place.node.as_bytes());
    seed.iteration(&place.iteration);
    seed.finish()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use uuid::Uuid;

    use super::*;
    use crate::id::LineageId;

    fn place(node: &str, iteration: &[u32]) -> Place {
        Place { lineage: LineageId(Uuid::from_u128(2)), node: node.into(), iteration: iteration.into() }
    }

    fn id(node: &str, iteration: &[u32], key: &SlotKey, dispatch_number: u64) -> String {
        let place = place(node, iteration);
        Slot { tenant: TenantId(Uuid::from_u128(1)), epoch: EPOCH, place: &place, key }
            .receipt_id(dispatch_number)
            .0
            .to_string()
    }

    /// Computed by an independent implementation (`cases/identity_vectors.py`), so that the layout cannot drift.
    #[test]
    fn receipt_ids_match_the_vectors() {
        let vectors: serde_json::Value =
            serde_json::from_str(include_str!("../../cases/identity.json")).expect("the vectors are JSON");
        let vectors = vectors.as_array().expect("a list");
        assert!(vectors.len() >= 6);
        for vector in vectors {
            let iteration: Vec<u32> = serde_json::from_value(vector["iteration"].clone()).expect("indices");
            let key = match vector["label"].as_str() {
                Some(label) => SlotKey::Label(label.into()),
                None => SlotKey::Ordinal(vector["ordinal"].as_u64().expect("label or ordinal")),
            };
            let dispatch_number = vector["dispatch_number"].as_u64().expect("a number");
            let node = vector["node"].as_str().expect("a node");
            assert_eq!(
                id(node, &iteration, &key, dispatch_number),
                vector["id"].as_str().expect("an id"),
                "{vector}"
            );
        }
    }

    #[test]
    fn no_two_slots_share_an_id() {
        let mut seen = BTreeSet::new();
        for node in ["a", "a/b", "ab"] {
            for iteration in [&[][..], &[0], &[0, 1], &[1, 0]] {
                for key in [
                    SlotKey::Label("0".into()),
                    SlotKey::Label(String::new()),
                    SlotKey::Ordinal(0),
                    SlotKey::Ordinal(48),
                ] {
                    for dispatch_number in [0, 1] {
                        assert!(
                            seen.insert(id(node, iteration, &key, dispatch_number)),
                            "{node} {iteration:?} {key:?}"
                        );
                    }
                }
            }
        }
    }
}
