//! What the clones of a [`Locks`](crate::Locks) share: it carries out what the lines want done, and answers the
//! scheduler.

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};

use super::{
    config::Config,
    contention::Contender,
    line::{Confirmation, Effect, Effects, Granted, lost},
    lines::Lines,
    renewing::Renewing,
};
use crate::{
    Error, Loss,
    lease::{Background, Lease, Scheduler},
    store::{Hint, Hints, Instance, Owner, Renew, Renewed, Store},
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
    /// Detached handlers under way, and when the last of them has ended.
    pub(crate) busy: AtomicUsize,
    pub(crate) not_busy: Notify,
}

impl Inner {
    pub(crate) fn new(store: Arc<dyn Store>, config: Config) -> Self {
        Self {
            space: store.space(),
            store,
            instance: Instance::new(),
            lines: Lines::new(config.limits()),
            scheduler: Arc::new(Scheduler::new(config.pace())),
            attempts: AtomicU64::new(0),
            busy: AtomicUsize::new(0),
            not_busy: Notify::new(),
            config,
        }
    }

    pub(crate) fn fresh_owner(&self) -> Owner {
        Owner {
            instance: self.instance,
            attempt: self.attempts.fetch_add(1, Ordering::Relaxed) + 1,
        }
    }

    /// The poll interval, less up to a fifth, so that instances do not ask in step.
    pub(crate) fn poll_pause(&self) -> Duration {
        let seed = self.attempts.load(Ordering::Relaxed);
        let noise =
            std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), (seed, self.instance));
        let fifth = self.config.poll_interval / 5;
        self.config.poll_interval - fifth.mul_f64(noise as f64 / u64::MAX as f64)
    }

    pub(crate) fn end_turn(self: &Arc<Self>, granted: &Granted, ask: Option<Confirmation>) {
        self.carry_out(self.lines.end(granted, ask, Instant::now()));
        self.let_go(&granted.lease);
    }

    /// A turn under this lease has ended. One that was lost before was left alone until now (see [`lose`](Self::lose)).
    fn let_go(self: &Arc<Self>, lease: &Arc<Lease>) {
        if lease.claimed && lease.loss().is_some_and(|loss| loss != Loss::NotOurs) {
            self.release_in_background(lease);
        }
    }

    pub(crate) fn lose(self: &Arc<Self>, lease: &Arc<Lease>, loss: Loss) {
        if lease.lose(loss) {
            trace::lost(lease.key.as_str(), lease.owner, loss);
            self.scheduler.untrack(lease);
            // The holder was told above. The store may still think the key is ours: rightly so, if what it is held
            // for goes on all the same. Then it is better that nobody else begins the same before the lease's time.
            if !(lease.claimed && self.lines.serves(lease)) {
                self.release_in_background(lease);
            }
        }
        // Also when it was no news: the first to tell it may have come before the line had the lease.
        self.carry_out(self.lines.lost(lease));
    }

    /// Renews a lease now, beside its schedule.
    pub(crate) async fn confirm(self: &Arc<Self>, lease: &Arc<Lease>) -> Result<(), Error> {
        let renewal = self.store.renew(vec![Renew {
            key: lease.key.clone(),
            owner: lease.owner,
            lease: self.config.lease,
            refill: 0,
        }]);
        let mut renewal = renewal;
        match futures_util::StreamExt::next(&mut renewal)
            .await
            .map(|(_, answer)| answer)
        {
            Some(Renewed::Renewed { .. }) if lease.is_valid(Instant::now()) => Ok(()),
            Some(Renewed::Unknown(error)) => Err(error),
            _ => {
                self.lose(lease, Loss::NotOurs);
                Err(lost(lease.loss()))
            }
        }
    }

    /// Has a call polled in the background. It holds this instance, so the task that polls it does not end before.
    pub(crate) fn adopt(self: &Arc<Self>, call: Pin<Box<dyn Future<Output = ()> + Send>>) {
        // The runtime of the last use may be gone, and this be another.
        self.scheduler.start(self);
        self.scheduler.adopt(call);
    }

    /// Does what transitions of a line want done. Never called with a lock held.
    pub(crate) fn carry_out(self: &Arc<Self>, effects: Effects) {
        let mut effects = VecDeque::from(effects);
        while let Some(effect) = effects.pop_front() {
            match effect {
                Effect::Tell(ticket, answer) => {
                    if let Ok(Granted { lease, turn, token }) = &answer {
                        trace::turn_began(lease.key.as_str(), lease.owner, *token, *turn > 1);
                    }
                    // A waiter that went away at this very moment has had its turn.
                    if let Err(Ok(granted)) = ticket.send(answer) {
                        effects.extend(self.lines.end(&granted, None, Instant::now()));
                        self.let_go(&granted.lease);
                    }
                }
                Effect::Confirm(ask, answer) => drop(ask.send(answer)),
                Effect::Contend(contention, key) => {
                    let contender = Contender::new(self.clone(), key, contention);
                    self.adopt(Box::pin(contender.contend()));
                }
                Effect::Wake(contention) => contention.wake.notify_one(),
                Effect::Renew(lease) => self.scheduler.hurry(&lease),
                Effect::Quicken(lease) => self.scheduler.quicken(&lease),
                Effect::Release(lease, ask) => self.releasing(lease, ask, false),
                Effect::Unpark(lease) => self.releasing(lease, None, true),
                Effect::Lose(lease, loss) => self.lose(&lease, loss),
            }
        }
    }
}

impl Background for Inner {
    fn watch(&self) -> Hints {
        self.store.watch(self.instance)
    }

    fn on_hint(self: &Arc<Self>, hint: Hint) {
        match hint {
            Hint::Free(key) => self.carry_out(self.lines.maybe_free(&key)),
            Hint::Wanted(key) => self.lines.wanted(&key, Instant::now()),
            Hint::Reconnected => self.scheduler.hurry_all(),
            Hint::Next(_) | Hint::Listening => {}
        }
    }

    fn on_loss(self: &Arc<Self>, lease: Arc<Lease>, loss: Loss) {
        self.lose(&lease, loss);
    }

    fn renew(
        self: Arc<Self>,
        leases: Vec<Arc<Lease>>,
        sent: Instant,
    ) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        trace::renewing(leases.len());
        let renewing = Renewing {
            inner: self,
            leases: leases.into_iter(),
            sent,
        };
        Box::pin(renewing.run())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.scheduler.close();
    }
}
