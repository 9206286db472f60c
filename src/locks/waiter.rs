//! The future of a request that waits in line.
//!
//! ```text
//! poll ──▶ join the line ──▶ first of the line? poll the contender's first question ──▶ wait for the turn ──▶ LockGuard
//!                                                                                         │
//! drop ──▶ leave the line; if the turn has begun, end the turn                            └─▶ NoTurn
//! ```
//!
//! The guard is made in the same poll in which the turn is found. A request that is cancelled therefore either never sees its
//! turn, and the drop of the waiter ends the turn; or has a guard, and the drop of the guard does.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use super::{
    LockGuard,
    contender::Contender,
    inner::Inner,
    line::{NoTurn, WaitRequest},
    turn::Turn,
};
use crate::{Error, ErrorKind, LockKey};

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
