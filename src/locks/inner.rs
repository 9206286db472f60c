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

use bytes::Bytes;
use tokio::{
    sync::Notify,
    time::{Instant, timeout_at},
};

use super::{
    config::Config,
    contention::Contender,
    line::{Confirmation, Effect, Effects, Granted, lost},
    lines::Lines,
};
use crate::{
    Error, ErrorKind, LockKey, Loss,
    lease::{Background, Lease, Scheduler},
    store::{
        Acquire, Acquired, Ending, Hint, Hints, Instance, Mode, Owner, Queueing, Release, Released,
        Renew, Renewed, Store,
    },
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

/// What became of a record that came after its lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Late {
    Recorded,
    /// Another record is there.
    Superseded,
    /// Somebody holds the key.
    Held,
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
        match renewal.await.pop() {
            Some(Renewed::Renewed { .. }) if lease.is_valid(Instant::now()) => Ok(()),
            Some(Renewed::Unknown(error)) => Err(error),
            _ => {
                self.lose(lease, Loss::NotOurs);
                Err(lost(lease.loss()))
            }
        }
    }

    /// Puts a record into the lease's place. The lease is renewed on until the store has said that it is there.
    pub(crate) async fn record(
        self: &Arc<Self>,
        granted: &Granted,
        (content, retain): (&Bytes, Duration),
        until: Instant,
    ) -> Result<Released, Error> {
        let lease = &granted.lease;
        lease.set_recording();
        let ending = Ending::Record {
            content: content.clone(),
            retain,
        };
        let (inner, of) = (self.clone(), lease.clone());
        let recording = async move { inner.release(&of, ending).await };
        let outcome = self.bounded(recording, until).await;
        match outcome {
            Ok(Released::Freed) => self.finish(granted, content),
            Ok(Released::NotOurs) => self.lose(lease, Loss::NotOurs),
            Err(_) => {}
        }
        outcome
    }

    /// The turn has ended with this record.
    pub(crate) fn finish(self: &Arc<Self>, granted: &Granted, content: &Bytes) {
        self.scheduler.untrack(&granted.lease);
        self.carry_out(self.lines.finished(granted, content));
    }

    /// Records what was done under a lease that was lost, if nobody else has claimed the key since.
    pub(crate) async fn record_late(
        self: &Arc<Self>,
        key: &LockKey,
        claim: Bytes,
        (content, retain): (&Bytes, Duration),
        until: Instant,
    ) -> Result<Late, Error> {
        let owner = self.fresh_owner();
        let claiming = self.store.acquire(Acquire {
            key: key.clone(),
            owner,
            lease: self.config.lease,
            block: 1,
            queueing: Queueing::Skip,
            mode: Mode::Exclusive,
            note: Some(claim),
        });
        let (inner, key, content) = (self.clone(), key.clone(), content.clone());
        let recording = async move {
            match claiming.await? {
                // It is ours: an earlier try had an effect, and its answer was lost.
                Acquired::Recorded(found) if found == content => return Ok(Late::Recorded),
                Acquired::Recorded(_) => return Ok(Late::Superseded),
                Acquired::Held(_) => return Ok(Late::Held),
                Acquired::Granted(_) => {}
            }
            let ending = Ending::Record { content, retain };
            let recorded = inner.store.release(Release { key, owner, ending });
            Ok(match recorded.await? {
                Released::Freed => Late::Recorded,
                Released::NotOurs => Late::Held,
            })
        };
        self.bounded(recording, until).await
    }

    /// Awaits a call for so long. If it takes longer, it goes on in the background: what was asked is heard to its end.
    async fn bounded<T: 'static>(
        self: &Arc<Self>,
        call: impl Future<Output = Result<T, Error>> + Send + 'static,
        until: Instant,
    ) -> Result<T, Error> {
        let mut call = Box::pin(call);
        match timeout_at(until, &mut call).await {
            Ok(outcome) => outcome,
            Err(_) => {
                self.adopt(Box::pin(async move { drop(call.await) }));
                Err(Error::new(
                    ErrorKind::Unreachable,
                    "the store has not answered in time",
                ))
            }
        }
    }

    /// Releases a lease that no line has any more.
    pub(crate) fn release_in_background(self: &Arc<Self>, lease: &Arc<Lease>) {
        let (inner, lease) = (self.clone(), lease.clone());
        self.adopt(Box::pin(async move {
            let _ = inner.release(&lease, Ending::Free).await;
        }));
    }

    async fn release(&self, lease: &Lease, ending: Ending) -> Result<Released, Error> {
        let (key, owner) = (lease.key.clone(), lease.owner);
        let release = self.store.release(Release { key, owner, ending });
        let outcome = release.await;
        trace::released(lease.key.as_str(), owner, &outcome);
        outcome
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

    fn releasing(self: &Arc<Self>, lease: Arc<Lease>, ask: Option<Confirmation>, parked: bool) {
        let releasing = Releasing {
            inner: self.clone(),
            lease,
            ask,
            parked,
        };
        self.adopt(Box::pin(releasing.run()));
    }

    fn answered(self: &Arc<Self>, lease: &Arc<Lease>, sent: Instant, answer: Renewed) {
        if !self.scheduler.tracks(lease) {
            return; // released or lost meanwhile
        }
        let now = Instant::now();
        match answer {
            // Too late: a guard that looked at the clock knows of the loss already, and a loss is final.
            Renewed::Renewed { .. } if !lease.is_valid(now) => self.lose(lease, Loss::Expired),
            Renewed::Renewed {
                tokens,
                others_wait,
            } => {
                lease.set_confirmed(true);
                self.scheduler.renewed(lease);
                let news = (sent, tokens, others_wait);
                self.carry_out(self.lines.renewed(lease, news, now));
            }
            Renewed::NotOurs if !lease.is_recording() => self.lose(lease, Loss::NotOurs),
            answer => {
                let error = match answer {
                    Renewed::Unknown(error) => error,
                    _ => recorded_or_lost(),
                };
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

/// A renewal on its way. However it ends, each of its leases gets an answer.
struct Renewing {
    inner: Arc<Inner>,
    leases: std::vec::IntoIter<Arc<Lease>>,
    sent: Instant,
}

impl Renewing {
    async fn run(mut self) {
        let requests = self.leases.as_slice().iter().map(|lease| Renew {
            key: lease.key.clone(),
            owner: lease.owner,
            lease: self.inner.config.lease,
            refill: self.inner.lines.needs(lease),
        });
        let answers = self.inner.store.renew(requests.collect()).await;
        for (answer, lease) in answers.into_iter().zip(self.leases.by_ref()) {
            self.inner.answered(&lease, self.sent, answer);
        }
    }
}

impl Drop for Renewing {
    fn drop(&mut self) {
        for lease in self.leases.by_ref() {
            let unknown = Renewed::Unknown(Error::new(
                ErrorKind::Unreachable,
                "the answer to the renewal was not awaited: the runtime that sent it has shut down",
            ));
            self.inner.answered(&lease, self.sent, unknown);
        }
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
        let outcome = self.inner.release(&self.lease, Ending::Free).await;
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

fn recorded_or_lost() -> Error {
    Error::new(
        ErrorKind::Unreachable,
        "the lease is not there any more: the record that is on its way has taken its place, or it was lost",
    )
}
