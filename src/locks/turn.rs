//! One request for a turn: [`Turn`] is the request and its turn, [`Waiter`] the future that waits for the turn.
//!
//! ```text
//! poll ──▶ join the line ──▶ first of the line? poll the contender's first question ──▶ wait for the turn ──▶ LockGuard
//!                                                                                         │
//! drop ──▶ leave the line; if the turn has begun, end the turn                            └─▶ NoTurn
//! ```
//!
//! The guard is made in the same poll in which the turn is found. A request that is cancelled therefore either never sees its
//! turn, and the drop of the waiter ends the turn; or has a guard, and the drop of the guard does.
//!
//! A turn is one object, shared by the line, the waiter and the guards. It is resolved once, in one of two ways:
//!
//! ```text
//! new ──▶ in line ──▶ grant: `granted` is set ──▶ guards: 1, 2, .. 0 ──▶ ended
//!                 └─▶ refuse: `refused` is set ──▶ the waiter takes the reason
//! ```
//!
//! The line has the turn while the request waits. A shared lease has the turns under way as well, to end each of them at
//! its own time.

use std::{
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll, Waker, ready},
};

use super::{
    LockGuard,
    contender::Contender,
    inner::Inner,
    line::{NoTurn, WaitRequest},
};
use crate::{
    Error, ErrorKind, LockKey, Loss,
    lease::Lease,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Instant,
    trace::{Acquired, Hold, TurnOutcome},
};

/// Joins the line of a key, and resolves when the request's turn has begun or when waiting has become pointless.
///
/// Dropping the waiter gives up the place in line, and also the turn if the turn has begun in the meantime.
pub(crate) struct Waiter<'a> {
    inner: &'a Arc<Inner>,
    key: &'a LockKey,
    request: WaitRequest,
    /// Set while the request is in line or has a turn that no guard holds yet.
    turn: Option<Arc<Turn>>,
    /// Set while this request, as the first of its line, polls the first question to the store.
    contender: Option<Contender>,
}

impl<'a> Waiter<'a> {
    /// Creates a waiter that joins the line when first polled.
    pub(crate) fn new(inner: &'a Arc<Inner>, key: &'a LockKey, request: WaitRequest) -> Self {
        Self {
            inner,
            key,
            request,
            turn: None,
            contender: None,
        }
    }

    /// Joins the line. The first request of a line also creates the contender, which asks the store at once.
    fn join(&mut self) -> Result<(), NoTurn> {
        let (inner, key) = (self.inner, self.key);
        if !inner.scheduler.start(inner) {
            return Err(NoTurn::Failed(Error::new(
                ErrorKind::Unreachable,
                "locks are renewed on a tokio runtime with a time driver: call this method within a runtime, and build the runtime with `enable_time`",
            )));
        }
        let joined = inner.lines.join(inner, key, self.request.clone())?;
        let number = joined.turn.id;
        self.turn = Some(joined.turn);
        inner.finish_transition(key, joined.follow_up);
        if let Some(demand) = joined.first {
            self.contender = Some(Contender::first(inner, key, number, demand));
        }
        Ok(())
    }
}

impl Future for Waiter<'_> {
    type Output = Result<LockGuard, NoTurn>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        loop {
            if this.turn.is_none() {
                this.join()?;
            }
            let turn = this.turn.as_ref().expect("the request has just joined");
            // Taken out, so that a contender that panics is not polled again.
            if let Some(contender) = this.contender.take() {
                // The contender may begin this very turn, and the task need not wake itself for that.
                turn.forget_waker();
                this.contender = contender.poll_first(cx);
            }
            let outcome = ready!(turn.poll(cx));
            let turn = this.turn.take().expect("the request has a turn");
            outcome?;
            let guard = LockGuard::new(turn);
            // The task may have been paused for longer than the lease. The request then joins the line again.
            if guard.is_held() {
                return Poll::Ready(Ok(guard));
            }
        }
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        if let Some(turn) = self.turn.take() {
            self.inner
                .with_line(self.key, |line, t| line.leave(turn.id, t));
            // The request has left the line: the turn has been granted, or never will be.
            if let Some(granted) = turn.granted() {
                drop(self.inner.end_turn(granted, false));
            }
        }
        if let Some(contender) = self.contender.take() {
            contender.go_on();
        }
    }
}

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

    /// Begins the turn. Called once, under the lock of the line, by the transition that removes the request. Returns the
    /// task to wake when that lock is free.
    #[must_use]
    pub(super) fn grant(&self, granted: Granted) -> Option<Waker> {
        let mut waiting = self.waiting.lock();
        let _ = self.granted.set(granted);
        waiting.waker.take()
    }

    /// Tells the waiter why there is no turn. Called once, under the lock of the line, by the transition that removes the
    /// request. Returns the task to wake when that lock is free.
    #[must_use]
    pub(super) fn refuse(&self, why: impl Into<NoTurn>) -> Option<Waker> {
        let mut waiting = self.waiting.lock();
        waiting.refused = Some(why.into());
        waiting.waker.take()
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

    /// Ends the turn as lost, while its lease goes on. Called under the lock of the line; the lease's watchers are woken
    /// when that lock is free.
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

    /// Marks the turn as released on behalf of all guards, and wakes the futures that run under
    /// them. Returns whether the turn was marked before.
    pub(super) fn set_released(&self) -> bool {
        let was_released = self.released.swap(true, Ordering::AcqRel);
        self.end_hold();
        if let Some(granted) = self.granted() {
            granted.lease.wake_watchers();
        }
        was_released
    }

    /// The time for which the turn lasts, for the telemetry.
    pub(super) fn hold(&self) -> &Hold {
        &self.hold
    }

    fn end_hold(&self) {
        self.hold.end(|| self.loss().is_some());
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

/// The outcome of a request for a turn, as the telemetry needs it.
pub(super) fn describe(outcome: &Result<LockGuard, NoTurn>) -> Acquired<'_> {
    let no_turn = match outcome {
        Ok(guard) => return guard.acquired(),
        Err(no_turn) => no_turn,
    };
    Acquired::No(match no_turn {
        NoTurn::Recorded(_) => TurnOutcome::Recorded,
        NoTurn::OtherFingerprint => TurnOutcome::OtherRequest,
        NoTurn::Failed(error) => match error.kind() {
            ErrorKind::Held => TurnOutcome::Held,
            ErrorKind::LineFull => TurnOutcome::LineFull,
            ErrorKind::TooManyKeys => TurnOutcome::TooManyKeys,
            ErrorKind::Unreachable => TurnOutcome::Unreachable,
            ErrorKind::Closed => TurnOutcome::Closed,
            _ => TurnOutcome::Failed,
        },
    })
}
