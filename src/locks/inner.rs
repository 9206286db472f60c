//! What the clones of a [`Locks`](crate::Locks) share.

use std::{sync::Arc, time::Duration};

use futures_util::StreamExt;

use super::{
    config::Config,
    contender::Contender,
    line::{Contention, Ended, Granted, Line, Lost, Transition, lost},
    lines::Lines,
    renewing::Renewing,
};
use crate::{
    Error, LockKey, Loss,
    lease::{Lease, LeaseEvents, Scheduler},
    store::{Hint, Hints, Instance, Owner, Renew, Renewed, Store},
    sync::{
        Notify, Runtime,
        atomic::{AtomicU64, AtomicUsize, Ordering},
        random,
    },
    time::now,
    trace,
};

pub(crate) struct Inner {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) config: Config,
    pub(crate) instance: Instance,
    /// See [`Store::space`].
    pub(crate) space: Arc<str>,
    pub(crate) lines: Lines,
    pub(crate) scheduler: Arc<Scheduler>,
    attempts: AtomicU64,
    /// How often the store was out of reach and came back.
    reconnects: AtomicU64,
    /// Contenders and renewals under way.
    pub(crate) background: Arc<Counter>,
    /// Detached handlers under way.
    pub(crate) busy: Arc<Counter>,
}

impl Inner {
    pub(crate) fn new(store: Arc<dyn Store>, config: Config) -> Self {
        let scheduler = Arc::new(Scheduler::new(config.pace()));
        Self {
            space: store.space(),
            instance: Instance::new(),
            lines: Lines::new(
                config.limits(),
                config.max_keys,
                scheduler.clone(),
                store.clone(),
            ),
            scheduler,
            store,
            attempts: AtomicU64::new(0),
            reconnects: AtomicU64::new(0),
            background: Arc::default(),
            busy: Arc::default(),
            config,
        }
    }

    pub(crate) fn fresh_owner(&self) -> Owner {
        Owner {
            instance: self.instance,
            attempt: self.attempts.fetch_add(1, Ordering::Relaxed) + 1,
        }
    }

    /// A pause of about this length: up to a fifth shorter, so that instances do not ask in step.
    pub(crate) fn jittered(&self, pause: Duration) -> Duration {
        pause - (pause / 5).mul_f64(random())
    }

