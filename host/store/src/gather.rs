//! Natural batching: what arrives while a flush is under way goes with the next one.
//!
//! Nothing waits for a timer, so that what comes alone is flushed alone, at once.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, mpsc, oneshot};

use crate::StoreError;

/// Larger flushes trade latency for nothing.
const FLUSH_LEN_MAX: usize = 256;
/// Flushes that may be under way at once.
const FLUSHERS: usize = 2;
/// How long one flush is under way before another may begin: while it is quick, what arrives gathers, which costs the
/// database least; one that waits for a slow disk, or for a lock, holds nobody up.
const ALONE_FOR: Duration = Duration::from_millis(20);
/// How often everything that can run is let run once before a flush begins.
const PASSES_MAX: usize = 8;
/// Callers beyond these wait until there is room.
const QUEUE_LEN_MAX: usize = 4_096;

/// Gathers items, and hands each its own verdict.
#[derive(Debug)]
pub(crate) struct Gather<T, V> {
    queue: mpsc::Sender<Waiting<T, V>>,
}

#[derive(Debug)]
struct Waiting<T, V> {
    item: T,
    verdict: oneshot::Sender<V>,
}

impl<T: Send + 'static, V: Send + 'static> Gather<T, V> {
    /// Starts the tasks that flush; they end with this. `flush` gives one verdict an item, in order.
    pub(crate) fn start<F, R>(flush: F) -> Self
    where
        F: Fn(Vec<T>) -> R + Clone + Send + 'static,
        R: Future<Output = Vec<V>> + Send + 'static,
    {
        Self::start_with(ALONE_FOR, flush)
    }

    fn start_with<F, R>(alone_for: Duration, flush: F) -> Self
    where
        F: Fn(Vec<T>) -> R + Clone + Send + 'static,
        R: Future<Output = Vec<V>> + Send + 'static,
    {
        let (queue, arrivals) = mpsc::channel(QUEUE_LEN_MAX);
        let arrivals = Arc::new(Mutex::new(arrivals));
        for _ in 0..FLUSHERS {
            tokio::spawn(run(Arc::clone(&arrivals), alone_for, flush.clone()));
        }
        Self { queue }
    }

    /// Waits for the verdict on `item`. If the caller is dropped meanwhile, it is flushed all the same.
    ///
    /// # Errors
    /// [`StoreError::TaskLost`], which passes, if the flush broke off: what became of the item is not known.
    pub(crate) async fn submit(&self, item: T) -> Result<V, StoreError> {
        let (verdict, answer) = oneshot::channel();
        self.queue.send(Waiting { item, verdict }).await.map_err(|_| StoreError::TaskLost)?;
        answer.await.map_err(|_| StoreError::TaskLost)
    }
}

/// Lets whatever is about to come come first, as long as it does; on an idle host nothing is.
async fn gather_on<I>(arrivals: &mut mpsc::Receiver<I>, gathered: &mut Vec<I>) {
    for _ in 0..PASSES_MAX {
        // Of those that let others run, the last one runs first: whoever did so before this needs the second.
        for _ in 0..2 {
            tokio::task::yield_now().await;
        }
        let before = gathered.len();
        while gathered.len() < FLUSH_LEN_MAX
            && let Ok(arrived) = arrivals.try_recv()
        {
            gathered.push(arrived);
        }
        if gathered.len() == before {
            return;
        }
    }
}

