//! The core's clock, and points in time that cannot overflow.
//!
//! Time is tokio's, which tests can pause. Under the model checker (`--cfg shuttle`) it is a virtual clock that the test moves.

use std::time::Duration;

pub(crate) use tokio::time::Instant;

#[cfg(shuttle)]
pub(crate) mod model;
#[cfg(shuttle)]
pub(crate) use model::{now, sleep_until};
#[cfg(not(shuttle))]
pub(crate) use tokio::time::sleep_until;

/// So far away that nothing waits for it, and near enough to be a valid [`Instant`] anywhere.
const FAR: Duration = Duration::from_secs(60 * 60 * 24 * 365 * 30);

/// The present.
#[cfg(not(shuttle))]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// `now + duration`, or a far point in time if the sum cannot be represented.
pub(crate) fn later(now: Instant, duration: Duration) -> Instant {
    now + duration.min(FAR)
}
