//! All lines of an instance, in a map that is split so that requests of different keys rarely meet.
//!
//! A line is worked on under its shard's lock only, and is removed under the same lock by the transition that leaves
//! nothing of it. So no entry is ever "being removed". The schedule of a shard's leases is under the same lock, so a lease that
//! leaves its line leaves the schedule with it. Under a shard's lock releases are started in the store, and the scheduler's task
//! is notified; nothing that could come back to a line is called.

use std::{collections::hash_map::Entry, sync::Arc};

use super::{
    inner::Inner,
    line::{After, Demand, DueRenewal, Limits, Line, NoTurn, Numbers, Transition, WaitRequest},
    turn::Turn,
};
use crate::{
    Error, ErrorKind, LockKey,
    key::KeyMap,
    lease::{Lease, Schedule, Scheduler},
    store::{Instance, Owner, Store},
    sync::{
        Mutex, Notify,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Instant, later, now},
};

/// A few for the model checker, which would spend its time on locks that nobody meets at.
const SHARDS: usize = if cfg!(shuttle) { 2 } else { 64 };

pub(crate) struct Lines {
    shards: Box<[Mutex<Shard>]>,
    limits: Limits,
    max_keys: usize,
    instance: Instance,
    scheduler: Arc<Scheduler>,
    store: Arc<dyn Store>,
    count: AtomicUsize,
    closed: AtomicBool,
    /// Notified whenever the last line goes.
    emptied: Notify,
}

/// Lines under one lock.
struct Shard {
    lines: KeyMap<Line>,
    /// When the leases of these lines need attention.
    schedule: Schedule,
    /// Requests are numbered over all lines of a shard: one that leaves late must not be taken for one in the key's next line.
    numbers: Numbers,
}

/// What came of joining a line.
pub(crate) struct Joined {
    pub(crate) turn: Arc<Turn>,
    /// The one who joined is the first, and has to ask the store for this.
    pub(crate) first: Option<Demand>,
}

/// What is to be done for leases whose time has come.
#[derive(Default)]
pub(crate) struct Due {
    pub(crate) renewals: Vec<DueRenewal>,
    /// What is left to be done for leases that were over.
    pub(crate) after: Vec<(LockKey, After)>,
    /// When the next lease needs attention.
    pub(crate) next: Option<Instant>,
}

impl Lines {
    pub(crate) fn new(
        limits: Limits,
        max_keys: usize,
        instance: Instance,
        scheduler: Arc<Scheduler>,
        store: Arc<dyn Store>,
    ) -> Self {
        Self {
            shards: (0..SHARDS).map(Shard::new).map(Mutex::new).collect(),
            limits,
            max_keys,
            instance,
            scheduler,
            store,
            count: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
            emptied: Notify::new(),
        }
    }

    /// Enters the line of a key, which is made if there is none.
    pub(crate) fn join(
        &self,
        inner: &Arc<Inner>,
        key: &LockKey,
        request: WaitRequest,
    ) -> Result<Joined, NoTurn> {
        let mut shard = self.shard(key).lock();
        // Looked at under the lock, so that `close` finds whoever came in before it.
        if self.is_closed() {
            return Err(closed().into());
        }
        let (lines, mut t) = self.transition(&mut shard, now());
        // Numbered under the lock, so that numbers rise from the head of a line to its end.
        let turn = Turn::new(inner.clone(), t.numbers.take(), request);
        let first = match lines.entry(key.clone()) {
            Entry::Occupied(mut line) => {
                line.get_mut().join(&turn, &mut t)?;
                None
            }
            Entry::Vacant(vacant) => {
                self.count_one()?;
                let line = vacant.insert(Line::first(turn.id, turn.clone()));
                line.demand(key, None, &mut t)
            }
        };
        Ok(Joined { turn, first })
    }

