//! Remembers that calls wait for a runtime.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

/// Set when a lane, or a key of `key_order`, has calls and no task that makes them: there was no runtime, or the task has ended with its
/// runtime. The next call of the store from within a runtime resumes them.
#[derive(Debug, Clone, Default)]
pub(super) struct Stopped(Arc<AtomicBool>);

impl Stopped {
    pub(super) fn set(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether calls wait since the last `take`.
    pub(super) fn take(&self) -> bool {
        // The swap is left out where nothing waits: almost always, and all calls would write to the same cache line.
        self.0.load(Ordering::Acquire) && self.0.swap(false, Ordering::AcqRel)
    }
}
