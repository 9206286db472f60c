//! The answers of a faulty store, given at once or after a fault.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use super::FaultyStore;
use crate::{
    Error, ErrorKind,
    store::{Acquired, Release, Store},
    sync::{
        Notify,
        atomic::{AtomicUsize, Ordering},
        oneshot,
    },
};

/// The answer to a call.
pub(super) enum Answer<T> {
    Ready(Option<Result<T, Error>>),
    Waiting(oneshot::Receiver<Result<T, Error>>),
}

impl<T> Answer<T> {
    pub(super) fn ready(outcome: Result<T, Error>) -> Self {
        Self::Ready(Some(outcome))
    }

    pub(super) fn waiting(answer: oneshot::Receiver<Result<T, Error>>) -> Self {
        Self::Waiting(answer)
    }
}

impl<T: Unpin> Future for Answer<T> {
    type Output = Result<T, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut *self {
            Self::Ready(outcome) => Poll::Ready(outcome.take().expect("polled after completion")),
            Self::Waiting(answer) => {
                let answer = ready!(Pin::new(answer).poll(cx));
                Poll::Ready(answer.unwrap_or_else(|_| {
                    Err(Error::new(ErrorKind::Unreachable, "the store is gone"))
                }))
            }
        }
    }
}

/// The answer to an acquire. Dropping the future before the answer was taken undoes the acquire, even if the call
/// takes effect later.
pub(super) struct AcquireAnswer {
    store: FaultyStore,
    undo: Vec<Release>,
    answer: Answer<Result<Acquired, Error>>,
}

impl AcquireAnswer {
    pub(super) fn new(
        store: FaultyStore,
        undo: Vec<Release>,
        answer: Answer<Result<Acquired, Error>>,
    ) -> Self {
        Self {
            store,
            undo,
            answer,
        }
    }
}

impl Future for AcquireAnswer {
    type Output = Result<Acquired, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = ready!(Pin::new(&mut self.answer).poll(cx));
        self.undo.clear();
        Poll::Ready(answer.and_then(std::convert::identity))
    }
}

impl Drop for AcquireAnswer {
    fn drop(&mut self) {
        for undo in self.undo.drain(..) {
            drop(self.store.start_release(undo));
        }
    }
}

/// Counts the releases that were started and wait for the end of a fault.
#[derive(Default)]
pub(super) struct Owed {
    count: AtomicUsize,
    changed: Notify,
}

impl Owed {
    /// Counts one release until the returned value is dropped.
    pub(super) fn one(owed: &Arc<Self>) -> OneOwed {
        owed.count.fetch_add(1, Ordering::AcqRel);
        OneOwed(owed.clone())
    }

    pub(super) fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    pub(super) fn changed(&self) {
        self.changed.notify_waiters();
    }

    /// Resolves at the next change after this call, rather than after the first poll.
    pub(super) fn notified(&self) -> impl Future<Output = ()> + '_ {
        self.changed.notified()
    }
}

/// One unit of [`Owed`].
pub(super) struct OneOwed(Arc<Owed>);

impl Drop for OneOwed {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::AcqRel);
        self.0.changed();
    }
}
