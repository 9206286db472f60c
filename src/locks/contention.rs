//! Asking the store for a key, on behalf of all who wait for it.
//!
//! 1. A line that is contended has exactly one [`Contender`]. It settles the line once: granted, failed, or given up.
//!    One that is dropped before (its runtime shuts down, a store panics) fails the line.
//! 2. A question that was put to the store is heard to its end, whoever asked: the first question is polled by the
//!    request that came first, which saves two changes of task; when that request goes away, the scheduler polls on.
//!    All further ones are polled by the scheduler.
//! 3. The attempt belongs to the line, not to a request: it keeps its place in the store's queue while requests come
//!    and go, and leaves it when the last has gone.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use tokio::time::Instant;

use super::{inner::Inner, line::Contention};
use crate::{
    Error, ErrorKind, LockKey,
    lease::Lease,
    store::{Acquire, Acquired, Ending, Grant, Mode, Owner, Queueing, Release},
    trace,
};

/// The shortest pause between two questions, so that a lease on the brink does not make the contender spin.
const SHORTEST_PAUSE: Duration = Duration::from_millis(2);

pub(crate) struct Contender {
    inner: Arc<Inner>,
    key: LockKey,
    contention: Arc<Contention>,
    /// The owner that stands in the store's queue.
    queued: Option<Owner>,
    settled: bool,
}

/// A contender that was not settled, and how long it may pause before it asks again.
type Unsettled = (Contender, Duration);

impl Contender {
    pub(crate) fn new(inner: Arc<Inner>, key: LockKey, contention: Arc<Contention>) -> Self {
        Self {
            inner,
            key,
            contention,
            queued: None,
            settled: false,
        }
    }

    /// Asks until the line is settled.
    pub(crate) async fn contend(self) {
        let mut unsettled = self.ask().await;
        while let Some((contender, pause)) = unsettled {
            contender.pause(pause).await;
            unsettled = contender.ask().await;
        }
    }

    /// Asks once.
    async fn ask(mut self) -> Option<Unsettled> {
        let Some(demand) = self.inner.lines.demand(&self.key, &self.contention) else {
            return self.give_up().await;
        };
        let owner = self
            .queued
            .take()
            .unwrap_or_else(|| self.inner.fresh_owner());
        let sent = Instant::now();
        let queueing = self.inner.config.queueing(demand.patient);
        let question = self.inner.store.acquire(Acquire {
            key: self.key.clone(),
            owner,
            lease: self.inner.config.lease,
            block: demand.block,
            queueing,
            mode: Mode::Exclusive,
            fingerprint: demand.claim.clone(),
        });
        match question.await {
            Ok(Acquired::Granted(grant)) => self.granted(owner, sent, (grant, demand.claim)),
            Ok(Acquired::Held(held)) => {
                trace::held_elsewhere(self.key.as_str());
                let stays = queueing != Queueing::No;
                self.queued = stays.then_some(owner);
                let (anybody, effects) =
                    self.inner
                        .lines
                        .held(&self.key, &self.contention, &held.fingerprint);
                self.inner.carry_out(effects);
                match anybody {
                    false => self.give_up().await,
                    true if stays => Some((self, held.remaining.max(SHORTEST_PAUSE))),
                    true => Some((self, Duration::ZERO)),
                }
            }
            Ok(Acquired::Recorded(record)) => {
                self.settled = true;
                let effects = self
                    .inner
                    .lines
                    .recorded(&self.key, &self.contention, &record);
                self.inner.carry_out(effects);
                None
            }
            Err(error) => {
                trace::store_failed(owner, &error);
                self.failed(error)
            }
        }
    }

    fn granted(
        mut self,
        owner: Owner,
        sent: Instant,
        grant: (Grant, Option<Bytes>),
    ) -> Option<Unsettled> {
        trace::granted(self.key.as_str(), owner, grant.0.others_wait);
        let validity = self.inner.config.validity();
        let lease = Lease::new(self.key.clone(), owner, sent, validity);
        let lease = Arc::new(lease.claimed(grant.1.is_some()));
        let now = Instant::now();
        if !lease.is_valid(now) {
            self.inner.release_in_background(&lease);
            let message = format!(
                "the store took {:?} to grant a lease that is valid for {validity:?}",
                now - sent
            );
            return self.failed(Error::new(ErrorKind::Unreachable, message));
        }
        self.settled = true;
        self.inner.scheduler.track(lease.clone(), sent);
        let effects = self
            .inner
            .lines
            .granted(&self.contention, lease, grant, now);
        self.inner.carry_out(effects);
        None
    }

    fn failed(mut self, error: Error) -> Option<Unsettled> {
        self.settle_as_failed(&error);
        None
    }

    fn settle_as_failed(&mut self, error: &Error) {
        self.settled = true;
        let effects = self.inner.lines.failed(&self.key, &self.contention, error);
        self.inner.carry_out(effects);
    }

    /// Nobody waits: leaves the store's queue. Goes on if somebody has come meanwhile.
    async fn give_up(mut self) -> Option<Unsettled> {
        if let Some(owner) = self.queued.take() {
            let leaving = self.inner.store.start_release(Release {
                key: self.key.clone(),
                owner,
                ending: Ending::Free,
                owed_for: self.inner.config.lease,
            });
            // Where this fails, the store makes up for it.
            let _ = leaving.await;
        }
        if self.inner.lines.gave_up(&self.key, &self.contention) {
            self.settled = true;
            return None;
        }
        Some((self, Duration::ZERO))
    }

    /// Waits for a hint, or until asking again makes sense without one.
    async fn pause(&self, remaining: Duration) {
        if remaining.is_zero() {
            return;
        }
        let pause = self.inner.poll_pause().min(remaining);
        let _ = tokio::time::timeout(pause, self.contention.wake.notified()).await;
    }
}

impl Drop for Contender {
    fn drop(&mut self) {
        if !self.settled {
            self.settle_as_failed(&Error::new(
                ErrorKind::Unreachable,
                "the store's answer was not awaited: the runtime that asked for it has shut down",
            ));
        }
    }
}

/// The first question of a contender, polled by a request for as long as that is there.
pub(crate) struct FirstQuestion {
    inner: Arc<Inner>,
    question: Option<Pin<Box<dyn Future<Output = Option<Unsettled>> + Send>>>,
}

impl FirstQuestion {
    pub(crate) fn new(contender: Contender) -> Self {
        Self {
            inner: contender.inner.clone(),
            question: Some(Box::pin(contender.ask())),
        }
    }

    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) {
        // Taken out, so that one that panics is not asked again.
        let Some(mut question) = self.question.take() else {
            return;
        };
        match question.as_mut().poll(cx) {
            Poll::Pending => self.question = Some(question),
            Poll::Ready(None) => {}
            Poll::Ready(unsettled) => {
                self.inner.adopt_unsettled(std::future::ready(unsettled));
            }
        }
    }
}

impl Drop for FirstQuestion {
    fn drop(&mut self) {
        if let Some(question) = self.question.take() {
            self.inner.adopt_unsettled(question);
        }
    }
}

impl Inner {
    fn adopt_unsettled(
        self: &Arc<Self>,
        unsettled: impl Future<Output = Option<Unsettled>> + Send + 'static,
    ) {
        self.adopt(Box::pin(async move {
            if let Some((contender, pause)) = unsettled.await {
                contender.pause(pause).await;
                contender.contend().await;
            }
        }));
    }
}
