//! What is said to a store, and what it answers.

use std::{fmt, num::ParseIntError, str::FromStr, sync::Arc, time::Duration};

use bytes::Bytes;
use uuid::Uuid;

use crate::{Error, LockKey};

/// One [`Locks`](crate::Locks) handle's identity in the fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Instance(Uuid);

impl Instance {
    /// An identity that nobody else has.
    #[allow(clippy::new_without_default)] // a default that differs each time would surprise
    pub fn new() -> Self {
        Self(crate::sync::unique_id())
    }

    /// The same text as by [`Display`](fmt::Display), written without `fmt`.
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
    type Err = uuid::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self)
    }
}

/// One acquisition: an instance, and a number that it uses only once.
///
/// Never one per lock object or per process: a release that comes late must not free the next holder's lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner {
    /// Whose acquisition it is.
    pub instance: Instance,
    /// Which of the instance's acquisitions.
    pub attempt: u64,
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.instance, self.attempt)
    }
}

impl FromStr for Owner {
    type Err = NotAnOwner;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (instance, attempt) = text.split_once(':').ok_or(NotAnOwner)?;
        Ok(Self {
            instance: instance.parse()?,
            attempt: attempt.parse()?,
        })
    }
}

/// The text does not name an [`Owner`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotAnOwner;

impl fmt::Display for NotAnOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not an owner: expected an instance's UUID, a colon and a number")
    }
}

impl std::error::Error for NotAnOwner {}

impl From<uuid::Error> for NotAnOwner {
    fn from(_: uuid::Error) -> Self {
        Self
    }
}

impl From<ParseIntError> for NotAnOwner {
    fn from(_: ParseIntError) -> Self {
        Self
    }
}

/// How a key is shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Mode {
    /// One holder.
    #[default]
    Exclusive,
}

/// Whether an attempt that finds the key held stays in the store's queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Queueing {
    /// It leaves nothing behind.
    No,
    /// It leaves nothing behind, and takes a free key although others are queued for it.
    Skip,
    /// It keeps its place, as long as it asks again within `deadline`.
    Wait {
        /// How long the place is kept while the attempt does not ask.
        deadline: Duration,
        /// How long the head of the queue may leave a free key untaken before this attempt passes it by.
        head_start: Duration,
    },
}

/// See [`Store::acquire`](super::Store::acquire).
#[derive(Debug, Clone)]
pub struct Acquire {
    /// What to lock.
    pub key: LockKey,
    /// Who asks.
    pub owner: Owner,
    /// How long the lease lasts.
    pub lease: Duration,
    /// How many tokens to hand out with the grant, at least one.
    pub block: u32,
    /// Whether to queue.
    pub queueing: Queueing,
    /// How to share.
    pub mode: Mode,
    /// What the key is held for, if it is for one thing that is done once: a digest of the request. Kept with the lease and
    /// shown to every attempt that finds the key [`Held`].
    pub fingerprint: Option<Bytes>,
}

/// The answer to [`Acquire`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Acquired {
    /// The owner has the key now.
    Granted(Grant),
    /// Somebody else has it, or is first in line for it.
    Held(Held),
    /// A record stands where the lease would.
    Recorded(Bytes),
}

/// The key was granted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// The tokens for the turns under this lease.
    pub tokens: Tokens,
    /// Whether other attempts are queued.
    pub others_wait: bool,
}

/// The key was not granted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// After this time it is worth asking again, hint or no hint: the lease, or the queue's head, will have expired.
    pub remaining: Duration,
    /// The holder's fingerprint, if there is a holder and its lease has one.
    pub fingerprint: Option<Bytes>,
    /// The holder's label (a host name, say), if there is a holder and its store has one.
    pub label: Option<Arc<str>>,
}

/// A block of fencing tokens, handed out in rising order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tokens {
    next: u64,
    left: u32,
}

impl Tokens {
    /// The block of `count` tokens from `first` on.
    pub fn new(first: u64, count: u32) -> Self {
        Self {
            next: first,
            left: count,
        }
    }

    /// How many are left.
    pub fn left(&self) -> u32 {
        self.left
    }