    /// Works on a key's line, if there is one, and removes it if that leaves nothing of it.
    pub(crate) fn with<T>(
        &self,
        key: &LockKey,
        work: impl FnOnce(&mut Line, &mut Transition<'_>) -> T,
    ) -> Option<(T, After)> {
        let mut shard = self.shard(key).lock();
        let (lines, mut t) = self.transition(&mut shard, now());
        let line = lines.get_mut(key)?;
        let outcome = work(line, &mut t);
        let after = t.after;
        self.remove_if_gone(lines, key);
        Some((outcome, after))
    }

    /// Looks after all leases whose time has come.
    pub(crate) fn look(&self, now: Instant) -> Due {
        let mut due = Due::default();
        let soon = later(now, self.limits.pace.together());
        for shard in &self.shards {
            let mut shard = shard.lock();
            for key in shard.schedule.take_due(now, soon) {
                let (lines, mut t) = self.transition(&mut shard, now);
                if let Some(line) = lines.get_mut(&key) {
                    due.renewals.extend(line.look(&mut t));
                    let after = t.after;
                    self.remove_if_gone(lines, &key);
                    due.after.push((key, after));
                }
            }
            let next = shard.schedule.next();
            due.next = due.next.into_iter().chain(next).min();
        }
        due
    }

    /// The store may have forgotten leases: every line doubts the one that it has.
    pub(crate) fn doubt_leases(&self, is_concerned: impl Fn(&LockKey) -> bool) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            let (lines, mut t) = self.transition(&mut shard, now());
            let concerned = lines.iter_mut().filter(|(key, _)| is_concerned(key));
            concerned.for_each(|(_, line)| line.doubt_lease(&mut t));
        }
    }

    /// An owner that was never used before, for an attempt beside the key's line.
    pub(crate) fn fresh_owner(&self, key: &LockKey) -> Owner {
        Owner {
            instance: self.instance,
            attempt: self.shard(key).lock().numbers.take(),
        }
    }

    /// From now on nobody joins, and whoever waits is refused.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.each(|line| line.refuse_all(&closed()));
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Hints may have been lost: every contender asks again.
    pub(crate) fn wake_contenders(&self) {
        self.each(Line::wake_contender);
    }

    /// The leases under which turns are, or are about to be.
    pub(crate) fn leases(&self) -> Vec<Arc<Lease>> {
        let mut leases = Vec::new();
        self.each(|line| leases.extend(line.lease().cloned()));
        leases
    }

    pub(crate) fn len(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// Calls this for each line. For what needs no transition.
    pub(crate) fn each(&self, mut work: impl FnMut(&mut Line)) {
        for shard in &self.shards {
            shard.lock().lines.values_mut().for_each(&mut work);
        }
    }

    /// Resolves when the last line has gone since this call.
    pub(crate) fn emptied(&self) -> impl Future<Output = ()> + '_ {
        self.emptied.notified()
    }

    fn remove_if_gone(&self, lines: &mut KeyMap<Line>, key: &LockKey) {
        if lines.get(key).is_some_and(Line::is_gone) {
            lines.remove(key);
            if self.count.fetch_sub(1, Ordering::AcqRel) == 1 {
                self.emptied.notify_waiters();
            }
        }
    }

    fn count_one(&self) -> Result<(), Error> {
        let max = self.max_keys;
        let count = |count| (count < max).then_some(count + 1);
        match self
            .count
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, count)
        {
            Ok(_) => Ok(()),
            Err(_) => Err(Error::new(
                ErrorKind::TooManyKeys,
                format!(
                    "{max} keys are in use already: see `LocksBuilder::max_keys`, and whether requests can make up keys at will"
                ),
            )),
        }
    }

    fn transition<'a>(
        &'a self,
        shard: &'a mut Shard,
        now: Instant,
    ) -> (&'a mut KeyMap<Line>, Transition<'a>) {
        let transition = Transition {
            now,
            limits: &self.limits,
            schedule: &mut shard.schedule,
            scheduler: &self.scheduler,
            store: &*self.store,
            instance: self.instance,
            numbers: &mut shard.numbers,
            after: After::default(),
        };
        (&mut shard.lines, transition)
    }

    fn shard(&self, key: &LockKey) -> &Mutex<Shard> {
        // The upper half: the map of a shard goes by the lower one.
        &self.shards[(key.map_hash() >> 32) as usize % SHARDS]
    }
}

impl Shard {
    /// Each shard has numbers of its own, so that threads do not meet at a counter.
    fn new(index: usize) -> Self {
        Self {
            lines: KeyMap::default(),
            schedule: Schedule::default(),
            numbers: Numbers {
                next: index as u64 + 1,
                step: SHARDS as u64,
            },
        }
    }
}

fn closed() -> Error {
    Error::new(
        ErrorKind::Closed,
        "these locks were closed: the process is about to end",
    )
}
