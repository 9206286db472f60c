//! The flights of which requests of this process are members.
//!
//! A request whose own claim reached the store only after the flight had ended would find a record, and could not tell whether the
//! record is older than the request. Requests of one process therefore take part in the same flight as long as that flight is under
//! way, and only the first of them asks the store.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::Mutex as AsyncMutex;

use crate::{LockKey, idempotency::Answer};

/// The flights by key. A flight that has ended is not in the map, although requests may still hold it.
#[derive(Debug, Default)]
pub(super) struct Flights(Mutex<HashMap<LockKey, Arc<Flight>>>);

/// The state of a flight, once the first request of this process has asked the store.
type Flight = AsyncMutex<Option<Known>>;

/// The state of a flight in the store.
#[derive(Debug, Clone)]
pub(super) enum Known {
    /// A flight of this generation is under way.
    Generation(u8),
    /// The answer of an earlier flight is kept.
    Answer(Arc<Answer>),
    /// The store cannot tell, or has no room for another flight: all requests run by themselves.
    Alone,
}

/// A request's membership in a flight.
pub(super) struct Member {
    flights: Arc<Flights>,
    key: LockKey,
    flight: Arc<Flight>,
}

impl Flights {
    /// Takes part in the flight of this key that is under way in this process, or in a new one.
    pub(super) fn enter(self: &Arc<Self>, key: &LockKey) -> Member {
        let flight = self.lock().entry(key.clone()).or_default().clone();
        Member {
            flights: self.clone(),
            key: key.clone(),
            flight,
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<LockKey, Arc<Flight>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Member {
    /// The flight's state. While one request asks the store, the others of this process wait for this lock.
    pub(super) fn known(&self) -> &Flight {
        &self.flight
    }

    /// The flight is over: a request that comes now takes part in another.
    pub(super) fn end(&self) {
        let mut flights = self.flights.lock();
        let is_this = |flight: &Arc<Flight>| Arc::ptr_eq(flight, &self.flight);
        if flights.get(&self.key).is_some_and(is_this) {
            flights.remove(&self.key);
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // A count of two means: this member and the map. New members are made under the map's lock only.
        let mut flights = self.flights.lock();
        let is_last = |flight: &Arc<Flight>| {
            Arc::ptr_eq(flight, &self.flight) && Arc::strong_count(flight) == 2
        };
        if flights.get(&self.key).is_some_and(is_last) {
            flights.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flight_leaves_the_map_with_its_end_or_its_last_member() {
        let flights = Arc::new(Flights::default());
        let key = LockKey::new("k").unwrap();
        let [one, two] = [flights.enter(&key), flights.enter(&key)];
        assert!(Arc::ptr_eq(&one.flight, &two.flight));
        drop(one);
        assert_eq!(flights.lock().len(), 1);
        two.end();
        let next = flights.enter(&key);
        assert!(!Arc::ptr_eq(&next.flight, &two.flight));
        drop(two);
        assert_eq!(flights.lock().len(), 1);
        drop(next);
        assert!(flights.lock().is_empty());
    }
}
