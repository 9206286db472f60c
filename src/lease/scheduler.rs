//! The one background task of an instance, which handles leases when their time has come and
//! receives the store's hints. Its runtime is that of all background work ([`Background`]).
//!
//! 1. The task never waits for the store, so a store that hangs cannot delay the report of a loss.
//! 2. The task holds the instance weakly, and ends with the instance.
//! 3. The task ends with its runtime. The next use of the instance within a runtime starts a new
//!    task, which finds every lease as the old task left it, and starts the contenders anew that
//!    were dropped with the runtime. Whoever waits for a turn or watches for a loss is woken when
//!    the task ends, so that such a use comes soon.
//! 4. The task looks at the leases at the time `looks_at`, which is never later than the earliest
//!    scheduled time of a lease: scheduling a lease lowers `looks_at` ([`Scheduler::look_by`]), and
//!    only a look at all leases raises it. A lease that is released before its time costs at most
//!    one look, which many such leases share.
//!
//! ```text
//! Line::schedule ──▶ look_by(at) ──▶ looks_at ──▶ the task sleeps until then ──▶ on_time: renewals and losses
//! Store::watch ──▶ Hints ───────────────────────▶ the task receives them ──────▶ on_hint: contenders ask, leases are doubted
//! Contender::drop ──▶ left_behind ──────────────▶ the task is notified ────────▶ take_over: contenders start anew
//! ```

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use super::Background;
use crate::{
    store::{Hint, Hints},
    sync::{
        Mutex, Notify, Runtime, RuntimeId, Thread,
        atomic::{AtomicBool, AtomicU64, Ordering},
        thread::{self, ThreadId},
        yield_now,
    },
    time::{Instant, can_sleep, later, now, sleep_until},
};

/// After this many rounds without a pause, the task yields to other tasks.
const ROUNDS_AT_ONCE: u64 = 32;

/// The value of `looks_at` while no lease is scheduled.
const NEVER: u64 = u64::MAX;

/// The scheduler's view of the instance.
pub(crate) trait LeaseEvents: Send + Sync + 'static {
    /// Subscribes to the hints of the store. Called at each start of the task.
    fn watch(&self) -> Hints;
    /// Handles a hint of the store.
    fn on_hint(self: &Arc<Self>, hint: Hint);
    /// Handles every lease whose time has come. Returns the time of the next one.
    fn on_time(self: &Arc<Self>, now: Instant) -> Option<Instant>;
    /// Starts the contenders anew that were [left behind](Scheduler::left_behind).
    fn take_over(self: &Arc<Self>);
    /// Called when the task has ended. Nothing calls the other methods until the next start.
    fn on_stop(&self);
}

/// Starts the background task of an instance, and tells the task when to look at the leases.
pub(crate) struct Scheduler {
    background: Background,
    /// Notified when `looks_at` was lowered, or contenders were left behind.
    changed: Notify,
    /// When the task looks at the leases next, in nanoseconds since `epoch`.
    looks_at: AtomicU64,
    epoch: Instant,
    /// Contenders were dropped with their runtime, and were not taken over yet.
    left_behind: AtomicBool,
    /// The instance is gone.
    closed: AtomicBool,
    /// The task exists.
    running: AtomicBool,
    /// The thread that is about to start the task, and holds the lock of `runtime`. A store that
    /// moves its connections tells callers and wakes tasks, which may come back here.
    starts_on: Mutex<Option<ThreadId>>,
    /// The runtime that has dropped the last task at once, because it shuts down.
    ended: Mutex<Option<RuntimeId>>,
    /// The runtime of the task, or of the last one.
    runtime: Mutex<Option<Runtime>>,
}

impl Scheduler {
    pub(crate) fn new(background: Background) -> Self {
        Self {
            background,
            changed: Notify::new(),
            looks_at: AtomicU64::new(NEVER),
            epoch: now(),
            left_behind: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            running: AtomicBool::new(false),
            starts_on: Mutex::new(None),
            ended: Mutex::new(None),
            runtime: Mutex::new(None),
        }
    }

    /// Starts the task, unless the task is running. Returns `false` if the caller is not within a
    /// runtime that has a time driver. Must not be called with a lock held.
    pub(crate) fn start<E: LeaseEvents>(self: &Arc<Self>, events: &Arc<E>) -> bool {
        self.is_running() || self.start_anew(events)
    }

    #[cold]
    fn start_anew<E: LeaseEvents>(self: &Arc<Self>, events: &Arc<E>) -> bool {
        if *self.starts_on.lock() == Some(thread::current().id()) {
            return true; // what the caller needs is found by the first look of the task
        }
        if !can_sleep() {
            return false;
        }
        let is_current = matches!(self.background, Background::Current);
        // A runtime that was given may have ended, and the current one is used in its place.
        !is_current && self.start_on(|| Home::given(&self.background), events)
            // A task that another caller has started, on a runtime that ends just now, is no reason
            // to give up.
            || (0..2).any(|_| self.start_on(Home::current, events))
    }

