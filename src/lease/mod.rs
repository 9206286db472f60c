//! An instance's time-limited hold of a key, and what keeps it alive.

mod renewal;
mod scheduler;

use std::{
    fmt,
    sync::{
        OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{Notify, futures::Notified},
    time::Instant,
};

pub(crate) use renewal::{Pace, Renewal, Step};
pub(crate) use scheduler::{Background, Scheduler};

use crate::{LockKey, store::Owner};

/// Why a lease was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Loss {
    /// The store says that the key is not ours: it was deleted, evicted, or taken by somebody else.
    NotOurs,
    /// The lease could not be confirmed before its time was over.
    Expired,
    /// Too many renewals in a row got no answer
    /// (see [`LocksBuilder::give_up_after`](crate::LocksBuilder::give_up_after)).
    GaveUp,
    /// The turn lasted longer than [`LocksBuilder::max_hold`](crate::LocksBuilder::max_hold).
    MaxHold,
    /// [`Locks::close`](crate::Locks::close) did not wait for this turn any longer.
    Closed,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotOurs => {
                "the key is not ours any more: it was deleted, evicted, or taken by somebody else"
            }
            Self::Expired => "the lease could not be confirmed before its time was over",
            Self::GaveUp => "too many renewals in a row got no answer",
            Self::MaxHold => "the turn lasted longer than `max_hold`",
            Self::Closed => "the locks were closed, and did not wait for this turn any longer",
        })
    }
}

/// A lease as its turns see it. Its deadline only moves forward, and its loss is final.
pub(crate) struct Lease {
    pub(crate) key: LockKey,
    pub(crate) owner: Owner,
    /// It is held for something that is done once, and goes on to its end even when the lease is lost.
    pub(crate) claimed: bool,
    /// What the atomics count from, in nanoseconds.
    epoch: Instant,
    deadline: AtomicU64,
    turn_began: AtomicU64,
    unconfirmed: AtomicBool,
    recording: AtomicBool,
    loss: OnceLock<Loss>,
    told: Notify,
}

impl Lease {
    /// A lease that was asked for at `sent` and is valid for `validity` from then on.
    pub(crate) fn new(key: LockKey, owner: Owner, sent: Instant, validity: Duration) -> Self {
        Self {
            key,
            owner,
            claimed: false,
            epoch: sent,
            deadline: AtomicU64::new(nanos(validity)),
            turn_began: AtomicU64::new(0),
            unconfirmed: AtomicBool::new(false),
            recording: AtomicBool::new(false),
            loss: OnceLock::new(),
            told: Notify::new(),
        }
    }

    pub(crate) fn claimed(mut self, claimed: bool) -> Self {
        self.claimed = claimed;
        self
    }

    /// From when on the lease must count as gone.
    pub(crate) fn deadline(&self) -> Instant {
        self.epoch + Duration::from_nanos(self.deadline.load(Ordering::Acquire))
    }

    /// Moves the deadline forward, never back.
    pub(crate) fn extend(&self, until: Instant) {
        let until = nanos(until.saturating_duration_since(self.epoch));
        self.deadline.fetch_max(until, Ordering::AcqRel);
    }

    /// By the clock, not by a flag: after a pause, this may run before any timer has.
    pub(crate) fn is_valid(&self, now: Instant) -> bool {
        self.loss().is_none() && now < self.deadline()
    }

    /// Whether the last renewal was answered, so that the store is known to be there.
    pub(crate) fn is_confirmed(&self) -> bool {
        !self.unconfirmed.load(Ordering::Acquire)
    }

    pub(crate) fn set_confirmed(&self, confirmed: bool) {
        self.unconfirmed.store(!confirmed, Ordering::Release);
    }

    /// A record that takes the lease's place is on its way, or was: a store that says "not ours" may mean that it is there.
    pub(crate) fn is_recording(&self) -> bool {
        self.recording.load(Ordering::Acquire)
    }

    pub(crate) fn set_recording(&self) {
        self.recording.store(true, Ordering::Release);
    }

    /// When the turn that it serves now began.
    pub(crate) fn turn_began(&self) -> Instant {
        self.epoch + Duration::from_nanos(self.turn_began.load(Ordering::Acquire))
    }

    pub(crate) fn begin_turn(&self, now: Instant) {
        let began = nanos(now.saturating_duration_since(self.epoch));
        self.turn_began.store(began, Ordering::Release);
    }

    /// Tells the loss to whoever waits for it. Says whether it was news.
    pub(crate) fn lose(&self, loss: Loss) -> bool {
        let news = self.loss.set(loss).is_ok();
        self.stir();
        news
    }

    pub(crate) fn loss(&self) -> Option<Loss> {
        self.loss.get().copied()
    }

    /// Resolves when the loss is told, or when it is time to look who could tell it.
    pub(crate) fn told(&self) -> Notified<'_> {
        self.told.notified()
    }

    /// Lets those who wait for the loss look around.
    pub(crate) fn stir(&self) {
        self.told.notify_waiters();
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("owner", &self.owner)
            .field("loss", &self.loss())
            .finish_non_exhaustive()
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX / 4)
}