async fn run<T, V, F, R>(arrivals: Arc<Mutex<mpsc::Receiver<Waiting<T, V>>>>, alone_for: Duration, flush: F)
where
    T: Send + 'static,
    V: Send + 'static,
    F: Fn(Vec<T>) -> R + Clone + Send + 'static,
    R: Future<Output = Vec<V>> + Send + 'static,
{
    loop {
        let mut gathered = Vec::new();
        // Whoever has the lock waits for arrivals, or is flushing and has not been for long.
        let mut turn = arrivals.lock().await;
        if turn.recv_many(&mut gathered, FLUSH_LEN_MAX).await == 0 {
            return;
        }
        gather_on(&mut turn, &mut gathered).await;
        let (items, waiting): (Vec<T>, Vec<_>) =
            gathered.into_iter().map(|waiting| (waiting.item, waiting.verdict)).unzip();
        // In a task of its own: one that breaks off takes its own items with it, and nobody who flushes.
        let flush = flush.clone();
        let mut flushing = tokio::spawn(async move { flush(items).await });
        let quick = tokio::time::timeout(alone_for, &mut flushing).await;
        drop(turn);
        let verdicts = match quick {
            Ok(verdicts) => verdicts,
            Err(_) => flushing.await,
        };
        let verdicts = match verdicts {
            Ok(verdicts) => verdicts,
            Err(error) => {
                let items = waiting.len();
                tracing::error!(
                    error = &error as &dyn Error,
                    items,
                    "a flush broke off, and its callers are told so"
                );
                continue;
            }
        };
        for (waiting, verdict) in waiting.into_iter().zip(verdicts) {
            // Whoever is gone needs no verdict.
            let _ = waiting.send(verdict);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex as Lock;

    use tokio::sync::Semaphore;
    use tokio::task::JoinHandle;

    use super::*;

    /// Flushes that are let go one by one, and what each of them had.
    struct Gated {
        gate: Arc<Semaphore>,
        flushed: Arc<Lock<Vec<usize>>>,
        gather: Arc<Gather<u32, u32>>,
    }

    fn gated(alone_for: Duration) -> Gated {
        let (gate, flushed) = (Arc::new(Semaphore::new(0)), Arc::new(Lock::new(vec![])));
        let gather = Gather::start_with(alone_for, {
            let (gate, flushed) = (Arc::clone(&gate), Arc::clone(&flushed));
            move |items: Vec<u32>| {
                let (gate, flushed) = (Arc::clone(&gate), Arc::clone(&flushed));
                async move {
                    flushed.lock().expect("whole").push(items.len());
                    gate.acquire().await.expect("open").forget();
                    items.into_iter().map(|item| item * 10).collect()
                }
            }
        });
        Gated { gate, flushed, gather: Arc::new(gather) }
    }

    fn submit(gather: &Arc<Gather<u32, u32>>, items: std::ops::Range<u32>) -> Vec<JoinHandle<u32>> {
        let submit = |n| {
            let gather = Arc::clone(gather);
            tokio::spawn(async move { gather.submit(n).await.expect("a verdict") })
        };
        items.map(submit).collect()
    }

    async fn verdicts(submitted: Vec<JoinHandle<u32>>) {
        for (n, verdict) in submitted.into_iter().enumerate() {
            assert_eq!(verdict.await.expect("ends") as usize, n * 10);
        }
    }

    #[tokio::test]
    async fn what_arrives_during_a_flush_goes_with_the_next() {
        let Gated { gate, flushed, gather } = gated(Duration::from_hours(1));
        let mut submitted = submit(&gather, 0..1);
        while flushed.lock().expect("whole").is_empty() {
            tokio::task::yield_now().await;
        }
        submitted.extend(submit(&gather, 1..300));
        while gather.queue.capacity() > QUEUE_LEN_MAX - 299 {
            tokio::task::yield_now().await;
        }
        gate.add_permits(3);
        verdicts(submitted).await;
        assert_eq!(*flushed.lock().expect("whole"), [1, FLUSH_LEN_MAX, 299 - FLUSH_LEN_MAX]);
    }

    #[tokio::test]
    async fn what_comes_one_after_the_other_goes_together() {
        let Gated { gate, flushed, gather } = gated(Duration::from_hours(1));
        gate.add_permits(PASSES_MAX);
        let after = |passes| {
            let gather = Arc::clone(&gather);
            tokio::spawn(async move {
                for _ in 0..passes {
                    tokio::task::yield_now().await;
                }
                gather.submit(passes).await.expect("a verdict")
            })
        };
        verdicts((0..4).map(after).collect()).await;
        assert_eq!(*flushed.lock().expect("whole"), [4]);
    }

    #[tokio::test]
    async fn a_flush_that_takes_long_holds_nobody_up() {
        let Gated { gate, flushed, gather } = gated(Duration::ZERO);
        let mut submitted = vec![];
        for n in 0..2 {
            submitted.extend(submit(&gather, n..n + 1));
            while flushed.lock().expect("whole").len() <= n as usize {
                tokio::task::yield_now().await;
            }
        }
        assert_eq!(*flushed.lock().expect("whole"), [1, 1], "two are under way");
        gate.add_permits(2);
        verdicts(submitted).await;
    }

    /// Once before there is a future, once within it: more often than there are flushers.
    #[tokio::test]
    async fn a_flush_that_breaks_off_fails_its_own_callers_and_no_others() {
        const BREAKS_AT_ONCE: u32 = 7;
        const BREAKS_LATER: u32 = 8;
        let gather = Gather::start(|items: Vec<u32>| {
            assert!(!items.contains(&BREAKS_AT_ONCE), "breaks off");
            async move {
                tokio::task::yield_now().await;
                assert!(!items.contains(&BREAKS_LATER), "breaks off");
                items.into_iter().map(|item| item * 10).collect::<Vec<_>>()
            }
        });
        for _ in 0..=FLUSHERS {
            for (item, expected) in [(BREAKS_AT_ONCE, None), (BREAKS_LATER, None), (1, Some(10))] {
                match gather.submit(item).await {
                    Ok(verdict) => assert_eq!(Some(verdict), expected),
                    Err(error) => {
                        assert!(matches!(error, StoreError::TaskLost) && error.is_transient());
                        assert_eq!(None, expected, "{item}");
                    }
                }
            }
        }
        let lost = futures::future::join_all([BREAKS_LATER, 1].map(|item| gather.submit(item))).await;
        assert!(lost.iter().all(Result::is_err), "those of one batch share its end: {lost:?}");
    }
}
