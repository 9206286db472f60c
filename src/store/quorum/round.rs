//! The same question put to several nodes at once.

use std::{future::poll_fn, pin::Pin, task::Poll, time::Duration};

use futures_util::{StreamExt, stream::FuturesUnordered};
use tokio::time::{Instant, timeout_at};

use crate::{store::StoreFuture, time::later};

type Call<T> = Pin<Box<dyn Future<Output = (usize, T)> + Send>>;

/// Calls under way, each on a node of its own.
///
/// All of them were started, in the sense of the contract on order, by the time when [`Round::start`] is ready, and
/// that is ready at once. None is ever dropped: what has not ended when the round is dropped goes on in the
/// background.
pub(super) struct Round<T: Send + 'static> {
    answered: Vec<(usize, T)>,
    calls: FuturesUnordered<Call<T>>,
    until: Instant,
}

impl<T: Send + 'static> Round<T> {
    /// Starts the calls; each comes with the number of its node.
    pub(super) async fn start(
        calls: impl IntoIterator<Item = (usize, StoreFuture<T>)>,
        limit: Duration,
    ) -> Self {
        let until = later(Instant::now(), limit);
        let mut calls: Vec<Call<T>> = calls
            .into_iter()
            .map(|(node, call)| Box::pin(async move { (node, call.await) }) as Call<T>)
            .collect();
        let mut answered = Vec::new();
        poll_fn(|cx| {
            calls.retain_mut(|call| match call.as_mut().poll(cx) {
                Poll::Ready(answer) => {
                    answered.push(answer);
                    false
                }
                Poll::Pending => true,
            });
            Poll::Ready(())
        })
        .await;
        Self {
            answered,
            calls: calls.into_iter().collect(),
            until,
        }
    }

    /// The next answer. None when all have answered, or when the time is over.
    pub(super) async fn next(&mut self) -> Option<(usize, T)> {
        if let Some(answer) = self.answered.pop() {
            return Some(answer);
        }
        timeout_at(self.until, self.calls.next())
            .await
            .unwrap_or(None)
    }

    /// Whether the next answer is there already.
    pub(super) fn is_ready(&self) -> bool {
        !self.answered.is_empty()
    }

    /// All answers that come in time.
    pub(super) async fn all(mut self) -> Vec<(usize, T)> {
        let mut answers = Vec::new();
        while let Some(answer) = self.next().await {
            answers.push(answer);
        }
        answers
    }
}

impl<T: Send + 'static> Drop for Round<T> {
    fn drop(&mut self) {
        let mut calls = std::mem::take(&mut self.calls);
        if !calls.is_empty() {
            detach(async move { while calls.next().await.is_some() {} });
        }
    }
}

/// Goes on in the background. Without a runtime there is nobody to go on: then the leases' time ends what is left.
pub(super) fn detach(work: impl Future<Output = ()> + Send + 'static) {
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        runtime.spawn(work);
    }
}
