//! Natural batching: what arrives while a flush is under way goes with the next one.
//!
//! Nothing waits for a timer, so that what comes alone is flushed alone, at once.

use std::sync::Arc;

use tokio::sync::{Mutex, mpsc, oneshot};

use crate::StoreError;

/// Larger flushes trade latency for nothing.
const FLUSH_LEN_MAX: usize = 256;
/// While one flush waits for the disk, another is being computed.
const FLUSHERS: usize = 2;
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
        let (queue, arrivals) = mpsc::channel(QUEUE_LEN_MAX);
        let arrivals = Arc::new(Mutex::new(arrivals));
        for _ in 0..FLUSHERS {
            tokio::spawn(run(Arc::clone(&arrivals), flush.clone()));
        }
        Self { queue }
    }

    /// Waits for the verdict on `item`. If the caller is dropped meanwhile, it is flushed all the same.
    pub(crate) async fn submit(&self, item: T) -> Result<V, StoreError> {
        let (verdict, answer) = oneshot::channel();
        self.queue.send(Waiting { item, verdict }).await.map_err(|_| StoreError::TaskLost)?;
        answer.await.map_err(|_| StoreError::TaskLost)
    }
}

async fn run<T, V, F, R>(arrivals: Arc<Mutex<mpsc::Receiver<Waiting<T, V>>>>, flush: F)
where
    F: Fn(Vec<T>) -> R,
    R: Future<Output = Vec<V>>,
{
    loop {
        let mut gathered = Vec::new();
        // One flusher waits for arrivals at a time; the others are flushing.
        if arrivals.lock().await.recv_many(&mut gathered, FLUSH_LEN_MAX).await == 0 {
            return;
        }
        let (items, waiting): (Vec<T>, Vec<_>) =
            gathered.into_iter().map(|waiting| (waiting.item, waiting.verdict)).unzip();
        for (waiting, verdict) in waiting.into_iter().zip(flush(items).await) {
            // Whoever is gone needs no verdict.
            let _ = waiting.send(verdict);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex as Lock;

    use tokio::sync::Semaphore;

    use super::*;

    #[tokio::test]
    async fn what_arrives_during_a_flush_goes_with_the_next() {
        let gate = Arc::new(Semaphore::new(0));
        let flushed = Arc::new(Lock::new(vec![]));
        let gather = Gather::start({
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
        let gather = Arc::new(gather);
        let submit = |n: u32| {
            let gather = Arc::clone(&gather);
            tokio::spawn(async move { gather.submit(n).await.expect("a verdict") })
        };
        // As many flushes as there are flushers begin at once, with what is there; the rest gathers.
        let mut submitted = vec![];
        for n in 0..2 {
            submitted.push(submit(n));
            while flushed.lock().expect("whole").len() <= n as usize {
                tokio::task::yield_now().await;
            }
        }
        submitted.extend((2..300).map(&submit));
        tokio::task::yield_now().await;
        gate.add_permits(100);
        for (n, verdict) in submitted.into_iter().enumerate() {
            assert_eq!(verdict.await.expect("ends") as usize, n * 10);
        }
        let flushed = flushed.lock().expect("whole").clone();
        assert_eq!(flushed, [1, 1, FLUSH_LEN_MAX, 300 - 2 - FLUSH_LEN_MAX]);
    }

    #[tokio::test]
    async fn a_flush_that_breaks_off_is_told_to_its_callers() {
        let gather: Gather<(), ()> = Gather::start(|_| async { panic!("breaks off") });
        let error = gather.submit(()).await.expect_err("no verdict");
        assert!(error.is_transient());
    }
}
