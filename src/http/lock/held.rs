//! The turns of a request, held by a future, a body or a task.
//!
//! ```text
//! HeldTurn { guards, watched, watch: None }
//!   first poll of the handler is ready ──▶ no watch was ever made: `is_lost` looks at the clock
//!   the handler waits ──▶ `poll_lost` makes the watch, and the loss wakes the task
//! ```
//!
//! Every poll looks at the clock, even if there is a watch: after a pause of the whole process, the task can be woken for
//! another reason before the watch is told.

use std::{
    pin::Pin,
    slice,
    sync::{Mutex, PoisonError},
    task::{Context, Poll, ready},
};

use futures_util::future::{FutureExt, select_all};

use crate::{LockGuard, Loss, Status};

/// The guards that a layer has for a request: usually one.
pub(super) enum Guards {
    One(LockGuard),
    Several(Vec<LockGuard>),
}

impl Guards {
    pub(super) fn as_slice(&self) -> &[LockGuard] {
        match self {
            Self::One(guard) => slice::from_ref(guard),
            Self::Several(guards) => guards,
        }
    }

    /// Whether these are the last guards of all turns.
    pub(super) fn are_only_ones(&self) -> bool {
        self.as_slice().iter().all(LockGuard::is_only_one)
    }

    /// Resolves when one of the turns is lost; does not keep them from ending.
    fn watch(&self) -> Watch {
        match self {
            Self::One(guard) => watch(guard),
            Self::Several(guards) => {
                Box::pin(select_all(guards.iter().map(watch)).map(|(loss, ..)| loss))
            }
        }
    }
}

impl From<Vec<LockGuard>> for Guards {
    fn from(mut guards: Vec<LockGuard>) -> Self {
        match guards.pop() {
            Some(guard) if guards.is_empty() => Self::One(guard),
            last => {
                guards.extend(last);
                Self::Several(guards)
            }
        }
    }
}

type Watch = Pin<Box<dyn Future<Output = Loss> + Send>>;

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
pub(super) struct HeldTurn {
    guards: Guards,
    /// Whether a loss ends the work under these turns.
    watched: bool,
    /// Resolves with a loss. Made when the request has to wait: a handler that ends in its first poll needs only
    /// [`is_lost`](Self::is_lost).
    ///
    /// Used through `&mut` only: the mutex makes a body with this field `Sync`.
    watch: Option<Mutex<Watch>>,
}

impl HeldTurn {
    pub(super) fn new(guards: Guards, watched: bool) -> Self {
        Self {
            guards,
            watched,
            watch: None,
        }
    }

    /// Whether a watched turn is lost by now. A watch that is there is polled.
    pub(super) fn check_lost(&mut self, cx: &mut Context<'_>) -> bool {
        match self.watch {
            Some(_) => self.poll_lost(cx).is_ready(),
            None => self.watched && self.is_lost(),
        }
    }

    /// Whether a later loss wakes the task: [`poll_lost`](Self::poll_lost) was called.
    pub(super) fn is_watching(&self) -> bool {
        self.watch.is_some()
    }

    /// The loss of a watched turn. The task is woken when one comes later.
    pub(super) fn poll_lost(&mut self, cx: &mut Context<'_>) -> Poll<Loss> {
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
        let watch = watch.get_or_insert_with(|| Mutex::new(guards.watch()));
        let watch = watch.get_mut().unwrap_or_else(PoisonError::into_inner);
        watch.as_mut().poll(cx)
    }

    /// Resolves when a watched turn is lost.
    pub(super) async fn lost(&mut self) -> Loss {
        std::future::poll_fn(|cx| self.poll_lost(cx)).await
    }

    /// Whether a turn is lost by the clock, even if no watch has resolved yet.
    pub(super) fn is_lost(&self) -> bool {
        self.loss().is_some()
    }

    /// The loss of a turn by the clock.
    fn loss(&self) -> Option<Loss> {
        let mut guards = self.guards.as_slice().iter();
        guards.find_map(LockGuard::loss)
    }

    pub(super) fn guards(&self) -> &[LockGuard] {
        self.guards.as_slice()
    }

    pub(super) fn into_guards(self) -> Guards {
        self.guards
    }
}

/// The turns of all lock layers around a handler that is a task.
///
/// The task holds these turns until its end: once the client has gone away, no layer further out
/// holds them any more, and the handler must not run beside that of the next request.
pub(crate) struct TaskTurns {
    /// The turns of the layers that cancel the handler on a loss.
    cancelling: Option<HeldTurn>,
    _others: Vec<LockGuard>,
}

impl TaskTurns {
    pub(super) fn new(cancelling: Vec<LockGuard>, others: Vec<LockGuard>) -> Self {
        let cancelling = (!cancelling.is_empty()).then(|| Guards::from(cancelling));
        Self {
            cancelling: cancelling.map(|guards| HeldTurn::new(guards, true)),
            _others: others,
        }
    }

    /// Whether a loss has cancelled the handler, even if it has not begun yet.
    pub(crate) fn is_lost(&self) -> bool {
        self.cancelling.as_ref().is_some_and(HeldTurn::is_lost)
    }

    /// Runs the handler. `None` if a loss has cancelled it; the layer whose lease was lost answers.
    pub(crate) async fn run<F: Future>(&mut self, handler: F) -> Option<F::Output> {
        match &mut self.cancelling {
            Some(turns) => tokio::select! {
                biased;
                _ = turns.lost() => None,
                output = handler => Some(output),
            },
            None => Some(handler.await),
        }
    }
}
