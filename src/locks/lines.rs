//! The lines of an instance, in a map that is split into shards so that requests for different keys
//! rarely wait for the same mutex.
//!
//! 1. A line is changed only under the lock of its shard. The transition that ends a line also
//!    removes the line, under the same lock, so no line is ever in the middle of being removed.
//! 2. The schedule of a shard's leases is under the same lock, so a lease that leaves its line
//!    leaves the schedule in the same step.
//! 3. So are the endings of a shard's keys: an owner moves from its line to its ending in one step.
//! 4. Under the lock of a shard, the tasks of this crate (the scheduler's, and those of contenders)
//!    are notified. Nothing is called that could come back to a line: neither the store nor a waker
//!    of a caller.
//!
//! A call for a key takes this way:
//!
//! 1. The upper half of the key's hash chooses the shard, and the shard's mutex is locked.
//! 2. The shard is split into its lines and a [`Transition`], which has everything that a line may
//!    use.
//! 3. The line changes. Whatever must not happen under the mutex is noted in the transition's
//!    [`FollowUp`].
//! 4. A line that has ended is removed, and the mutex is unlocked.
//! 5. The caller does the follow-up ([`Inner::finish_transition`]).

use std::{collections::hash_map::Entry, sync::Arc};

use super::{
    config::Config,
    inner::Inner,
    line::{DueRenewal, FollowUp, Line, NoTurn, Numbers, Transition, WaitRequest},
    totals::Totals,
    turn::Turn,
};
use crate::{
    Error, ErrorKind, LockKey,
    key::KeyMap,
    lease::{Lease, Pace, Schedule, Scheduler},
    store::{
        Acquire, End, Instance, Outcome, Owner, Release, Released,
        ends::{Callers, Ends, Told},
    },
    sync::{
        Mutex, Notify,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Instant, later, now},
};

/// The model checker gets few shards, because mutexes without contention only cost it time.
const SHARDS: usize = if cfg!(shuttle) { 2 } else { 64 };

/// All lines of an instance.
pub(crate) struct Lines {
    shards: Box<[Mutex<Shard>]>,
    config: Config,
    pace: Pace,
    instance: Instance,
    scheduler: Arc<Scheduler>,
    count: AtomicUsize,
    closed: AtomicBool,
    /// See [`emptied`](Self::emptied).
    emptied: Notify,
}

/// The lines under one lock.
struct Shard {
    lines: KeyMap<Line>,
    /// The times at which the leases of these lines need attention.
    schedule: Schedule,
    /// The owners of these keys that the store has to forget.
    ends: Ends,
    /// Requests are numbered across all lines of a shard, so that a request which leaves late is
    /// not taken for a request in a later line of the same key.
    numbers: Numbers,
    totals: Totals,
}

/// The result of joining a line.
pub(crate) struct Joined {
    pub(crate) turn: Arc<Turn>,
    /// Set if the request is the first of its line: the demand to send to the store.
    pub(crate) first: Option<Acquire>,
}

/// The work for leases whose scheduled time has come.
#[derive(Default)]
pub(crate) struct Due {
    pub(crate) renewals: Vec<DueRenewal>,
    /// Releases that are repeated.
    pub(crate) releases: Vec<Release>,
    /// Callers that have waited for releases whose time is over.
    pub(crate) given_up: Callers,
    /// The follow-ups of the transitions, by key.
    pub(crate) follow_ups: Vec<(LockKey, FollowUp)>,
    /// When the next lease needs attention.
    pub(crate) next: Option<Instant>,
}

impl Lines {
    pub(crate) fn new(config: Config, instance: Instance, scheduler: Arc<Scheduler>) -> Self {
        Self {
            shards: (0..SHARDS).map(Shard::new).map(Mutex::new).collect(),
            config,
            pace: config.pace(),
            instance,
            scheduler,
            count: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
            emptied: Notify::new(),
        }
    }

    /// Joins the line of a key. The line is created if there is none.
    pub(crate) fn join(
        &self,
        inner: &Arc<Inner>,
        key: &LockKey,
        request: WaitRequest,
        follow_up: &mut FollowUp,
    ) -> Result<Joined, NoTurn> {
        let mut shard = self.shard(key).lock();
        // Checked under the lock, so that `close` finds every request that joined before.
        if self.is_closed() {
            return Err(closed().into());
        }
        let now = now();
        let (lines, mut t) = self.transition(&mut shard, now, follow_up);
        // Numbered under the lock, so that numbers rise from the head of a line to its end.
        let turn = Turn::new(inner.clone(), t.numbers.take(), request, now);
        let first = match lines.entry(key.clone()) {
            Entry::Occupied(mut line) => {
                line.get_mut().join(&turn, &mut t)?;
                None
            }
            Entry::Vacant(vacant) => {
                self.count_one()?;
                let line = vacant.insert(Line::first(turn.id, turn.clone()));
                line.demand(key, &mut t)
            }
        };
        Ok(Joined { turn, first })
    }

