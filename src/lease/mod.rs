//! The lease: an instance's time-limited hold of a key in the store.
//!
//! [`Lease`] is the part that guards share. [`Renewal`] computes when a lease is renewed,
//! [`Schedule`] sorts leases by that time, and [`Scheduler`] runs the background task that acts on
//! the schedule.
//!
//! # The times of a lease
//!
//! ```text
//! sent      granted                       renewal                         deadline      expiry in the store
//!  │           │                             │                                │               │
//!  ├───────────┼─────────────────────────────┼────────────────────────────────┼───────────────┤
//!  0           0.4 ms                        10 s                             29.698 s        30 s after the store's grant
//! ```
//!
//! The holder counts from *before* the request was sent, and the store from when the request
//! arrived. The holder also subtracts a margin for clocks that run at different speeds ([`drift`]).
//! The deadline of the holder is therefore always before the expiry in the store, unless a clock is
//! off by more than the margin or the process is paused.
//!
//! # Doubts
//!
//! A store that was away may have restarted without the lease. The lease is then *doubted*: turns
//! under way go on, but no new turn begins until a renewal that was sent after the doubt is
//! answered.

mod background;
mod renewal;
mod schedule;
mod scheduler;

use std::{fmt, sync::OnceLock, time::Duration};

use bytes::Bytes;

pub use background::Background;
pub(crate) use renewal::{AT_ONCE, Pace, Renewal};
pub(crate) use schedule::{Entry, Schedule};
pub(crate) use scheduler::{LeaseEvents, Scheduler};

use crate::{
    LockKey,
    store::{Mode, Owner, Release},
    sync::{
        Notify,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Instant, later},
};

/// Why a lease was lost.
///
/// | loss | typical cause |
/// |---|---|
/// | [`NotOurs`](Self::NotOurs) | an operator has freed the key, the store has lost its data, or a fail-over has forgotten the lease |
/// | [`Expired`](Self::Expired) | the store was away for longer than the lease, or this process was paused |
/// | [`GaveUp`](Self::GaveUp) | the store was away for a while, and the settings say not to wait for the deadline |
/// | [`MaxHold`](Self::MaxHold) | the work hangs, or is slower than expected |
/// | [`Closed`](Self::Closed) | the process shuts down |
///
/// After each of them, another request may hold the key.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_distributed_lock::Error> {
/// use tower_distributed_lock::{Locks, Loss, Status};
///
/// let locks = Locks::in_memory();
/// let guard = locks.lock("orders/42").await?;
/// locks.force_release("orders/42").await?; // as an operator would
/// assert!(guard.confirm().await.is_err());
/// assert_eq!(guard.status(), Status::Lost(Loss::NotOurs));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Loss {
    /// The store has another holder, or none: the key was deleted, was evicted, or was taken by
    /// another instance.
    NotOurs,
    /// No renewal confirmed the lease before its deadline.
    Expired,
    /// Too many renewals in a row got no answer
    /// (see [`LocksBuilder::give_up_after`](crate::LocksBuilder::give_up_after)).
    GaveUp,
    /// The turn lasted longer than [`LocksBuilder::max_hold`](crate::LocksBuilder::max_hold).
    MaxHold,
    /// [`Locks::close`](crate::Locks::close) stopped waiting for this turn.
    Closed,
}

impl Loss {
    /// A stable word for programs, such as a label of a metric.
    pub(crate) fn code(self) -> &'static str {
        match self {
            Self::NotOurs => "not_ours",
            Self::Expired => "expired",
            Self::GaveUp => "gave_up",
            Self::MaxHold => "max_hold",
            Self::Closed => "closed",
        }
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotOurs => {
                "the key was deleted or evicted in the store, or another instance has taken the key"
            }
            Self::Expired => "no renewal confirmed the lease before its deadline",
            Self::GaveUp => "too many renewals in a row got no answer",
            Self::MaxHold => "the turn lasted longer than `max_hold`",
            Self::Closed => "the locks were closed before the turn had ended",
        })
    }
}

