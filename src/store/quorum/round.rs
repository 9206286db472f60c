//! The same call to several nodes at once.
//!
//! ```text
//! Round [0: call, 1: call, 2: call]   next ──▶ (1, answer)   next ──▶ (0, answer)   next ──▶ None at the deadline
//!                                                                                   pending ──▶ [2]
//! ```

use std::{
    future::poll_fn,
    task::{Context, Poll},
    time::Duration,
};

use crate::{
    store::StoreFuture,
    time::{Instant, later, timeout_at},
};

/// Calls under way, each to a different node. A call starts when the node's method is called, so
/// all calls of a round were started before the round was created.
///
/// Dropping a round gives up the answers only: a question belongs to its part, and a release goes
/// on.
pub(super) struct Round<T> {
    calls: Vec<(usize, StoreFuture<T>)>,
    until: Instant,
}

impl<T> Round<T> {
    /// Creates a round of calls that were started, and waits no longer than `limit` for them. Each
    /// call comes with the index of its node.
    pub(super) fn new(
        calls: impl IntoIterator<Item = (usize, StoreFuture<T>)>,
        limit: Duration,
    ) -> Self {
        Self {
            calls: calls.into_iter().collect(),
            until: later(Instant::now(), limit),
        }
    }

    /// The nodes that have not answered.
    pub(super) fn pending(&self) -> impl Iterator<Item = usize> + '_ {
        self.calls.iter().map(|(node, _)| *node)
    }

    /// When the round stops waiting.
    pub(super) fn deadline(&self) -> Instant {
        self.until
    }

    /// Waits for the next answer. Returns `None` when all nodes have answered, or when the time is
    /// over.
    pub(super) async fn next(&mut self) -> Option<(usize, T)> {
        self.next_before(self.until).await
    }

    /// Waits for the next answer until the given time. An answer that is ready is returned in any
    /// case.
    pub(super) async fn next_before(&mut self, until: Instant) -> Option<(usize, T)> {
        let next = poll_fn(|cx| self.poll_next(cx));
        timeout_at(until, next).await.flatten()
    }

    /// Waits for all answers that come in time.
    pub(super) async fn all(mut self) -> Vec<(usize, T)> {
        let mut answers = Vec::new();
        while let Some(answer) = self.next().await {
            answers.push(answer);
        }
        answers
    }

    /// Polls every call, since a quorum has few nodes.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<(usize, T)>> {
        if self.calls.is_empty() {
            return Poll::Ready(None);
        }
        for at in 0..self.calls.len() {
            if let Poll::Ready(answer) = self.calls[at].1.as_mut().poll(cx) {
                let (node, _) = self.calls.swap_remove(at);
                return Poll::Ready(Some((node, answer)));
            }
        }
        Poll::Pending
    }
}
