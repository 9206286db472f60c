//! One key in one process: who has its turn, who waits for it, and what becomes of the lease in between.
//!
//! A [`Line`] is plain data. Its methods are the transitions of a state machine. Each transition runs under the lock of the map that
//! holds the line ([`Lines`](super::lines::Lines)), with a [`Transition`] at hand: the time, the limits, the schedule of its
//! leases, and the store to call. So an interleaving of requests, cancellations, replies and timers is nothing but an order of transitions.
//!
//! 1. A line is in the map exactly as long as it is not [`State::Gone`].
//! 2. At most one turn is under way, in [`State::Taken`] or [`State::Outlived`]. It ends once: its number and its owner tell it
//!    apart from every other turn, so an end that comes late changes nothing.
//! 3. A turn begins only under a lease that is valid by the clock and confirmed, with a token of its own.
//! 4. Every waiter stands in `waiters`. Whoever is taken out of it is told something, exactly once, within the same transition.
//! 5. While anybody waits, something is under way that ends the waiting: a contender, a turn or a renewal.
//! 6. A lease leaves its line in the same transition in which its release starts. Since the release starts under the line's lock, the
//!    store sees it before every later call for the key.
//! 7. A lease is in the schedule exactly as long as the line is [`State::Taken`] or [`State::Confirming`].
//! 8. Whether a lease is lost is decided here, under the lock: a loss that was meant for an earlier turn, or for a deadline
//!    that has moved, changes nothing.

mod contend;
mod held_lease;
mod renewals;
mod turns;
mod waiters;

use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;

pub(crate) use contend::{AfterFailure, Demand, Wake};
pub(crate) use renewals::{Answer, DueRenewal, Lost};
pub(crate) use turns::Ended;
pub(crate) use waiters::{Holding, NoTurn, WaitRequest};

use self::{contend::Contending, held_lease::HeldLease};
pub(crate) use super::turn::Granted;
use super::turn::Turn;
use crate::{
    Error, ErrorKind, LockKey, Loss,
    lease::{Lease, Pace, Schedule, Scheduler},
    store::{Ending, Instance, Owner, Release, Released, Store, StoreFuture},
    sync::oneshot,
    time::Instant,
};

/// Within what bounds a line works.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// How many requests may wait.
    pub(crate) longest_line: usize,
    /// How many turns a lease still serves once another instance is known to wait,
    pub(crate) pass_turns: u32,
    /// and for how long.
    pub(crate) pass_time: Duration,
    /// How long a turn may last, unless its request says otherwise.
    pub(crate) max_hold: Duration,
    /// How long the store keeps a place in its queue.
    pub(crate) waiter_deadline: Duration,
    /// Whether waiters are told at once when the store fails.
    pub(crate) fail_fast: bool,
    /// How leases are renewed.
    pub(crate) pace: Pace,
}

/// What a transition has at hand, and what it leaves to be done once the line's lock is free.
pub(crate) struct Transition<'a> {
    pub(crate) now: Instant,
    pub(crate) limits: &'a Limits,
    /// The times of the leases under the same lock.
    pub(crate) schedule: &'a mut Schedule,
    pub(crate) scheduler: &'a Scheduler,
    pub(crate) store: &'a dyn Store,
    pub(crate) instance: Instance,
    /// See [`number`](Self::number).
    pub(crate) numbers: &'a mut Numbers,
    pub(crate) after: After,
}

/// Numbers that an instance uses once: for requests, contenders and attempts. They rise under one lock.
#[derive(Debug)]
pub(crate) struct Numbers {
    pub(crate) next: u64,
    pub(crate) step: u64,
}

impl Numbers {
    pub(crate) fn take(&mut self) -> u64 {
        let number = self.next;
        self.next += self.step;
        number
    }
}

/// What is left to be done after a transition: everything that could come back to the line.
#[derive(Debug, Default)]
pub(crate) struct After {
    /// Ask the store for the key, until it is granted or nobody wants it: the number of the contender.
    pub(crate) contend: Option<u64>,
    /// A lease is to be renewed at once, which is the task of the scheduler.
    pub(crate) renews_now: bool,
    /// To be logged: the lease that was lost,
    pub(crate) lost: Option<(Arc<Lease>, Loss)>,
    /// and the owner whose lease is being released.
    pub(crate) released: Option<Owner>,
}

/// Where the one who released learns whether the lease was ours until then.
pub(crate) type Confirmation = oneshot::Sender<Result<(), Error>>;

#[derive(Debug)]
pub(crate) struct Line {
    state: State,
    waiters: VecDeque<Arc<Turn>>,
}

#[derive(Debug, Default)]
enum State {
    /// The contender asks the store.
    Contending(Contending),
    /// A turn is under way.
    Taken(HeldLease),
    /// The lease waits for a renewal that confirms it or brings tokens; then the next turn begins.
    Confirming(HeldLease, Option<Confirmation>),
    /// The lease is lost, and its turn, which is for something that is done once, goes on all the same. Whoever waits for the
    /// same waits for that turn's end: the record that it ends with is theirs too.
    Outlived(HeldLease),
    /// Nothing is left.
    #[default]
    Gone,
}

