//! An acquire at one node whose answer a background task waits for, and which can be withdrawn.
//!
//! A vote that is decided does not wait for the slow nodes. Their questions go on in the background, where a grant joins the lease.
//! When the attempt ends first, its release withdraws the questions, or lets the node see the release right behind the acquire.

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use crate::{
    Error,
    store::{Acquired, StoreFuture},
    sync::Mutex,
};

/// The outcome of a question.
pub(super) enum Heard {
    Withdrawn,
    Answer {
        answer: Result<Acquired, Error>,
        /// A release was started after the question, so a grant has already been returned.
        is_released: bool,
    },
}

/// A node's answer to an acquire.
///
/// All clones are one question. Only the clone that is polled gets the answer; any clone can withdraw the question.
#[derive(Clone)]
pub(super) struct Question(Arc<Mutex<Slot>>);

struct Slot {
    call: Option<StoreFuture<Result<Acquired, Error>>>,
    listener: Option<Waker>,
    is_released: bool,
}

impl Question {
    pub(super) fn new(call: StoreFuture<Result<Acquired, Error>>) -> Self {
        Self(Arc::new(Mutex::new(Slot {
            call: Some(call),
            listener: None,
            is_released: false,
        })))
    }

    /// Notes that a release was started after the question, at the same node and under the same name.
    pub(super) fn release(&self) {
        self.0.lock().is_released = true;
    }

    /// Drops the node's call before returning, so that the node cleans up before any later call. Has no effect if the
    /// question was already answered.
    pub(super) fn withdraw(&self) {
        let (call, listener) = {
            let mut slot = self.0.lock();
            (slot.call.take(), slot.listener.take())
        };
        drop(call);
        if let Some(listener) = listener {
            listener.wake();
        }
    }
}

impl Future for Question {
    type Output = Heard;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut slot = self.0.lock();
        let Some(call) = &mut slot.call else {
            return Poll::Ready(Heard::Withdrawn);
        };
        match call.as_mut().poll(cx) {
            Poll::Ready(answer) => {
                slot.call = None;
                Poll::Ready(Heard::Answer {
                    answer,
                    is_released: slot.is_released,
                })
            }
            Poll::Pending => {
                slot.listener = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl fmt::Debug for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Question")
    }
}