    /// The first one that is left.
    pub fn first(&self) -> Option<u64> {
        (self.left > 0).then_some(self.next)
    }

    /// The last one that is left.
    pub fn last(&self) -> Option<u64> {
        self.first()
            .map(|first| first + u64::from(self.left.saturating_sub(1)))
    }

    /// Takes the next one.
    pub fn take(&mut self) -> Option<u64> {
        let token = self.first()?;
        self.next += 1;
        self.left -= 1;
        Some(token)
    }
}

/// See [`Store::renew`](super::Store::renew).
#[derive(Debug, Clone)]
pub struct Renew {
    /// What is locked.
    pub key: LockKey,
    /// Whose lease it is.
    pub owner: Owner,
    /// How long it shall last from now.
    pub lease: Duration,
    /// How many further tokens to hand out; none if zero.
    pub refill: u32,
}

/// The answer to one [`Renew`].
#[derive(Debug, Clone)]
pub enum Renewed {
    /// The lease lasts on.
    Renewed {
        /// The further tokens, if any were asked for.
        tokens: Option<Tokens>,
        /// Whether other attempts are queued.
        others_wait: bool,
    },
    /// The owner does not hold the key.
    NotOurs,
    /// There is no telling.
    Unknown(Error),
}

/// See [`Store::start_release`](super::Store::start_release).
#[derive(Debug, Clone)]
pub struct Release {
    /// What is locked, or queued for.
    pub key: LockKey,
    /// Whose lease or attempt ends.
    pub owner: Owner,
    /// What comes in its place.
    pub ending: Ending,
    /// How long the lease or the place in the queue lasts without this release. A release that cannot be sent for so long is
    /// forgotten: what it would end has ended by itself.
    pub owed_for: Duration,
}

/// What comes in a lease's place when it ends.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ending {
    /// Nothing: the key is free.
    Free,
    /// A record, which [`Store::acquire`](super::Store::acquire) then answers with.
    Record {
        /// The record's content.
        content: Bytes,
        /// How long it is kept.
        retain: Duration,
    },
}

/// The answer to [`Release`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Released {
    /// The lease was the owner's until now.
    Freed,
    /// The owner did not hold the key (any more, or ever).
    NotOurs,
}

/// Something that an instance may want to know at once.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Hint {
    /// A key that the instance is queued for may be free for it now.
    Free(LockKey),
    /// A key that the instance is queued for was offered to an attempt before it: worth asking for once the
    /// [head start](Queueing::Wait::head_start) is over.
    Next(LockKey),
    /// Another instance has queued for a key that this instance holds.
    Wanted(LockKey),
    /// Hints arrive from now on. Those sent before may be lost, so waiting attempts should ask again.
    Listening,
    /// The store was out of reach and is back. Leases need to be confirmed, and waiting attempts should ask again.
    Reconnected,
    /// Some keys are on another server than before. Their leases need to be confirmed, and waiting attempts should ask again.
    #[cfg(feature = "redis")]
    Moved(MovedKeys),
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

    /// Whether a key has moved.
    pub fn contains(&self, key: &LockKey) -> bool {
        let bucket = (key.stable_hash() % self.buckets.len().max(1) as u64) as usize;
        self.buckets.get(bucket).is_some_and(|moved| *moved)
    }
}

/// See [`Store::inspect`](super::Store::inspect).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Inspection {
    /// Who holds the key.
    pub holder: Option<Holder>,
    /// Who waits for it, in order.
    pub queue: Vec<Owner>,
    /// The record in the lease's place, if one is there.
    pub record: Option<Bytes>,
    /// How long that record is still kept.
    pub record_remaining: Option<Duration>,
    /// The highest token that counts as handed out for this key.
    pub fence: u64,
}

/// Who holds a key.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The owner of the lease.
    pub owner: Owner,
    /// How long the lease lasts if it is not renewed.
    pub remaining: Duration,
    /// The fingerprint of the request that the key is held for, if there is one.
    pub fingerprint: Option<Bytes>,
    /// The label of the store that took the lease (a host name, say), if it has one.
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
            assert_eq!(nonsense.parse::<Owner>(), Err(NotAnOwner), "{nonsense}");
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
