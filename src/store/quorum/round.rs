//! The same question put to several nodes at once.

use std::{
    future::poll_fn,
    task::{Context, Poll},
    time::Duration,
};

use futures_util::FutureExt;
use tokio::time::{Instant, timeout_at};

use crate::{store::StoreFuture, time::later};

/// Calls under way, each on a node of its own. A node's call starts when its method is called, so all calls of a round
/// were started before the round was made.
///
/// A round that is dropped drops the calls that have not been answered, and leaves the rest to the nodes: a node cleans up after
/// an acquire that is dropped, and goes on with a release.
pub(super) struct Round<T> {
    calls: Vec<(usize, StoreFuture<T>)>,
    until: Instant,
}

impl<T> Round<T> {
    /// Waits for calls that were started, for no longer than `limit`. Each call comes with the number of its node.
    pub(super) fn new(
        calls: impl IntoIterator<Item = (usize, StoreFuture<T>)>,
        limit: Duration,
    ) -> Self {
        Self::until(calls, later(Instant::now(), limit))
    }

    /// Waits for calls that were started, but not beyond a point in time.
    pub(super) fn until(
        calls: impl IntoIterator<Item = (usize, StoreFuture<T>)>,
        until: Instant,
    ) -> Self {
        Self {
            calls: calls.into_iter().collect(),
            until,
        }
    }

    /// Nodes that have not answered.
    pub(super) fn pending(&self) -> impl Iterator<Item = usize> + '_ {
        self.calls.iter().map(|(node, _)| *node)
    }

    /// When the time of the calls is over.
    pub(super) fn deadline(&self) -> Instant {
        self.until
    }

    /// The next answer. None when all nodes have answered, or when the time is over.
    pub(super) async fn next(&mut self) -> Option<(usize, T)> {
        self.next_before(self.until).await
    }

    /// The next answer before a point in time.
    pub(super) async fn next_before(&mut self, until: Instant) -> Option<(usize, T)> {
        let next = poll_fn(|cx| self.poll_next(cx));
        timeout_at(until, next).await.unwrap_or(None)
    }

    /// The next answer, if it is there already.
    pub(super) fn next_now(&mut self) -> Option<(usize, T)> {
        poll_fn(|cx| self.poll_next(cx)).now_or_never().flatten()
    }

    /// All answers that come in time.
    pub(super) async fn all(mut self) -> Vec<(usize, T)> {
        let mut answers = Vec::new();
        while let Some(answer) = self.next().await {
            answers.push(answer);
        }
        answers
    }

    /// The calls that have not been answered.
    pub(super) fn into_pending(self) -> Vec<(usize, StoreFuture<T>)> {
        self.calls
    }

    /// Polls all calls: a quorum has few nodes.
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

/// Goes on in the background. Without a runtime, nothing can: then the leases' time ends what is left.
pub(super) fn detach(work: impl Future<Output = ()> + Send + 'static) {
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        runtime.spawn(work);
    }
}
