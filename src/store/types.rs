//! The requests and answers of a [`Store`](super::Store).
//!
//! ```text
//! Acquire { key: orders/42, owner: 0c6f…:7, lease: 30 s, block: 3, queueing: Wait { 3 s, 300 ms }, mode: Exclusive }
//!    ──▶ Granted { tokens: 41..=43, count: 1, others_wait: false }
//!    ──▶ Held { remaining: 8.2 s, label: web-3 }
//!
//! Renew { key: orders/42, owner: 0c6f…:7, lease: 30 s, refill: 32 }
//!    ──▶ Renewed { tokens: 44..=75, others_wait: true }
//!
//! Release { key: orders/42, owner: 0c6f…:7, ending: Free }
//!    ──▶ Freed
//! ```

use std::{fmt, str::FromStr, sync::Arc, time::Duration};

use bytes::Bytes;
use uuid::Uuid;

use crate::{Error, ErrorKind, LockKey};

/// The identity of one [`Locks`](crate::Locks) in the fleet.
///
/// ```
/// use tower_distributed_lock::{Locks, store::Instance};
///
/// let locks = Locks::in_memory();
/// let text = locks.instance().to_string(); // a UUID, as in the log and in Redis
/// assert_eq!(text.parse::<Instance>()?, locks.instance());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Instance(Uuid);

impl Instance {
    /// Creates a unique identity.
    #[allow(clippy::new_without_default)] // a default that differs each time would surprise
    pub fn new() -> Self {
        Self(crate::sync::unique_id())
    }

    #[cfg(feature = "postgres")]
    pub(crate) fn to_bytes(self) -> [u8; 16] {
        self.0.into_bytes()
    }

    #[cfg(feature = "postgres")]
    pub(crate) fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(Uuid::from_bytes(bytes))
    }

    /// The same text as from [`Display`](fmt::Display), written without `fmt`.
    #[cfg(feature = "redis")]
    pub(crate) fn text(self) -> [u8; 36] {
        let mut text = [0; 36];
        self.0.hyphenated().encode_lower(&mut text);
        text
    }
}

impl fmt::Display for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl FromStr for Instance {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self).map_err(|_| InvalidId(()))
    }
}

/// The identity of one acquisition: an instance, and a number that the instance uses only once.
///
/// An owner names one acquisition, not a lock object or a process: a release that arrives late must
/// not free the lease of the next holder.
///
/// ```
/// use tower_distributed_lock::store::Owner;
///
/// // As an operator finds the owner in the log, or in the value of a lock in Redis.
/// let owner: Owner = "0c6f5e1e-6a1d-4f3b-9d0e-2f8b7c9a4d11:7".parse()?;
/// assert_eq!(owner.attempt, 7);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner {
    /// The instance that acquires.
    pub instance: Instance,
    /// The number of the acquisition within the instance.
    pub attempt: u64,
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.instance, self.attempt)
    }
}

impl FromStr for Owner {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (instance, attempt) = text.split_once(':').ok_or(InvalidId(()))?;
        Ok(Self {
            instance: instance.parse()?,
            attempt: attempt.parse().map_err(|_| InvalidId(()))?,
        })
    }
}

/// The error for a text that is neither an [`Instance`] nor an [`Owner`], whichever was expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InvalidId(());

impl fmt::Display for InvalidId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected an instance (a UUID), or an owner (a UUID, a colon and a number)")
    }
}

impl std::error::Error for InvalidId {}

/// How many may hold a key at the same time.
///
/// [`Exclusive`](Mode::Exclusive) and [`Shared`](Mode::Shared) holders of a key exclude each other,
/// like the writers and readers of a reader-writer lock. [`Permit`](Mode::Permit) makes the key a
/// semaphore, and a semaphore's key is not used for locks.
///
/// | held | exclusive | shared | a permit |
/// |---|---|---|---|
/// | exclusively | waits | waits | refused |
/// | shared | waits | granted, unless an exclusive request is ahead in the queue | refused |
/// | some permits | refused | refused | granted while permits are left |
///
/// ```
/// use tower_distributed_lock::store::Mode;
///
/// assert_eq!(Mode::default(), Mode::Exclusive);
/// assert_eq!(Mode::Permit { of: 4 }.to_string(), "one of 4 permits");
/// assert!(!Mode::Shared.is_permit());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Mode {
    /// One holder, and no other.
    #[default]
    Exclusive,
    /// Any number of holders that share the key, and no exclusive one.
    Shared,
    /// One of several holders.
    Permit {
        /// How many permits the key has, at least one. A permit is granted only while fewer than
        /// this number are held. Users of one key should all name the same number.
        of: u32,
    },
}

