//! The line of one key in one process: the leases, the turns under way, and the requests that wait.
//!
//! A [`Line`] is plain data, and its methods are the transitions of a state machine. Each
//! transition runs under the lock of the shard that holds the line
//! ([`Lines`](super::lines::Lines)), with a [`Transition`] as its context: the time, the limits,
//! the schedule of the shard's leases, and the endings of its keys. Every interleaving of requests,
//! cancellations, replies and timers is therefore an order of transitions.
//!
//! 1. A line is in the map exactly as long as the line has a lease or a contender.
//! 2. The turns under way of a line belong to its leases: an exclusive lease or a permit has at
//!    most one, a shared lease any number. A turn ends once: the turn's number and the lease's
//!    owner identify the turn, so an end that comes late changes nothing.
//! 3. A turn begins only under a lease of the mode that its request asked for, which is valid by
//!    the clock and confirmed. Turns of exclusive leases and of permits have a token of their own;
//!    the turns of a shared lease share one.
//! 4. Every waiting request is in `waiters`. A request that the line removes is granted its turn or
//!    refused, exactly once, in the same transition. A request that leaves removes itself and gets
//!    neither.
//! 5. While a request waits, a contender, a turn or a renewal is under way, or the time of the next
//!    renewal is set. When one of them ends, `serve` runs and decides what ends the wait.
//! 6. Requests get their turns in the order in which they joined. Only requests that share the key
//!    have their turns side by side, and only with those next to them in line; and so have requests
//!    for permits.
//! 7. *Conservation.* An owner that was named to the store is in exactly one place: with the
//!    contender (as a question under way, or as a place in the store's queue), with a late
//!    recorder, in a lease of its line, or in the [`Ends`] of the shard. It moves from one to the
//!    other in one transition. It leaves for good when its ending is settled or its time is over;
//!    when its question was refused or answered with *held* and left no place, or was answered with
//!    a record; when its lease was replaced by a confirmed record, was abandoned before a record
//!    was sent, or outlived an answer of *not ours*.
//! 8. A lease is in the schedule exactly as long as the lease is in its line and not outlived.
//! 9. Whether a lease is lost is decided here, under the lock. A loss that was found for an earlier
//!    turn, or for a deadline that has moved since, changes nothing.
//! 10. A request that does not wait is in line only while an answer of the store can begin its
//!     turn: as far as the line knows, no turn of another has to end before. It is refused in the
//!     transition that finds out otherwise, so none is in line beside the turn of an exclusive
//!     lease, or while a contender pauses or backs off.
//! 11. No owner in `Ends` serves a turn, and none is asked for again. Every acquire for a key names
//!     the endings of that key that may be carried, so a lock right after a drop does not depend on
//!     the order of calls.
//! 12. The store is called, and its answers to releases are taken, only while no shard is locked.
//!
//! # Two requests at one key
//!
//! Request 1 (of `lock("a")`) and request 2, in the transitions that they go through:
//!
//! ```text
//!                                                   contending  leases          waiters
//! Lines::join(1)     creates the line, `demand`     yes         –               1
//! Lines::join(2)     queues the request             yes         –               1, 2
//! granted(lease 7)   `serve`: turn of 1 begins      –           7: turn of 1    2
//! end(turn of 1)     `serve`: 7 is passed on to 2   –           7: turn of 2    –
//! end(turn of 2)     `serve`: 7 is released         –           –               –          the line is gone
//! ```
//!
//! Had the store been away for a moment during turn 1, lease 7 would be doubted. After the end of
//! turn 1, the lease would then be idle, until the answer to a renewal begins turn 2:
//!
//! ```text
//! end(turn of 1)     7 is doubted                   –           7               2
//! renewed(7)         `serve`: turn of 2 begins      –           7: turn of 2    –
//! ```

#![deny(clippy::wildcard_enum_match_arm)]

mod contend;
mod held_lease;
mod leases;
mod readers;
mod renewals;
mod serve;
mod snapshot;
mod turns;
mod waiters;

use std::{collections::VecDeque, sync::Arc, task::Waker, time::Duration};

use bytes::Bytes;
use smallvec::SmallVec;

pub(crate) use contend::{Unanswered, Wake};
pub(crate) use renewals::{Answer, DueRenewal};
pub(crate) use waiters::{Holding, NoTurn, WaitRequest};