/// A question that the store has not answered for so long counts as one to a store that is away.
const SILENT_AFTER: Duration = Duration::from_millis(500);

/// The store has failed to answer since a time.
#[derive(Debug, Clone)]
pub(crate) struct Away {
    since: Instant,
    error: Option<Error>,
}

impl Away {
    /// What a request is told that gets no turn because of it.
    pub(crate) fn into_error(self, now: Instant, what: &str) -> Error {
        let silent_for = now.saturating_duration_since(self.since);
        let message = format!("{what}: the store has not answered for the last {silent_for:?}");
        match self.error {
            Some(error) => Error::with_source(ErrorKind::Unreachable, message, error),
            None => Error::new(ErrorKind::Unreachable, message),
        }
    }
}

impl Line {
    pub(crate) fn is_gone(&self) -> bool {
        matches!(self.state, State::Gone)
    }

    /// The lease under which a turn is, or is about to be.
    pub(crate) fn lease(&self) -> Option<&Arc<Lease>> {
        match &self.state {
            State::Taken(held) | State::Confirming(held, _) => Some(&held.lease),
            _ => None,
        }
    }

    /// Where the key is held and since when, for messages, as far as that is known.
    pub(crate) fn holder(&self, now: Instant) -> Option<String> {
        match &self.state {
            State::Contending(contending) => contending.holder().map(|label| elsewhere(label)),
            State::Taken(held) | State::Outlived(held) => {
                let millis = now.saturating_duration_since(held.began).as_millis();
                Some(format!("in this process, for {millis} ms"))
            }
            State::Confirming(..) | State::Gone => None,
        }
    }

    /// Whether the next turn waits for a renewal.
    pub(crate) fn is_confirming(&self) -> bool {
        matches!(self.state, State::Confirming(..))
    }

    /// Since when the store has been away, for a waiter who has waited for `limit` in vain.
    pub(crate) fn away_after(&self, limit: Duration, now: Instant) -> Option<Away> {
        match &self.state {
            State::Contending(contending) => contending.away(now, contending.patience(limit)),
            _ => self.away(now),
        }
    }

    /// Since when the store has been away, as far as those who wait for this key are concerned.
    fn away(&self, now: Instant) -> Option<Away> {
        match &self.state {
            State::Contending(contending) => contending.away(now, SILENT_AFTER),
            State::Confirming(held, _) => held.away.clone(),
            _ => None,
        }
    }
}

impl Transition<'_> {
    /// A number that this instance uses once.
    fn number(&mut self) -> u64 {
        self.numbers.take()
    }

    fn fresh_owner(&mut self) -> Owner {
        Owner {
            instance: self.instance,
            attempt: self.number(),
        }
    }

    /// Starts to release a lease, which thereby leaves the schedule.
    fn release(&mut self, held: &mut HeldLease) -> StoreFuture<Result<Released, Error>> {
        held.unschedule(self);
        let lease = &held.lease;
        self.after.released = Some(lease.owner);
        self.start_release(lease.key.clone(), lease.owner, lease.length)
    }

    /// Gives up an attempt's place in the store's queue.
    fn release_place(&self, key: LockKey, owner: Owner) {
        drop(self.start_release(key, owner, self.limits.waiter_deadline));
    }

    fn start_release(
        &self,
        key: LockKey,
        owner: Owner,
        owed_for: Duration,
    ) -> StoreFuture<Result<Released, Error>> {
        let release = Release {
            key,
            owner,
            ending: Ending::Free,
            owed_for,
        };
        // A store that panics (a bug) must not leave the line half changed.
        catch_unwind(AssertUnwindSafe(|| self.store.start_release(release))).unwrap_or_else(|_| {
            Box::pin(std::future::ready(Err(Error::new(
                ErrorKind::Unreachable,
                "the store panicked when a release was started",
            ))))
        })
    }
}

/// The key is held, by the store of this label if that is known.
/// `holder`: where the key is held, as [`Line::holder`] says it.
pub(crate) fn held(holder: Option<String>) -> Error {
    let holder = holder.as_deref().unwrap_or("by another request");
    Error::new(ErrorKind::Held, format!("the key is held {holder}"))
}

fn elsewhere(label: &str) -> String {
    format!("elsewhere, by {label}")
}

fn recorded() -> Error {
    Error::new(
        ErrorKind::Foreign,
        "the record of a finished idempotent request stands at this key: use another key for plain locks",
    )
}

pub(crate) fn lost(loss: Option<Loss>) -> Error {
    match loss {
        Some(loss) => Error::new(ErrorKind::Lost, format!("the lease was lost: {loss}")),
        None => Error::new(ErrorKind::Lost, "the turn has ended already"),
    }
}

/// Whether two fingerprints are of different things. A plain lock has none, and differs from nothing.
fn differ(ours: &Option<Bytes>, theirs: &Option<Bytes>) -> bool {
    matches!((ours, theirs), (Some(ours), Some(theirs)) if ours != theirs)
}
