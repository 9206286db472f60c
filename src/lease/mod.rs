//! An instance's time-limited hold of a key, and what keeps it alive.

mod renewal;
mod schedule;
mod scheduler;

use std::{fmt, sync::OnceLock, time::Duration};

use bytes::Bytes;

pub(crate) use renewal::{Pace, Renewal};
pub(crate) use schedule::{Entry, Schedule};
pub(crate) use scheduler::{LeaseEvents, Scheduler};

use crate::{
    LockKey,
    store::Owner,
    sync::{
        Notify,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Instant, later},
};

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

/// A lease as its guards see it. What only its line needs to know is in the line's `HeldLease`.
///
/// 1. The deadline moves forward while the lease is valid, and never again once it was seen to be over: whoever sees the
///    clock pass the deadline *ends* the lease in the same atomic step. So a guard is never held again after it was lost.
/// 2. The loss is final. It is told under the lock of the key's line, which also decides what becomes of the waiters.
/// 3. A lease is *confirmed* unless it was doubted since the last renewal that the store answered was begun. Doubts are counted,
///    not timed: an answer to a renewal that was begun before a doubt does not settle it.
pub(crate) struct Lease {
    pub(crate) key: LockKey,
    pub(crate) owner: Owner,
    /// What the key is held for, if that is done once. Such a turn goes on to its end even when the lease is lost.
    pub(crate) fingerprint: Option<Bytes>,
    /// How long the store keeps the lease after each renewal.
    pub(crate) length: Duration,
    /// The atomics count nanoseconds from here.
    epoch: Instant,
    /// [`ENDED`] once the lease is over.
    deadline: AtomicU64,
    /// When the present turn has lasted for as long as it may.
    turn_ends: AtomicU64,
    doubts: AtomicU64,
    /// How many doubts are settled.
    settled: AtomicU64,
    recording: AtomicBool,
    loss: OnceLock<Loss>,
    told: Notify,
}

/// The deadline of a lease that is over.
const ENDED: u64 = 0;

impl Lease {
    /// A lease that was asked for at `sent`.
    pub(crate) fn new(
        key: LockKey,
        owner: Owner,
        fingerprint: Option<Bytes>,
        sent: Instant,
        length: Duration,
    ) -> Self {
        Self {
            key,
            owner,
            fingerprint,
            length,
            epoch: sent,
            deadline: AtomicU64::new(nanos(validity(length)).max(1)),
            turn_ends: AtomicU64::new(u64::MAX / 4),
            doubts: AtomicU64::new(0),
            settled: AtomicU64::new(0),
            recording: AtomicBool::new(false),
            loss: OnceLock::new(),
            told: Notify::new(),
        }
    }

    /// From when on the lease must count as gone.
    pub(crate) fn deadline(&self) -> Instant {
        self.epoch + Duration::from_nanos(self.deadline.load(Ordering::Acquire))
    }

    /// Whether the lease is ours by the clock. A lease that is found to be past its deadline is over for good.
    pub(crate) fn is_valid(&self, now: Instant) -> bool {
        self.move_deadline(now, |deadline| deadline)
    }

    /// The store has confirmed the lease by a renewal that was sent at `sent`: moves the deadline forward, never back. `false` if the
    /// lease is over.
    pub(crate) fn extend(&self, now: Instant, sent: Instant) -> bool {
        let until = later(sent, validity(self.length));
        let until = nanos(until.saturating_duration_since(self.epoch));
        self.move_deadline(now, |deadline| deadline.max(until))
    }

    fn move_deadline(&self, now: Instant, change: impl Fn(u64) -> u64) -> bool {
        let now = nanos(now.saturating_duration_since(self.epoch));
        let mut current = self.deadline.load(Ordering::Acquire);
        loop {
            if current == ENDED {
                return false;
            }
            let next = if now < current {
                change(current)
            } else {
                ENDED
            };
            if next == current {
                return true;
            }
            match self
                .deadline
                .compare_exchange(current, next, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return next != ENDED,
                Err(changed) => current = changed,
            }
        }
    }

    /// Whether the store is known to have the lease.
    pub(crate) fn is_confirmed(&self) -> bool {
        self.settled.load(Ordering::Acquire) == self.doubts()
    }

    /// How often the lease was doubted. A renewal remembers the number from before it was begun.
    pub(crate) fn doubts(&self) -> u64 {
        self.doubts.load(Ordering::Acquire)
    }

    /// From now on the lease is not confirmed, until a renewal that begins later is answered.
    pub(crate) fn doubt(&self) {
        self.doubts.fetch_add(1, Ordering::AcqRel);
    }

    /// A renewal that was begun when the lease had been doubted so often was answered.
    pub(crate) fn settle_doubts(&self, doubts: u64) {
        self.settled.fetch_max(doubts, Ordering::AcqRel);
    }

    /// A record that takes the lease's place is on its way, or was: a store that answers *not ours* may mean that record.
    pub(crate) fn is_recording(&self) -> bool {
        self.recording.load(Ordering::Acquire)
    }

    pub(crate) fn set_recording(&self) {
        self.recording.store(true, Ordering::Release);
    }

    /// When the present turn has lasted for as long as it may.
    pub(crate) fn turn_ends(&self) -> Instant {
        later(
            self.epoch,
            Duration::from_nanos(self.turn_ends.load(Ordering::Acquire)),
        )
    }

    /// A turn begins that may last so long.
    pub(crate) fn begin_turn(&self, now: Instant, max_hold: Duration) {
        let ends = later(now, max_hold).saturating_duration_since(self.epoch);
        self.turn_ends.store(nanos(ends), Ordering::Release);
    }

    /// The turn has ended, and the next has not begun.
    pub(crate) fn between_turns(&self) {
        self.turn_ends.store(u64::MAX / 4, Ordering::Release);
    }

    /// Ends the lease and tells its loss. Called under the lock of the key's line.
    pub(crate) fn lose(&self, loss: Loss) {
        let was_over = self.deadline.swap(ENDED, Ordering::AcqRel) == ENDED;
        // A guard may have seen the clock pass the deadline before: that is what it goes on to say.
        let _ = self.loss.set(if was_over { Loss::Expired } else { loss });
        self.wake_watchers();
    }

    pub(crate) fn loss(&self) -> Option<Loss> {
        let over = || self.deadline.load(Ordering::Acquire) == ENDED;
        self.loss
            .get()
            .copied()
            .or_else(|| over().then_some(Loss::Expired))
    }

    /// Resolves when the loss is told, or when a watcher should look who could tell it.
    pub(crate) fn told(&self) -> impl Future<Output = ()> + Send + '_ {
        self.told.notified()
    }

    /// Lets those who watch for the loss look again.
    pub(crate) fn wake_watchers(&self) {
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

/// How much of a lease is not trusted: one percent for clocks that run at different speeds, and two milliseconds for
/// their granularity.
pub(crate) fn drift(length: Duration) -> Duration {
    length / 100 + Duration::from_millis(2)
}

/// How long a lease is valid for its holder.
pub(crate) fn validity(length: Duration) -> Duration {
    length.saturating_sub(drift(length))
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX / 4)
}