use self::{
    contend::{Contending, Place},
    held_lease::HeldLease,
    leases::Leases,
};
pub(crate) use super::turn::Granted;
use super::{config::Config, totals::Totals, turn::Turn};
use crate::{
    Error, ErrorKind, LockKey, Loss,
    lease::{Lease, Pace, Schedule, Scheduler},
    store::{
        Instance, Owner, Release,
        ends::{Callers, Ends},
    },
    time::Instant,
};

/// The context of a transition: the inputs, and the follow-up that is left for when the line's lock
/// is free.
pub(crate) struct Transition<'a> {
    pub(crate) now: Instant,
    pub(crate) config: &'a Config,
    /// How leases are renewed.
    pub(crate) pace: &'a Pace,
    /// The schedule of the leases under the same lock.
    pub(crate) schedule: &'a mut Schedule,
    pub(crate) scheduler: &'a Scheduler,
    /// The endings of the keys under the same lock.
    pub(crate) ends: &'a mut Ends,
    pub(crate) instance: Instance,
    /// See [`number`](Self::number).
    pub(crate) numbers: &'a mut Numbers,
    /// What the lines under the same lock have done so far.
    pub(crate) totals: &'a mut Totals,
    /// Set if the store was away for a lease that has left its line in this transition.
    pub(crate) away: Option<Away>,
    pub(crate) follow_up: &'a mut FollowUp,
}

/// Numbers that an instance uses once, for requests, contenders and attempts. The numbers of one
/// shard rise.
///
/// Shard 3 of 64, for example, hands out 4, 68, 132 and so on, so no two shards hand out the same
/// number.
#[derive(Debug)]
pub(crate) struct Numbers {
    pub(crate) next: u64,
    pub(crate) step: u64,
}

impl Numbers {
    /// Returns the next number.
    pub(crate) fn take(&mut self) -> u64 {
        let number = self.next;
        self.next += self.step;
        number
    }
}

/// The actions left to do after a transition, when the lock is free: everything that could come
/// back to the line.
#[derive(Debug, Default)]
pub(crate) struct FollowUp {
    /// Releases to be sent. Their owners are in [`Ends`] already.
    pub(crate) releases: SmallVec<[Release; 1]>,
    /// The tasks of requests that have got their turns, or were refused.
    pub(crate) wakers: Wakers,
    /// The callers that have waited for a lease to be confirmed, and what they are told.
    pub(crate) told: Vec<(Callers, Result<(), Error>)>,
    /// Starts a contender with this number.
    pub(crate) contend: Option<u64>,
    /// The first request of the line, which is not alone any more: the background polls the
    /// question in its place.
    pub(crate) asks_alone: Option<Arc<Turn>>,
    /// The leases that were lost, or whose turns were: their watchers are woken, and the log is
    /// written.
    pub(crate) lost: Vec<(Arc<Lease>, Loss)>,
    /// The owners of the leases that are being released, for the log.
    pub(crate) released: SmallVec<[Owner; 1]>,
}

/// Tasks that are woken when this list is dropped. A waker may be the user's own, and may use any
/// lock, so the list must be dropped after the line's lock is free.
#[derive(Debug, Default)]
pub(crate) struct Wakers(SmallVec<[Waker; 1]>);

impl Extend<Waker> for Wakers {
    fn extend<T: IntoIterator<Item = Waker>>(&mut self, wakers: T) {
        self.0.extend(wakers);
    }
}

impl Wakers {
    pub(crate) fn wake(&mut self) {
        self.0.drain(..).for_each(Waker::wake);
    }
}

impl Drop for Wakers {
    fn drop(&mut self) {
        self.wake();
    }
}

/// The requests of this process for one key, and the leases that serve them.
#[derive(Debug)]
pub(crate) struct Line {
    /// Set while a contender asks the store for a lease.
    contending: Option<Contending>,
    leases: Leases,
    waiters: VecDeque<Arc<Turn>>,
    /// Some of them may be requests that do not wait for a turn of another.
    some_are_impatient: bool,
}

/// A store that has not answered a question for this long counts as away.
const SILENT_AFTER: Duration = Duration::from_millis(500);

/// The store does not answer: since when, and the last error if there was one.
///
/// The error of a request that gives up names the time and the last error: `no turn within 10s: the
/// store has not answered for the last 4.2s: cannot connect to Redis at …`.
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
            Some(error) => Error::caused_by(ErrorKind::Unreachable, message, error),
            None => Error::new(ErrorKind::Unreachable, message),
        }
    }
}

