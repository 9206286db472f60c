//! Asking the store for a key, on behalf of all who wait for it.
//!
//! 1. A line that is contended has exactly one [`Contender`]. It settles the line once: granted, failed, or given up.
//!    A contender that is dropped before that (its runtime shuts down, a store panics) fails the line.
//! 2. The answer to the first question is awaited by the request that came first, which saves two changes of task. When that
//!    request goes away, and for all further questions, the contender has a task of its own.
//! 3. The attempt belongs to the line, not to a request: it keeps its place in the store's queue while requests come
//!    and go, and leaves it when the last has gone.
//! 4. A question that is dropped, or that fails, leaves no lease behind: the store sees to that. The place in the queue that an
//!    earlier question took is given up by the line.

use std::{
    future::poll_fn,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;

use super::{
    inner::Inner,
    line::{AfterFailure, Demand, Line, Transition, Wake},
};
use crate::{
    Error, ErrorKind, LockKey,
    lease::Lease,
    store::{Acquire, Acquired, Ending, Grant, Held, Mode, Owner, Queueing, Release, StoreFuture},
    sync::Notify,
    time::{Instant, later, now, timeout_at},
    trace,
};

/// The shortest pause between two questions, so that a lease on the brink does not make the contender spin.
const SHORTEST_PAUSE: Duration = Duration::from_millis(2);
/// The first pause after the store has failed; each further one is twice as long, up to the poll interval.
const FIRST_BACK_OFF: Duration = Duration::from_millis(50);

pub(crate) struct Contender {
    inner: Arc<Inner>,
    key: LockKey,
    /// Tells the contenders of one line apart.
    number: u64,
    question: Option<Question>,
    /// The owner that stands in the store's queue.
    queued: Option<Owner>,
    /// How long to pause after the next failure.
    back_off: Duration,
    settled: bool,
}

/// A question that is on its way to the store.
struct Question {
    owner: Owner,
    sent: Instant,
    /// How often the store had come back before.
    reconnects: u64,
    /// Whether the attempt stays in the store's queue if the key is held.
    waits: bool,
    lease: Duration,
    fingerprint: Option<Bytes>,
    answer: StoreFuture<Result<Acquired, Error>>,
}

/// What came of a question.
enum Asked {
    Settled,
    /// The contender asks again: now, or after a pause unless it is woken before.
    Again(Option<Duration>),
}

impl Contender {
    pub(crate) fn new(inner: Arc<Inner>, key: LockKey, number: u64) -> Self {
        Self {
            inner,
            key,
            number,
            question: None,
            queued: None,
            back_off: FIRST_BACK_OFF,
            settled: false,
        }
    }

    /// The contender of a new line, which asks at once.
    pub(crate) fn first(inner: &Arc<Inner>, key: &LockKey, number: u64, demand: Demand) -> Self {
        let mut contender = Self::new(inner.clone(), key.clone(), number);
        contender.question = Some(contender.ask(demand));
        contender
    }

    /// Polls the first question on behalf of a request. Gives the contender back while the store has not answered.
    pub(crate) fn poll_first(mut self, cx: &mut Context<'_>) -> Option<Self> {
        match self.poll(cx) {
            Poll::Pending => Some(self),
            Poll::Ready(Asked::Settled) => None,
            Poll::Ready(Asked::Again(pause)) => {
                self.inner.clone().run_in_background(async move {
                    self.pause(pause).await;
                    self.contend().await;
                });
                None
            }
        }
    }

    /// Goes on in a task of its own.
    pub(crate) fn go_on(self) {
        self.inner.clone().run_in_background(self.contend());
    }

    /// Asks until the line is settled.
    async fn contend(mut self) {
        while let Asked::Again(pause) = poll_fn(|cx| self.poll(cx)).await {
            self.pause(pause).await;
        }
    }

    /// Asks, unless a question is on its way, and takes the answer.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Asked> {
        if self.question.is_none() {
            // The runtime of the scheduler may have ended meanwhile, and hints with it.
            self.inner.scheduler.start(&self.inner);
            let Some(demand) = self.demand() else {
                return Poll::Ready(Asked::Settled);
            };
            self.question = Some(self.ask(demand));
        }
        // Taken out, so that one that panics is not polled again.
        let Some(mut question) = self.question.take() else {
            return Poll::Pending;
        };
        match question.answer.as_mut().poll(cx) {
            Poll::Pending => {
                self.question = Some(question);
                Poll::Pending
            }
            Poll::Ready(answer) => Poll::Ready(self.answered(question, answer)),
        }
    }

    /// What to ask for. If nobody wants the key any more, that settles the line.
    fn demand(&mut self) -> Option<Demand> {
        let demand = self.line(|line, t| line.demand(&self.key, self.queued, t));
        self.settled = !matches!(demand, Some(Some(_)));
        demand.flatten()
    }

    fn ask(&self, demand: Demand) -> Question {
        let inner = &*self.inner;
        let reconnects = inner.reconnects();
        let queueing = inner.config.queueing(demand.patient);
        let lease = demand.lease.unwrap_or(inner.config.lease);
        let answer = inner.store.acquire(Acquire {
            key: self.key.clone(),
            owner: demand.owner,
            lease,
            block: demand.block,
            queueing,
            mode: Mode::Exclusive,
            fingerprint: demand.fingerprint.clone(),
        });
        Question {
            owner: demand.owner,
            sent: demand.at,
            reconnects,
            waits: queueing != Queueing::No,
            lease,
            fingerprint: demand.fingerprint,
            answer,
        }
    }

    fn answered(&mut self, question: Question, answer: Result<Acquired, Error>) -> Asked {
        match answer {
            Ok(Acquired::Granted(grant)) => self.granted(question, grant),
            Ok(Acquired::Held(held)) => self.held(&question, &held),
            Ok(Acquired::Recorded(record)) => {
                self.line(|line, _| line.recorded(&record));
                self.settled = true;
                Asked::Settled
            }
            Err(error) => {
                trace::store_failed(question.owner, &error);
                self.failed(&error)
            }
        }
    }

    fn granted(&mut self, question: Question, grant: Grant) -> Asked {
        let Question { owner, sent, .. } = question;
        trace::granted(self.key.as_str(), owner, grant.others_wait);
        let lease = Arc::new(Lease::new(
            self.key.clone(),
            owner,
            question.fingerprint,
            sent,
            question.lease,
        ));
        let in_time = self.line(|line, t| {
            let in_time = lease.is_valid(t.now);
            if in_time {
                // A reconnect that comes later finds the lease in its line and doubts it. One that came before is found here.
                if self.inner.reconnects() != question.reconnects {
                    lease.doubt();
                }
                line.granted(lease, sent, grant, t);
            }
            in_time
        });
        if in_time == Some(true) {
            self.settled = true;
            return Asked::Settled;
        }
        drop(self.inner.store.start_release(Release {
            key: self.key.clone(),
            owner,
            ending: Ending::Free,
            owed_for: question.lease,
        }));
        let took = now() - sent;
        let lease = question.lease;
        self.failed(&Error::new(
            ErrorKind::Unreachable,
            format!("the store took {took:?} to grant a lease of {lease:?}"),
        ))
    }

    fn held(&mut self, question: &Question, held: &Held) -> Asked {
        trace::held_elsewhere(self.key.as_str());
        self.back_off = FIRST_BACK_OFF;
        self.queued = question.waits.then_some(question.owner);
        let anybody = self.line(|line, _| line.held(held)).unwrap_or(false);
        if !anybody {
            // At once: a line that nobody waits in would refuse the next who does not wait.
            return match self.demand() {
                Some(demand) => {
                    self.question = Some(self.ask(demand));
                    Asked::Again(None)
                }
                None => Asked::Settled,
            };
        }
        let poll = self.inner.jittered(self.inner.config.poll_interval);
        let pause = held.remaining.max(SHORTEST_PAUSE).min(poll);
        Asked::Again(question.waits.then_some(pause))
    }

    fn failed(&mut self, error: &Error) -> Asked {
        let queued = self.queued.take();
        let after = self.line(|line, t| line.ask_failed(&self.key, error, queued, t));
        if after != Some(AfterFailure::AskAgain) {
            self.settled = true;
            return Asked::Settled;
        }
        let pause = self.inner.jittered(self.back_off);
        self.back_off = (self.back_off * 2).min(self.inner.config.poll_interval);
        Asked::Again(Some(pause))
    }

    /// Waits until it is time to ask again, or until something happens that makes it worth asking before.
    async fn pause(&mut self, pause: Option<Duration>) {
        let Some(pause) = pause else {
            return;
        };
        let mut until = later(now(), pause);
        let woken = Arc::new(Notify::new());
        loop {
            match self.line(|line, _| line.take_wake(&woken)).flatten() {
                Some(Wake::Now) => return,
                Some(Wake::Next) => {
                    until = until.min(later(now(), self.inner.config.head_start()));
                }
                None => {}
            }
            if timeout_at(until, woken.notified()).await.is_none() {
                return;
            }
        }
    }

    /// Works on the line, as long as this is its contender.
    fn line<T>(&self, work: impl FnOnce(&mut Line, &mut Transition<'_>) -> T) -> Option<T> {
        self.inner
            .with_line(&self.key, |line, t| {
                line.is_contended_by(self.number).then(|| work(line, t))
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
        self.line(|line, t| line.abandoned(&self.key, &error, queued, t));
    }
}
