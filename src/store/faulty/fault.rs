//! The current fault of a store, and the calls that wait for its end.
//!
//! 1. Without a fault, a call takes effect when the call is made.
//! 2. Calls that were made under [`Fault::Hang`] wait in `hanging`. Once the store works again, they take effect in
//!    their order, before any later call. They fail if the store becomes unreachable instead.
//! 3. Releases that failed wait in `missed`. Once the store works again, they take effect before all other calls,
//!    unless the time that they are owed for has passed.

use std::collections::VecDeque;

use crate::{
    Error, ErrorKind,
    store::{MemoryStore, Release},
    time::{Instant, later, now},
    trace,
};

/// A way in which a [`FaultyStore`](super::FaultyStore) can fail.
///
/// | fault | simulates | a lock | a guard |
/// |---|---|---|---|
/// | [`Unreachable`](Self::Unreachable) | a server that is down | fails at once | is held until its deadline |
/// | [`Hang`](Self::Hang) | a server, or a network, that hangs | waits until its limit | is held until its deadline |
/// | [`Mute`](Self::Mute) | answers that are lost on their way | waits, and may have the key in the store | is held until its deadline |
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// Every call fails at once and has no effect. When the fault is over, each [`Locks`](crate::Locks) is told that
    /// the store is back, and confirms its leases.
    Unreachable,
    /// No call returns until the fault is over. All of them then continue, in the order in which they were made.
    Hang,
    /// Every call takes effect at once, but its answer is held back until the fault is over.
    Mute,
}

/// The number of calls that a [`FaultyStore`](super::FaultyStore) has received.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_distributed_lock::Error> {
/// use tower_distributed_lock::{Locks, store::FaultyStore};
///
/// let store = FaultyStore::new();
/// let locks = Locks::builder(store.clone()).build()?;
/// drop(locks.lock("orders/42").await?);
/// assert_eq!((store.calls().acquires, store.calls().releases), (1, 1));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Calls {
    /// Calls of `acquire`.
    pub acquires: u64,
    /// Calls of `renew`, each for a whole batch.
    pub renewals: u64,
    /// Calls of `start_release`.
    pub releases: u64,
}

/// A call that takes effect later, on the store or with an error. Returns the release, if the call was one and has
/// failed.
pub(super) type Deferred = Box<dyn FnOnce(Result<&MemoryStore, Error>) -> Option<Release> + Send>;

/// The current fault, and everything that waits for its end.
#[derive(Default)]
pub(super) struct Faults {
    current: Option<Fault>,
    hanging: VecDeque<Deferred>,
    /// Answers that are held back.
    muted: Vec<Box<dyn FnOnce() + Send>>,
    missed: Vec<(Instant, Release)>,
    /// The store was unreachable and has not worked since.
    was_away: bool,
    pub(super) calls: Calls,
    /// When the store last restarted empty.
    pub(super) restarted: Option<Instant>,
}

impl Faults {
    pub(super) fn current(&self) -> Option<Fault> {
        self.current
    }

    /// Whether no call and no missed release waits.
    pub(super) fn is_clear(&mut self) -> bool {
        self.hanging.is_empty() && self.muted.is_empty() && self.missed() == 0
    }

    pub(super) fn hang(&mut self, call: Deferred) {
        self.hanging.push_back(call);
    }

    pub(super) fn mute(&mut self, answer: Box<dyn FnOnce() + Send>) {
        self.muted.push(answer);
    }

    /// Keeps a release that failed for as long as the lease or the place in the queue lasts.
    pub(super) fn miss(&mut self, release: Release) {
        trace::release_failed(release.owner, &unreachable(), self.missed() == 0);
        self.missed.push((later(now(), release.owed_for), release));
    }

    /// How many missed releases are still owed.
    pub(super) fn missed(&mut self) -> usize {
        let now = now();
        self.missed.retain(|(until, _)| now < *until);
        self.missed.len()
    }

    /// When the first of the missed releases is dropped.
    pub(super) fn next_forgotten(&self) -> Option<Instant> {
        self.missed.iter().map(|(until, _)| *until).min()
    }

    pub(super) fn forget_missed(&mut self) {
        self.missed.clear();
    }

    /// Changes the fault, and continues or fails the calls that waited for the end of the last one.
    pub(super) fn set(&mut self, fault: Option<Fault>, store: &MemoryStore) {
        let before = std::mem::replace(&mut self.current, fault);
        if before == fault {
            return;
        }
        if fault != Some(Fault::Mute) {
            for answer in self.muted.drain(..) {
                answer();
            }
        }
        match fault {
            Some(Fault::Hang) => {}
            Some(Fault::Unreachable) => {
                self.was_away = true;
                for call in std::mem::take(&mut self.hanging) {
                    if let Some(release) = call(Err(unreachable())) {
                        self.miss(release);
                    }
                }
            }
            Some(Fault::Mute) | None => {
                let now = now();
                for (until, release) in self.missed.drain(..) {
                    if now < until {
                        store.release_now(release);
                    }
                }
                for call in std::mem::take(&mut self.hanging) {
                    call(Ok(store));
                }
                if std::mem::take(&mut self.was_away) {
                    store.tell_all_reconnected();
                }
            }
        }
    }
}

/// The error of every call under [`Fault::Unreachable`].
pub(super) fn unreachable() -> Error {
    Error::new(
        ErrorKind::Unreachable,
        "the store simulates an unreachable server (`FaultyStore::set_fault`)",
    )
}
