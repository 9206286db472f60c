//! The core's clock, and points in time that cannot overflow.
//!
//! Time is tokio's, which tests can pause. Under the model checker (`--cfg shuttle`) it is a virtual clock that the test moves.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

pub(crate) use tokio::time::Instant;

#[cfg(shuttle)]
pub(crate) mod model;
#[cfg(shuttle)]
pub(crate) use model::{Sleep, now, sleep_until};
#[cfg(not(shuttle))]
pub(crate) use tokio::time::{Sleep, sleep_until};

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
pub(crate) fn timeout<F: Future>(limit: Duration, future: F) -> Timeout<F> {
    Timeout {
        limit: Limit::After(limit),
        future,
        sleep: None,
    }
}

/// The result of a future, or `None` if it is not there at a point in time.
pub(crate) fn timeout_at<F: Future>(at: Instant, future: F) -> Timeout<F> {
    Timeout {
        limit: Limit::At(at),
        future,
        sleep: None,
    }
}

/// See [`timeout`]. The timer is made when the future is first found pending: many are ready at once, and a timer is not free.
#[pin_project::pin_project]
pub(crate) struct Timeout<F> {
    limit: Limit,
    #[pin]
    future: F,
    #[pin]
    sleep: Option<Sleep>,
}

#[derive(Clone, Copy)]
enum Limit {
    /// Counted from the first poll.
    After(Duration),
    At(Instant),
}

impl<F: Future> Future for Timeout<F> {
    type Output = Option<F::Output>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        if let Poll::Ready(output) = this.future.poll(cx) {
            return Poll::Ready(Some(output));
        }
        if this.sleep.is_none() {
            let at = match *this.limit {
                Limit::After(limit) => later(now(), limit),
                Limit::At(at) => at,
            };
            this.sleep.set(Some(sleep_until(at)));
        }
        let sleep = this.sleep.as_pin_mut();
        sleep.map_or(Poll::Pending, |sleep| sleep.poll(cx).map(|()| None))
    }
}

/// `now + duration`, or a far point in time if the sum cannot be represented.
pub(crate) fn later(now: Instant, duration: Duration) -> Instant {
    now + duration.min(FAR)
}
