//! Asking the store for a key, on behalf of all who wait for it.
//!
//! 1. A line that is contended has exactly one [`Contender`]. It settles the line once: granted, failed, or given up.
//!    A contender that is dropped before that (its runtime shuts down, a store panics) fails the line.
//! 2. The first question is polled by the request that came first, which saves two changes of task. When that request goes
//!    away, and for all further questions, the contender has a task of its own.
//! 3. The attempt belongs to the line, not to a request: it keeps its place in the store's queue while requests come
//!    and go, and leaves it when the last has gone.
//! 4. A question that is dropped, or that fails, leaves no lease behind: the store sees to that. The place in the queue that an
//!    earlier question took is given up by the line.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use super::{
    inner::Inner,
    line::{AfterFailure, Contention, Demand, Line, Transition, Wake},
};
use crate::{
    Error, ErrorKind,
    lease::Lease,
    store::{Acquire, Acquired, Ending, Grant, Mode, Owner, Queueing, Release},
    time::{Instant, later, now, timeout_at},
    trace,
};

/// The shortest pause between two questions, so that a lease on the brink does not make the contender spin.
const SHORTEST_PAUSE: Duration = Duration::from_millis(2);
/// The first pause after the store has failed; each further one is twice as long, up to the poll interval.
const FIRST_BACK_OFF: Duration = Duration::from_millis(50);

pub(crate) struct Contender {
    inner: Arc<Inner>,
    contention: Arc<Contention>,
    /// The owner that stands in the store's queue.
    queued: Option<Owner>,
    /// How long to pause after the next failure.
    back_off: Duration,
    settled: bool,
}

/// What came of a question.
enum Asked {
    Settled,
    /// The contender asks again: now, or after a pause unless it is woken before.
    Unsettled(Contender, Option<Duration>),
}

impl Contender {
    pub(crate) fn new(inner: Arc<Inner>, contention: Arc<Contention>) -> Self {
        Self {
            inner,
            contention,
            queued: None,
            back_off: FIRST_BACK_OFF,
            settled: false,
        }
    }

    /// Asks until the line is settled.
    pub(crate) async fn contend(self) {
        let mut asked = self.ask().await;
        while let Asked::Unsettled(contender, pause) = asked {
            if let Some(pause) = pause {
                contender.pause(pause).await;
            }
            asked = contender.ask().await;
        }
    }

    /// Asks once.
    async fn ask(mut self) -> Asked {
        // The runtime of the scheduler may have ended meanwhile, and hints with it.
        self.inner.scheduler.start(&self.inner);
        let Some(demand) = self.demand() else {
            return Asked::Settled;
        };
        let owner = self.queued.unwrap_or_else(|| self.inner.fresh_owner());
        let (sent, reconnects) = (now(), self.inner.reconnects());
        let queueing = self.inner.config.queueing(demand.patient);
        let length = demand.lease.unwrap_or(self.inner.config.lease);
        let question = self.inner.store.acquire(Acquire {
            key: self.contention.key.clone(),
            owner,
            lease: length,
            block: demand.block,
            queueing,
            mode: Mode::Exclusive,
            fingerprint: demand.fingerprint.clone(),
        });
        match question.await {
            Ok(Acquired::Granted(grant)) => {
                let key = self.contention.key.clone();
                let lease = Lease::new(key, owner, demand.fingerprint, sent, length);
                self.granted(Arc::new(lease), (sent, reconnects), grant)
            }
            Ok(Acquired::Held(held)) => {
                trace::held_elsewhere(self.contention.key.as_str());
                self.back_off = FIRST_BACK_OFF;
                let waits = queueing != Queueing::No;
                self.queued = waits.then_some(owner);
                let anybody = self.line(|line, _| line.held(&held)).unwrap_or(false);
                // At once: a line that nobody waits in would refuse the next who does not wait.
                if !anybody && self.is_unwanted() {
                    return Asked::Settled;
                }
                let pause = (anybody && waits).then(|| {
                    let poll = self.inner.jittered(self.inner.config.poll_interval);
                    held.remaining.max(SHORTEST_PAUSE).min(poll)
                });
                Asked::Unsettled(self, pause)
            }
            Ok(Acquired::Recorded(record)) => {
                self.settled = true;
                self.line(|line, _| line.recorded(&record));
                Asked::Settled
            }
            Err(error) => {
                trace::store_failed(owner, &error);
                self.failed(error)
            }
        }
    }

