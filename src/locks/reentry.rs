//! Finds out that a handler asks for a key that its own request holds, which would wait for itself.

use std::sync::Arc;

use super::{LockGuard, Locks, WeakGuard};
use crate::{Error, ErrorKind, LockKey};

/// The turns that the handler of this task runs under, those of layers further out included.
pub(crate) type Held = Arc<[WeakGuard]>;

tokio::task_local! {
    static HELD: Held;
}

/// The turns of this task, and these.
pub(crate) fn with(guards: &[LockGuard]) -> Held {
    let outer = HELD.try_with(Held::clone).unwrap_or_default();
    let outer = outer.iter().cloned();
    outer
        .chain(guards.iter().map(LockGuard::downgrade))
        .collect()
}

/// Runs a closure under these turns.
pub(crate) fn scope<T>(held: &Held, run: impl FnOnce() -> T) -> T {
    HELD.sync_scope(held.clone(), run)
}

/// Takes the turns of this task along into another one, which the future is spawned as.
pub(crate) fn carry<F: Future>(future: F) -> impl Future<Output = F::Output> {
    HELD.scope(HELD.try_with(Held::clone).unwrap_or_default(), future)
}

/// Refuses a key that the handler's own request holds.
pub(crate) fn check(locks: &Locks, key: &LockKey) -> Result<(), Error> {
    let is_own = |turn: &WeakGuard| {
        let guard = turn.upgrade();
        guard.is_some_and(|guard| guard.is_for(locks, key) && guard.is_held())
    };
    match HELD.try_with(|held| held.iter().any(is_own)) {
        Ok(true) => Err(Error::new(
            ErrorKind::Held,
            "the request holds this key itself, and would wait for its own end: use its guard, or a clone of it, instead of locking \
             the key again",
        )),
        _ => Ok(()),
    }
}