    /// Runs a transition on the line of a key, if there is one, and removes the line if the
    /// transition has ended it.
    pub(crate) fn with<T>(
        &self,
        key: &LockKey,
        work: impl FnOnce(&mut Line, &mut Transition<'_>) -> T,
        follow_up: &mut FollowUp,
    ) -> Option<T> {
        let mut shard = self.shard(key).lock();
        let (lines, mut t) = self.transition(&mut shard, now(), follow_up);
        let line = lines.get_mut(key)?;
        let outcome = work(line, &mut t);
        let is_last = self.remove_if_gone(lines, key);
        drop(shard);
        if is_last {
            self.emptied.notify_waiters();
        }
        Some(outcome)
    }

    /// Handles all leases whose scheduled time has come.
    pub(crate) fn look(&self, now: Instant) -> Due {
        let mut due = Due::default();
        let mut is_last = false;
        let soon = later(now, self.pace.together());
        for shard in &self.shards {
            let mut shard = shard.lock();
            for (key, attempt) in shard.schedule.take_due(now, soon) {
                let mut follow_up = FollowUp::default();
                let (lines, mut t) = self.transition(&mut shard, now, &mut follow_up);
                if let Some(line) = lines.get_mut(&key) {
                    due.renewals.extend(line.look(attempt, &mut t));
                    is_last |= self.remove_if_gone(lines, &key);
                    due.follow_ups.push((key, follow_up));
                }
            }
            let round = shard.ends.take_due(now);
            due.releases.extend(round.releases);
            due.given_up.extend(round.given_up);
            is_last |= shard.ends.len() == 0 && self.is_closed();
            let next = [shard.schedule.next(), shard.ends.next()];
            due.next = due.next.into_iter().chain(next.into_iter().flatten()).min();
        }
        if is_last {
            self.emptied.notify_waiters();
        }
        due
    }

    /// Doubts the leases of all keys that `is_concerned` accepts, because the store may have
    /// forgotten them.
    pub(crate) fn doubt_leases(&self, is_concerned: impl Fn(&LockKey) -> bool) {
        self.change_each(|key, line, t| {
            if is_concerned(key) {
                line.doubt_leases(t);
            }
        });
    }

    /// Returns an unused owner, for an attempt outside of the key's line, and the endings that the
    /// attempt carries.
    pub(crate) fn fresh_owner(&self, key: &LockKey) -> (Owner, Vec<End>) {
        let mut shard = self.shard(key).lock();
        let owner = Owner {
            instance: self.instance,
            attempt: shard.numbers.take(),
        };
        (owner, shard.ends.to_carry(key))
    }

    /// Adds an ending. The caller sends the release.
    pub(crate) fn end(&self, release: Release) -> Option<Release> {
        let mut shard = self.shard(&release.key).lock();
        shard.ends.add(release, Callers::new(), now())
    }

    /// Takes the outcome of a release.
    pub(crate) fn released(&self, key: &LockKey, owner: Owner, outcome: Outcome<Released>) -> Told {
        let mut shard = self.shard(key).lock();
        let told = shard.ends.released(key, owner, outcome, now());
        if let Some(round) = told.round {
            self.scheduler.look_by(round);
        }
        let is_empty = shard.ends.len() == 0;
        drop(shard);
        if is_empty && self.is_closed() {
            self.emptied.notify_waiters();
        }
        told
    }

    /// Repeats the releases that have failed, because the store is back.
    pub(crate) fn hurry_ends(&self) {
        for shard in &self.shards {
            if let Some(round) = shard.lock().ends.hurry(now()) {
                self.scheduler.look_by(round);
            }
        }
    }

    /// The callers that wait for a release to be repeated, when there is no background that would.
    pub(crate) fn give_up_waiting(&self) -> Callers {
        let shards = self.shards.iter();
        let waiting = shards.flat_map(|shard| shard.lock().ends.give_up_waiting());
        waiting.collect()
    }

    /// How many owners the store has to forget.
    pub(crate) fn endings(&self) -> usize {
        let shards = self.shards.iter();
        shards.map(|shard| shard.lock().ends.len()).sum()
    }

    /// Whether an owner is in the place where it belongs (invariant 7 of [`line`](super::line)).
    #[cfg(shuttle)]
    pub(crate) fn knows(&self, key: &LockKey, owner: Owner) -> bool {
        let shard = self.shard(key).lock();
        let line = shard.lines.get(key);
        line.is_some_and(|line| line.knows(owner)) || shard.ends.contains(key, owner)
    }

    /// Refuses all requests that wait, and all that ask later.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.change_each(|_, line, t| line.refuse_all(&closed(), t));
    }

    /// Whether [`close`](Self::close) was called.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Makes every contender ask the store again, because hints may have been lost.
    pub(crate) fn wake_contenders(&self) {
        self.change_each(|_, line, _| line.wake_contender());
    }