impl Mode {
    /// Whether the key is a semaphore in this mode, and not a lock.
    pub fn is_permit(self) -> bool {
        matches!(self, Self::Permit { .. })
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exclusive => f.write_str("exclusive"),
            Self::Shared => f.write_str("shared"),
            Self::Permit { of } => write!(f, "one of {of} permits"),
        }
    }
}

/// Whether an attempt that finds the key held keeps a place in the store's queue.
///
/// | | joins the queue | may take a free key that others wait for |
/// |---|---|---|
/// | [`No`](Self::No) | no | no |
/// | [`Skip`](Self::Skip) | no | yes |
/// | [`Wait`](Self::Wait) | yes | when the attempt is next, or when the head has left the key untaken for too long |
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Queueing {
    /// The attempt leaves nothing behind.
    No,
    /// The attempt does not join the queue, and takes a free key ahead of the attempts in the
    /// queue.
    Skip,
    /// The attempt keeps its place, as long as the attempt asks again within `deadline`.
    Wait {
        /// How long the place is kept while the attempt does not ask.
        deadline: Duration,
        /// How long the head of the queue may leave a free key untaken before this attempt may
        /// take the key.
        head_start: Duration,
    },
}

/// A request for a key. See [`Store::acquire`](super::Store::acquire).
#[derive(Debug, Clone)]
pub struct Acquire {
    /// The key to lock.
    pub key: LockKey,
    /// The acquisition.
    pub owner: Owner,
    /// How long the lease lasts.
    pub lease: Duration,
    /// How many tokens to hand out with the grant, at least one. The store may hand out fewer.
    pub block: u32,
    /// Whether the attempt joins the queue.
    pub queueing: Queueing,
    /// How many may hold the key at the same time. An owner asks in one mode only.
    pub mode: Mode,
    /// Further owners of the same instance, each of which asks for a permit in the same call.
    /// Empty unless the mode is [`Mode::Permit`]. Only [`owner`](Acquire::owner) has a place
    /// in the queue.
    pub more: Vec<Owner>,
    /// The digest of the work that the key is held for, if that work is done once. The store keeps
    /// the fingerprint with the lease, and returns it to every attempt that finds the key
    /// [`Held`].
    pub fingerprint: Option<Bytes>,
    /// Owners of the same instance that are ended first, in the same step. Empty most of the time.
    pub ends: Vec<End>,
}

/// An owner whose lease, or whose place in the queue, an [`Acquire`] ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct End {
    /// The owner.
    pub owner: Owner,
    /// The mode of the lease or of the attempt, as far as the caller knows: the lease may have
    /// been downgraded.
    pub mode: Mode,
}

impl Acquire {
    /// Returns all owners that ask, in the order in which permits are granted.
    pub fn owners(&self) -> impl Iterator<Item = Owner> + '_ {
        std::iter::once(self.owner).chain(self.more.iter().copied())
    }
}

/// The answer to [`Acquire`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Acquired {
    /// The owner holds the key now.
    Granted(Grant),
    /// Other owners hold the key, or are ahead in the queue for the free key.
    Held(Held),
    /// A record is in the lease's place.
    Recorded(Bytes),
}

/// A granted lease, or several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// The tokens for the turns under these leases: at least one for each, unless fewer were asked
    /// for.
    pub tokens: Tokens,
    /// How many leases were granted: to [`Acquire::owner`], then to [`Acquire::more`] in order. At
    /// least one.
    pub count: u32,
    /// Whether attempts of other instances are queued.
    pub others_wait: bool,
}

/// The answer for a key that was not granted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// After this time the attempt should ask again even without a hint: a lease, or the place of
    /// the queue's head, will have expired.
    pub remaining: Duration,
    /// The holder's fingerprint, if there is a holder and its lease has one.
    pub fingerprint: Option<Bytes>,
    /// The label of a holder's store, such as a host name, if there is a holder and its store has
    /// a label.
    pub label: Option<Arc<str>>,
}

/// All tokens are below this number, which a double can hold, as Lua and JSON need it.
pub(super) const END_OF_TOKENS: u64 = 1 << 53;

/// How many holders, and how many attempts in the queue, an [`Inspection`] lists.
pub(super) const LISTED: usize = 1000;

/// Refuses a floor that leaves no token above it.
pub(super) fn check_floor(floor: u64) -> Result<(), Error> {
    if floor < END_OF_TOKENS - 1 {
        return Ok(());
    }
    let message = format!("tokens end at {END_OF_TOKENS} and cannot be raised above {floor}");
    Err(Error::new(ErrorKind::InvalidConfig, message))
}

