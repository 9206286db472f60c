//! A turn that a future or a body holds.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use crate::{LockGuard, Loss, Status};

/// A turn, and the wish to hear of its loss.
pub(super) struct HeldTurn {
    guard: LockGuard,
    lost: Option<Pin<Box<dyn Future<Output = Loss> + Send>>>,
}

impl HeldTurn {
    pub(super) fn new(guard: LockGuard, watched: bool) -> Self {
        let lost = watched.then(|| Box::pin(guard.watch()) as _);
        Self { guard, lost }
    }

    /// Whether the turn was lost, if it is watched.
    pub(super) fn poll_lost(&mut self, cx: &mut Context<'_>) -> Option<Loss> {
        let Poll::Ready(loss) = self.lost.as_mut()?.as_mut().poll(cx) else {
            return None;
        };
        self.lost = None;
        // A handler may have released its turn, and the lease have gone on without it.
        (self.guard.status() != Status::Released).then_some(loss)
    }

    /// By the clock: the loss need not have been told yet.
    pub(super) fn is_lost(&self) -> bool {
        matches!(self.guard.status(), Status::Lost(_))
    }

    pub(super) fn into_guard(self) -> LockGuard {
        self.guard
    }
}
