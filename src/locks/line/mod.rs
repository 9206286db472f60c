//! The line of one key in one process: the turn under way, the requests that wait, and the lease.
//!
//! A [`Line`] is plain data, and its methods are the transitions of a state machine. Each transition runs under the
//! lock of the shard that holds the line ([`Lines`](super::lines::Lines)), with a [`Transition`] as its context: the
//! time, the limits, the schedule of the shard's leases, and the store to call. Every interleaving of requests,
//! cancellations, replies and timers is therefore an order of transitions.
//!
//! 1. A line is in the map exactly as long as the line is not [`State::Gone`].
//! 2. At most one turn is under way, in [`State::Taken`] or [`State::Outlived`]. A turn ends once: the turn's number
//!    and the lease's owner identify the turn, so an end that comes late changes nothing.
//! 3. A turn begins only under a lease that is valid by the clock and confirmed, and with a token of its own.
//! 4. Every waiting request is in `waiters`. A request that the line removes is granted its turn or refused, exactly
//!    once, in the same transition. A request that leaves removes itself and gets neither.
//! 5. While a request waits, a contender, a turn or a renewal is under way that will end the wait.
//! 6. A lease leaves its line in the same transition in which its release starts. Since the release starts under the
//!    line's lock, the store sees the release before every later call for the key. Two kinds of leases leave without
//!    such a release: a lease whose place a record has taken or may have taken, and a lease that outlived an answer
//!    of *not ours*.
//! 7. A lease is in the schedule exactly as long as the line is [`State::Taken`] or [`State::Confirming`].
//! 8. Whether a lease is lost is decided here, under the lock. A loss that was found for an earlier turn, or for a
//!    deadline that has moved since, changes nothing.

mod contend;
mod held_lease;
mod renewals;
mod snapshot;
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
    store::{Ending, Instance, Mode, Owner, Release, Released, Store, StoreFuture},
    sync::oneshot,
    time::Instant,
};

/// The limits that a line works within.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// How many requests may wait.
    pub(crate) longest_line: usize,
    /// How many more turns a lease serves once another instance is known to wait.
    pub(crate) pass_turns: u32,
    /// For how long a lease is still passed on once another instance is known to wait.
    pub(crate) pass_time: Duration,
    /// How long a turn may last, unless its request says otherwise.
    pub(crate) max_hold: Duration,
    /// How long the store keeps a place in its queue.
    pub(crate) waiter_deadline: Duration,
    /// Whether waiting requests fail as soon as the store does.
    pub(crate) fail_fast: bool,
    /// How leases are renewed.
    pub(crate) pace: Pace,
}

/// The context of a transition: the inputs, and the follow-up that is left for when the line's lock is free.
pub(crate) struct Transition<'a> {
    pub(crate) now: Instant,
    pub(crate) limits: &'a Limits,
    /// The schedule of the leases under the same lock.
    pub(crate) schedule: &'a mut Schedule,
    pub(crate) scheduler: &'a Scheduler,
    pub(crate) store: &'a dyn Store,
    pub(crate) instance: Instance,
    /// See [`number`](Self::number).
    pub(crate) numbers: &'a mut Numbers,
    pub(crate) follow_up: FollowUp,
}

/// Numbers that an instance uses once, for requests, contenders and attempts. The numbers of one shard rise.
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

/// The actions left to do after a transition, when the lock is free: everything that could come back to the line.
#[derive(Debug, Default)]
pub(crate) struct FollowUp {
    /// Starts a contender with this number.
    pub(crate) contend: Option<u64>,
    /// A lease is to be renewed at once. That is the scheduler's task, unless the scheduler may not be driven.
    pub(crate) renews_now: bool,
    /// The lease that was lost, for the log.
    pub(crate) lost: Option<(Arc<Lease>, Loss)>,
    /// The owner of the lease that is being released, for the log.
    pub(crate) released: Option<Owner>,
}

/// Tells [`LockGuard::release`](crate::LockGuard::release) whether the lease was held until the end of the turn.
pub(crate) type Confirmation = oneshot::Sender<Result<(), Error>>;

/// The requests of this process for one key, and the lease that serves them.
#[derive(Debug)]
pub(crate) struct Line {
    state: State,
    waiters: VecDeque<Arc<Turn>>,
}

