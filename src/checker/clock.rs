//! Virtual time: passes in small jumps at any moment, and to the next timer when nothing else can happen.

use std::{
    cell::Cell,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use shuttle::scheduler::{Schedule, Scheduler, Task, TaskId};

use super::random::Random;
use crate::time::{Instant, model, now, sleep_until};

/// A scheduler has found a violation, and the others stop.
static FAILED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// How many tasks could have run at the last decision of the scheduler.
    static RUNNABLE: Cell<usize> = const { Cell::new(0) };
}

/// A scheduler that lets the world know whether any other task can run.
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
        // A scheduler of shuttle prints the seed of a failure in its drop, also without a failure.
        if !std::thread::panicking() {
            std::mem::forget(self.0.take());
        }
    }
}

impl<S: Scheduler> Scheduler for Watched<S> {
    fn new_execution(&mut self) -> Option<Schedule> {
        match FAILED.load(Ordering::Relaxed) {
            true => None,
            false => self.inner().new_execution(),
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

/// Remembers that an execution has failed, if this is dropped by a panic.
pub(super) struct RemembersFailure;

impl Drop for RemembersFailure {
    fn drop(&mut self) {
        if std::thread::panicking() {
            FAILED.store(true, Ordering::Relaxed);
        }
    }
}

/// Lets other tasks run. Says whether none could.
pub(super) async fn nothing_else_runs() -> bool {
    shuttle::future::yield_now().await;
    RUNNABLE.get() == 1
}

/// Lets all other tasks run until each waits for something. Time does not pass.
pub(super) async fn settle() {
    while !nothing_else_runs().await {}
}

/// Jumps to the next timer, if there is one. Says how much time has passed.
pub(super) fn jump() -> Option<Duration> {
    let time = model::next_timer()?.saturating_duration_since(now());
    model::advance(time);
    Some(time)
}

/// A small step into the future, while other tasks are in the middle of something.
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
