//! All lines of an instance, in a map that is split so that requests of different keys rarely meet.
//!
//! A line is worked on under its shard's lock only, and is removed under the same lock by the transition that leaves
//! nothing of it. So there is no entry that is "being removed", and nobody can find one. The locks are leaves but for
//! the scheduler's: what a transition wants done is done after its shard is unlocked.

use std::{
    collections::{HashMap, hash_map::Entry},
    hash::{BuildHasher, RandomState},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use tokio::{
    sync::{Notify, oneshot},
    time::Instant,
};

use super::line::{Answer, Confirmation, Contention, Demand, Effects, Granted, Limits, Line, Wish};
use crate::{
    Error, ErrorKind, LockKey,
    lease::Lease,
    store::{Grant, Tokens},
    sync::Mutex,
};

const SHARDS: usize = 64;

pub(crate) struct Lines {
    shards: Box<[Mutex<HashMap<LockKey, Line>>]>,
    hasher: RandomState,
    limits: Limits,
    count: AtomicUsize,
    next_waiter: AtomicU64,
    closed: AtomicBool,
    /// The last line is gone.
    emptied: Notify,
}

/// What came of joining a line.
pub(crate) struct Joined {
    pub(crate) waiter: u64,
    pub(crate) answer: Answer,
    /// The one who joined is the first, and has to see to it that the store is asked.
    pub(crate) contention: Option<Arc<Contention>>,
    pub(crate) effects: Effects,
}

impl Lines {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
            limits,
            count: AtomicUsize::new(0),
            next_waiter: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            emptied: Notify::new(),
        }
    }

    pub(crate) fn join(&self, key: &LockKey, wish: Wish, now: Instant) -> Result<Joined, Error> {
        let waiter = self.next_waiter.fetch_add(1, Ordering::Relaxed);
        let (ticket, answer) = oneshot::channel();
        let mut effects = Effects::new();
        let mut shard = self.shard(key).lock();
        // Looked at under the lock, so that `close` finds whoever came in before it.
        if self.closed.load(Ordering::Acquire) {
            return Err(closed());
        }
        let contention = match shard.entry(key.clone()) {
            Entry::Occupied(mut line) => {
                let place = (waiter, wish, ticket);
                line.get_mut()
                    .join(place, &self.limits, now, &mut effects)?;
                None
            }
            Entry::Vacant(vacant) => {
                let (line, contention) = Line::first(waiter, wish, ticket);
                vacant.insert(line);
                self.count.fetch_add(1, Ordering::AcqRel);
                Some(contention)
            }
        };
        Ok(Joined {
            waiter,
            answer,
            contention,
            effects,
        })
    }

    pub(crate) fn leave(&self, key: &LockKey, waiter: u64) -> Effects {
        self.with(key, |line, out| line.leave(waiter, out))
    }

    pub(crate) fn demand(&self, key: &LockKey, contention: &Arc<Contention>) -> Option<Demand> {
        let mut demand = None;
        self.with_contended(key, contention, |line, _| demand = line.demand());
        demand
    }

    pub(crate) fn granted(
        &self,
        contention: &Arc<Contention>,
        lease: Arc<Lease>,
        grant: (Grant, Option<Bytes>),
        now: Instant,
    ) -> Effects {
        let key = lease.key.clone();
        self.with_contended(&key, contention, |line, out| {
            line.granted(lease, grant, &self.limits, now, out);
        })
    }

    pub(crate) fn held(
        &self,
        key: &LockKey,
        contention: &Arc<Contention>,
        claim: &Option<Bytes>,
    ) -> (bool, Effects) {
        let mut anybody = false;
        let effects = self.with_contended(key, contention, |line, out| {
            anybody = line.held(claim, out);
        });
        (anybody, effects)
    }

    pub(crate) fn recorded(
        &self,
        key: &LockKey,
        contention: &Arc<Contention>,
        record: &Bytes,
    ) -> Effects {
        self.with_contended(key, contention, |line, out| line.recorded(record, out))
    }

    pub(crate) fn finished(&self, granted: &Granted, record: &Bytes) -> Effects {
        self.with(&granted.lease.key, |line, out| {
            line.finished(granted, record, out);
        })
    }

    pub(crate) fn failed(
        &self,
        key: &LockKey,
        contention: &Arc<Contention>,
        error: &Error,
    ) -> Effects {
        self.with_contended(key, contention, |line, out| line.failed(error, out))
    }

    pub(crate) fn gave_up(&self, key: &LockKey, contention: &Arc<Contention>) -> bool {
        let mut nobody = true;
        self.with_contended(key, contention, |line, _| nobody = line.gave_up());
        nobody
    }

    pub(crate) fn end(
        &self,
        granted: &Granted,
        ask: Option<Confirmation>,
        now: Instant,
    ) -> Effects {
        let mut ask = ask;
        let effects = self.with(&granted.lease.key, |line, out| {
            line.end(granted, ask.take(), &self.limits, now, out);
        });
        if let Some(ask) = ask {
            // The line is gone, and so is the lease.
            let _ = ask.send(Err(super::line::lost(granted.lease.loss())));
        }
        effects
    }

    pub(crate) fn needs(&self, lease: &Lease) -> u32 {
        let mut needs = 0;
        self.with(&lease.key, |line, _| needs = line.needs(lease));
        needs
    }

    pub(crate) fn renewed(
        &self,
        lease: &Lease,
        answer: (Instant, Option<Tokens>, bool),
        now: Instant,
    ) -> Effects {
        self.with(&lease.key, |line, out| {
            line.renewed(lease, answer, &self.limits, now, out);
        })
    }

    pub(crate) fn renewal_unknown(&self, lease: &Lease, error: &Error) -> Effects {
        self.with(&lease.key, |line, out| {
            line.renewal_unknown(lease, error, out)
        })
    }

    pub(crate) fn wanted(&self, key: &LockKey, now: Instant) {
        self.with(key, |line, _| line.wanted(now));
    }

    /// The key may be free: lets its contender look.
    pub(crate) fn maybe_free(&self, key: &LockKey) -> Effects {
        self.with(key, Line::wake_contender)
    }

    /// Whether the store is being asked for the key and has not answered once.
    pub(crate) fn is_store_silent(&self, key: &LockKey) -> bool {
        let mut silent = false;
        self.with(key, |line, _| silent = line.is_store_silent());
        silent
    }

    pub(crate) fn lost(&self, lease: &Lease) -> Effects {
        self.with(&lease.key, |line, out| line.lost(lease, out))
    }

    /// Whether a turn is under way under this lease.
    pub(crate) fn serves(&self, lease: &Lease) -> bool {
        let mut serves = false;
        self.with(&lease.key, |line, _| serves = line.serves(lease));
        serves
    }

    pub(crate) fn unpark(&self, lease: &Lease) -> bool {
        let mut unparked = false;
        self.with(&lease.key, |line, _| unparked = line.unpark(lease));
        unparked
    }

    pub(crate) fn released(&self, lease: &Lease) -> Effects {
        self.with(&lease.key, |line, out| line.released(lease, out))
    }

    /// From now on nobody joins, and whoever waits is refused.
    pub(crate) fn close(&self) -> Effects {
        self.closed.store(true, Ordering::Release);
        let mut effects = Effects::new();
        for shard in &self.shards {
            for line in shard.lock().values_mut() {
                line.refuse_all(&closed(), &mut effects);
            }
        }
        effects
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// The leases under which turns are now.
    pub(crate) fn leases(&self) -> Vec<Arc<Lease>> {
        let mut leases = Vec::new();
        for shard in &self.shards {
            leases.extend(shard.lock().values().filter_map(Line::lease).cloned());
        }
        leases
    }

    pub(crate) fn len(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    pub(crate) fn waiting(&self) -> usize {
        let waiting = |shard: &Mutex<HashMap<_, Line>>| {
            shard.lock().values().map(Line::waiting).sum::<usize>()
        };
        self.shards.iter().map(waiting).sum()
    }

    /// Notified whenever the last line goes.
    pub(crate) fn emptied(&self) -> &Notify {
        &self.emptied
    }

    fn shard(&self, key: &LockKey) -> &Mutex<HashMap<LockKey, Line>> {
        &self.shards[self.hasher.hash_one(key) as usize % SHARDS]
    }

    fn with_contended(
        &self,
        key: &LockKey,
        contention: &Arc<Contention>,
        work: impl FnOnce(&mut Line, &mut Effects),
    ) -> Effects {
        self.with(key, |line, out| {
            if line.is_contended_by(contention) {
                work(line, out);
            }
        })
    }

    /// Works on a key's line, if there is one, and removes it if that leaves nothing of it.
    fn with(&self, key: &LockKey, work: impl FnOnce(&mut Line, &mut Effects)) -> Effects {
        let mut effects = Effects::new();
        let mut shard = self.shard(key).lock();
        let Some(line) = shard.get_mut(key) else {
            return effects;
        };
        work(line, &mut effects);
        if line.is_gone() {
            let gone = shard.remove(key);
            drop(shard);
            drop(gone);
            if self.count.fetch_sub(1, Ordering::AcqRel) == 1 {
                self.emptied.notify_waiters();
            }
        }
        effects
    }
}

fn closed() -> Error {
    Error::new(
        ErrorKind::Closed,
        "these locks were closed: the process is about to end",
    )
}
