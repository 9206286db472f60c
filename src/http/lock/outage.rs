//! The memory of a store that was out of reach, for layers that fail open.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// For this long after a failure, no request asks the store. After that, one request does in each
/// such time.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// When a store that was out of reach is worth another try.
///
/// A request to a store that hangs waits for as long as it may. After a failure, one request per
/// [`RETRY_AFTER`] asks the store, and all others pass without a lock.
#[derive(Debug, Default)]
pub(super) struct Outage {
    retry_at: Mutex<Option<Instant>>,
}

impl Outage {
    /// Whether a request may pass without asking the store. After a `false`, the answer is `true`
    /// for a moment.
    pub(super) fn is_on(&self) -> bool {
        let mut retry_at = self.lock();
        let now = Instant::now();
        match *retry_at {
            None => false,
            Some(at) if now < at => true,
            Some(_) => {
                *retry_at = Some(now + RETRY_AFTER);
                false
            }
        }
    }

    /// The store was out of reach. Returns whether the outage is new.
    pub(super) fn begin(&self) -> bool {
        let retry_at = Instant::now() + RETRY_AFTER;
        self.lock().replace(retry_at).is_none()
    }

    /// The store has answered.
    pub(super) fn end(&self) {
        *self.lock() = None;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        self.retry_at.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
