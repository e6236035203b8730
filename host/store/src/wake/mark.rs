//! Whose steps may be due.

use std::collections::BTreeSet;

use counterfoil_domain::fair_share::Queue;
use counterfoil_domain::id::TenantId;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use uuid::Uuid;

/// Tenants that one notification names; where there are more, it says that everybody may have work. A payload has 8,000
/// bytes at most.
const TENANTS_TOLD_MAX: usize = 200;
/// Stands for everybody in a notification.
const EVERYBODY: &str = "*";

/// That something may be due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mark {
    /// Steps of one workflow are due.
    Queue(Queue),
    /// Steps of a tenant are due, or will be.
    Tenant(TenantId),
    All,
}

/// Whose steps may be due.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Marked {
    /// Everybody's.
    pub all: bool,
    /// Those of these tenants, or they will be.
    pub tenants: BTreeSet<TenantId>,
    /// Those of these workflows.
    pub queues: BTreeSet<Queue>,
}

impl Marked {
    pub(super) fn everybody() -> Self {
        Self { all: true, ..Self::default() }
    }

    pub(super) fn add(&mut self, mark: Mark) {
        match mark {
            Mark::Queue(queue) => _ = self.queues.insert(queue),
            Mark::Tenant(tenant) => _ = self.tenants.insert(tenant),
            Mark::All => self.all = true,
        }
        // Whoever looks at everything needs no list of it.
        if self.all || self.tenants.len() + self.queues.len() > super::MARKS_KEPT {
            *self = Self::everybody();
        }
    }

    pub(super) fn marks(&self) -> impl Iterator<Item = Mark> + '_ {
        let all = self.all.then_some(Mark::All);
        let tenants = self.tenants.iter().map(|tenant| Mark::Tenant(*tenant));
        all.into_iter().chain(tenants).chain(self.queues.iter().map(|queue| Mark::Queue(*queue)))
    }

    fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    pub(super) fn to_text(&self) -> String {
        let queues = self.queues.iter().map(|queue| queue.tenant);
        let tenants: BTreeSet<TenantId> = self.tenants.iter().copied().chain(queues).collect();
        if self.all || tenants.len() > TENANTS_TOLD_MAX {
            return EVERYBODY.into();
        }
        tenants.iter().map(|tenant| tenant.0.simple().to_string()).collect::<Vec<_>>().join(" ")
    }

    /// What another process said; what cannot be read stands for everybody.
    pub(super) fn from_text(text: &str) -> Self {
        let tenants = text.split_whitespace().map(|word| Uuid::try_parse(word).map(TenantId));
        tenants
            .collect::<Result<_, _>>()
            .map_or_else(|_| Self::everybody(), |tenants| Self { tenants, ..Self::default() })
    }
}

/// Hears whose steps may be due.
#[derive(Debug)]
pub struct Marks {
    receiver: Receiver<Mark>,
    marked: Marked,
}

impl Marks {
    pub(super) fn new(receiver: Receiver<Mark>) -> Self {
        Self { receiver, marked: Marked::default() }
    }

    /// Returns when something is marked that has not been taken. Never returns if the store is gone.
    pub async fn changed(&mut self) {
        if !self.marked.is_empty() {
            return;
        }
        match self.receiver.recv().await {
            Ok(mark) => self.marked.add(mark),
            Err(RecvError::Lagged(_)) => self.marked = Marked::everybody(),
            Err(RecvError::Closed) => std::future::pending::<()>().await,
        }
    }

    /// Returns when something of a tenant is, or will be, due that need not be a step to claim: its tasks for workers, say.
    /// What is marked of others is taken, and forgotten.
    pub async fn of(&mut self, tenant: TenantId) {
        loop {
            self.changed().await;
            let marked = self.take();
            if marked.all || marked.tenants.contains(&tenant) {
                return;
            }
        }
    }

    /// Everything that was marked since this was last called.
    pub fn take(&mut self) -> Marked {
        loop {
            match self.receiver.try_recv() {
                Ok(mark) => self.marked.add(mark),
                Err(TryRecvError::Lagged(_)) => self.marked = Marked::everybody(),
                Err(TryRecvError::Empty | TryRecvError::Closed) => return std::mem::take(&mut self.marked),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn whoever_waits_for_a_tenant_sleeps_through_the_others() {
        let (tell, receiver) = tokio::sync::broadcast::channel(8);
        let mut marks = Marks::new(receiver);
        let [own, other] = [1, 2].map(|n| TenantId(Uuid::from_u128(n)));
        let queue = Queue { tenant: own, workflow: Uuid::nil().into() };
        for (told, is_woken) in [
            (vec![], false),
            (vec![Mark::Tenant(other)], false),
            // A step that is to be claimed is none that waits for a worker.
            (vec![Mark::Queue(queue)], false),
            (vec![Mark::Tenant(other), Mark::Tenant(own)], true),
            (vec![Mark::All], true),
            (vec![Mark::Tenant(other); 20], true),
        ] {
            for mark in &told {
                tell.send(*mark).expect("somebody hears");
            }
            let woken = tokio::time::timeout(Duration::ZERO, marks.of(own)).await;
            assert_eq!(woken.is_ok(), is_woken, "{told:?}");
        }
    }

    #[test]
    fn what_is_told_is_read_again() {
        let tenant = |n| TenantId(Uuid::from_u128(n));
        let some: BTreeSet<_> = (1..=3).map(tenant).collect();
        let told = Marked { tenants: some.clone(), ..Marked::default() };
        for (text, expected) in [
            (told.to_text(), told.clone()),
            (Marked::default().to_text(), Marked::default()),
            (Marked::everybody().to_text(), Marked::everybody()),
            ("of a later version".into(), Marked::everybody()),
        ] {
            assert_eq!(Marked::from_text(&text), expected, "{text:?}");
        }
        let many = Marked { tenants: (1..=201).map(tenant).collect(), ..Marked::default() };
        assert_eq!(Marked::from_text(&many.to_text()), Marked::everybody());
        let most = Marked { tenants: (1..=200).map(tenant).collect(), ..Marked::default() };
        assert!(most.to_text().len() + 40 < 8_000);
    }
}
