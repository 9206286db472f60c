//! The outcome of a call, as a future for its caller.
//!
//! ```text
//! Pending ── polled ──▶ the outcome
//!         └─ dropped ─▶ an acquire: its release is queued in the lane
//!                       any other call: goes on without a caller
//! ```

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use tokio::sync::oneshot;

use super::{
    super::{explain, operations::ReleaseAll, outcome::Outcome},
    Lane,
    order::Id,
};

/// The outcome of a call.
///
/// # Cancel safety
///
/// If the future of an acquire is dropped before the outcome was taken, the lane releases the key. Any other call goes on.
#[derive(Debug)]
pub(in super::super) struct Pending {
    pub(super) lane: Arc<Lane>,
    pub(super) id: Id,
    pub(super) outcome: oneshot::Receiver<Outcome>,
    /// The release that follows if the outcome is not taken.
    pub(super) undo: Option<ReleaseAll>,
}

impl Future for Pending {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        let outcome = ready!(Pin::new(&mut self.outcome).poll(cx));
        self.undo = None;
        let limit = self.lane.0.limit;
        Poll::Ready(
            outcome.unwrap_or_else(|_| Outcome::MayHaveTakenEffect(explain::no_answer(limit))),
        )
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        let Some(release) = self.undo.take() else {
            return;
        };
        let inner = &self.lane.0;
        let mut state = inner.lock();
        let is_answered = !state.queue.abandon(self.id);
        if is_answered && matches!(self.outcome.try_recv(), Ok(Outcome::Answered(_))) {
            state.queue.clean_up(release, false);
        }
        inner.send(&mut state);
        inner.drive(state);
    }
}