/// A lease, as its guards see it. The line's `HeldLease` has the state that only the line needs.
///
/// 1. The deadline moves forward while the lease is valid, and never again once the clock has been
///    seen to pass it: the caller that sees this *ends* the lease in the same atomic step. A guard
///    that was seen to be lost is therefore never held again.
/// 2. A loss is final. The loss is set under the lock of the key's line, which also decides how the
///    waiting requests go on.
pub(crate) struct Lease {
    pub(crate) key: LockKey,
    pub(crate) owner: Owner,
    /// The digest of the work that the key is held for, if that work is done once. Such a turn
    /// goes on to its end even when the lease is lost.
    pub(crate) fingerprint: Option<Bytes>,
    /// How long the store keeps the lease after each renewal.
    pub(crate) length: Duration,
    /// The mode that the lease was acquired in.
    acquired: Mode,
    /// The lease was acquired exclusively, and is shared now.
    downgraded: AtomicBool,
    /// The atomics count nanoseconds since this time.
    epoch: Instant,
    /// When the lease ends for its holder, or the reason of its loss once the lease is over
    /// ([`end`]).
    deadline: AtomicU64,
    /// The record that was sent to take the lease's place, and how long it is kept.
    recording: OnceLock<(Bytes, Duration)>,
    /// A transaction of the program may put a record of its own in the lease's place.
    kept_by_program: AtomicBool,
    /// Notified when the loss is set, and when watchers must check the scheduler.
    loss_told: Notify,
}

/// The ends of a lease, as values of its deadline: the place in this list. The loss and its reason
/// are one value, so that nobody sees one without the other.
const ENDS: [Loss; 5] = [
    Loss::NotOurs,
    Loss::Expired,
    Loss::GaveUp,
    Loss::MaxHold,
    Loss::Closed,
];

/// The highest deadline that stands for an end.
const LAST_END: u64 = ENDS.len() as u64 - 1;

/// The deadline of a lease that was lost for this reason.
fn end(loss: Loss) -> u64 {
    loss as u64
}

/// The longest time in nanoseconds, about 146 years: far below the overflow of later additions.
const LONGEST: u64 = u64::MAX / 4;

impl Lease {
    /// Creates a lease that was requested at `sent`.
    pub(crate) fn new(
        key: LockKey,
        owner: Owner,
        fingerprint: Option<Bytes>,
        sent: Instant,
        length: Duration,
        mode: Mode,
    ) -> Self {
        Self {
            key,
            owner,
            fingerprint,
            length,
            acquired: mode,
            downgraded: AtomicBool::new(false),
            epoch: sent,
            deadline: AtomicU64::new(nanos(validity(length)).max(LAST_END + 1)),
            recording: OnceLock::new(),
            kept_by_program: AtomicBool::new(false),
            loss_told: Notify::new(),
        }
    }

    /// How many may hold the key beside this lease.
    pub(crate) fn mode(&self) -> Mode {
        if self.downgraded.load(Ordering::Acquire) {
            Mode::Shared
        } else {
            self.acquired
        }
    }

    /// Makes an exclusive lease a shared one. Every later renewal tells the store.
    pub(crate) fn downgrade(&self) {
        self.downgraded.store(true, Ordering::Release);
    }

    /// When the lease must be considered gone.
    pub(crate) fn deadline(&self) -> Instant {
        self.epoch + Duration::from_nanos(self.deadline.load(Ordering::Acquire))
    }

    /// Whether the lease is held by the clock. A lease that is found past its deadline is over for
    /// good.
    pub(crate) fn is_valid(&self, now: Instant) -> bool {
        self.move_deadline(now, |deadline| deadline)
    }

