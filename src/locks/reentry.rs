//! Detects a handler that locks a key which its own request holds, and which would wait for itself.
//!
//! A layer runs its handler within [`scope`], and [`check`] refuses the keys of that scope.
//! [`carry`] takes the scope into a spawned task.
//!
//! ```text
//! layer (key a) ──▶ scope { a } ──▶ handler ──▶ locks.lock("a")   refused at once: ErrorKind::Held
//!                                          ├──▶ locks.lock("b")   waits as usual
//!                                          └──▶ tokio::spawn(..)  no scope: locks.lock("a") waits until its limit
//! ```

use std::sync::Arc;

use smallvec::SmallVec;

use super::{LockGuard, Locks, WeakGuard};
use crate::{Error, LockKey, error::HeldBy};

/// Weak guards, which do not keep their turns from ending. Usually one.
pub(crate) type WeakGuards = SmallVec<[WeakGuard; 1]>;

pub(crate) fn weak(guards: &[LockGuard]) -> WeakGuards {
    guards.iter().map(LockGuard::weak).collect()
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
        turns: weak(guards),
        outer: current().map(Arc::new),
    }
}

/// Runs a closure under the turns of `held`.
pub(crate) fn scope<T>(held: &Held, run: impl FnOnce() -> T) -> T {
    HELD.sync_scope(Some(held.clone()), run)
}

/// Wraps a future that is about to be spawned, so that the new task runs under the turns of the
/// current one.
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
        .any(|held| held.turns.iter().any(is_own))
}
