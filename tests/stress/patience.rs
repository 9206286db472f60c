//! Futures that are dropped before their end.

use std::{future::poll_fn, pin::pin, task::Poll, time::Duration};

use super::{
    random::Random,
    subject::{Instant, now},
};

/// When a future is dropped before its end.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Patience {
    /// After so many polls.
    Polls(u64),
    /// When the future is woken once more after so many polls: the result that woke the future is
    /// not taken.
    Wakes(u64),
    /// At this time. The future is polled without a pause until then, so that microseconds count.
    Until(Instant),
    Endless,
}

impl Patience {
    /// Some futures are dropped after few polls, most are not.
    pub(crate) fn by_polls(random: &mut Random) -> Self {
        match random.within(0..10) {
            0 | 1 => Self::Polls(random.within(0..6)),
            2 => Self::Wakes(random.within(0..6)),
            _ => Self::Endless,
        }
    }

    pub(crate) fn by_time(random: &mut Random, most: Duration) -> Self {
        Self::Until(now() + random.micros(0..most.as_micros() as u64))
    }

    /// The output of the future, or `None` if the future was dropped before.
    pub(crate) async fn of<F: Future>(self, future: F) -> Option<F::Output> {
        let mut polls = 0;
        let mut future = pin!(future);
        poll_fn(|cx| {
            let is_over = match self {
                Self::Polls(most) | Self::Wakes(most) => polls >= most,
                Self::Until(end) => {
                    cx.waker().wake_by_ref();
                    now() >= end
                }
                Self::Endless => false,
            };
            if is_over {
                return Poll::Ready(None);
            }
            polls += 1;
            let outcome = future.as_mut().poll(cx).map(Some);
            match self {
                Self::Polls(most) if polls >= most && outcome.is_pending() => Poll::Ready(None),
                _ => outcome,
            }
        })
        .await
    }
}