/// A block of fencing tokens, handed out in rising order.
///
/// ```
/// use tower_distributed_lock::store::Tokens;
///
/// let mut block = Tokens::new(5, 2);
/// assert_eq!([block.take(), block.take(), block.take()], [Some(5), Some(6), None]);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tokens {
    next: u64,
    left: u32,
}

impl Tokens {
    /// Creates a block of `count` tokens, starting with `first`.
    pub fn new(first: u64, count: u32) -> Self {
        Self {
            next: first,
            left: count,
        }
    }

    /// Returns how many tokens are left.
    pub fn left(&self) -> u32 {
        self.left
    }

    /// Returns the first token that is left.
    pub fn first(&self) -> Option<u64> {
        (self.left > 0).then_some(self.next)
    }

    /// Returns the last token that is left.
    pub fn last(&self) -> Option<u64> {
        self.first()
            .map(|first| first + u64::from(self.left.saturating_sub(1)))
    }

    /// Takes the next token.
    pub fn take(&mut self) -> Option<u64> {
        let token = self.first()?;
        self.next += 1;
        self.left -= 1;
        Some(token)
    }
}

/// A request to extend a lease. See [`Store::renew`](super::Store::renew).
#[derive(Debug, Clone)]
pub struct Renew {
    /// The locked key.
    pub key: LockKey,
    /// The owner of the lease.
    pub owner: Owner,
    /// How long the lease lasts from now on.
    pub lease: Duration,
    /// How many further tokens to hand out, or zero for none. The store may hand out fewer.
    pub refill: u32,
    /// The mode of the lease from now on: the mode that the lease was acquired in, or
    /// [`Mode::Shared`] for a lease that was acquired exclusively. A lease that was downgraded
    /// stays shared.
    pub mode: Mode,
}

/// The answer to one [`Renew`].
#[derive(Debug, Clone)]
pub enum Renewed {
    /// The lease was extended.
    Renewed {
        /// The further tokens, if any were requested.
        tokens: Option<Tokens>,
        /// Whether attempts of other instances are queued.
        others_wait: bool,
    },
    /// The owner does not hold the key.
    NotOurs,
    /// The store did not answer, so the lease may or may not be held.
    Unknown(Error),
}

/// A request to end a lease or an attempt. See [`Store::release`](super::Store::release).
#[derive(Debug, Clone)]
pub struct Release {
    /// The key that is locked, or that the attempt waits for.
    pub key: LockKey,
    /// The owner of the lease or of the attempt.
    pub owner: Owner,
    /// The mode of the lease or of the attempt, as far as the caller knows: the lease may have
    /// been downgraded.
    pub mode: Mode,
    /// What takes the place of the lease.
    pub ending: Ending,
    /// An acquire of the owner had an unknown outcome, and may still take effect.
    pub in_doubt: bool,
    /// How long the lease, or the place in the queue, lasts without this release.
    pub lasts: Duration,
}

impl Release {
    /// Frees the key of an owner that was answered, or ends the owner's attempt.
    pub(crate) fn free(key: LockKey, owner: Owner, mode: Mode, lasts: Duration) -> Self {
        Self {
            key,
            owner,
            mode,
            ending: Ending::Free,
            in_doubt: false,
            lasts,
        }
    }
}

/// What takes the place of a lease that ends.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ending {
    /// Nothing: the key is free.
    Free,
    /// A record, which [`Store::acquire`](super::Store::acquire) then answers with.
    Record {
        /// The record's content.
        content: Bytes,
        /// How long the record is kept.
        retain: Duration,
    },
}

/// The answer to [`Release`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Released {
    /// The owner held the key until now.
    Freed,
    /// The owner has nothing, and no earlier call of the owner will take effect.
    NotOurs,
    /// The owner has nothing now, but an acquire that is [in doubt](Release::in_doubt) may still
    /// take effect.
    NotYet,
}

