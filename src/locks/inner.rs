//! What the clones of a [`Locks`](crate::Locks) share: it carries out what the lines want done, and answers the
//! scheduler.

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

use super::{
    config::Config,
    contention::Contender,
    line::{Confirmation, Effect, Effects, Granted, lost},
    lines::Lines,
};
use crate::{
    Loss,
    lease::{Background, Lease, Scheduler},
    store::{Ending, Hint, Hints, Instance, Owner, Release, Released, Renew, Renewed, Store},
    trace,
};

pub(crate) struct Inner {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) config: Config,
    pub(crate) instance: Instance,
    pub(crate) lines: Lines,
    pub(crate) scheduler: Arc<Scheduler>,
    attempts: AtomicU64,
}

impl Inner {
    pub(crate) fn new(store: Arc<dyn Store>, config: Config) -> Self {
        Self {
            store,
            instance: Instance::new(),
            lines: Lines::new(config.limits()),
            scheduler: Arc::new(Scheduler::new(config.pace())),
            attempts: AtomicU64::new(0),
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
    }

    pub(crate) fn lose(self: &Arc<Self>, lease: &Arc<Lease>, loss: Loss) {
        if !lease.lose(loss) {
            return;
        }
        trace::lost(lease.key.as_str(), lease.owner, loss);
        self.scheduler.untrack(lease);
        // The holder was told above. The store may still think the key is ours.
        self.release_in_background(lease);
        self.carry_out(self.lines.lost(lease));
    }

    /// Releases a lease that no line has any more.
    pub(crate) fn release_in_background(&self, lease: &Lease) {
        let (key, owner) = (lease.key.clone(), lease.owner);
        let release = self.store.release(Release {
            key: key.clone(),
            owner,
            ending: Ending::Free,
        });
        self.scheduler.adopt(Box::pin(async move {
            trace::released(key.as_str(), owner, &release.await);
        }));
    }

    /// Does what transitions of a line want done. Never called with a lock held.
    pub(crate) fn carry_out(self: &Arc<Self>, effects: Effects) {
        let mut effects = VecDeque::from(effects);
        while let Some(effect) = effects.pop_front() {
            match effect {
                Effect::Tell(ticket, answer) => {
                    // A waiter that went away at this very moment has had its turn.
                    if let Err(Ok(granted)) = ticket.send(answer) {
                        effects.extend(self.lines.end(&granted, None, Instant::now()));
                    }
                }
                Effect::Confirm(ask, answer) => drop(ask.send(answer)),
                Effect::Contend(contention, key) => {
                    let contender = Contender::new(self.clone(), key, contention);
                    self.scheduler.adopt(Box::pin(contender.contend()));
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

    fn releasing(self: &Arc<Self>, lease: Arc<Lease>, ask: Option<Confirmation>, parked: bool) {
        let releasing = Releasing {
            inner: self.clone(),
            lease,
            ask,
            parked,
        };
        self.scheduler.adopt(Box::pin(releasing.run()));
    }

    fn answered(
        self: &Arc<Self>,
        lease: &Arc<Lease>,
        sent: Instant,
        passing: bool,
        answer: Renewed,
    ) {
        if !self.scheduler.tracks(lease) {
            return; // released or lost meanwhile
        }
        match answer {
            Renewed::Renewed {
                tokens,
                others_wait,
            } => {
                lease.set_confirmed(true);
                self.scheduler.renewed(lease, passing);
                let news = (sent, tokens, others_wait);
                self.carry_out(self.lines.renewed(lease, news, Instant::now()));
            }
            Renewed::NotOurs => self.lose(lease, Loss::NotOurs),
            Renewed::Unknown(error) => {
                trace::renewal_unknown(lease.owner, &error);
                lease.set_confirmed(false);
                let gives_up = self.scheduler.unknown(lease);
                self.carry_out(self.lines.renewal_unknown(lease, &error));
                if let Some(loss) = gives_up {
                    self.lose(lease, loss);
                }
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
        let needs: Vec<_> = leases.iter().map(|lease| self.lines.needs(lease)).collect();
        let requests = leases.iter().zip(&needs).map(|(lease, (refill, _))| Renew {
            key: lease.key.clone(),
            owner: lease.owner,
            lease: self.config.lease,
            refill: *refill,
        });
        let renewal = self.store.renew(requests.collect());
        Box::pin(async move {
            let answers = renewal.await;
            for ((lease, (_, passing)), answer) in leases.iter().zip(needs).zip(answers) {
                self.answered(lease, sent, passing, answer);
            }
        })
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.scheduler.close();
    }
}

/// The release of a line's lease. However it ends, the line goes on.
struct Releasing {
    inner: Arc<Inner>,
    lease: Arc<Lease>,
    ask: Option<Confirmation>,
    /// The lease is not taken out of its line yet; somebody may want it before.
    parked: bool,
}

impl Releasing {
    async fn run(mut self) {
        if !self.take_lease() {
            return;
        }
        let (key, owner) = (self.lease.key.clone(), self.lease.owner);
        let release = self.inner.store.release(Release {
            key,
            owner,
            ending: Ending::Free,
        });
        let outcome = release.await;
        trace::released(self.lease.key.as_str(), owner, &outcome);
        if let Some(ask) = self.ask.take() {
            let _ = ask.send(match outcome {
                Ok(Released::Freed) => Ok(()),
                Ok(Released::NotOurs) => Err(lost(Some(Loss::NotOurs))),
                Err(error) => Err(error),
            });
        }
    }

    /// Says whether the lease is ours to release.
    fn take_lease(&mut self) -> bool {
        if self.parked {
            self.parked = !self.inner.lines.unpark(&self.lease);
        }
        if !self.parked {
            // From here on no answer to a renewal means anything.
            self.inner.scheduler.untrack(&self.lease);
        }
        !self.parked
    }
}

impl Drop for Releasing {
    fn drop(&mut self) {
        if self.take_lease() {
            self.inner.carry_out(self.inner.lines.released(&self.lease));
        }
    }
}
