//! The clock of an engine, as far as this process knows it.
//!
//! An engine tells the time with each answer. Its clock was read between the moment at which the
//! call was sent and the moment at which the answer came, so the present time of that clock is
//! known within bounds:
//!
//! ```text
//! this process   sent ───────────────────────────── received ────── now
//! the engine            began = B    clock = C
//!                at most B + (now − sent)           at least C + (now − received)
//! ```
//!
//! The difference is small, and each bound is used where the other would be unsafe (invariant 3 of
//! [`engine`](super)). The bounds of the fastest calls are the best, and are used for a while. A
//! reading outside of the bounds means that somebody has set the clock, or that this process was
//! suspended without its own clock going on: then only that reading is known.

use std::time::Duration;

use super::super::rules::Moment;
use crate::{
    sync::Mutex,
    time::{Instant, now},
};

/// A bound is used for this long. Two clocks move apart by less than a millisecond then.
const USED_FOR: Duration = Duration::from_secs(5);

/// How far two clocks move apart at most: 1 in this number.
const DRIFT: u32 = 10_000;

/// The engine's clock, as a call has read it.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Reading {
    /// When the call was sent.
    pub(in super::super) sent: Instant,
    /// The clock when the call had arrived.
    pub(in super::super) began: Moment,
    /// The clock when the value was read or changed.
    pub(in super::super) clock: Moment,
}

/// What is known of an engine's clock.
#[derive(Debug, Default)]
pub(super) struct Clock(Mutex<Bounds>);

#[derive(Debug, Default)]
struct Bounds {
    /// The clock after a moment.
    at_least: Option<(Moment, Instant)>,
    /// The clock before a moment.
    at_most: Option<(Moment, Instant)>,
    /// The upper bound that was last used.
    used: Option<(Moment, Instant)>,
}

/// The bounds of the present time on an engine's clock.
#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    pub(super) at_least: Moment,
    pub(super) at_most: Moment,
    /// The present time, on this process's clock.
    now: Instant,
}

impl Times {
    /// Whether the upper bound still held when a later call was made.
    pub(super) fn held_for(self, later: Reading) -> bool {
        later.began <= at_most((self.at_most, self.now), now())
    }
}

fn at_least((clock, since): (Moment, Instant), now: Instant) -> Moment {
    let age = now.saturating_duration_since(since);
    clock + (age - age / DRIFT)
}

fn at_most((clock, since): (Moment, Instant), now: Instant) -> Moment {
    let age = now.saturating_duration_since(since);
    clock + (age + age / DRIFT)
}

impl Clock {
    /// Takes a reading of which this process has just learnt.
    pub(super) fn learn(&self, reading: Reading) {
        let now = now();
        let is_old = |since: Instant| now.saturating_duration_since(since) > USED_FOR;
        let (least, most) = ((reading.clock, now), (reading.began, reading.sent));
        let mut bounds = self.0.lock();
        let was_set_back = |old| at_least(old, now) > at_most(most, now);
        let was_set_forward = |old| at_most(old, now) < at_least(least, now);
        if bounds.at_least.is_some_and(was_set_back) || bounds.at_most.is_some_and(was_set_forward)
        {
            *bounds = Bounds::default();
        }
        let better =
            |old: (Moment, Instant)| is_old(old.1) || at_least(least, now) >= at_least(old, now);
        if bounds.at_least.is_none_or(better) {
            bounds.at_least = Some(least);
        }
        let better =
            |old: (Moment, Instant)| is_old(old.1) || at_most(most, now) <= at_most(old, now);
        if bounds.at_most.is_none_or(better) {
            bounds.at_most = Some(most);
        }
    }

    /// The bounds of the present time. `None` if the clock was not read lately.
    pub(super) fn times(&self) -> Option<Times> {
        let now = now();
        let mut bounds = self.0.lock();
        let (least, most) = (bounds.at_least?, bounds.at_most?);
        let oldest = least.1.min(most.1);
        // Twice as long as a bound is preferred to newer ones.
        if now.saturating_duration_since(oldest) > USED_FOR * 2 {
            return None;
        }
        let at_least = at_least(least, now);
        // Time does not run backwards when the bound becomes better, only slower for a while.
        let used = bounds.used.map(|(used, at)| {
            let since = now.saturating_duration_since(at);
            used + since / 2
        });
        let at_most = at_most(most, now)
            .max(at_least)
            .max(used.unwrap_or(at_least));
        bounds.used = Some((at_most, now));
        Some(Times {
            at_least,
            at_most,
            now,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn micros(micros: u64) -> Duration {
        Duration::from_micros(micros)
    }

    /// An engine whose clock is this one, and a call that takes `there`, `inside` and `back`.
    async fn call(clock: &Clock, began: Instant, [there, inside, back]: [u64; 3]) {
        let read = || Moment(1_000_000) + now().saturating_duration_since(began);
        let sent = now();
        tokio::time::advance(micros(there)).await;
        let arrived = read();
        tokio::time::advance(micros(inside)).await;
        let reading = Reading {
            sent,
            began: arrived,
            clock: read(),
        };
        tokio::time::advance(micros(back)).await;
        clock.learn(reading);
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_is_within_the_bounds_and_fast_calls_make_them_narrow() {
        let (clock, began) = (Clock::default(), now());
        assert!(clock.times().is_none());
        for (trip, width) in [
            ([9_000, 70_000, 5_000], 14_100),
            ([100, 500_000, 200], 500),
            ([50_000, 0, 90_000], 600),
        ] {
            call(&clock, began, trip).await;
            let real = Moment(1_000_000) + now().saturating_duration_since(began);
            let times = clock.times().unwrap();
            assert!(times.at_least <= real && real <= times.at_most);
            assert!(times.at_most - times.at_least <= micros(width), "{times:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_clock_that_was_set_is_believed() {
        let (clock, began) = (Clock::default(), now());
        tokio::time::advance(Duration::from_secs(3600)).await;
        for set_to in [began, began + Duration::from_secs(1800), began] {
            call(&clock, set_to, [100, 100, 100]).await;
            let real = Moment(1_000_000) + now().saturating_duration_since(set_to);
            let times = clock.times().unwrap();
            assert!(times.at_least <= real && real <= times.at_most);
            assert!(times.at_most - times.at_least <= micros(300), "{times:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_time_of_long_ago_is_not_used() {
        let (clock, began) = (Clock::default(), now());
        call(&clock, began, [1, 1, 1]).await;
        tokio::time::advance(USED_FOR).await;
        assert!(clock.times().is_some());
        tokio::time::advance(USED_FOR * 2).await;
        assert!(clock.times().is_none());
    }
}
