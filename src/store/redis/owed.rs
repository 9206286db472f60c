//! Counts the releases that were started and not answered.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use tokio::sync::Notify;

/// Counts the releases that a store still owes to the server, the releases of failed acquires included.
#[derive(Debug, Clone, Default)]
pub(super) struct Owed(Arc<Count>);

#[derive(Debug, Default)]
struct Count {
    releases: AtomicUsize,
    /// Whether a release has failed since none was owed.
    has_failed: AtomicBool,
    none_left: Notify,
}

/// One owed release. A debt is dropped when the server has answered the release, or when the release is given up.
#[derive(Debug)]
pub(super) struct Debt(Arc<Count>);

impl Owed {
    pub(super) fn count(&self) -> usize {
        self.0.releases.load(Ordering::Acquire)
    }

    /// Counts one more release, until the debt is dropped.
    pub(super) fn debt(&self) -> Debt {
        self.0.releases.fetch_add(1, Ordering::AcqRel);
        Debt(self.0.clone())
    }

    /// Notes that a release has failed and is still owed. Returns whether it is the first one since
    /// none was owed.
    pub(super) fn failed(&self) -> bool {
        !self.0.has_failed.swap(true, Ordering::AcqRel)
    }

    /// Resolves when no release is owed.
    pub(super) async fn settled(&self) {
        loop {
            let mut none_left = std::pin::pin!(self.0.none_left.notified());
            // Registered before the count is read, so that the drop of a debt in between is not missed.
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
            self.0.has_failed.store(false, Ordering::Release);
            self.0.none_left.notify_waiters();
        }
    }
}
