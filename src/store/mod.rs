//! Where leases live.
//!
//! [`Store`] is the contract between this crate's local coordination and a place that the whole fleet shares. Its
//! documentation *is* the specification: one conformance suite (`tests/conformance`) holds every store to it.
//! The trait is sealed while the crate is 0.x, so that it can still grow.

#[cfg(any(test, feature = "test-util"))]
mod faulty;
mod memory;
mod quorum;
#[cfg(feature = "redis")]
mod redis;
mod types;

use std::{fmt::Debug, pin::Pin, sync::Arc, time::Duration};

use futures_util::Stream;

#[cfg(any(test, feature = "test-util"))]
pub use faulty::{Calls, Fault, FaultyStore};
pub use memory::MemoryStore;
pub use quorum::{QuorumStore, QuorumStoreBuilder};
#[cfg(feature = "redis")]
pub use redis::{RedisStore, RedisStoreBuilder};
#[cfg(feature = "redis")]
pub use types::MovedKeys;
pub use types::{
    Acquire, Acquired, Ending, Grant, Held, Hint, Holder, Inspection, Instance, Mode, Owner,
    Queueing, Release, Released, Renew, Renewed, Tokens,
};

use crate::{Error, LockKey, sync::mpsc};

/// The answer to a call of a [`Store`]. The future owns everything it needs.
pub type StoreFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The answers to a batch of renewals, each as soon as it is known, with the index of its request.
pub type RenewAnswers = Pin<Box<dyn Stream<Item = (usize, Renewed)> + Send>>;

/// The hints meant for one instance, in no particular order and with no promise that none is lost.
pub type Hints = mpsc::UnboundedReceiver<Hint>;

pub(crate) mod sealed {
    /// Cannot be named outside of this crate, so [`Store`](super::Store) cannot be implemented elsewhere.
    pub trait Sealed {}
}

