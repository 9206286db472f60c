//! The answer to an acquire, as a future for its caller.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use tokio::sync::oneshot;

use super::super::{Shared, explain, operations::ReleaseAll, time_up::TimeUp};
use crate::{Error, store::Acquired};

/// The release that follows if an answer is not taken.
pub(super) struct Undo {
    pub(super) store: Arc<Shared>,
    pub(super) release: ReleaseAll,
}

/// The answer to an acquire.
///
/// # Cancel safety
///
/// If the future is dropped before the answer was taken, the key is released.
pub(super) struct Answer {
    pub(super) answer: oneshot::Receiver<Result<Acquired, Error>>,
    pub(super) time_up: TimeUp,
    pub(super) limit: Duration,
    /// `None` once the answer was taken.
    pub(super) undo: Option<Undo>,
}

impl Future for Answer {
    type Output = Result<Acquired, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let limit = self.limit;
        let answer = match Pin::new(&mut self.answer).poll(cx) {
            // The job was dropped with its runtime, and its release is the key's next job (see `UnderWay`).
            Poll::Ready(Err(_)) => Err(explain::runtime_ended()),
            Poll::Ready(Ok(answer)) => answer,
            Poll::Pending => {
                std::task::ready!(self.time_up.poll(cx));
                // The job finds the channel closed and releases the key, unless the job has answered already.
                self.answer.close();
                self.answer
                    .try_recv()
                    .unwrap_or_else(|_| Err(explain::no_answer(limit)))
            }
        };
        self.undo = None;
        Poll::Ready(answer)
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        let Some(undo) = self.undo.take() else {
            return;
        };
        self.answer.close();
        let (Ok(Ok(_)), Some(order)) = (self.answer.try_recv(), &undo.store.order) else {
            return;
        };
        let key = undo.release.release.key.clone();
        let repeated = undo.store.repeated(undo.release, None);
        order.push(key, repeated.until_answered(|_| {}));
    }
}
