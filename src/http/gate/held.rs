//! The turns of a request, held by a future, a body or a task.
//!
//! ```text
//! HeldTurn { guards, watched, watch: None }
//!   first poll of the handler is ready ──▶ no watch was ever made: `is_lost` looks at the clock
//!   the handler waits ──▶ `poll_lost` makes the watch, and the loss wakes the task
//! ```
//!
//! Every further poll looks at the clock, even if there is a watch: after a pause of the whole
//! process, the task can be woken for another reason before the watch is told.

use std::{
    future::poll_fn,
    pin::{Pin, pin},
    sync::{Mutex, PoisonError},
    task::{Context, Poll, ready},
};

use futures_util::future::{FutureExt, select_all};
use smallvec::SmallVec;

use crate::{LockGuard, Loss, Status};

/// The guards that a layer has for a request: usually one, and none if the layer has failed open.
pub(crate) type Guards = SmallVec<[LockGuard; 1]>;

type Watch = Pin<Box<dyn Future<Output = Loss> + Send>>;

/// Resolves when one of the turns is lost; does not keep them from ending.
fn watch_all(guards: &[LockGuard]) -> Watch {
    match guards {
        [guard] => watch(guard),
        guards => Box::pin(select_all(guards.iter().map(watch)).map(|(loss, ..)| loss)),
    }
}

/// Resolves when the turn of a guard is lost, and holds no guard meanwhile.
fn watch(guard: &LockGuard) -> Watch {
    let (lost, turn) = (guard.watch(), guard.weak());
    Box::pin(async move {
        let loss = lost.await;
        match turn.upgrade() {
            Some(guard) if guard.status() != Status::Released => loss,
            // The handler has released the turn, and the lease serves others.
            _ => std::future::pending().await,
        }
    })
}

/// The turns of a request.
pub(crate) struct HeldTurn {
    guards: Guards,
    /// Whether a loss ends the work under these turns.
    watched: bool,
    /// Resolves with a loss. Made when the request has to wait: a handler that ends in its first
    /// poll needs only [`is_lost`](Self::is_lost).
    ///
    /// Used through `&mut` only: the mutex makes a body with this field `Sync`.
    watch: Option<Mutex<Watch>>,
}

impl HeldTurn {
    pub(crate) fn new(guards: Guards, watched: bool) -> Self {
        Self {
            watched: watched && !guards.is_empty(),
            guards,
            watch: None,
        }
    }

    /// Polls `work` until it is ready; `None` if a watched turn is lost while `work` waits.
    ///
    /// The first poll does not look for a loss: the caller has done so.
    pub(crate) async fn while_held<T>(
        &mut self,
        mut work: impl FnMut(&[LockGuard], &mut Context<'_>) -> Poll<T>,
    ) -> Option<T> {
        poll_fn(|cx| {
            let is_watching = self.watch.is_some();
            if is_watching && self.poll_lost(cx).is_ready() {
                return Poll::Ready(None);
            }
            if let Poll::Ready(output) = work(&self.guards, cx) {
                return Poll::Ready(Some(output));
            }
            // From here on `work` waits, and a loss has to wake the task.
            if is_watching {
                return Poll::Pending;
            }
            self.poll_lost(cx).map(|_| None)
        })
        .await
    }

    /// The loss of a watched turn. The task is woken when one comes later.
    pub(crate) fn poll_lost(&mut self, cx: &mut Context<'_>) -> Poll<Loss> {
        if !self.watched {
            return Poll::Pending;
        }
        let loss = match self.loss() {
            Some(loss) => loss,
            None => ready!(self.poll_watch(cx)),
        };
        (self.watched, self.watch) = (false, None);
        Poll::Ready(loss)
    }

    /// Polls the watch, which is made by the first call.
    fn poll_watch(&mut self, cx: &mut Context<'_>) -> Poll<Loss> {
        let Self { guards, watch, .. } = self;
        let watch = watch.get_or_insert_with(|| Mutex::new(watch_all(guards)));
        let watch = watch.get_mut().unwrap_or_else(PoisonError::into_inner);
        watch.as_mut().poll(cx)
    }

    /// Whether a turn is lost by the clock, even if no watch has resolved yet.
    pub(crate) fn is_lost(&self) -> bool {
        self.loss().is_some()
    }

    /// The loss of a turn by the clock.
    fn loss(&self) -> Option<Loss> {
        self.guards.iter().find_map(LockGuard::loss)
    }

    pub(crate) fn guards(&self) -> &[LockGuard] {
        &self.guards
    }

    pub(crate) fn into_guards(self) -> Guards {
        self.guards
    }
}

/// The turns of all lock layers around a handler that is a task.
///
/// The task holds these turns until its end: once the client has gone away, no layer further out
/// holds them any more, and the handler must not run beside that of the next request.
pub(crate) struct TaskTurns {
    /// The turns of the layers that cancel the handler on a loss.
    cancelling: HeldTurn,
    _others: Guards,
}

impl TaskTurns {
    pub(crate) fn new(cancelling: Guards, others: Guards) -> Self {
        Self {
            cancelling: HeldTurn::new(cancelling, true),
            _others: others,
        }
    }

    /// Whether a loss has cancelled the handler, even if it has not begun yet.
    pub(crate) fn is_lost(&self) -> bool {
        self.cancelling.is_lost()
    }

    /// Runs the handler. `None` if a loss has cancelled it; the layer whose lease was lost answers.
    pub(crate) async fn run<F: Future>(&mut self, handler: F) -> Option<F::Output> {
        if self.is_lost() {
            return None;
        }
        let mut handler = pin!(handler);
        let turns = &mut self.cancelling;
        turns.while_held(|_, cx| handler.as_mut().poll(cx)).await
    }
}
