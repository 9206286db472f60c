//! A request in line and the turn that the request gets: one object, shared by the line, the waiter and the guards.
//!
//! A turn is resolved once, in one of two ways:
//!
//! ```text
//! new ──▶ in line ──▶ grant: `granted` is set ──▶ guards: 1, 2, .. 0 ──▶ ended
//!                 └─▶ refuse: `refused` is set ──▶ the waiter takes the reason
//! ```
//!
//! The line has the turn while the request waits. A shared lease has the turns under way as well, to end each of them at
//! its own time.

use std::{
    sync::{Arc, OnceLock},
    task::{Context, Poll, Waker},
};

use super::{
    inner::Inner,
    line::{NoTurn, WaitRequest},
};
use crate::{
    Loss,
    lease::Lease,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Instant,
    trace::Hold,
};

/// A request that waits for its turn, and the turn once granted.
pub(crate) struct Turn {
    /// The locks that the turn belongs to.
    pub(crate) inner: Arc<Inner>,
    /// The request's number. Numbers rise from the head of a line to its end.
    pub(crate) id: u64,
    pub(crate) request: WaitRequest,
    /// When the request joined its line.
    pub(crate) asked: Instant,
    granted: OnceLock<Granted>,
    waiting: Mutex<Waiting>,
    /// How many guards hold the turn.
    guards: AtomicUsize,
    /// A guard has released the turn on behalf of all guards.
    released: AtomicBool,
    /// Why the turn was lost, if its lease goes on without the turn.
    loss: OnceLock<Loss>,
    hold: Hold,
}

/// The lease and the token that a turn was granted with.
///
/// A lease that has served two turns, and now serves a third, gives `number: 3`. The number and the owner of the lease
/// identify the turn, so a late end of turn 2 cannot end turn 3.
#[derive(Debug)]
pub(crate) struct Granted {
    /// The lease that the turn runs under.
    pub(crate) lease: Arc<Lease>,
    /// Counts the turns of the lease, from 1.
    pub(crate) number: u64,
    /// The fencing token.
    pub(crate) token: u64,
}

/// The side of a request that its waiter polls: the reason of a refusal, and the task to wake.
#[derive(Default)]
struct Waiting {
    refused: Option<NoTurn>,
    waker: Option<Waker>,
}

impl Turn {
    pub(super) fn new(
        inner: Arc<Inner>,
        id: u64,
        request: WaitRequest,
        asked: Instant,
    ) -> Arc<Self> {
        Arc::new(Self {
            inner,
            id,
            request,
            asked,
            granted: OnceLock::new(),
            waiting: Mutex::default(),
            guards: AtomicUsize::new(0),
            released: AtomicBool::new(false),
            loss: OnceLock::new(),
            hold: Hold::default(),
        })
    }

    /// Begins the turn. Called once, under the lock of the line, by the transition that removes the request.
    pub(super) fn grant(&self, granted: Granted) {
        self.resolve(|_| {
            let _ = self.granted.set(granted);
        });
    }

    /// Tells the waiter why there is no turn. Called once, under the lock of the line, by the transition that removes the
    /// request.
    pub(super) fn refuse(&self, why: impl Into<NoTurn>) {
        self.resolve(|waiting| waiting.refused = Some(why.into()));
    }

    /// Changes the outcome under the lock, and wakes the waiter after the lock is free.
    fn resolve(&self, change: impl FnOnce(&mut Waiting)) {
        let mut waiting = self.waiting.lock();
        change(&mut waiting);
        let waker = waiting.waker.take();
        drop(waiting);
        waker.into_iter().for_each(Waker::wake);
    }

    /// Wakes no task until the next poll. For a task that is about to poll again.
    pub(super) fn forget_waker(&self) {
        let waker = self.waiting.lock().waker.take();
        drop(waker);
    }

    /// Polls for the begin of the turn, or for the reason why there is none.
    pub(super) fn poll(&self, cx: &mut Context<'_>) -> Poll<Result<(), NoTurn>> {
        let mut waiting = self.waiting.lock();
        if self.granted.get().is_some() {
            return Poll::Ready(Ok(()));
        }
        if let Some(why) = waiting.refused.take() {
            return Poll::Ready(Err(why));
        }
        match &mut waiting.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            None => waiting.waker = Some(cx.waker().clone()),
        }
        Poll::Pending
    }

    /// The grant, once the turn has begun.
    pub(super) fn granted(&self) -> Option<&Granted> {
        self.granted.get()
    }

    /// Ends the turn as lost, while its lease goes on. The caller wakes the lease's watchers. Called under the lock of the
    /// line.
    pub(super) fn lose(&self, loss: Loss) {
        let _ = self.loss.set(loss);
    }

    /// Why the turn or its lease was lost.
    pub(super) fn loss(&self) -> Option<Loss> {
        let lease = || self.granted()?.lease.loss();
        self.loss.get().copied().or_else(lease)
    }

    /// Counts a guard: the first one, or a clone of an existing one.
    pub(super) fn add_guard(&self) {
        self.guards.fetch_add(1, Ordering::AcqRel);
    }

    /// Counts a guard if at least one guard exists. Returns whether the guard was counted.
    pub(super) fn add_guard_if_held(&self) -> bool {
        let add = |guards| (guards > 0).then_some(guards + 1);
        let added = self
            .guards
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, add);
        added.is_ok()
    }

    /// Counts a dropped guard. Returns whether no guard is left.
    pub(super) fn remove_guard(&self) -> bool {
        let is_last = self.guards.fetch_sub(1, Ordering::AcqRel) == 1;
        if is_last {
            self.end_hold();
        }
        is_last
    }

    /// How many guards hold the turn now.
    pub(super) fn guards(&self) -> usize {
        self.guards.load(Ordering::Acquire)
    }

    /// Whether a guard has released the turn on behalf of all guards.
    pub(super) fn is_released(&self) -> bool {
        self.released.load(Ordering::Acquire)
    }

    /// Marks the turn as released on behalf of all guards. Returns whether the turn was marked before.
    pub(super) fn set_released(&self) -> bool {
        let was_released = self.released.swap(true, Ordering::AcqRel);
        self.end_hold();
        was_released
    }

    /// The time for which the turn lasts, for the telemetry.
    pub(super) fn hold(&self) -> &Hold {
        &self.hold
    }

    fn end_hold(&self) {
        let lease = self.granted().map(|granted| &granted.lease);
        self.hold
            .end(|| lease.is_some_and(|lease| lease.loss().is_some()));
    }
}

impl std::fmt::Debug for Turn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Turn")
            .field("request", &self.request)
            .field("granted", &self.granted)
            .finish_non_exhaustive()
    }
}
