//! The flights of which requests of this process are members.
//!
//! Requests of one process take part in the same flight as long as that flight is under way. One of
//! them at a time acts for all: it asks the store, waits there for the flight of another process,
//! or runs. The others wait for the end of the flight, and take no place in the line of the
//! flight's key. If the acting request goes away, the next one acts.
//!
//! Another reason for one flight in a process: a request whose own claim reached the store only
//! after the flight had ended would find a record, and could not tell whether the record is older
//! than the request.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{LockKey, idempotency::Answer};

/// The flights by key. A flight that has ended is not in the map, although requests may still hold
/// it.
#[derive(Debug, Default)]
pub(super) struct Flights(Mutex<HashMap<LockKey, Arc<Flight>>>);

#[derive(Debug)]
struct Flight {
    /// The permit of the request that acts. Closed at the end, which wakes all members at once.
    acting: Arc<Semaphore>,
    /// The generation in which the flight was found.
    generation: OnceLock<u8>,
    /// Set at the end: the answer, if it is shared.
    ended: OnceLock<Option<Arc<Answer>>>,
}

impl Default for Flight {
    fn default() -> Self {
        Self {
            acting: Arc::new(Semaphore::new(1)),
            generation: OnceLock::new(),
            ended: OnceLock::new(),
        }
    }
}

/// A request's membership in a flight.
pub(super) struct Member {
    flights: Arc<Flights>,
    key: LockKey,
    flight: Arc<Flight>,
}

/// The right to act for a flight, until it is dropped.
pub(super) type Acting = OwnedSemaphorePermit;

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
    /// Waits until this request has to act, or until the flight has ended: with an answer for this
    /// request, or with none.
    pub(super) async fn act(&self) -> Result<Acting, Option<Arc<Answer>>> {
        let acting = self.flight.acting.clone().acquire_owned().await;
        acting.map_err(|_closed| self.flight.ended.get().cloned().flatten())
    }

    /// The generation in which an earlier acting request has found the flight.
    pub(super) fn generation(&self) -> Option<u8> {
        self.flight.generation.get().copied()
    }

    pub(super) fn found_in(&self, generation: u8) {
        let _ = self.flight.generation.set(generation);
    }

    /// Ends the flight: its other members get this answer, or run by themselves. A request that
    /// comes now takes part in another.
    pub(super) fn end(&self, answer: Option<Arc<Answer>>) {
        let _ = self.flight.ended.set(answer);
        let mut flights = self.flights.lock();
        let is_this = |flight: &Arc<Flight>| Arc::ptr_eq(flight, &self.flight);
        if flights.get(&self.key).is_some_and(is_this) {
            flights.remove(&self.key);
        }
        drop(flights);
        self.flight.acting.close();
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // A count of two means: this member and the map. New members are made under the map's lock
        // only.
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
    use std::task::{Context, Waker};

    use super::*;

    #[test]
    fn a_flight_leaves_the_map_with_its_end_or_its_last_member() {
        let flights = Arc::new(Flights::default());
        let key = LockKey::new("k").unwrap();
        let one = flights.enter(&key);
        let two = flights.enter(&key);
        assert!(Arc::ptr_eq(&one.flight, &two.flight));
        drop(one);
        assert_eq!(flights.lock().len(), 1);
        two.end(None);
        let next = flights.enter(&key);
        assert!(!Arc::ptr_eq(&next.flight, &two.flight));
        drop(two);
        assert_eq!(flights.lock().len(), 1);
        drop(next);
        assert!(flights.lock().is_empty());
    }

    #[tokio::test]
    async fn one_member_acts_at_a_time_until_the_end() {
        let flights = Arc::new(Flights::default());
        let key = LockKey::new("k").unwrap();
        let [one, two] = [(); 2].map(|()| flights.enter(&key));
        let acting = one.act().await.ok().unwrap();
        let mut next = std::pin::pin!(two.act());
        let mut cx = Context::from_waker(Waker::noop());
        assert!(next.as_mut().poll(&mut cx).is_pending());
        // The acting request has gone away.
        drop(acting);
        assert!(next.await.is_ok());
        one.end(None);
        assert!(matches!(two.act().await, Err(None)));
    }
}