/// A place that the whole fleet shares, where a key has at most one lease at a time.
///
/// # The contract
///
/// **Leases.** A key is free, leased to one [`Owner`] until a point in time on the store's own clock, or taken by a
/// *record*. A lease ends by [`start_release`](Store::start_release), or by its time: an expired lease counts as none,
/// and the store forgets it although no caller asks for that key again.
///
/// **Owners.** An owner names one acquisition and is never used again after its release. A call in the name of an owner
/// that does not hold the key changes nothing for the owner that does.
///
/// **Tokens.** Every grant and every refill hands out a block of numbers that are all above every number handed out
/// for that key before, whatever happened in between: release, expiry, a crash, a restart of the store.
///
/// **The queue.** Waiting attempts are served in the order of their arrival. Each place in the queue has a deadline, which
/// every further [`acquire`](Store::acquire) of the same owner refreshes; past the deadline, the place is gone. While the
/// queue is not empty, a free key is granted only to the head of the queue. A head that leaves a free key
/// untaken for longer than the [`head_start`](Queueing::Wait::head_start) of an attempt that asks behind it loses its
/// place: a crashed waiter must not block a free key until its deadline.
///
/// **Order.** A call starts when the method is called, not when its future is first polled. Calls for one key take effect in the
/// order in which they were started, also when a connection breaks in between and calls are sent again.
///
/// **Time.** Every call is answered within a time limit of the store's own. The caller does not rely on that limit: it counts a
/// lease from before the call, on its own clock.
///
/// **Effects that may have happened.** A call that fails may have taken effect, and the store itself cleans up after the call.
/// A failed `acquire` leaves neither a lease nor a place in the queue behind, whatever the reason for the
/// failure and however often the call was sent; a failed release is repeated. Both happen as soon as the store can be
/// reached, without the caller's doing, and in order with later calls for the key. The caller never uses an owner again after
/// a failed `acquire`. After a failed release the caller may renew and release again, and need not.
///
/// **What is owed.** Clean-ups and releases that wait for a store that is away are bounded: in time by
/// [`Release::owed_for`], after which the lease or the place has ended by itself; and in number, since a call that was never sent
/// leaves nothing to clean up.
///
/// **Cancellation.** An `acquire` whose future is dropped before its answer was taken counts as failed: the store cleans up. A release
/// goes on when its future is dropped. A renewal whose stream is dropped may have taken effect.
///
/// **Runtimes.** The methods are called within a tokio runtime, except [`start_release`](Store::start_release), which works
/// anywhere and never panics. Without a runtime (or when that runtime has ended), a release is sent with the next call
/// from within one, or the lease's time ends the lease.
pub trait Store: sealed::Sealed + Debug + Send + Sync + 'static {
    /// Takes the key for an owner, if the key is free and this owner is next.
    ///
    /// - Leased to the same owner already: granted again, the lease counted anew, with a new block of tokens. So a
    ///   caller that never saw the reply can ask again.
    /// - Taken by a record: [`Acquired::Recorded`], with the record. That ends the attempt, and removes its place in the queue.
    /// - Leased to another owner, or free with another attempt at the head of the queue: [`Acquired::Held`]. With
    ///   [`Queueing::Wait`], the attempt is queued now, or its deadline refreshed, and the holder's instance is
    ///   sent [`Hint::Wanted`] when the attempt is new in the queue; of a free key, the head of the queue is sent
    ///   [`Hint::Free`], once. With [`Queueing::No`] nothing is left behind: a place that the attempt had is removed, as if by a release. With
    ///   [`Queueing::Skip`] nothing is left behind either, and the queue does not count: a free key is granted.
    /// - Else: leased to this owner, its place in the queue removed, [`Acquired::Granted`].
    fn acquire(&self, request: Acquire) -> StoreFuture<Result<Acquired, Error>>;

    /// Prolongs leases, and hands out further tokens for those that ask for a refill. One answer for each request,
    /// each as soon as it is known: one slow server does not hold up the answers of another.
    ///
    /// A renewal never makes a lease shorter, never creates one, and does nothing at all (no token either) for an
    /// owner that does not hold the key.
    fn renew(&self, requests: Vec<Renew>) -> RenewAnswers;

    /// Starts to end an owner's lease, or its attempt if it is only queued. The future is the answer; the release goes on
    /// when the future is dropped.
    ///
    /// When this method returns, the order is fixed: no later call for that key takes effect before the release. Where the store
    /// has a working connection, the command is also in that connection's queue.
    ///
    /// Callable outside of a runtime, under locks of the caller, and in `Drop`: it neither blocks nor panics, and calls nothing
    /// of the caller's.
    ///
    /// - The owner's lease is ended; with [`Ending::Record`] the record takes its place in the same step and for as
    ///   long as it says. [`Released::Freed`]. The head of the queue is sent [`Hint::Free`], and a few attempts behind the
    ///   head [`Hint::Next`]; after a record, every attempt in the queue is sent [`Hint::Free`].
    /// - A record by this same owner is there already: [`Released::Freed`] again, nothing changes.
    /// - Else: [`Released::NotOurs`]. If the attempt was queued it is removed, and if that makes
    ///   another one the head of a free key, that one is sent [`Hint::Free`].
    fn start_release(&self, request: Release) -> StoreFuture<Result<Released, Error>>;

    /// How many releases were started and have not been answered, clean-ups after failed calls included.
    fn owed(&self) -> usize;

    /// Resolves when nothing is [owed](Store::owed) any more.
    fn settled(&self) -> StoreFuture<()>;

    /// Lifts the token counter of a key, so that every later token is above `floor`. Never lowers it.
    /// Returns the highest token that counts as handed out now.
    fn raise_fence(&self, key: LockKey, floor: u64) -> StoreFuture<Result<u64, Error>>;

    /// What there is to know about a key now. For operators and tests; changes nothing.
    fn inspect(&self, key: LockKey) -> StoreFuture<Result<Inspection, Error>>;

    /// Takes the key away from whoever has it, a record included, and hints as [`start_release`](Store::start_release) does. Says
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

    /// Which server gave the last answer, where the store can tell: none by default, and before the first answer. Two stores that
    /// tell the same share their fate, and perhaps their keys.
    ///
    /// Only a quorum of stores asks: its nodes must be independent.
    fn server_id(&self) -> Option<Arc<str>> {
        None
    }

    /// Where the hints for an instance arrive, until the receiver is dropped. Called from within a runtime, before an
    /// instance's first `acquire`, and again when that runtime has ended and the instance is used on another. A hint
    /// only saves waiting: one may be lost, late, doubled or wrong. [`Hint::Listening`] tells from when on hints arrive.
    fn watch(&self, instance: Instance) -> Hints;
}
