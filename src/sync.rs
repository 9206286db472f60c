//! The one lock of this crate, replaced when a model checker (`--cfg shuttle`) explores its interleavings.

#[cfg(shuttle)]
pub(crate) use shuttle::sync::MutexGuard;
#[cfg(not(shuttle))]
pub(crate) use std::sync::MutexGuard;

/// A mutex without poison: what it guards is consistent before anything under it can panic.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(
    #[cfg(shuttle)] shuttle::sync::Mutex<T>,
    #[cfg(not(shuttle))] std::sync::Mutex<T>,
);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        #[cfg(shuttle)]
        return Self(shuttle::sync::Mutex::new(value));
        #[cfg(not(shuttle))]
        return Self(std::sync::Mutex::new(value));
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