    /// Moves the deadline forward, never back, after a renewal that was sent at `sent` has
    /// confirmed the lease. Returns `false` if the lease is over.
    pub(crate) fn extend(&self, now: Instant, sent: Instant) -> bool {
        let until = later(sent, validity(self.length));
        let until = nanos(until.saturating_duration_since(self.epoch));
        self.move_deadline(now, |deadline| deadline.max(until))
    }

    /// Applies `change` to the deadline if the lease is valid at `now`, and ends the lease
    /// otherwise, in one atomic step. Returns whether the lease is valid.
    fn move_deadline(&self, now: Instant, change: impl Fn(u64) -> u64) -> bool {
        let now = nanos(now.saturating_duration_since(self.epoch));
        let mut current = self.deadline.load(Ordering::Acquire);
        loop {
            if current <= LAST_END {
                return false;
            }
            let next = if now < current {
                change(current)
            } else {
                end(Loss::Expired)
            };
            if next == current {
                return true;
            }
            match self
                .deadline
                .compare_exchange(current, next, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return next > LAST_END,
                Err(changed) => current = changed,
            }
        }
    }

    /// Gives the lease back to the store.
    pub(crate) fn release(&self) -> Release {
        Release::free(self.key.clone(), self.owner, self.mode(), self.length)
    }

    /// Whether a record that takes the lease's place was sent. An answer of *not ours* may then be
    /// due to that record.
    pub(crate) fn is_recording(&self) -> bool {
        self.recording.get().is_some()
    }

    /// Marks the lease as one that a record may have replaced. Called before the record is sent.
    pub(crate) fn set_recording(&self, content: &Bytes, retain: Duration) {
        let _ = self.recording.set((content.clone(), retain));
    }

    /// The record that was sent to take the lease's place, and how long it is kept.
    pub(crate) fn recording(&self) -> Option<(Bytes, Duration)> {
        self.recording.get().cloned()
    }

    /// Whether the store may have a record that this instance does not know, because a transaction
    /// of the program has put it there. The requests that wait for the record then ask the store.
    pub(crate) fn may_be_kept_by_program(&self) -> bool {
        self.kept_by_program.load(Ordering::Acquire)
    }

    /// Marks the lease as one in whose place the program may put a record. Called before it can.
    #[cfg(feature = "postgres")]
    pub(crate) fn set_kept_by_program(&self) {
        self.kept_by_program.store(true, Ordering::Release);
    }

    /// Ends the lease with this loss. Called under the lock of the key's line. The watchers are
    /// woken when that lock is free.
    pub(crate) fn lose(&self, loss: Loss) {
        // A guard may have reported the passed deadline before, and must continue to report that.
        let lose = |deadline| (deadline > LAST_END).then_some(end(loss));
        let _ = self
            .deadline
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, lose);
    }

    /// The reason of the loss, or `None` while the lease is not lost. A lease that was seen past
    /// its deadline is lost even before its line has set the reason.
    pub(crate) fn loss(&self) -> Option<Loss> {
        let deadline = self.deadline.load(Ordering::Acquire);
        ENDS.get(usize::try_from(deadline).ok()?).copied()
    }

    /// Resolves when the loss is set, or when watchers must check the scheduler.
    pub(crate) fn loss_told(&self) -> impl Future<Output = ()> + Send + '_ {
        self.loss_told.notified()
    }

    /// Makes watchers of the loss check again.
    pub(crate) fn wake_watchers(&self) {
        self.loss_told.notify_waiters();
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

/// The part of a lease that its holder does not rely on: one percent for clocks that run at
/// different speeds, and two milliseconds for their granularity.
pub(crate) fn drift(length: Duration) -> Duration {
    length / 100 + Duration::from_millis(2)
}

/// How long a lease is valid for its holder.
pub(crate) fn validity(length: Duration) -> Duration {
    length.saturating_sub(drift(length))
}

/// Nanoseconds, up to [`LONGEST`].
fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).map_or(LONGEST, |nanos| nanos.min(LONGEST))
}
