//! Points in time that cannot overflow.

use std::time::Duration;

use tokio::time::Instant;

/// So far away that nobody waits for it, and near enough to be a valid [`Instant`] anywhere.
const FAR: Duration = Duration::from_secs(60 * 60 * 24 * 365 * 30);

/// `now + duration`, or a far point in time where that is none.
pub(crate) fn later(now: Instant, duration: Duration) -> Instant {
    now + duration.min(FAR)
}