/// The state of a line between two transitions.
#[derive(Debug, Default)]
enum State {
    /// The line has no lease, and its contender asks the store for one.
    Contending(Contending),
    /// A turn is under way.
    Taken(HeldLease),
    /// The lease waits for a renewal that confirms the lease or brings tokens. The next turn begins after that.
    Confirming(HeldLease, Option<Confirmation>),
    /// The lease is lost, but its turn goes on, because the turn has a fingerprint: work that is done once runs to
    /// its end. Requests with the same fingerprint wait for the end of that turn, and share the record.
    Outlived(HeldLease),
    /// Nothing is left, and the line is about to be removed.
    #[default]
    Gone,
}

/// A store that has not answered a question for this long counts as away.
const SILENT_AFTER: Duration = Duration::from_millis(500);

/// The store does not answer: since when, and the last error if there was one.
#[derive(Debug, Clone)]
pub(crate) struct Away {
    since: Instant,
    error: Option<Error>,
}

impl Away {
    /// The error of a request that gets no turn because the store is away.
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
    /// Whether the line has ended, and is to be removed from the map.
    pub(crate) fn is_gone(&self) -> bool {
        matches!(self.state, State::Gone)
    }

    /// The lease that a turn runs under, or is about to.
    pub(crate) fn lease(&self) -> Option<&Arc<Lease>> {
        match &self.state {
            State::Taken(held) | State::Confirming(held, _) => Some(&held.lease),
            _ => None,
        }
    }

    /// Where the key is held and since when, as far as known, for error messages.
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

    /// Since when the store has been away, for a request that has waited for `limit` without a turn.
    pub(crate) fn away_after(&self, limit: Duration, now: Instant) -> Option<Away> {
        match &self.state {
            State::Contending(contending) => contending.away(now, contending.patience(limit)),
            _ => self.away(now),
        }
    }

    /// Since when the store has been away, as seen by the requests for this key.
    fn away(&self, now: Instant) -> Option<Away> {
        match &self.state {
            State::Contending(contending) => contending.away(now, SILENT_AFTER),
            State::Confirming(held, _) => held.away.clone(),
            _ => None,
        }
    }
}

impl Transition<'_> {
    /// Returns a number that this instance has not used before.
    fn number(&mut self) -> u64 {
        self.numbers.take()
    }

    /// Returns an owner that was not used before.
    fn fresh_owner(&mut self) -> Owner {
        Owner {
            instance: self.instance,
            attempt: self.number(),
        }
    }

    /// Starts to release a lease, and removes the lease from the schedule.
    fn release(&mut self, held: &mut HeldLease) -> StoreFuture<Result<Released, Error>> {
        held.unschedule(self);
        let lease = &held.lease;
        self.follow_up.released = Some(lease.owner);
        self.start_release(lease.key.clone(), lease.owner, lease.length)
    }

    /// Gives up an attempt's place in the store's queue.
    fn release_place(&self, key: LockKey, owner: Owner) {
        drop(self.start_release(key, owner, self.limits.waiter_deadline));
    }

    /// Starts a release in the store.
    fn start_release(
        &self,
        key: LockKey,
        owner: Owner,
        owed_for: Duration,
    ) -> StoreFuture<Result<Released, Error>> {
        let release = Release {
            key,
            owner,
            mode: Mode::Exclusive,
            ending: Ending::Free,
            owed_for,
        };
        // A store that panics has a bug, and must not leave the line half changed.
        catch_unwind(AssertUnwindSafe(|| self.store.start_release(release))).unwrap_or_else(|_| {
            Box::pin(std::future::ready(Err(Error::new(
                ErrorKind::Unreachable,
                "the store panicked when a release was started: this is a bug of the store",
            ))))
        })
    }
}

/// The error for a key that is held. `holder` says where, as returned by [`Line::holder`].
pub(crate) fn held(holder: Option<String>) -> Error {
    let holder = holder.as_deref().unwrap_or("by another request");
    Error::new(ErrorKind::Held, format!("the key is held {holder}"))
}

fn elsewhere(label: &str) -> String {
    format!("elsewhere, by {label}")
}

/// The error of a plain lock at a key that has a record.
fn recorded() -> Error {
    Error::new(
        ErrorKind::Foreign,
        "the key has the record of a finished idempotent request: use another key for plain locks",
    )
}

/// The error of a turn whose lease was lost, or that has ended before.
pub(crate) fn lost(loss: Option<Loss>) -> Error {
    match loss {
        Some(loss) => Error::new(ErrorKind::Lost, format!("the lease was lost: {loss}")),
        None => Error::new(ErrorKind::Lost, "the turn has ended already"),
    }
}

/// Whether two fingerprints are of different work. A plain lock has no fingerprint, and differs from none.
fn differ(ours: &Option<Bytes>, theirs: &Option<Bytes>) -> bool {
    matches!((ours, theirs), (Some(ours), Some(theirs)) if ours != theirs)
}