    /// Works on a key's line, if there is one, then does what that has left to be done. Never called with a lock held.
    pub(crate) fn with_line<T>(
        self: &Arc<Self>,
        key: &LockKey,
        work: impl FnOnce(&mut Line, &mut Transition<'_>) -> T,
    ) -> Option<T> {
        let (outcome, after) = self.lines.with(key, work)?;
        if let Some((lease, loss)) = after.lost {
            trace::lost(lease.key.as_str(), lease.owner, loss);
        }
        if let Some(owner) = after.released {
            trace::releasing(key.as_str(), owner);
        }
        if let Some(contention) = after.contend {
            self.contend(contention);
        }
        Some(outcome)
    }

    fn contend(self: &Arc<Self>, contention: Arc<Contention>) {
        let contender = Contender::new(self.clone(), contention);
        self.run_in_background(contender.contend());
    }

    /// Ends a turn. See [`Line::end`].
    pub(crate) fn end_turn(self: &Arc<Self>, granted: &Granted, confirm: bool) -> Ended {
        let key = &granted.lease.key;
        self.with_line(key, |line, t| line.end(granted, confirm, t))
            .unwrap_or_else(|| Ended::Over(granted.lease.loss()))
    }

    /// A lease is lost, if the reason for it still holds.
    pub(crate) fn lose(self: &Arc<Self>, lease: &Arc<Lease>, loss: Loss) -> Lost {
        let lost = self.with_line(&lease.key, |line, t| line.lost(lease, loss, t));
        let lost = lost.unwrap_or(Lost::NotHere);
        match lost {
            Lost::Yes => {}
            Lost::NotYet => self.scheduler.track_on(lease),
            Lost::NotHere => self.scheduler.untrack(lease), // released meanwhile
        }
        lost
    }

    /// Renews a lease now, beside its schedule.
    pub(crate) async fn confirm(self: &Arc<Self>, lease: &Arc<Lease>) -> Result<(), Error> {
        let sent = now();
        let mut renewal = self.store.renew(vec![Renew {
            key: lease.key.clone(),
            owner: lease.owner,
            lease: lease.length,
            refill: 0,
        }]);
        match renewal.next().await {
            Some((_, Renewed::Renewed { .. })) => {
                if lease.extend(now(), sent) {
                    return Ok(());
                }
                self.lose(lease, Loss::Expired);
                Err(lost(lease.loss()))
            }
            Some((_, Renewed::Unknown(error))) => Err(error),
            Some((_, Renewed::NotOurs)) | None => {
                self.lose(lease, Loss::NotOurs);
                Err(lost(lease.loss().or(Some(Loss::NotOurs))))
            }
        }
    }

    /// How often the store has come back so far.
    pub(crate) fn reconnects(&self) -> u64 {
        self.reconnects.load(Ordering::Acquire)
    }

    /// Runs a task on the present runtime, or where the scheduler runs. Where there is no runtime any more, the task is dropped.
    pub(crate) fn run_in_background(
        self: &Arc<Self>,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        self.scheduler.start(self);
        let under_way = Counter::one(&self.background);
        let task = async move {
            task.await;
            drop(under_way);
        };
        if let Some(runtime) = Runtime::current().or_else(|| self.scheduler.runtime()) {
            runtime.spawn(task);
        }
    }
}

impl LeaseEvents for Inner {
    fn watch(&self) -> Hints {
        self.store.watch(self.instance)
    }

    fn on_hint(self: &Arc<Self>, hint: Hint) {
        match hint {
            Hint::Free(key) => drop(self.with_line(&key, |line, _| line.wake_contender())),
            Hint::Next(key) => drop(self.with_line(&key, |line, _| line.is_next())),
            Hint::Wanted(key) => drop(self.with_line(&key, |line, t| line.wanted(t.now))),
            Hint::Listening => self.lines.wake_contenders(),
            Hint::Reconnected => {
                // Counted first: a lease that is granted meanwhile is doubted here or by its contender.
                self.reconnects.fetch_add(1, Ordering::AcqRel);
                self.scheduler.doubt_all();
                self.lines.wake_contenders();
            }
            #[cfg(feature = "redis")]
            Hint::Moved(keys) => {
                self.reconnects.fetch_add(1, Ordering::AcqRel);
                self.scheduler.doubt_where(|key| keys.contains(key));
                self.lines.wake_contenders();
            }
        }
    }

    fn on_end(self: &Arc<Self>, lease: &Arc<Lease>, loss: Loss) {
        self.lose(lease, loss);
    }

    fn on_due(self: &Arc<Self>, leases: Vec<Arc<Lease>>) {
        trace::renewing(leases.len());
        let renewing = Renewing::new(self.clone(), leases);
        self.run_in_background(renewing.run());
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.scheduler.close();
    }
}

/// How much of something is under way.
#[derive(Default)]
pub(crate) struct Counter {
    count: AtomicUsize,
    /// Notified whenever the last has ended.
    ended: Notify,
}

impl Counter {
    /// Counts one until the result is dropped.
    pub(crate) fn one(counter: &Arc<Self>) -> Counted {
        counter.count.fetch_add(1, Ordering::AcqRel);
        Counted(counter.clone())
    }

    pub(crate) fn get(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// Resolves when the last has ended since this call.
    pub(crate) fn ended(&self) -> impl Future<Output = ()> + '_ {
        self.ended.notified()
    }
}

pub(crate) struct Counted(Arc<Counter>);

impl Drop for Counted {
    fn drop(&mut self) {
        if self.0.count.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.ended.notify_waiters();
        }
    }
}
