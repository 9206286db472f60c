//! The one background task of an instance: it looks after the leases when their time has come, and receives the store's hints.
//!
//! 1. The task never waits for the store, so a store that hangs cannot keep a loss from being told.
//! 2. The task holds the instance weakly, and ends with it.
//! 3. The task is gone when its runtime is. The next use of the instance within a runtime starts a new task, which
//!    finds every lease where the old one left it. Whoever watches for a loss is woken, so that this use comes soon.
//! 4. The task looks at the leases at `looks_at`, which is never later than the earliest time that a lease is scheduled for: whoever
//!    schedules a lease lowers it ([`Scheduler::look_by`]), and only a look at all leases raises it. A lease that is gone
//!    before its time costs nothing but that one look, for many leases together.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use crate::{
    store::{Hint, Hints},
    sync::{
        Mutex, Notify, Runtime,
        atomic::{AtomicBool, AtomicU64, Ordering},
        yield_now,
    },
    time::{Instant, can_sleep, later, now, sleep_until},
};

/// After so many rounds the task lets others run, should it have been ready all the time.
const ROUNDS_AT_ONCE: u64 = 32;

/// No time is later.
const NEVER: u64 = u64::MAX;

/// What the scheduler tells its instance.
pub(crate) trait LeaseEvents: Send + Sync + 'static {
    /// Where hints come from, asked for at each start of the task.
    fn watch(&self) -> Hints;
    /// The store says that something may be worth doing at once.
    fn on_hint(self: &Arc<Self>, hint: Hint);
    /// Looks after every lease whose time has come. Returns the time of the next one.
    fn on_time(self: &Arc<Self>, now: Instant) -> Option<Instant>;
    /// The task has ended: nothing calls `on_time` until the next start.
    fn on_stop(&self);
}

pub(crate) struct Scheduler {
    /// `looks_at` was lowered.
    changed: Notify,
    /// When the task looks at the leases, in nanoseconds from `epoch` on.
    looks_at: AtomicU64,
    epoch: Instant,
    closed: AtomicBool,
    running: AtomicBool,
    /// Where the task runs, or ran.
    runtime: Mutex<Option<Runtime>>,
}

impl Scheduler {
    pub(crate) fn new() -> Self {
        Self {
            changed: Notify::new(),
            looks_at: AtomicU64::new(NEVER),
            epoch: now(),
            closed: AtomicBool::new(false),
            running: AtomicBool::new(false),
            runtime: Mutex::new(None),
        }
    }

    /// Starts the task, unless it runs. Says `false` if there is no runtime with a clock to run it on.
    pub(crate) fn start<E: LeaseEvents>(self: &Arc<Self>, events: &Arc<E>) -> bool {
        if self.is_running() {
            return true;
        }
        let Some(runtime) = Runtime::current().filter(|_| can_sleep()) else {
            return false;
        };
        if !self.running.swap(true, Ordering::AcqRel) {
            *self.runtime.lock() = Some(runtime.clone());
            let hints = events.watch();
            let running = Running {
                scheduler: self.clone(),
                events: Arc::downgrade(events),
            };
            runtime.spawn(run(running, hints));
        }
        // A runtime that is shutting down has dropped the task by now.
        self.is_running()
    }

    pub(crate) fn is_running(&self) -> bool {
        self.running.load(Ordering::Acquire)
    }

    /// Where the task runs, or ran last.
    pub(crate) fn runtime(&self) -> Option<Runtime> {
        self.runtime.lock().clone()
    }

    /// Whether the task runs where the caller does, so that both are driven or none is.
    pub(crate) fn is_on_this_runtime(&self) -> bool {
        let runtime = self.runtime.lock();
        runtime.as_ref().is_some_and(Runtime::is_current)
    }

    /// The instance is gone: end the task.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.changed.notify_one();
    }

    /// A lease needs attention at this time. Called after the lease was scheduled, under the lock of its schedule.
    pub(crate) fn look_by(&self, at: Instant) {
        let at = self.nanos(at);
        // Mostly the task looks earlier anyway, and nothing is written that other threads read.
        if at < self.looks_at.load(Ordering::Acquire)
            && at < self.looks_at.fetch_min(at, Ordering::AcqRel)
        {
            self.changed.notify_one();
        }
    }

    /// Looks at all leases now.
    fn look<E: LeaseEvents>(&self, events: &Arc<E>) {
        // Raised first: a lease that is scheduled while others are looked at lowers it again.
        self.looks_at.store(NEVER, Ordering::Release);
        if let Some(next) = events.on_time(now()) {
            self.looks_at.fetch_min(self.nanos(next), Ordering::AcqRel);
        }
    }

    fn looks_at(&self) -> Option<Instant> {
        let at = self.looks_at.load(Ordering::Acquire);
        (at != NEVER).then(|| later(self.epoch, Duration::from_nanos(at)))
    }

    fn nanos(&self, at: Instant) -> u64 {
        let nanos = at.saturating_duration_since(self.epoch).as_nanos();
        u64::try_from(nanos).unwrap_or(NEVER - 1)
    }
}

async fn run<E: LeaseEvents>(running: Running<E>, mut hints: Hints) {
    let scheduler = &*running.scheduler;
    // An earlier task may have left leases behind that nobody has looked at since.
    if let Some(events) = running.events.upgrade() {
        scheduler.look(&events);
    }
    for round in 1_u64.. {
        if scheduler.closed.load(Ordering::Acquire) {
            return;
        }
        tokio::select! {
            biased;
            () = scheduler.changed.notified() => {}
            () = sleep_until_some(scheduler.looks_at()) => {
                if let Some(events) = running.events.upgrade() {
                    scheduler.look(&events);
                }
            }
            Some(hint) = hints.recv() => {
                if let Some(events) = running.events.upgrade() {
                    events.on_hint(hint);
                }
            }
        }
        if round.is_multiple_of(ROUNDS_AT_ONCE) {
            yield_now().await;
        }
    }
}

async fn sleep_until_some(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// The mark of the task that runs, taken away however the task ends.
struct Running<E: LeaseEvents> {
    scheduler: Arc<Scheduler>,
    events: Weak<E>,
}

impl<E: LeaseEvents> Drop for Running<E> {
    fn drop(&mut self) {
        self.scheduler.running.store(false, Ordering::Release);
        if let Some(events) = self.events.upgrade() {
            events.on_stop();
        }
    }
}

#[cfg(test)]
mod tests;
