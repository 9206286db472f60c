//! A request's place in line.

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
use crate::LockKey;

/// Resolves when it is this request's turn, or when there is no point in waiting any longer.
///
/// Dropping it gives the place up, and the turn too if that has come in the meantime.
pub(crate) struct Waiter {
    key: LockKey,
    /// Taken out when the request has been told what became of it.
    turn: Option<Arc<Turn>>,
    /// If this request was the first, it waits for the answer to the first question to the store.
    contender: Option<Contender>,
}

impl Waiter {
    pub(crate) fn join(
        inner: &Arc<Inner>,
        key: &LockKey,
        request: WaitRequest,
    ) -> Result<Self, NoTurn> {
        let joined = inner.lines.join(inner, key, request)?;
        let contender = joined
            .first
            .map(|demand| Contender::first(inner, key, joined.turn.id, demand));
        Ok(Self {
            key: key.clone(),
            turn: Some(joined.turn),
            contender,
        })
    }
}

impl Future for Waiter {
    type Output = Result<LockGuard, NoTurn>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        // Taken out, so that one that panics is not polled again.
        if let Some(contender) = self.contender.take() {
            self.contender = contender.poll_first(cx);
        }
        let turn = self.turn.as_ref().expect("not polled after it was ready");
        let outcome = ready!(turn.poll(cx));
        let turn = self.turn.take().expect("it was there a moment ago");
        Poll::Ready(outcome.map(|()| LockGuard::new(turn)))
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        if let Some(turn) = self.turn.take() {
            let inner = &turn.inner;
            inner.with_line(&self.key, |line, _| line.leave(turn.id));
            // From here on the turn has been granted, or never will be.
            if let Some(granted) = turn.granted() {
                drop(inner.end_turn(granted, false));
            }
        }
        if let Some(contender) = self.contender.take() {
            contender.go_on();
        }
    }
}
