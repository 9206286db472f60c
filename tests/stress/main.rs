//! Stress with real threads: a world of a seed runs for a given time, and a witness watches its
//! properties.
//!
//! `TDL_STRESS_SECONDS` says how long each world runs (default: 2), `TDL_STRESS_SEED` repeats the
//! choices of a run. Threads interleave differently each time, so a seed repeats the kind of a
//! world more than its course.

mod memory;
mod patience;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redis")]
mod redis;
mod requests;
mod turns;
#[allow(dead_code)] // the model checker uses all of it
mod witness;
mod world;

use test_support as support;
use test_support::random;

/// The parts of the crate, the clock and the mutex that `turns` and the witness use.
mod subject {
    pub(crate) use tokio::time::Instant;
    pub(crate) use tower_distributed_lock::{
        Error, ErrorKind, LockGuard, Loss, Status, idempotency::RunOnceError, store::Mode,
    };

    pub(crate) fn now() -> Instant {
        Instant::now()
    }

    /// A mutex without poison.
    #[derive(Debug, Default)]
    pub(crate) struct Mutex<T>(std::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn lock(&self) -> std::sync::MutexGuard<'_, T> {
            self.0
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner)
        }
    }
}
