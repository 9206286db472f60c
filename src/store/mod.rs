//! Stores: the places where leases live.
//!
//! [`Store`] is the contract between the coordination within one process and a place that the whole
//! fleet shares. The documentation of the trait is the specification, and one conformance suite
//! (`tests/conformance`) holds every store to the contract. The trait is sealed while the crate is
//! 0.x, so that methods can still be added. The methods that only [`Locks`](crate::Locks) calls,
//! and the messages of these methods, are not part of the public API: they are hidden from this
//! documentation and may change with any version.
//!
//! | store | for |
//! |---|---|
//! | [`MemoryStore`] | a service that runs as one process, and tests |
//! | `RedisStore` (feature `redis`) | a fleet, on one Redis server, Sentinel or a Cluster |
//! | `PostgresStore` (feature `postgres`) | a fleet, in a PostgreSQL database |
//! | [`QuorumStore`] | a fleet, on a majority of independent stores |
//! | `FaultyStore` (feature `test-util`) | tests of a store that fails, hangs or forgets |

#[cfg(any(feature = "postgres", feature = "redis"))]
mod certificates;
#[cfg(any(feature = "postgres", feature = "redis"))]
mod credentials;
pub(crate) mod ends;
#[cfg(feature = "postgres")]
mod engine;
#[cfg(any(test, feature = "test-util"))]
mod faulty;
mod home;
#[cfg(any(feature = "postgres", feature = "redis"))]
mod label;
mod listing;
mod memory;
mod outcome;
#[cfg(feature = "postgres")]
mod postgres;
mod quorum;
#[cfg(feature = "redis")]
mod redis;
#[cfg(not(feature = "test-util"))]
mod rules;
#[cfg(feature = "test-util")]
#[doc(hidden)]
pub mod rules;
mod types;

use std::{fmt::Debug, pin::Pin, sync::Arc, time::Duration};

use futures_util::Stream;

#[cfg(any(feature = "postgres", feature = "redis"))]
pub use credentials::Credentials;
#[cfg(any(test, feature = "test-util"))]
pub use faulty::{Calls, Fault, FaultyStore};
pub use listing::{Cursor, KeyPage, List};
pub use memory::MemoryStore;
#[cfg(feature = "postgres")]
pub use postgres::{Checkpoint, Fence, KeepAnswer, PostgresStore, PostgresStoreBuilder, Reached};
pub use quorum::{QuorumStore, QuorumStoreBuilder};
#[cfg(feature = "redis")]
pub use redis::{RedisStore, RedisStoreBuilder};
pub use types::{Holder, Inspection, Instance, InvalidId, Mode, Owner};

// The messages between `Locks` and a store. Only this crate and its tests need them.
pub(crate) use outcome::Endings;
#[doc(hidden)]
pub use outcome::{Answer, Outcome};
pub(crate) use rules::InTheWay;
#[cfg(feature = "redis")]
#[doc(hidden)]
pub use types::MovedKeys;
#[doc(hidden)]
pub use types::{
    Acquire, Acquired, End, Ending, Expected, Grant, Held, Hint, Queueing, Release, Released,
    Renew, Renewed, Tokens,
};

use crate::{Error, LockKey, sync::mpsc};

/// The answer to a call of a [`Store`]. The future owns all of its data.
pub type StoreFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The answers to a batch of renewals, each with the index of its request, in the order in which
/// they become known.
#[doc(hidden)]
pub type RenewAnswers = Pin<Box<dyn Stream<Item = (usize, Renewed)> + Send>>;

/// The hints for one instance. Hints arrive in no particular order, and some may be lost.
#[doc(hidden)]
pub type Hints = mpsc::UnboundedReceiver<Hint>;

pub(crate) mod sealed {
    /// Cannot be named outside of this crate, so [`Store`](super::Store) cannot be implemented
    /// elsewhere.
    pub trait Sealed {}
}

