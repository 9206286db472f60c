//! A gate for handlers.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use tokio::sync::Semaphore;

use crate::support::within;

/// Handlers wait here until the test lets them through.
#[derive(Clone, Default)]
pub(crate) struct Gate(Arc<Counts>);

struct Counts {
    arrived: Semaphore,
    open: Semaphore,
    inside: AtomicUsize,
    finished: AtomicUsize,
    dropped: AtomicUsize,
}

impl Default for Counts {
    fn default() -> Self {
        Self {
            arrived: Semaphore::new(0),
            open: Semaphore::new(0),
            inside: AtomicUsize::new(0),
            finished: AtomicUsize::new(0),
            dropped: AtomicUsize::new(0),
        }
    }
}

impl Gate {
    /// Reports the arrival of a handler, and waits for [`open`](Self::open).
    pub(crate) async fn pass(&self) {
        let visit = Visit(self.0.clone());
        self.0.inside.fetch_add(1, Ordering::SeqCst);
        self.0.arrived.add_permits(1);
        self.0.open.acquire().await.unwrap().forget();
        self.0.finished.fetch_add(1, Ordering::SeqCst);
        self.0.inside.fetch_sub(1, Ordering::SeqCst);
        std::mem::forget(visit);
    }

    /// Waits until one more handler has arrived.
    pub(crate) async fn arrival(&self) {
        within("a handler to be run", self.0.arrived.acquire())
            .await
            .unwrap()
            .forget();
    }

    /// Lets one handler through.
    pub(crate) fn open(&self) {
        self.0.open.add_permits(1);
    }

    pub(crate) fn inside(&self) -> usize {
        self.0.inside.load(Ordering::SeqCst)
    }

    pub(crate) fn finished(&self) -> usize {
        self.0.finished.load(Ordering::SeqCst)
    }

    /// The number of handlers that were dropped while they waited.
    pub(crate) fn dropped(&self) -> usize {
        self.0.dropped.load(Ordering::SeqCst)
    }
}

struct Visit(Arc<Counts>);

impl Drop for Visit {
    fn drop(&mut self) {
        self.0.dropped.fetch_add(1, Ordering::SeqCst);
        self.0.inside.fetch_sub(1, Ordering::SeqCst);
    }
}