/// A message from the store that can save an instance from waiting.
///
/// | hint | the instance |
/// |---|---|
/// | [`Free`](Self::Free) | asks for the key at once |
/// | [`Next`](Self::Next) | asks for the key after the head start |
/// | [`Wanted`](Self::Wanted) | passes its lease on for a few more turns, and then gives the lease back |
/// | [`Listening`](Self::Listening) | asks for all keys that it waits for |
/// | [`Reconnected`](Self::Reconnected) | confirms all leases, and asks for all keys that it waits for |
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Hint {
    /// A key that the instance waits for may be free for it now.
    Free(LockKey),
    /// A key that the instance waits for was offered to the attempt ahead in the queue. Asking is
    /// worthwhile once the [head start](Queueing::Wait::head_start) is over.
    Next(LockKey),
    /// Another instance waits for a key that this instance holds.
    Wanted(LockKey),
    /// Hints arrive from now on. Earlier hints may be lost, so waiting attempts should ask again.
    Listening,
    /// The store was away and is back. Leases need to be confirmed, and waiting attempts should ask
    /// again.
    Reconnected,
    /// Some keys have moved to another server. Their leases need to be confirmed, and waiting
    /// attempts should ask again.
    #[cfg(feature = "redis")]
    Moved(MovedKeys),
}

impl Hint {
    /// A stable word for programs, such as a label of a metric.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Free(_) => "free",
            Self::Next(_) => "next",
            Self::Wanted(_) => "wanted",
            Self::Listening => "listening",
            Self::Reconnected => "reconnected",
            #[cfg(feature = "redis")]
            Self::Moved(_) => "moved",
        }
    }
}

/// The keys of [`Hint::Moved`].
#[cfg(feature = "redis")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MovedKeys {
    /// For each bucket, whether its keys have moved.
    buckets: Arc<[bool]>,
}

#[cfg(feature = "redis")]
impl MovedKeys {
    pub(crate) fn new(buckets: Vec<bool>) -> Self {
        Self {
            buckets: buckets.into(),
        }
    }

    /// Returns whether a key has moved.
    pub fn contains(&self, key: &LockKey) -> bool {
        let bucket = key.bucket(self.buckets.len());
        self.buckets.get(bucket).is_some_and(|moved| *moved)
    }
}

/// What a forced release may take away. See
/// [`Store::force_release_if`](super::Store::force_release_if).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// Whatever is there.
    Anything,
    /// All leases, if this owner is among the holders.
    Holder(Owner),
    /// The record, if there is one.
    Record,
}

/// The state of a key. See [`Store::inspect`](super::Store::inspect).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_distributed_lock::Error> {
/// # let locks = tower_distributed_lock::Locks::in_memory();
/// let reading = locks.lock("reports/7").shared().await?;
/// let seen = locks.inspect("reports/7").await?;
/// for holder in &seen.holders {
///     println!("{} holds the key ({}) for another {:?}", holder.owner, holder.mode, holder.remaining);
/// }
/// println!("{} attempts wait; the last token is {}", seen.queue.len(), seen.fence);
/// # assert_eq!(seen.holders.len(), 1);
/// # drop(reading);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Inspection {
    /// The holders of the key, in the order in which their leases end: at most one if the key is
    /// held exclusively, and the first 1,000 if there are more.
    pub holders: Vec<Holder>,
    /// The attempts that wait for the key, in order: the first 1,000 if there are more.
    pub queue: Vec<Owner>,
    /// The record in the lease's place, if there is one.
    pub record: Option<Bytes>,
    /// How long the record is still kept.
    pub record_remaining: Option<Duration>,
    /// The highest token that counts as handed out for this key.
    pub fence: u64,
}

impl Inspection {
    /// Returns the holder of the key, or the one of several holders whose lease ends first.
    pub fn holder(&self) -> Option<&Holder> {
        self.holders.first()
    }
}

/// A holder of a key, as reported by [`Store::inspect`](super::Store::inspect).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The owner of the lease.
    pub owner: Owner,
    /// The mode of the lease. The number of [permits](Mode::Permit) is that of the holder itself.
    pub mode: Mode,
    /// How long the lease lasts if no renewal extends it.
    pub remaining: Duration,
    /// The fingerprint of the lease, if there is one.
    pub fingerprint: Option<Bytes>,
    /// The label of the holder's store, such as a host name, if the store has one.
    pub label: Option<Arc<str>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_survives_its_text() {
        let owner = Owner {
            instance: Instance::new(),
            attempt: 7,
        };
        assert_eq!(owner.to_string().parse(), Ok(owner));
        for nonsense in [
            "",
            ":",
            "x:1",
            &owner.instance.to_string(),
            &format!("{owner}x"),
        ] {
            assert_eq!(nonsense.parse::<Owner>(), Err(InvalidId(())), "{nonsense}");
        }
    }

    #[test]
    fn a_block_hands_out_each_token_once() {
        let mut block = Tokens::new(5, 2);
        assert_eq!((block.first(), block.last()), (Some(5), Some(6)));
        assert_eq!(
            [block.take(), block.take(), block.take()],
            [Some(5), Some(6), None]
        );
        assert_eq!((block.left(), block.last()), (0, None));
    }
}
