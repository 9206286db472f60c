//! The answer to an acquire, for its caller.

use std::{sync::Arc, time::Duration};

use tokio::sync::oneshot;

use super::super::{Shared, explain, operations::ReleaseAll};
use crate::{
    Error,
    store::Acquired,
    time::{Instant, later, timeout_at},
};

/// The release that follows if an answer is not taken.
pub(super) struct Undo {
    pub(super) store: Arc<Shared>,
    pub(super) release: ReleaseAll,
}

/// The answer to an acquire.
pub(super) struct Answer {
    pub(super) answer: oneshot::Receiver<Result<Acquired, Error>>,
    /// `None` once the answer was taken.
    pub(super) undo: Option<Undo>,
}

impl Answer {
    /// Waits for the answer, for at most `limit` from now on.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before the answer was taken, the key is released.
    pub(super) fn within(
        mut self,
        limit: Duration,
    ) -> impl Future<Output = Result<Acquired, Error>> + Send {
        let until = later(Instant::now(), limit);
        async move {
            let answer = match timeout_at(until, &mut self.answer).await {
                Some(Ok(answer)) => answer,
                // The job was dropped with its runtime, and its release is the key's next job (see `UnderWay`).
                Some(Err(_)) => Err(explain::runtime_ended()),
                None => {
                    // The job finds the channel closed and releases the key, unless the job has answered already.
                    self.answer.close();
                    let answer = self.answer.try_recv();
                    answer.unwrap_or_else(|_| Err(explain::no_answer(limit)))
                }
            };
            drop(self.undo.take());
            answer
        }
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
