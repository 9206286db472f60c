//! The clock of the core, and arithmetic on points in time that cannot overflow.
//!
//! The clock is tokio's, which tests can pause. Under the model checker (`--cfg shuttle`), the
//! clock is a virtual one that the test advances.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

#[cfg(not(shuttle))]
use tokio::runtime::Handle;
use tokio::runtime::Id;
pub(crate) use tokio::time::Instant;

use crate::sync::random;

#[cfg(shuttle)]
pub(crate) mod model;
#[cfg(shuttle)]
pub(crate) use model::{Sleep, now, sleep_until};
#[cfg(not(shuttle))]
pub(crate) use tokio::time::{Sleep, sleep_until};

/// So far in the future that no timer waits for it, and near enough to be a valid [`Instant`]
/// everywhere, and for the clock of every store to be added to it.
pub(crate) const FAR: Duration = Duration::from_secs(60 * 60 * 24 * 365 * 30);

/// The current time.
#[cfg(not(shuttle))]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Whether the current runtime has a time driver. Without one, creating a timer panics.
pub(crate) fn can_sleep() -> bool {
    #[cfg(shuttle)]
    return true;
    #[cfg(not(shuttle))]
    return tokio::runtime::Handle::try_current().is_ok()
        && std::panic::catch_unwind(|| drop(tokio::time::sleep(Duration::ZERO))).is_ok();
}

/// Resolves to the output of a future, or to `None` once `limit` has passed. Without a limit, never
/// to `None`.
pub(crate) fn timeout<F: Future>(limit: impl Into<Option<Duration>>, future: F) -> Timeout<F> {
    Timeout {
        limit: limit.into(),
        at: None,
        future,
        sleep: None,
        runtime: None,
    }
}

/// Resolves to the output of a future, or to `None` at a point in time.
pub(crate) fn timeout_at<F: Future>(at: Instant, future: F) -> Timeout<F> {
    Timeout {
        at: Some(at),
        ..timeout(None, future)
    }
}

/// The future of [`timeout`] and [`timeout_at`]. The timer is created only when the inner future is
/// first pending: many futures are ready at once, and a timer is not free.
///
/// A timer of tokio belongs to a runtime, and panics when it is polled after the end of that
/// runtime. The timer is therefore created anew when another runtime polls the future: the question
/// of a request, for example, which the background takes over.
#[pin_project::pin_project]
pub(crate) struct Timeout<F> {
    /// Counted from the first poll.
    limit: Option<Duration>,
    at: Option<Instant>,
    #[pin]
    future: F,
    #[pin]
    sleep: Option<Sleep>,
    /// The runtime of the timer.
    runtime: Option<Id>,
}

impl<F> Timeout<F> {
    pub(crate) fn get_ref(&self) -> &F {
        &self.future
    }

    /// The future, before its first poll.
    pub(crate) fn get_mut(&mut self) -> &mut F {
        &mut self.future
    }

    pub(crate) fn limit(&self) -> Option<Duration> {
        self.limit
    }

    /// Changes the limit, before the first poll.
    pub(crate) fn set_limit(&mut self, limit: Option<Duration>) {
        self.limit = limit;
    }
}

impl<F: Future> Future for Timeout<F> {
    type Output = Option<F::Output>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        if let Poll::Ready(output) = this.future.poll(cx) {
            return Poll::Ready(Some(output));
        }
        let here = current_runtime();
        if here.is_none() && cfg!(not(shuttle)) {
            // Outside of a runtime there are no timers: the next poll within one creates it.
            return Poll::Pending;
        }
        if this.sleep.is_none() || *this.runtime != here {
            let limit = *this.limit;
            let first = || limit.map(|limit| later(now(), limit));
            let Some(at) = this.at.or_else(first) else {
                return Poll::Pending;
            };
            *this.at = Some(at);
            *this.runtime = here;
            this.sleep.set(Some(sleep_until(at)));
        }
        let sleep = this.sleep.as_pin_mut();
        sleep.map_or(Poll::Pending, |sleep| sleep.poll(cx).map(|()| None))
    }
}

/// The current runtime, if there is one.
fn current_runtime() -> Option<Id> {
    #[cfg(shuttle)]
    return None;
    #[cfg(not(shuttle))]
    return Handle::try_current().ok().map(|runtime| runtime.id());
}

/// `now + duration`, or a far point in time if the sum cannot be represented.
pub(crate) fn later(now: Instant, duration: Duration) -> Instant {
    now + duration.min(FAR)
}

/// A pause after each of several failures in a row: twice as long as the one before.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct BackOff(Duration);

impl BackOff {
    /// The pause after one more failure, within these bounds.
    pub(crate) fn lengthen(&mut self, first: Duration, longest: Duration) -> Duration {
        self.0 = (self.0 * 2).max(first).min(longest);
        self.0
    }

    /// The last pause. Zero if nothing has failed since the last success.
    pub(crate) fn last(self) -> Duration {
        self.0
    }
}

/// Shortens a pause at random by up to `part` of it, so that instances do not act in step.
pub(crate) fn jittered(pause: Duration, part: f64) -> Duration {
    pause.mul_f64(1.0 - part * random())
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::{
        future::{pending, poll_fn},
        pin::pin,
    };

    use tokio::runtime::{Builder, Runtime};

    use super::*;

    fn runtime() -> Runtime {
        Builder::new_current_thread().enable_time().build().unwrap()
    }

    #[test]
    fn a_pause_doubles_up_to_its_bound_and_begins_anew_after_a_success() {
        let mut back_off = BackOff::default();
        let [first, longest] = [20, 100].map(Duration::from_millis);
        let pauses = [(); 4].map(|()| back_off.lengthen(first, longest).as_millis());
        assert_eq!(pauses, [20, 40, 80, 100]);
        assert_eq!(back_off.last(), longest);
        back_off = BackOff::default();
        assert!(back_off.last().is_zero());
        assert_eq!(back_off.lengthen(first, longest), first);
    }

    #[test]
    fn a_time_limit_outlives_the_runtime_of_its_first_poll() {
        let (first, next) = (runtime(), runtime());
        let mut limited = pin!(timeout(Duration::from_millis(20), pending::<()>()));
        let poll_once = poll_fn(|cx| Poll::Ready(limited.as_mut().poll(cx)));
        assert!(first.block_on(poll_once).is_pending());
        drop(first);
        assert_eq!(next.block_on(limited), None);
    }
}
