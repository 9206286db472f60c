//! The virtual clock of the model checker, which only the test advances.
//!
//! Each thread of the test runner has its own clock: shuttle runs all tasks of an execution on the
//! thread that began the execution.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    pin::Pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use super::{Instant, later};

thread_local! {
    static CLOCK: RefCell<Clock> = RefCell::new(Clock::new());
}

struct Clock {
    now: Instant,
    next_sleeper: u64,
    sleepers: BTreeMap<(Instant, u64), Waker>,
}

impl Clock {
    fn new() -> Self {
        Self {
            now: Instant::now(),
            next_sleeper: 0,
            sleepers: BTreeMap::new(),
        }
    }
}

/// The current time.
pub(crate) fn now() -> Instant {
    CLOCK.with_borrow(|clock| clock.now)
}

/// Resets the clock for a new execution.
pub(crate) fn reset() {
    // Dropped outside of the borrow: dropping a waker may run code of shuttle.
    let old = CLOCK.with(|clock| clock.replace(Clock::new()));
    drop(old);
}

/// When the next sleeper wakes up, if there is one.
pub(crate) fn next_timer() -> Option<Instant> {
    CLOCK.with_borrow(|clock| clock.sleepers.keys().next().map(|(at, _)| *at))
}

/// Advances the clock, and wakes all sleepers whose time has come.
pub(crate) fn advance(by: Duration) {
    let due = CLOCK.with_borrow_mut(|clock| {
        clock.now = later(clock.now, by);
        let rest = clock.sleepers.split_off(&(clock.now, u64::MAX));
        std::mem::replace(&mut clock.sleepers, rest)
    });
    due.into_values().for_each(Waker::wake);
}

/// Resolves at a point in time.
pub(crate) fn sleep_until(at: Instant) -> Sleep {
    let id = CLOCK.with_borrow_mut(|clock| {
        clock.next_sleeper += 1;
        clock.next_sleeper
    });
    Sleep { at, id }
}

pub(crate) struct Sleep {
    at: Instant,
    id: u64,
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let key = (self.at, self.id);
        let (outcome, old) = CLOCK.with_borrow_mut(|clock| {
            if clock.now >= self.at {
                (Poll::Ready(()), clock.sleepers.remove(&key))
            } else {
                let waker = cx.waker().clone();
                (Poll::Pending, clock.sleepers.insert(key, waker))
            }
        });
        drop(old);
        outcome
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        let old = CLOCK.with_borrow_mut(|clock| clock.sleepers.remove(&(self.at, self.id)));
        drop(old);
    }
}
