//! Guest CPU: a ticker that moves the engine's epoch, and a meter that counts the ticks of one execution.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

use counterfoil_domain::limits::CPU_TICK_MS;
use wasmtime::Engine;

/// Moves the epoch of one engine until it is dropped.
pub(crate) struct Ticker {
    ticks: Arc<AtomicU64>,
    thread: thread::Thread,
}

impl Ticker {
    /// # Errors
    /// If the process can have no further thread.
    pub(crate) fn start(engine: &Engine) -> std::io::Result<Self> {
        let ticks = Arc::new(AtomicU64::new(0));
        let counted = Arc::downgrade(&ticks);
        let engine = engine.weak();
        let (begun, has_begun) = mpsc::sync_channel(1);
        let handle = thread::Builder::new().name("epoch".into()).spawn(move || {
            // Whoever started it may have gone on without it.
            let _ = begun.send(());
            while let (Some(engine), Some(ticks)) = (engine.upgrade(), counted.upgrade()) {
                ticks.fetch_add(1, Ordering::Relaxed);
                engine.increment_epoch();
                drop((engine, ticks));
                thread::park_timeout(Duration::from_millis(CPU_TICK_MS));
            }
        })?;
        // A thread that has not begun makes system calls that its process may be about to give up.
        has_begun.recv().map_err(std::io::Error::other)?;
        Ok(Self { ticks, thread: handle.thread().clone() })
    }

    /// A meter that has not begun to count.
    pub(crate) fn meter(&self, cpu_ms_max: u64) -> Arc<Meter> {
        Arc::new(Meter {
            ticks: Arc::clone(&self.ticks),
            budget: cpu_ms_max.div_ceil(CPU_TICK_MS).max(1),
            spent: AtomicU64::new(0),
            counted_until: AtomicU64::new(0),
        })
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.thread.unpark();
    }
}

/// Counts the ticks that pass while the execution is polled. While it waits for a host call, or for its turn, the
/// meter stands still.
///
/// Only one thread at a time polls an execution, so relaxed loads and stores do not race.
pub(crate) struct Meter {
    ticks: Arc<AtomicU64>,
    budget: u64,
    spent: AtomicU64,
    counted_until: AtomicU64,
}

impl Meter {
    /// Counts up to now and says whether the budget is used up.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.count();
        self.spent.load(Ordering::Relaxed) >= self.budget
    }

    /// What was counted, in milliseconds.
    pub(crate) fn spent_ms(&self) -> u64 {
        self.spent.load(Ordering::Relaxed) * CPU_TICK_MS
    }

    fn resume(&self) {
        self.counted_until.store(self.ticks.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    fn count(&self) {
        let now = self.ticks.load(Ordering::Relaxed);
        let since = self.counted_until.swap(now, Ordering::Relaxed);
        self.spent.fetch_add(now.saturating_sub(since), Ordering::Relaxed);
    }
}

/// Runs the meter whenever the future is polled.
pub(crate) struct Metered<F> {
    pub(crate) meter: Arc<Meter>,
    pub(crate) future: F,
}

impl<F: Future + Unpin> Future for Metered<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        self.meter.resume();
        let poll = Pin::new(&mut self.future).poll(context);
        self.meter.count();
        poll
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meter(budget: u64) -> Meter {
        Meter { ticks: Arc::default(), budget, spent: AtomicU64::new(0), counted_until: AtomicU64::new(0) }
    }

    #[test]
    fn only_ticks_between_resume_and_count_are_spent() {
        let meter = meter(3);
        let tick = |count| meter.ticks.fetch_add(count, Ordering::Relaxed);
        tick(100);
        meter.resume();
        tick(2);
        assert!(!meter.is_exhausted());
        meter.count();
        tick(100);
        meter.resume();
        meter.count();
        assert_eq!(meter.spent_ms(), 2 * CPU_TICK_MS);
        meter.resume();
        tick(1);
        assert!(meter.is_exhausted());
    }

    #[test]
    fn a_ticker_moves_the_epoch_and_ends_with_its_engine() {
        let engine = crate::engine::engine(
            crate::engine::Allocation::OnDemand,
            1,
            &counterfoil_domain::limits::StepLimits::DEFAULT,
        )
        .expect("an engine");
        let ticker = Ticker::start(&engine).expect("a thread");
        let seen = ticker.ticks.load(Ordering::Relaxed);
        while ticker.ticks.load(Ordering::Relaxed) == seen {
            thread::yield_now();
        }
        let ticks = Arc::downgrade(&ticker.ticks);
        drop(ticker);
        while ticks.upgrade().is_some() {
            thread::yield_now();
        }
    }
}