impl Line {
    /// Whether the line has ended, and is to be removed from the map.
    pub(crate) fn is_gone(&self) -> bool {
        self.contending.is_none() && self.leases.is_empty()
    }

    /// The leases that turns run under, or are about to.
    pub(crate) fn leases(&self) -> impl Iterator<Item = &Arc<Lease>> {
        let held = self.leases.iter().filter(|held| !held.is_outlived);
        held.map(|held| &held.lease)
    }

    /// Where the key is held and since when, as far as known, for error messages.
    pub(crate) fn holder(&self, now: Instant) -> Option<String> {
        if let Some(held) = self.leases.iter().find(|held| !held.is_idle()) {
            let millis = held.held_for(now).as_millis();
            return Some(format!("in this process, for {millis} ms"));
        }
        let contending = self.contending.as_ref()?;
        contending.holder().map(|label| elsewhere(label))
    }

    /// Since when the store has been away, for a request that has waited for `limit` without a
    /// turn.
    pub(crate) fn away_after(&self, limit: Duration, now: Instant) -> Option<Away> {
        let asking = self.contending.as_ref();
        let asking = asking.and_then(|it| it.away(now, it.patience(limit)));
        asking.or_else(|| self.away_for_leases())
    }

    /// Since when the store has been away, as seen by the requests for this key.
    fn away(&self, now: Instant) -> Option<Away> {
        let asking = self.contending.as_ref();
        let asking = asking.and_then(|contending| contending.away(now, SILENT_AFTER));
        asking.or_else(|| self.away_for_leases())
    }

    /// Since when the store has been away, as seen by the leases that are to be confirmed.
    fn away_for_leases(&self) -> Option<Away> {
        let mut leases = self.leases.iter_open();
        leases.find_map(|held| held.away.clone().filter(|_| held.awaits_renewal()))
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

    /// Tells callers whether their lease was held.
    fn tell(&mut self, callers: Callers, outcome: Result<(), Error>) {
        if !callers.is_empty() {
            self.follow_up.told.push((callers, outcome));
        }
    }

    /// Releases a lease that has left its line, and removes the lease from the schedule. The
    /// answer tells the callers of the lease whether it was held until now.
    fn release(&mut self, mut held: HeldLease) {
        held.unschedule(self);
        self.away = self.away.take().or(held.away);
        let lease = held.lease;
        self.follow_up.released.push(lease.owner);
        self.end(lease.release(), held.callers);
    }

    /// Ends what the store may have of an owner that has no turn.
    fn end_attempt(&mut self, key: &LockKey, attempt: Place, lasts: Duration, in_doubt: bool) {
        let release = Release {
            in_doubt,
            ..Release::free(key.clone(), attempt.owner, attempt.mode, lasts)
        };
        self.end(release, Callers::new());
    }

    /// Adds an ending, whose release is sent when the lock is free.
    fn end(&mut self, release: Release, callers: Callers) {
        let release = self.ends.add(release, callers, self.now);
        self.follow_up.releases.extend(release);
    }
}

/// The error for a key that is held. `holder` says where, as returned by [`Line::holder`].
pub(crate) fn held_error(holder: Option<String>) -> Error {
    let holder = holder.as_deref().unwrap_or("by another request");
    Error::new(ErrorKind::Held, format!("the key is held {holder}"))
}

fn elsewhere(label: &str) -> String {
    format!("elsewhere, by {label}")
}

/// The error of a plain lock at a key that has a record.
fn recorded_error() -> Error {
    Error::new(
        ErrorKind::Foreign,
        "the key has the record of a finished idempotent request: use another key for plain locks",
    )
}

/// The error of a turn whose lease was lost, or that has ended before.
pub(crate) fn lost_error(loss: Option<Loss>) -> Error {
    match loss {
        Some(loss) => Error::new(ErrorKind::Lost, format!("the lease was lost: {loss}")),
        None => Error::new(ErrorKind::Lost, "the turn has ended already"),
    }
}

/// The other fingerprint, if two are of different work. A plain lock has no fingerprint, and
/// differs from none.
fn other(ours: &Option<Bytes>, theirs: &Option<Bytes>) -> Option<Bytes> {
    theirs
        .clone()
        .filter(|theirs| ours.as_ref().is_some_and(|ours| ours != theirs))
}
