//! One request for a turn: [`Turn`] is the request and its turn, [`Waiter`] the future that waits
//! for the turn.
//!
//! ```text
//! poll ──▶ join the line ──▶ first of the line? poll the contender's first question ──▶ wait for the turn ──▶ LockGuard
//!                                                                                         │
//! drop ──▶ leave the line; if the turn has begun, end the turn                            └─▶ NoTurn
//! ```
//!
//! The guard is made in the same poll in which the turn is found. A request that is cancelled
//! therefore either never sees its turn, and the drop of the waiter ends the turn; or has a guard,
//! and the drop of the guard does.
//!
//! A turn is one object, shared by the line, the waiter and the guards. It is resolved once, in one
//! of two ways:
//!
//! ```text
//! new ──▶ in line ──▶ grant: `granted` is set ──▶ guards: 1, 2, .. 0 ──▶ ended
//!                 └─▶ refuse: `refused` is set ──▶ the waiter takes the reason
//! ```
//!
//! The line has the turn while the request waits. A shared lease has the turns under way as well,
//! to end each of them at its own time.

use std::{
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll, Waker},
};

use super::{
    LockGuard,
    contender::Contender,
    inner::Inner,
    line::{FollowUp, NoTurn, WaitRequest},
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

/// Joins the line of a key, and resolves when the request's turn has begun or when waiting has
/// become pointless.
///
/// Dropping the waiter gives up the place in line, and also the turn if the turn has begun in the
/// meantime.
pub(crate) struct Waiter<'a> {
    pub(super) inner: &'a Arc<Inner>,
    pub(super) key: LockKey,
    pub(super) request: WaitRequest,
    /// Set while the request is in line or has a turn that no guard holds yet.
    turn: Option<Arc<Turn>>,
    /// The request was the first of its line, and polls the question to the store while it is
    /// alone there.
    asks: bool,
}

impl<'a> Waiter<'a> {
    /// Creates a waiter that joins the line when first polled.
    pub(crate) fn new(inner: &'a Arc<Inner>, key: LockKey, request: WaitRequest) -> Self {
        Self {
            inner,
            key,
            request,
            turn: None,
            asks: false,
        }
    }

    /// Joins the line. The first request of a line also creates the contender, which has asked the
    /// store when this method returns.
    fn join(&mut self) -> Result<Option<Contender>, NoTurn> {
        let (inner, key) = (self.inner, &self.key);
        if !inner.scheduler.start(inner) {
            return Err(NoTurn::Failed(Error::new(
                ErrorKind::Unreachable,
                "locks are renewed on a tokio runtime with a time driver: call this method within a runtime, and build the runtime with `enable_time`",
            )));
        }
        let mut follow_up = FollowUp::default();
        let request = self.request.clone();
        let joined = inner.lines.join(inner, key, request, &mut follow_up)?;
        let turn = self.turn.insert(joined.turn);
        inner.finish_transition(key, &mut follow_up);
        let first = joined.first;
        Ok(first.map(|demand| Contender::first(inner, key, turn.id, demand)))
    }

    /// Lets the background poll the question from now on, if this request does.
    fn stop_asking(&mut self) {
        let turn = self.turn.as_ref().filter(|_| self.asks);
        if let Some(contender) = turn.and_then(|turn| turn.give_up_contender()) {
            contender.go_on();
        }
        self.asks = false;
    }
}

impl Future for Waiter<'_> {
    type Output = Result<LockGuard, NoTurn>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        loop {
            // Taken out, so that a contender that panics is not polled again.
            let contender = match &this.turn {
                None => this.join()?,
                Some(turn) if this.asks => turn.take_contender(),
                Some(_) => None,
            };
            let turn = this.turn.as_ref().expect("the request has just joined");
            let pending = contender.and_then(|contender| contender.poll_first(cx));
            this.asks = pending.is_some_and(|contender| turn.keep_contender(contender));
            let Poll::Ready(outcome) = turn.poll(cx) else {
                // Looked at last: whoever ends the background wakes the requests that wait.
                this.inner.scheduler.start(this.inner);
                return Poll::Pending;
            };
            this.stop_asking();
            let turn = this.turn.take().expect("the request has a turn");
            outcome?;
            let guard = LockGuard::new(turn);
            // The task may have been paused for longer than the lease. The request then joins the
            // line again.
            if guard.is_held() {
                return Poll::Ready(Ok(guard));
            }
        }
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        if let Some(turn) = &self.turn {
            self.inner
                .with_line(&self.key, |line, t| line.leave(turn.id, t));
            // The request has left the line: the turn has been granted, or never will be.
            if let Some(granted) = turn.granted() {
                self.inner.end_turn(granted);
            }
        }
        self.stop_asking();
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
/// A lease that has served two turns, and now serves a third, gives `number: 3`. The number and the
/// owner of the lease identify the turn, so a late end of turn 2 cannot end turn 3.
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
    /// The contender of the line, while this request polls the first question to the store.
    contender: Option<Contender>,
    /// The background polls the question.
    gave_up_contender: bool,
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

    /// Begins the turn. Called once, under the lock of the line, by the transition that removes the
    /// request. Returns the task to wake when that lock is free.
    #[must_use]
    pub(super) fn grant(&self, granted: Granted) -> Option<Waker> {
        let mut waiting = self.waiting.lock();
        let _ = self.granted.set(granted);
        waiting.waker.take()
    }

    /// Tells the waiter why there is no turn. Called once, under the lock of the line, by the
    /// transition that removes the request. Returns the task to wake when that lock is free.
    #[must_use]
    pub(super) fn refuse(&self, why: impl Into<NoTurn>) -> Option<Waker> {
        let mut waiting = self.waiting.lock();
        waiting.refused = Some(why.into());
        waiting.waker.take()
    }

    /// Takes the contender, for a poll of its question. That poll may begin this very turn, and the
    /// task need not wake itself for that.
    fn take_contender(&self) -> Option<Contender> {
        let mut waiting = self.waiting.lock();
        let contender = waiting.contender.take()?;
        let waker = waiting.waker.take();
        drop(waiting);
        drop(waker);
        Some(contender)
    }

    /// Keeps the contender between two polls of its question. Returns `false` if the background
    /// polls the question from now on.
    fn keep_contender(&self, contender: Contender) -> bool {
        let mut waiting = self.waiting.lock();
        if !waiting.gave_up_contender {
            waiting.contender = Some(contender);
            return true;
        }
        drop(waiting);
        contender.go_on();
        false
    }

    /// Takes the contender for the background. A contender that is being polled follows.
    pub(super) fn give_up_contender(&self) -> Option<Contender> {
        let mut waiting = self.waiting.lock();
        waiting.gave_up_contender = true;
        waiting.contender.take()
    }

    /// Makes the task of the request poll again.
    pub(super) fn wake(&self) {
        let waker = self.waiting.lock().waker.clone();
        waker.into_iter().for_each(Waker::wake);
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

    /// Ends the turn as lost, while its lease goes on. Called under the lock of the line; the
    /// lease's watchers are woken when that lock is free.
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
        NoTurn::OtherFingerprint(_) => TurnOutcome::OtherRequest,
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
