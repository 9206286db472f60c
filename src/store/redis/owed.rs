//! The releases that were started and not answered.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use tokio::sync::Notify;

/// Counts the releases of a store that are still owed to the server, clean-ups included.
#[derive(Debug, Clone, Default)]
pub(super) struct Owed(Arc<Count>);

#[derive(Debug, Default)]
struct Count {
    releases: AtomicUsize,
    none_left: Notify,
}

/// One release that is owed. Whoever drops the debt has had the release answered, or has given it up.
#[derive(Debug)]
pub(super) struct Debt(Arc<Count>);

impl Owed {
    pub(super) fn count(&self) -> usize {
        self.0.releases.load(Ordering::Acquire)
    }

    pub(super) fn debt(&self) -> Debt {
        self.0.releases.fetch_add(1, Ordering::AcqRel);
        Debt(self.0.clone())
    }

    /// Resolves when no release is owed.
    pub(super) async fn settled(&self) {
        loop {
            let mut none_left = std::pin::pin!(self.0.none_left.notified());
            // Registered before the count is read: a debt dropped in between is not missed.
            none_left.as_mut().enable();
            if self.count() == 0 {
                return;
            }
            none_left.await;
        }
    }
}

impl Drop for Debt {
    fn drop(&mut self) {
        if self.0.releases.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.none_left.notify_waiters();
        }
    }
}
