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

/// Whether the present runtime has a time driver: without one, every timer panics when it is made.
pub(crate) fn can_sleep() -> bool {
    #[cfg(shuttle)]
    return true;
    #[cfg(not(shuttle))]
    return tokio::runtime::Handle::try_current().is_ok()
        && std::panic::catch_unwind(|| drop(tokio::time::sleep(Duration::ZERO))).is_ok();
}

/// The result of a future, or `None` if time is over before.
pub(crate) async fn timeout<F: Future>(limit: Duration, future: F) -> Option<F::Output> {
    timeout_at(later(now(), limit), future).await
}

/// The result of a future, or `None` if it is not there at a point in time.
pub(crate) async fn timeout_at<F: Future>(at: Instant, future: F) -> Option<F::Output> {
    tokio::select! {
        biased;
        output = future => Some(output),
        () = sleep_until(at) => None,
    }
}

/// `now + duration`, or a far point in time if the sum cannot be represented.
pub(crate) fn later(now: Instant, duration: Duration) -> Instant {
    now + duration.min(FAR)
}
