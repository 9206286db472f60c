//! All lines of an instance, in a map that is split so that requests of different keys rarely meet.
//!
//! A line is worked on under its shard's lock only, and is removed under the same lock by the transition that leaves
//! nothing of it. So no entry is ever "being removed". Under a shard's lock the scheduler's lock is taken, and releases are
//! started in the store; nothing that could come back to a line is called.

use std::{collections::hash_map::Entry, sync::Arc};

use super::line::{After, Contention, Limits, Line, NoTurn, Place, Transition, WaitRequest};
use crate::{
    Error, ErrorKind, LockKey,
    key::KeyMap,
    lease::{Lease, Scheduler},
    store::Store,
    sync::{
        Mutex, Notify,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::now,
};

const SHARDS: usize = 64;

pub(crate) struct Lines {
    shards: Box<[Mutex<KeyMap<Line>>]>,
    limits: Limits,
    max_keys: usize,
    scheduler: Arc<Scheduler>,
    store: Arc<dyn Store>,
    count: AtomicUsize,
    /// Waiters are numbered over all lines: one that leaves late must not be taken for one in the key's next line.
    next_waiter: AtomicU64,
    closed: AtomicBool,
    /// Notified whenever the last line goes.
    emptied: Notify,
}

/// What came of joining a line.
pub(crate) struct Joined {
    pub(crate) place: Place,
    /// The one who joined is the first, and has to see to it that the store is asked.
    pub(crate) contention: Option<Arc<Contention>>,
}

impl Lines {
    pub(crate) fn new(
        limits: Limits,
        max_keys: usize,
        scheduler: Arc<Scheduler>,
        store: Arc<dyn Store>,
    ) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            limits,
            max_keys,
            scheduler,
            store,
            count: AtomicUsize::new(0),
            next_waiter: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            emptied: Notify::new(),
        }
    }

    /// Enters the line of a key, which is made if there is none.
    pub(crate) fn join(&self, key: &LockKey, request: WaitRequest) -> Result<Joined, NoTurn> {
        let mut transition = self.transition();
        let mut shard = self.shard(key).lock();
        // Looked at under the lock, so that `close` finds whoever came in before it.
        if self.is_closed() {
            return Err(closed().into());
        }
        // Taken under the lock, so that numbers rise from the head of a line to its end.
        let id = self.next_waiter.fetch_add(1, Ordering::Relaxed);
        match shard.entry(key.clone()) {
            Entry::Occupied(mut line) => {
                let place = line.get_mut().join(id, request, &mut transition)?;
                let contention = None;
                Ok(Joined { place, contention })
            }
            Entry::Vacant(vacant) => {
                self.count_one()?;
                let (line, contention, place) = Line::first(key.clone(), id, request);
                vacant.insert(line);
                let contention = Some(contention);
                Ok(Joined { place, contention })
            }
        }
    }

    /// Works on a key's line, if there is one, and removes it if that leaves nothing of it.
    pub(crate) fn with<T>(
        &self,
        key: &LockKey,
        work: impl FnOnce(&mut Line, &mut Transition<'_>) -> T,
    ) -> Option<(T, After)> {
        let mut shard = self.shard(key).lock();
        let line = shard.get_mut(key)?;
        let mut transition = self.transition();
        let outcome = work(line, &mut transition);
        let after = transition.after;
        if line.is_gone() {
            let gone = shard.remove(key);
            drop(shard);
            drop(gone);
            if self.count.fetch_sub(1, Ordering::AcqRel) == 1 {
                self.emptied.notify_waiters();
            }
        }
        Some((outcome, after))
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

    /// The leases under which turns are now.
    pub(crate) fn leases(&self) -> Vec<Arc<Lease>> {
        let mut leases = Vec::new();
        self.each(|line| leases.extend(line.lease().cloned()));
        leases
    }

    pub(crate) fn len(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    pub(crate) fn waiting(&self) -> usize {
        let mut waiting = 0;
        self.each(|line| waiting += line.waiting());
        waiting
    }

    /// Resolves when the last line has gone since this call.
    pub(crate) fn emptied(&self) -> impl Future<Output = ()> + '_ {
        self.emptied.notified()
    }

    /// For what needs no transition.
    fn each(&self, mut work: impl FnMut(&mut Line)) {
        for shard in &self.shards {
            shard.lock().values_mut().for_each(&mut work);
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

    fn transition(&self) -> Transition<'_> {
        Transition {
            now: now(),
            limits: &self.limits,
            scheduler: &self.scheduler,
            store: &*self.store,
            after: After::default(),
        }
    }

    fn shard(&self, key: &LockKey) -> &Mutex<KeyMap<Line>> {
        // The upper half: the map of a shard goes by the lower one.
        &self.shards[(key.map_hash() >> 32) as usize % SHARDS]
    }
}

fn closed() -> Error {
    Error::new(
        ErrorKind::Closed,
        "these locks were closed: the process is about to end",
    )
}
