//! Connections: a tenant's named way to reach a system.

use serde::{Deserialize, Serialize};

use crate::receipt::answer::StatusMeanings;

/// What a connection declares of the system behind it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Abilities {
    /// What its statuses mean, where that differs from the table.
    pub statuses: StatusMeanings,
    /// The header that carries the idempotency key; `Idempotency-Key` if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idempotency_header: Option<String>,
    /// The header in which it names its own receipt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub receipt_id_header: Option<String>,
}

impl Abilities {
    /// The header that carries the idempotency key.
    pub fn idempotency_header(&self) -> &str {
        self.idempotency_header.as_deref().unwrap_or("idempotency-key")
    }
}