/// A place that the whole fleet shares, where a key has as many leases at a time as their [`Mode`]s
/// allow.
///
/// # The contract
///
/// **Leases.** A key is free, leased until a point in time on the store's own clock, or taken by a
/// *record*. A lease ends by `release`, or by its time. An expired lease counts as
/// none, and the store removes it even if no caller asks for that key again.
///
/// **Modes.** A key has one [exclusive](Mode::Exclusive) lease, or any number of
/// [shared](Mode::Shared) ones, or [permits](Mode::Permit), each a lease of one [`Owner`]. A permit
/// is granted while fewer permits than the number that the attempt names are held. Locks (exclusive
/// and shared) and permits do not mix: while the key has leases or queued attempts of one kind,
/// attempts of the other kind fail with [`ErrorKind::Foreign`](crate::ErrorKind::Foreign), and
/// leave nothing behind. Only an exclusive lease has a fingerprint, and only an exclusive lease
/// ends with a record: a record for a lease that is shared by now is answered with
/// [`Released::NotOurs`], and changes nothing.
///
/// **Owners.** An owner names one acquisition. It is never asked for again after a release of it
/// was made, or after an acquire in its name had an unknown outcome. A call in the name of an owner
/// that does not hold the key changes nothing for the owner that does. A renewal and an ending know
/// their owner in whatever mode it holds the key: one that was made before a downgrade and takes
/// effect after it extends or ends the shared lease.
///
/// **Endings.** A release, and each of [`Acquire::ends`], ends the owner's lease in whatever mode
/// it is held, or the owner's place in the queue; the attempts that are next are told. The `ends`
/// come first: the attempt itself is then judged as if it came after the releases, behind all that
/// are queued. An acquire that is answered with *held*, or refused because of its kind, may have
/// ended them nevertheless.
///
/// **Tokens.** Every grant and every refill hands out a block of numbers that are all above every
/// number handed out for that key before, whatever happened in between: release, expiry, a crash, a
/// restart of the store. A counter that is lost begins again at the store's clock in microseconds,
/// so no counter passes that clock, whatever is asked for: a block is as long as asked for, or ends
/// at the clock. At the clock, a call gets a few tokens, and at least one for each lease; that they
/// do not pass the clock is left to the time that a call takes. Only a floor that some caller has
/// seen, or that an operator has set (`raise_fence`), lifts a counter above the clock.
///
/// **The queue.** Attempts of all modes wait in one queue and are served in the order of their
/// arrival. Each place in the queue has a deadline, which
/// every further `acquire` of the same owner refreshes; past the deadline, the place is gone. An
/// attempt is *next* when the attempts ahead of it in the queue leave room for it; an attempt that
/// is not queued comes after all that are:
///
/// - an exclusive attempt is next as the head of the queue,
/// - a shared attempt is next if all attempts ahead of it are shared,
/// - an attempt for one of *n* permits is next if the permits that are held and the attempts ahead
///   of it are together fewer than *n*.
///
/// **Long queues.** The work of a call does not grow with the queue. A store may look at the
/// attempts of a *page* only, from the head on: a reader further back is not next before those
/// ahead of it have taken the key or left, whereupon it is told. In the same way, expired
/// places beyond a number are removed by later calls, and a page of attempts is told of a record.
///
/// **Head starts.** A head that could have the key, and leaves the key
/// untaken for longer than the `head_start` of an attempt that asks behind it, loses its
/// place: a crashed waiter must not block a key until its deadline.
///
/// **Calls.** Each call takes effect at one moment, whole or not at all, and calls for one key one
/// after another. Nothing else is promised about their order: two calls under way may take effect
/// in either order.
///
/// **Outcomes.** An acquire and a release end as [`Outcome::Answered`], [`Outcome::Refused`] or
/// [`Outcome::Unknown`]. A store that is not sure says *unknown*. A store makes a call at most
/// once; it may send a call again only if it is certain that the earlier sending had no effect and
/// never will. It cleans up after no call and repeats no release: the caller keeps every owner that
/// it has named until its end is confirmed. Of the other calls, one that fails may have
/// taken effect, which does no harm. Dropping the future of a call gives up its answer, not its
/// effect.
///
/// **Late calls.** A release with [`Release::in_doubt`] is answered with [`Released::NotOurs`] only
/// if no earlier call of that owner can take effect any more, and otherwise with
/// [`Released::NotYet`].
///
/// **Time.** Every call ends within a time limit that the store sets. The caller does not rely on
/// that limit, and counts a lease from before the call, on its own clock.
///
/// **Where calls are made.** Within a tokio runtime, except `release`, which may be called
/// anywhere, also in `Drop`: it neither blocks nor panics. A store that needs a runtime and finds
/// none refuses the release. A store gives an [`Answer`] while it holds none of its locks. The
/// tasks of a store run on the runtime of the last `watch`, with their connections and timers; the
/// futures of the answers may be polled on any runtime. When the runtime of the tasks ends,
/// the outcome of calls under way is unknown, with an error that says so (`Error::is_interrupted`).
pub trait Store: sealed::Sealed + Debug + Send + Sync + 'static {
    /// Takes the key for an owner, if the mode leaves room beside the holders and this owner is
    /// next.
    ///
    /// - If a lease of the same owner exists, the key is granted again, with the time of the lease
    ///   counted anew and with a new block of tokens. With [`Acquire::more`], that holds for each
    ///   of the owners.
    /// - If a record has taken the key, the answer is [`Acquired::Recorded`], with the record. The
    ///   attempt ends, and loses its place in the queue.
    /// - If the holders leave no room, or this owner is not next, the answer is [`Acquired::Held`].
    ///   - With [`Queueing::Wait`], the attempt joins the queue, or refreshes its deadline. The
    ///     instances of the holders, except the attempt's own, are sent [`Hint::Wanted`] when the
    ///     attempt is new in the queue. (For a key that is shared or counted, the first two
    ///     attempts are enough: one of them is not the holder's own.) Attempts that are next are
    ///     sent [`Hint::Free`], once.
    ///   - With [`Queueing::No`], nothing is left behind: a place that the attempt had is removed,
    ///     as if by a release.
    ///   - With [`Queueing::Skip`], the queue does not count, and a free key is granted. If the key
    ///     is not free, the queue is not changed.
    /// - Otherwise the key is leased to this owner, the owner's place in the queue is removed, and
    ///   the answer is [`Acquired::Granted`]. With [`Acquire::more`], as many of the owners are
    ///   granted a permit as there is room, in order.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::Unreachable`](crate::ErrorKind::Unreachable) when the store does not answer.
    /// - [`ErrorKind::Foreign`](crate::ErrorKind::Foreign) when the key is used for permits and the
    ///   attempt is for a lock, or the other way round, or when the key has a value of another
    ///   program.
    /// - [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) when the store does not have
    ///   this mode. A [`QuorumStore`] has no permits.
    ///
    /// # Cancel safety
    ///
    /// The outcome is unknown when the future is dropped before its answer was taken.
    #[doc(hidden)]
    fn acquire(&self, request: Acquire) -> StoreFuture<Outcome<Acquired>>;

    /// Extends leases, and hands out further tokens for those that ask for a refill.
    ///
    /// The stream has one answer for each request, each as soon as the answer is known: a slow
    /// server does not delay the answers of another. A renewal never shortens a lease and never
    /// creates one, and has no effect at all (no token either) for an owner that does not hold
    /// the key.
    ///
    /// A renewal with [`Mode::Shared`] turns an exclusive lease without a fingerprint into a shared
    /// one, without a gap. No renewal turns it back. The attempts that are next from then on
    /// are sent [`Hint::Free`].
    ///
    /// # Cancel safety
    ///
    /// Renewals that were started may take effect after the stream is dropped.
    #[doc(hidden)]
    fn renew(&self, requests: Vec<Renew>) -> RenewAnswers;

    /// Ends an owner's lease, or the owner's attempt if that is only queued.
    ///
    /// - If the owner holds the key, the lease is ended, and the answer is [`Released::Freed`].
    ///   With [`Ending::Record`], the record takes the place of the lease in the same step. After a
    ///   plain release, the attempts that are next are sent [`Hint::Free`], and a few attempts
    ///   behind them are sent [`Hint::Next`]; after a record, the first attempts in the queue are
    ///   sent [`Hint::Free`], and each attempt that asks and leaves the queue has the next one
    ///   told, until all of them are.
    /// - If a record by the same owner is already there, the answer is [`Released::Freed`] again,
    ///   and nothing changes.
    /// - Otherwise, also if the lease has expired, the answer is [`Released::NotOurs`]. If the
    ///   attempt was queued, its place is removed; if other attempts thereby become next, those are
    ///   sent [`Hint::Free`].
    ///
    /// The method can be called outside of a runtime and in `Drop`, but not with a lock held that
    /// the answer needs: the answer may be given before the method returns.
    #[doc(hidden)]
    fn release(&self, request: Release, answer: Answer);

    /// Tells the store that it keeps records whose loss would let work run a second time. A store
    /// that may forget them warns in the log.
    #[doc(hidden)]
    fn expect_records(&self) {}

    /// Raises the token counter of a key, so that every later token is above `floor`. The counter
    /// is never lowered. Returns the highest token that counts as handed out now.
    ///
    /// A floor above the clock, in microseconds since 1970, has two costs until the clock has
    /// caught up: a server that loses the counter begins below the floor, and a long line asks
    /// for tokens more often, because a call gets a few of them only.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) for a floor of 2⁵³ or near it,
    /// which would leave no token.
    ///
    /// # Cancel safety
    ///
    /// The counter may or may not have been raised when the future is dropped.
    fn raise_fence(&self, key: LockKey, floor: u64) -> StoreFuture<Result<u64, Error>>;

    /// Returns the state of a key, for operators and tests. The state is not changed.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect on the key.
    fn inspect(&self, key: LockKey) -> StoreFuture<Result<Inspection, Error>>;

    /// Takes the key away from all of its holders, or removes its record, and sends hints as
    /// `release` does. Returns whether there was a lease or a record.
    ///
    /// A holder learns of the loss at its next renewal. Until then two requests may hold the key,
    /// and only their tokens tell them apart.
    ///
    /// A call without an answer fails and is not sent again, because the next holder would lose the
    /// key to the repetition. The key may or may not have been taken away by then.
    ///
    /// # Cancel safety
    ///
    /// The key may or may not have been taken away when the future is dropped.
    fn force_release(&self, key: LockKey) -> StoreFuture<Result<bool, Error>> {
        self.force_release_if(key, Expected::Anything)
    }

    /// As `force_release`, if what is there is what the caller expects. The store compares and
    /// takes the key in one step. Returns whether something was taken away.
    #[doc(hidden)]
    fn force_release_if(
        &self,
        key: LockKey,
        expected: Expected,
    ) -> StoreFuture<Result<bool, Error>>;

    /// Returns one page of the keys that have a lease, a record or a queue.
    ///
    /// Every key that is there from before the first page until after the last page is on one of
    /// the pages, provided that the store does not move to another server meanwhile (a restart,
    /// a fail-over, a slot of a Cluster). Other keys may be missing. A key may be on several
    /// pages. Each call does a limited amount of work, however many keys the store has: a page can
    /// have few keys, or none, and still have a next page.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::Unreachable`](crate::ErrorKind::Unreachable) when the store does not answer.
    /// - [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) for a cursor of another
    ///   store.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect on the keys.
    fn list(&self, request: List) -> StoreFuture<Result<KeyPage, Error>>;

    /// Checks that the store answers and accepts writes, by a round trip on each of its connections
    /// for calls. Nothing is changed.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unreachable`](crate::ErrorKind::Unreachable) when a server does not answer
    /// within the store's time limit, or refuses writes. The message names the server.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect on the store.
    fn ping(&self) -> StoreFuture<Result<(), Error>>;

    /// Returns the name of the store's key space. Two stores of the same space share their keys.
    #[doc(hidden)]
    fn space(&self) -> Arc<str>;

    /// Returns the text that the leases of this store carry for operators, such as a host name.
    #[doc(hidden)]
    fn label(&self) -> Option<Arc<str>> {
        None
    }

    /// Returns the schema with the functions that fence a transaction, if the store has them: for
    /// exclusive leases with a fingerprint (`is_claim`), or for all of them.
    #[cfg(feature = "postgres")]
    #[doc(hidden)]
    fn fence_schema(&self, is_claim: bool) -> Option<Arc<str>> {
        let _ = is_claim;
        None
    }

    /// Returns for how long, at least, the store has forgotten nothing: the uptime of a server that
    /// keeps leases only in memory. `Duration::MAX` for a store that never forgets.
    ///
    /// After a call was answered, the uptime is that of the server which gave the answer. Only a
    /// [`QuorumStore`] uses this method, because other nodes may remember a lease that this one
    /// has forgotten.
    #[doc(hidden)]
    fn uptime(&self) -> Duration;

    /// Returns which server gave the last answer, if the store knows: `None` before the first
    /// answer. Two stores with the same server fail together, and may share their keys.
    ///
    /// Only a [`QuorumStore`] uses this method, because its nodes must be independent.
    #[doc(hidden)]
    fn server_id(&self) -> Option<Arc<str>>;

    /// Subscribes to the hints for an instance, until the receiver is dropped.
    ///
    /// The method is called within a runtime, before an instance's first `acquire`, and again when
    /// that runtime has ended and the instance is used on another. The store's tasks run on that
    /// runtime from now on. A hint only saves waiting: hints may be lost, late, repeated or
    /// wrong. [`Hint::Listening`] marks the time from which hints arrive.
    #[doc(hidden)]
    fn watch(&self, instance: Instance) -> Hints;
}