    /// The leases of all lines that have a turn under way or about to begin.
    pub(crate) fn leases(&self) -> Vec<Arc<Lease>> {
        let mut leases = Vec::new();
        self.each(|_, line| leases.extend(line.leases().cloned()));
        leases
    }

    /// The requests that wait, in all lines.
    pub(crate) fn waiting(&self) -> Vec<Arc<Turn>> {
        let mut turns = Vec::new();
        self.each(|_, line| turns.extend(line.waiters().cloned()));
        turns
    }

    /// Gives a new contender to each line whose contender has ended with its runtime. Returns the
    /// keys of these lines, with the numbers of the contenders.
    pub(crate) fn take_over(&self) -> Vec<(LockKey, u64)> {
        let mut left_behind = Vec::new();
        self.change_each(|key, line, t| {
            let number = line.take_over(t);
            left_behind.extend(number.map(|number| (key.clone(), number)));
        });
        left_behind
    }

    /// What all lines have done so far.
    pub(crate) fn totals(&self) -> Totals {
        let mut sum = Totals::default();
        for shard in &self.shards {
            sum.add(shard.lock().totals);
        }
        sum
    }

    /// The number of lines, which is the number of keys in use.
    pub(crate) fn len(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// Calls `work` for each line, with its key.
    pub(crate) fn each(&self, mut work: impl FnMut(&LockKey, &Line)) {
        for shard in &self.shards {
            let shard = shard.lock();
            shard.lines.iter().for_each(|(key, line)| work(key, line));
        }
    }

    /// Runs a transition on each line that ends none of them, and that leaves nothing to do but to
    /// wake the tasks of those who are refused.
    fn change_each(&self, mut work: impl FnMut(&LockKey, &mut Line, &mut Transition<'_>)) {
        for shard in &self.shards {
            // Dropped after the lock.
            let mut follow_up = FollowUp::default();
            let mut shard = shard.lock();
            let (lines, mut t) = self.transition(&mut shard, now(), &mut follow_up);
            let lines = lines.iter_mut();
            lines.for_each(|(key, line)| work(key, line, &mut t));
        }
    }

    /// Resolves when the last line is removed after this call, or, once the lines are closed, the
    /// last ending of a shard.
    pub(crate) fn emptied(&self) -> impl Future<Output = ()> + '_ {
        self.emptied.notified()
    }

    /// Removes a line that has ended. Called at the end of every transition. Returns whether that
    /// was the last line: `emptied` is then to be notified when the lock is free.
    fn remove_if_gone(&self, lines: &mut KeyMap<Line>, key: &LockKey) -> bool {
        let is_gone = lines.get(key).is_some_and(Line::is_gone);
        if is_gone {
            lines.remove(key);
        }
        is_gone && self.count.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Counts a new line, unless the limit of `max_keys` is reached.
    fn count_one(&self) -> Result<(), Error> {
        let max = self.config.max_keys;
        let count = |count| (count < max).then_some(count + 1);
        match self
            .count
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, count)
        {
            Ok(_) => Ok(()),
            Err(_) => Err(Error::new(
                ErrorKind::TooManyKeys,
                format!(
                    "{max} keys are already in use: raise `LocksBuilder::max_keys`, or check whether clients can invent keys"
                ),
            )),
        }
    }

    /// Splits a shard into its lines and the context for transitions on them.
    fn transition<'a>(
        &'a self,
        shard: &'a mut Shard,
        now: Instant,
        follow_up: &'a mut FollowUp,
    ) -> (&'a mut KeyMap<Line>, Transition<'a>) {
        let transition = Transition {
            now,
            config: &self.config,
            pace: &self.pace,
            schedule: &mut shard.schedule,
            scheduler: &self.scheduler,
            ends: &mut shard.ends,
            instance: self.instance,
            numbers: &mut shard.numbers,
            totals: &mut shard.totals,
            away: None,
            follow_up,
        };
        (&mut shard.lines, transition)
    }

    /// The shard of a key.
    fn shard(&self, key: &LockKey) -> &Mutex<Shard> {
        // The upper half of the hash: the map of a shard uses the lower half.
        &self.shards[(key.map_hash() >> 32) as usize % SHARDS]
    }
}

impl Shard {
    /// Each shard has its own sequence of numbers, so that threads do not contend for one counter.
    fn new(index: usize) -> Self {
        Self {
            lines: KeyMap::default(),
            schedule: Schedule::default(),
            ends: Ends::default(),
            numbers: Numbers {
                next: index as u64 + 1,
                step: SHARDS as u64,
            },
            totals: Totals::default(),
        }
    }
}

/// The error of locks that were closed.
pub(crate) fn closed() -> Error {
    Error::new(
        ErrorKind::Closed,
        "these locks were closed by `Locks::close`, and grant no further turns",
    )
}
