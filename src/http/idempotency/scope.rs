//! The number of requests of each scope that are under way in this process, so that a tenant cannot
//! take all capacity. A request counts once its body was read: an upload that never ends must not
//! keep others out.
//!
//! The counts are of the whole process, not of a layer: a tenant that calls two routes with a layer
//! each has one limit.

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError},
};

use crate::{LockKey, Locks};

/// The space of a store's keys, and a scope within it.
type Scope = (Arc<str>, LockKey);

/// A request that is under way, counted in its scope. `None` for a layer without a limit.
#[derive(Debug)]
pub(super) struct Admitted(Option<Scope>);

/// The counts for all layers of the process that have a limit. A scope without requests is not in
/// the map.
static RUNNING: LazyLock<Mutex<HashMap<Scope, usize>>> = LazyLock::new(Mutex::default);

fn running() -> MutexGuard<'static, HashMap<Scope, usize>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Counts a request in. `None` when the scope has reached its limit.
pub(super) fn enter(locks: &Locks, scope: &LockKey, limit: Option<usize>) -> Option<Admitted> {
    let Some(limit) = limit else {
        return Some(Admitted(None));
    };
    let scope = (locks.space().clone(), scope.clone());
    let mut running = running();
    let count = running.get(&scope).copied().unwrap_or(0);
    (count < limit).then(|| {
        running.insert(scope.clone(), count + 1);
        Admitted(Some(scope))
    })
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let Some(scope) = self.0.take() else {
            return;
        };
        let mut running = running();
        match running.get_mut(&scope) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(running.remove(&scope)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_scope_admits_no_request_and_an_empty_scope_is_forgotten() {
        let locks = Locks::in_memory();
        let [a, b] = ["a", "b"].map(|scope| LockKey::new(scope).unwrap());
        let enter = |scope| enter(&locks, scope, Some(2));
        let first = enter(&a);
        let second = enter(&a);
        assert!(first.is_some() && second.is_some());
        assert!(enter(&a).is_none());
        assert!(enter(&b).is_some());
        drop(first);
        assert!(enter(&a).is_some());
        drop(second);
        let mut counted = running().clone();
        counted.retain(|(space, _), _| space == locks.space());
        assert!(counted.is_empty());
    }
}
