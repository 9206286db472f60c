//! Where leases live.
//!
//! [`Store`] is the contract between this crate's local coordination and a place that the whole fleet shares. Its
//! documentation *is* the specification: one conformance suite (`tests/conformance`) holds every store to it.
//! The trait is sealed while the crate is 0.x, so that it can still grow.

mod memory;
mod quorum;
#[cfg(feature = "redis")]
mod redis;
mod types;

use std::{fmt::Debug, pin::Pin, sync::Arc, time::Duration};

use tokio::sync::mpsc;

pub use memory::{Calls, Fault, MemoryStore};
pub use quorum::{QuorumStore, QuorumStoreBuilder};
#[cfg(feature = "redis")]
pub use redis::{RedisStore, RedisStoreBuilder};
pub use types::{
    Acquire, Acquired, Ending, Grant, Held, Hint, Holder, Inspection, Instance, Mode, Owner,
    Queueing, Release, Released, Renew, Renewed, Tokens,
};

use crate::{Error, LockKey};

/// What every call of a [`Store`] returns: it owns all it needs, so that it can outlive whoever asked.
pub type StoreFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The hints meant for one instance, in no particular order and with no promise that none is lost.
pub type Hints = mpsc::UnboundedReceiver<Hint>;

pub(crate) mod sealed {
    /// Nobody outside of this crate can name this, so nobody else can implement [`Store`](super::Store).
    pub trait Sealed {}
}

/// A place that the whole fleet shares, where a key has at most one lease at a time.
///
/// # The contract
///
/// **Leases.** A key is free, leased to one [`Owner`] until a point in time on the store's own clock, or taken by a
/// *record*. A lease ends by [`release`](Store::release), or by its time: an expired lease is as good as none, and
/// is forgotten without anybody asking for that key again.
///
/// **Owners.** An owner names one acquisition and is never used again after its release. Whatever is asked in the
/// name of an owner that does not hold the key changes nothing for the one who does.
///
/// **Tokens.** Every grant and every refill hands out a block of numbers that are all above every number handed out
/// for that key before, whatever happened in between: release, expiry, a crash, a restart of the store.
///
/// **The queue.** Attempts that wait are served in the order in which they first arrived. Each has a deadline
/// that every further [`acquire`](Store::acquire) of the same owner refreshes; past it, the attempt counts as gone.
/// While somebody is queued, a free key is granted to the head of the queue and to nobody else.
///
/// **Order.** Calls for one key that are *started* (called, and polled once) one after another take effect in
/// that order as long as none of them fails.
///
/// **Time.** Every call ends within a time limit of the store's own. The caller does not trust that: it counts a
/// lease from before the call, on its own clock.
///
/// **Unknown outcomes.** A call that fails may or may not have taken effect. The store itself cleans up after it: a
/// failed `acquire` leaves neither a lease nor a queue entry behind, a failed `release` is made up for, both as soon
/// as the store can be reached again, without the caller's doing. After a failed `acquire` the caller must not use
/// that owner again. After a failed `release` it may renew and release again, and need not.
///
/// **Cancellation.** The caller polls every future to its end. One that is dropped all the same (its runtime
/// shuts down) is an unknown outcome that nobody cleans up after: the lease's time ends it.
pub trait Store: sealed::Sealed + Debug + Send + Sync + 'static {
    /// Takes the key for an owner, if it is free and it is this owner's turn.
    ///
    /// - Leased to the same owner already: granted again, the lease counted anew, with a new block of tokens. So a
    ///   caller that never saw the reply can ask again.
    /// - Taken by a record: [`Acquired::Recorded`], with the record. That ends the attempt: if it was queued, it is
    ///   removed from the queue.
    /// - Leased to somebody else, or free with somebody else first in the queue: [`Acquired::Held`]. With
    ///   [`Queueing::Wait`], the attempt is queued now, or its deadline refreshed, and the holder's instance is
    ///   sent [`Hint::Wanted`] when the attempt is new in the queue. With [`Queueing::No`] nothing is left behind. With
    ///   [`Queueing::Skip`] nothing is either, and the queue does not count: a free key is granted.
    /// - Else: leased to this owner, its queue entry removed, [`Acquired::Granted`].
    fn acquire(&self, request: Acquire) -> StoreFuture<Result<Acquired, Error>>;

    /// Prolongs leases, and hands out further tokens for those that ask for a refill. One answer for each request,
    /// in their order; all of them travel together.
    ///
    /// A renewal never makes a lease shorter, never creates one, and does nothing at all (no token either) for an
    /// owner that does not hold the key.
    fn renew(&self, requests: Vec<Renew>) -> StoreFuture<Vec<Renewed>>;

    /// Ends an owner's lease, or its attempt if it is only queued.
    ///
    /// - The owner's lease is ended; with [`Ending::Record`] the record takes its place in the same step and for as
    ///   long as it says. [`Released::Freed`]. The head of the queue is sent [`Hint::Free`]; after a record, everybody
    ///   in the queue is.
    /// - A record by this same owner is there already: [`Released::Freed`] again, nothing changes.
    /// - Else: [`Released::NotOurs`]. If the attempt was queued it is removed, and if that makes
    ///   another one the head of a free key, that one is sent [`Hint::Free`].
    fn release(&self, request: Release) -> StoreFuture<Result<Released, Error>>;

    /// Lifts the token counter of a key, so that every later token is above `floor`. Never lowers it.
    /// Returns the highest token that counts as handed out now.
    fn raise_fence(&self, key: LockKey, floor: u64) -> StoreFuture<Result<u64, Error>>;

    /// What there is to know about a key now. For operators and tests; changes nothing.
    fn inspect(&self, key: LockKey) -> StoreFuture<Result<Inspection, Error>>;

    /// Takes the key away from whoever has it, a record included, and hints as [`release`](Store::release) does. Says
    /// whether there was anything. The holder learns of it at its next renewal: until then two may be inside, and
    /// only their tokens tell them apart.
    fn force_release(&self, key: LockKey) -> StoreFuture<Result<bool, Error>>;

    /// What tells this store's keys from every other store's: two stores of the same space share their keys.
    fn space(&self) -> Arc<str>;

    /// For how long, at least, the store has forgotten nothing: the uptime of a server that keeps leases in memory
    /// only. By default it never forgets. Asked after a call was answered, it speaks of the server that gave that
    /// answer.
    ///
    /// Only a quorum of stores asks: it has other nodes that remember what this one may have forgotten.
    fn uptime(&self) -> Duration {
        Duration::MAX
    }

    /// Where the hints for an instance arrive, until the receiver is dropped. Called from within a runtime, before an
    /// instance's first `acquire`, and again when that runtime has ended and the instance is used on another. A hint
    /// only saves waiting: one may be lost, late, doubled or wrong.
    fn watch(&self, instance: Instance) -> Hints;
}
