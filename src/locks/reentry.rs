//! Finds out that a handler asks for a key that its own request holds, which would wait for itself.

use std::{slice, sync::Arc};

use super::{LockGuard, Locks, WeakGuard};
use crate::{Error, ErrorKind, LockKey};

/// Handles that do not keep their turns from ending. One of them, as usual, needs no allocation.
#[derive(Clone)]
pub(crate) enum WeakGuards {
    One(WeakGuard),
    Several(Arc<[WeakGuard]>),
}

impl WeakGuards {
    pub(crate) fn of(guards: &[LockGuard]) -> Self {
        match guards {
            [guard] => Self::One(guard.downgrade()),
            guards => Self::Several(guards.iter().map(LockGuard::downgrade).collect()),
        }
    }

    pub(crate) fn as_slice(&self) -> &[WeakGuard] {
        match self {
            Self::One(guard) => slice::from_ref(guard),
            Self::Several(guards) => guards,
        }
    }
}

/// The turns that a handler runs under.
#[derive(Clone)]
pub(crate) struct Held {
    turns: WeakGuards,
    /// The turns of layers further out.
    outer: Option<Arc<Held>>,
}

tokio::task_local! {
    static HELD: Option<Held>;
}

/// The turns of this task.
fn current() -> Option<Held> {
    HELD.try_with(Option::clone).ok().flatten()
}

/// The turns of this task, and these.
pub(crate) fn with(guards: &[LockGuard]) -> Held {
    Held {
        turns: WeakGuards::of(guards),
        outer: current().map(Arc::new),
    }
}

/// Runs a closure under these turns.
pub(crate) fn scope<T>(held: &Held, run: impl FnOnce() -> T) -> T {
    HELD.sync_scope(Some(held.clone()), run)
}

/// Takes the turns of this task along into the task that the future is spawned as.
pub(crate) fn carry<F: Future>(future: F) -> impl Future<Output = F::Output> {
    HELD.scope(current(), future)
}

/// Refuses a key that the handler's own request holds.
pub(crate) fn check(locks: &Locks, key: &LockKey) -> Result<(), Error> {
    match HELD.try_with(|held| holds(held.as_ref(), locks, key)) {
        Ok(true) => Err(Error::new(
            ErrorKind::Held,
            "the request holds this key itself, and would wait for its own end: use its guard, or a clone of it, instead of locking \
             the key again",
        )),
        _ => Ok(()),
    }
}

fn holds(held: Option<&Held>, locks: &Locks, key: &LockKey) -> bool {
    let is_own = |turn: &WeakGuard| {
        let guard = turn.upgrade();
        guard.is_some_and(|guard| guard.is_for(locks, key) && guard.is_held())
    };
    std::iter::successors(held, |held| held.outer.as_deref())
        .any(|held| held.turns.as_slice().iter().any(is_own))
}
