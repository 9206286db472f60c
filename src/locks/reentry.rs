//! Detects a handler that locks a key which its own request holds, and which would wait for itself.
//!
//! A layer runs its handler within [`scope`], and [`check`] refuses the keys of that scope. [`carry`] takes the scope
//! into a spawned task.
//!
//! ```text
//! layer (key a) ──▶ scope { a } ──▶ handler ──▶ locks.lock("a")   refused at once: ErrorKind::Held
//!                                          ├──▶ locks.lock("b")   waits as usual
//!                                          └──▶ tokio::spawn(..)  no scope: locks.lock("a") waits until its limit
//! ```

use std::{slice, sync::Arc};

use super::{LockGuard, Locks, WeakGuard};
use crate::{Error, LockKey, error::HeldBy};

/// Weak guards, which do not keep their turns from ending. The common case of one guard needs no allocation.
#[derive(Clone)]
pub(crate) enum WeakGuards {
    One(WeakGuard),
    Several(Arc<[WeakGuard]>),
}

impl WeakGuards {
    pub(crate) fn of(guards: &[LockGuard]) -> Self {
        match guards {
            [guard] => Self::One(guard.weak()),
            guards => Self::Several(guards.iter().map(LockGuard::weak).collect()),
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
    /// The turns of the layers further out.
    outer: Option<Arc<Held>>,
}

tokio::task_local! {
    static HELD: Option<Held>;
}

/// The turns that the current task runs under.
fn current() -> Option<Held> {
    HELD.try_with(Option::clone).ok().flatten()
}

/// The turns that the current task runs under, and those of `guards`.
pub(crate) fn with(guards: &[LockGuard]) -> Held {
    Held {
        turns: WeakGuards::of(guards),
        outer: current().map(Arc::new),
    }
}

/// Runs a closure under the turns of `held`.
pub(crate) fn scope<T>(held: &Held, run: impl FnOnce() -> T) -> T {
    HELD.sync_scope(Some(held.clone()), run)
}

/// Wraps a future that is about to be spawned, so that the new task runs under the turns of the current one.
pub(crate) fn carry<F: Future>(future: F) -> impl Future<Output = F::Output> {
    HELD.scope(current(), future)
}

/// Fails if the current task runs under a turn at this key.
pub(crate) fn check(locks: &Locks, key: &LockKey) -> Result<(), Error> {
    match HELD.try_with(|held| holds(held.as_ref(), locks, key)) {
        Ok(true) => Err(Error::held(
            HeldBy::Itself,
            "the request already holds this key and would wait for itself: use the guard of the request, or a clone of that \
             guard, instead of locking the key again",
        )),
        _ => Ok(()),
    }
}

/// Whether `held`, or a scope further out, has a guard for this key that is still held.
fn holds(held: Option<&Held>, locks: &Locks, key: &LockKey) -> bool {
    let is_own = |turn: &WeakGuard| {
        let guard = turn.upgrade();
        guard.is_some_and(|guard| guard.is_for(locks, key) && guard.is_held())
    };
    std::iter::successors(held, |held| held.outer.as_deref())
        .any(|held| held.turns.as_slice().iter().any(is_own))
}