    /// What to ask for. If nobody wants the key any more, that settles the line.
    fn demand(&mut self) -> Option<Demand> {
        let queued = self.queued;
        let demand = self.line(|line, t| line.demand(queued, t)).flatten();
        self.settled = demand.is_none();
        demand
    }

    fn is_unwanted(&mut self) -> bool {
        self.demand().is_none()
    }

    fn granted(
        mut self,
        lease: Arc<Lease>,
        (sent, reconnects): (Instant, u64),
        grant: Grant,
    ) -> Asked {
        let inner = &self.inner;
        trace::granted(lease.key.as_str(), lease.owner, grant.others_wait);
        if !lease.is_valid(now()) {
            drop(inner.store.start_release(Release {
                key: lease.key.clone(),
                owner: lease.owner,
                ending: Ending::Free,
                owed_for: lease.length,
            }));
            let took = now() - sent;
            return self.failed(Error::new(
                ErrorKind::Unreachable,
                format!(
                    "the store took {took:?} to grant a lease of {:?}",
                    lease.length
                ),
            ));
        }
        self.line(|line, t| {
            // Tracked first: from here on a reconnect finds the lease and doubts it. One that came before is found here.
            t.scheduler.track(lease.clone(), sent);
            if inner.reconnects() != reconnects {
                lease.doubt();
            }
            line.granted(lease, grant, t);
        });
        self.settled = true;
        Asked::Settled
    }

    fn failed(mut self, error: Error) -> Asked {
        let queued = self.queued.take();
        let after = self.line(|line, t| line.ask_failed(&error, queued, t));
        if after != Some(AfterFailure::AskAgain) {
            self.settled = true;
            return Asked::Settled;
        }
        let pause = self.inner.jittered(self.back_off);
        self.back_off = (self.back_off * 2).min(self.inner.config.poll_interval);
        Asked::Unsettled(self, Some(pause))
    }

    /// Waits until it is time to ask again, or until something happens that makes it worth asking before.
    async fn pause(&self, pause: Duration) {
        let mut until = later(now(), pause);
        while timeout_at(until, self.contention.woken.notified())
            .await
            .is_some()
        {
            if self.contention.take_wake() == Wake::Now {
                return;
            }
            until = until.min(later(now(), self.inner.config.head_start()));
        }
    }

    /// Works on the line, as long as this is its contender.
    fn line<T>(&self, work: impl FnOnce(&mut Line, &mut Transition<'_>) -> T) -> Option<T> {
        let contention = &self.contention;
        self.inner
            .with_line(&contention.key, |line, t| {
                line.is_contended_by(contention).then(|| work(line, t))
            })
            .flatten()
    }
}

impl Drop for Contender {
    fn drop(&mut self) {
        if self.settled {
            return;
        }
        let error = Error::new(
            ErrorKind::Unreachable,
            "the store's answer was not awaited: the runtime that asked for it has shut down",
        );
        let queued = self.queued.take();
        self.line(|line, t| line.abandoned(&error, queued, t));
    }
}

/// The first question of a contender, polled by a request for as long as the request is there.
pub(crate) struct FirstQuestion {
    inner: Arc<Inner>,
    question: Option<Pin<Box<dyn Future<Output = Asked> + Send>>>,
}

impl FirstQuestion {
    pub(crate) fn new(contender: Contender) -> Self {
        Self {
            inner: contender.inner.clone(),
            question: Some(Box::pin(contender.ask())),
        }
    }

    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) {
        // Taken out, so that one that panics is not polled again.
        let Some(mut question) = self.question.take() else {
            return;
        };
        match question.as_mut().poll(cx) {
            Poll::Pending => self.question = Some(question),
            Poll::Ready(Asked::Settled) => {}
            Poll::Ready(unsettled) => self.go_on(std::future::ready(unsettled)),
        }
    }

    fn go_on(&self, question: impl Future<Output = Asked> + Send + 'static) {
        self.inner.run_in_background(async move {
            if let Asked::Unsettled(contender, pause) = question.await {
                if let Some(pause) = pause {
                    contender.pause(pause).await;
                }
                contender.contend().await;
            }
        });
    }
}

impl Drop for FirstQuestion {
    fn drop(&mut self) {
        if let Some(question) = self.question.take() {
            self.go_on(question);
        }
    }
}
