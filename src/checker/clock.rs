//! Virtual time, which passes in small steps at any moment, and jumps to the next timer when no
//! task can run.

use std::{
    cell::Cell,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use shuttle::scheduler::{Schedule, Scheduler, Task, TaskId};

use super::random::Random;
use crate::time::{Instant, model, now, sleep_until};

/// Set when one scheduler has found a violation, so that the others stop.
static FAILED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// How many tasks could run at the scheduler's last decision.
    static RUNNABLE: Cell<usize> = const { Cell::new(0) };
}

/// A scheduler that records whether any other task can run.
#[derive(Debug)]
pub(super) struct Watched<S>(Option<S>);

impl<S> Watched<S> {
    pub(super) fn new(scheduler: S) -> Self {
        Self(Some(scheduler))
    }

    fn inner(&mut self) -> &mut S {
        self.0.as_mut().expect("taken only by the drop")
    }
}

impl<S> Drop for Watched<S> {
    fn drop(&mut self) {
        // Shuttle's schedulers print the seed of a failure when dropped, even without a failure.
        if !std::thread::panicking() {
            std::mem::forget(self.0.take());
        }
    }
}

impl<S: Scheduler> Scheduler for Watched<S> {
    fn new_execution(&mut self) -> Option<Schedule> {
        if FAILED.load(Ordering::Relaxed) {
            None
        } else {
            self.inner().new_execution()
        }
    }

    fn next_task(
        &mut self,
        runnable: &[&Task],
        current: Option<TaskId>,
        is_yielding: bool,
    ) -> Option<TaskId> {
        RUNNABLE.set(runnable.len());
        self.inner().next_task(runnable, current, is_yielding)
    }

    fn next_u64(&mut self) -> u64 {
        self.inner().next_u64()
    }
}

/// Records the failure of an execution when dropped by a panic.
pub(super) struct RemembersFailure;

impl Drop for RemembersFailure {
    fn drop(&mut self) {
        if std::thread::panicking() {
            FAILED.store(true, Ordering::Relaxed);
        }
    }
}

/// Yields to other tasks. Returns whether no other task could run.
pub(super) async fn nothing_else_runs() -> bool {
    shuttle::future::yield_now().await;
    RUNNABLE.get() == 1
}

/// Runs all other tasks until each of them waits. Time does not pass.
pub(super) async fn settle() {
    while !nothing_else_runs().await {}
}

/// Jumps to the next timer, if there is one. Returns how much time has passed.
pub(super) fn jump() -> Option<Duration> {
    let time = model::next_timer()?.saturating_duration_since(now());
    model::advance(time);
    Some(time)
}

/// Advances time by a small step, while other tasks are in the middle of their work.
pub(super) fn step(random: &mut Random) {
    model::advance(random.millis(0..20));
}

pub(super) async fn sleep(time: Duration) {
    sleep_until(now() + time).await;
}

pub(super) fn reset() -> Instant {
    model::reset();
    now()
}
