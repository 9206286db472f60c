//! How many requests of each scope are under way, so that one tenant cannot take all the room.

use std::{collections::HashMap, sync::Arc};

use crate::{LockKey, sync::Mutex};

/// Counts only while there is a limit; a scope without requests takes no room.
#[derive(Clone, Default)]
pub(super) struct Scopes {
    limit: Option<usize>,
    running: Arc<Mutex<HashMap<LockKey, usize>>>,
}

/// One request's place in its scope.
pub(super) struct Place(Option<(Scopes, LockKey)>);

impl Scopes {
    pub(super) fn limited(limit: usize) -> Self {
        Self {
            limit: Some(limit),
            running: Arc::default(),
        }
    }

    /// `None` when the scope has no room left.
    pub(super) fn enter(&self, scope: &LockKey) -> Option<Place> {
        let Some(limit) = self.limit else {
            return Some(Place(None));
        };
        let mut running = self.running.lock();
        let count = running.get(scope).copied().unwrap_or(0);
        (count < limit).then(|| {
            running.insert(scope.clone(), count + 1);
            Place(Some((self.clone(), scope.clone())))
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let Some((scopes, scope)) = self.0.take() else {
            return;
        };
        let mut running = scopes.running.lock();
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
    fn a_full_scope_takes_nobody_and_an_empty_one_no_room() {
        let scopes = Scopes::limited(2);
        let [a, b] = ["a", "b"].map(|scope| LockKey::new(scope).unwrap());
        let first = scopes.enter(&a);
        let second = scopes.enter(&a);
        assert!(first.is_some() && second.is_some());
        assert!(scopes.enter(&a).is_none());
        assert!(scopes.enter(&b).is_some());
        drop(first);
        assert!(scopes.enter(&a).is_some());
        drop(second);
        assert!(scopes.running.lock().is_empty());
    }
}