    /// Starts the task on the given runtime. Returns `false` if that runtime has ended.
    fn start_on<E: LeaseEvents>(
        self: &Arc<Self>,
        home: impl FnOnce() -> Option<Home>,
        events: &Arc<E>,
    ) -> bool {
        let mut current = self.runtime.lock();
        if self.is_running() {
            return true;
        }
        let Some(home) = home() else {
            return false;
        };
        let id = home.runtime.id();
        if id.is_some() && id == *self.ended.lock() {
            return false;
        }
        *current = Some(home.runtime.clone());
        // Before others may use the store: it moves its connections to the runtime of `watch`.
        let hints = {
            let _starts = Starts::new(self);
            let _entered = home.runtime.enter();
            events.watch()
        };
        self.running.store(true, Ordering::Release);
        drop(current);
        let running = Running {
            scheduler: self.clone(),
            events: Arc::downgrade(events),
        };
        home.runtime.spawn(async move {
            run(running, hints).await;
            drop(home.thread);
        });
        // A runtime that is shutting down has dropped the task by now.
        if !self.is_running() {
            *self.ended.lock() = id;
        }
        self.is_running()
    }

    /// Whether the task exists.
    pub(crate) fn is_running(&self) -> bool {
        self.running.load(Ordering::Acquire)
    }

    /// Spawns a task on the runtime of the background, or of the last one. Without any, or on one
    /// that has ended, the task is dropped.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let runtime = self.runtime.lock().clone();
        if let Some(runtime) = runtime {
            runtime.spawn(task);
        }
    }

    /// Notes that a line has lost its contender together with a runtime. The task, or the next one,
    /// takes over.
    pub(crate) fn left_behind(&self) {
        self.left_behind.store(true, Ordering::Release);
        self.changed.notify_one();
    }

    /// Ends the task, because the instance is gone.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.changed.notify_one();
    }

    /// Makes the task look at the leases at this time at the latest. Called after a lease was
    /// scheduled, under the lock of its schedule.
    pub(crate) fn look_by(&self, at: Instant) {
        let at = self.nanos(at);
        // In most cases the task looks earlier anyway, and a load is enough, which does not take
        // the cache line away from other threads.
        if at < self.looks_at.load(Ordering::Acquire)
            && at < self.looks_at.fetch_min(at, Ordering::AcqRel)
        {
            self.changed.notify_one();
        }
    }

    /// Looks at all leases now.
    fn look<E: LeaseEvents>(&self, events: &Arc<E>) {
        // Raised first, so that a lease which is scheduled during the look lowers `looks_at` again.
        self.looks_at.store(NEVER, Ordering::Release);
        if let Some(next) = events.on_time(now()) {
            self.looks_at.fetch_min(self.nanos(next), Ordering::AcqRel);
        }
    }

    /// When the task looks at the leases next, or `None` while no lease is scheduled.
    fn looks_at(&self) -> Option<Instant> {
        let at = self.looks_at.load(Ordering::Acquire);
        (at != NEVER).then(|| later(self.epoch, Duration::from_nanos(at)))
    }

    fn nanos(&self, at: Instant) -> u64 {
        let nanos = at.saturating_duration_since(self.epoch).as_nanos();
        u64::try_from(nanos).unwrap_or(NEVER - 1)
    }
}

/// The background task: waits for the next look, for an earlier one, and for hints.
async fn run<E: LeaseEvents>(running: Running<E>, mut hints: Hints) {
    let scheduler = &*running.scheduler;
    // An earlier task may have left leases behind that need attention.
    if let Some(events) = running.events.upgrade() {
        scheduler.look(&events);
    }
    for round in 1_u64.. {
        if scheduler.closed.load(Ordering::Acquire) {
            return;
        }
        if scheduler.left_behind.swap(false, Ordering::AcqRel)
            && let Some(events) = running.events.upgrade()
        {
            events.take_over();
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
        // A sleep would last until the timer's next tick, up to a millisecond, which a request may
        // wait for.
        Some(at) if at <= now() => {}
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// The runtime for the task.
struct Home {
    runtime: Runtime,
    /// The runtime's own thread, if it has one, which ends when this is dropped.
    thread: Option<Thread>,
}

impl Home {
    /// The current runtime.
    fn current() -> Option<Self> {
        let runtime = Runtime::current()?;
        Some(Self {
            runtime,
            thread: None,
        })
    }

    /// The runtime that was chosen. `None` if no thread can be started.
    fn given(background: &Background) -> Option<Self> {
        match background {
            Background::Current => Self::current(),
            Background::On(handle) => Some(Self {
                runtime: Runtime::of(handle),
                thread: None,
            }),
            Background::Thread => {
                let (runtime, thread) = Runtime::on_own_thread()?;
                Some(Self {
                    runtime,
                    thread: Some(thread),
                })
            }
        }
    }
}

/// Names this thread as the one that starts the task until dropped, also if the store panics.
struct Starts<'a>(&'a Scheduler);

impl<'a> Starts<'a> {
    fn new(scheduler: &'a Scheduler) -> Self {
        *scheduler.starts_on.lock() = Some(thread::current().id());
        Self(scheduler)
    }
}

impl Drop for Starts<'_> {
    fn drop(&mut self) {
        *self.0.starts_on.lock() = None;
    }
}

/// Marks the scheduler as running until dropped, however the task ends.
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
