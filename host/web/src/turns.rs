//! Turns: one at a time of each tenant, so that nobody waits behind all that somebody else wants.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use counterfoil_domain::id::TenantId;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

/// A tenant's turn, until it is dropped.
pub(crate) type Turn = OwnedMutexGuard<()>;

/// Who waits for a turn, in the order in which they came.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    tenants: Mutex<HashMap<TenantId, Weak<AsyncMutex<()>>>>,
}

impl Turns {
    /// The tenant's turn, once nobody else of the tenant has it.
    pub(crate) async fn of_tenant(&self, tenant: TenantId) -> Turn {
        self.of(tenant).lock_owned().await
    }

    fn of(&self, tenant: TenantId) -> Arc<AsyncMutex<()>> {
        let mut tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(turn) = tenants.get(&tenant).and_then(Weak::upgrade) {
            return turn;
        }
        tenants.retain(|_, turn| turn.strong_count() > 0);
        let turn = Arc::default();
        tenants.insert(tenant, Arc::downgrade(&turn));
        turn
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use uuid::Uuid;

    use super::*;

    #[test]
    fn a_tenant_has_one_turn_and_leaves_the_others_theirs() {
        let turns = Turns::default();
        let now = |tenant: u128| turns.of_tenant(TenantId(Uuid::from_u128(tenant))).now_or_never();
        let first = now(1).expect("free");
        assert!(now(1).is_none(), "one at a time");
        let others: Vec<_> = (2..100).map(|tenant| now(tenant).expect("another's")).collect();
        drop(first);
        assert!(now(1).is_some());
        drop(others);
        assert!(now(2).is_some());
        assert_eq!(turns.tenants.lock().expect("whole").len(), 1, "nobody is remembered");
    }
}
