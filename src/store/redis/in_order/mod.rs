//! The store's operations where no lane keeps the order of calls: in a Cluster, and with replicas.
//!
//! ```text
//! job of an acquire:   acquire ──> granted, and the answer is taken ──> end
//!                         │
//!                         └──> failed with a possible effect, or the answer is not taken ──> release until answered ──> end
//! job of a release:    release until answered ──> end
//! job of a record:     as a release; with replicas, the first attempt is made on the pool (`replicated`)
//! ```
//!
//! 1. Every call but a renewal is a job in the key's queue (see `key_order`). The caller only waits for the answer.
//! 2. A job whose caller is gone, or whose deadline has passed before the job begins, sends nothing; unless the job is a release.
//! 3. The job of an acquire that failed and may have taken effect, or whose answer is not taken, ends with the release. The release
//!    therefore comes before every later call for the key. If the answer is dropped after the job has ended, another job makes the
//!    release. If the job is dropped with its runtime, the release is put back as the key's next job.
//! 4. The job of a release ends when the server has answered, when `owed_for` has passed, or when the store is gone. The first attempt is
//!    made even if the store is gone by then: a guard may be dropped right before its store. A job that is dropped with its runtime is put
//!    back as the key's next job.
//! 5. If an acquire may take effect even after its release was answered, a lane repeats the release until the lease has expired. These
//!    repetitions are the only calls beside renewals that are not jobs.
//!
//! Two calls for one key in a Cluster whose slot moves from node A to node B:
//!
//! ```text
//! acquire ── A: MOVED B ── B: granted ──▶ answered          the job of the acquire
//! release                                 waits ── B: freed ──▶ answered     the job of the release
//! ```
//!
//! Without the queue, the release could reach B before the redirected acquire, and would find no lease.

mod answer;
mod release;

use std::{sync::Arc, time::Duration};

use redis::Value;
use tokio::{sync::oneshot, time::Instant};

pub(super) use self::release::InDoubt;
use self::{
    answer::{Answer, Undo},
    release::{Repeated, UnderWay},
};
use super::{
    Shared, explain,
    key_order::KeyOrder,
    lane::{Before, Failure, Lane, Pending, Start, after},
    operations::{Call, Operation, ReleaseAll, release_of, released},
    outcome::{Answered, Outcome},
    topology::CallForm,
};
use crate::{
    Error, LockKey,
    store::{Acquire, Acquired, Ending, Queueing, Release, Released, StoreFuture},
    time::timeout_at,
    trace,
};

impl Shared {
    /// Acquires as a job.
    pub(super) fn acquire_in_order(
        self: &Arc<Self>,
        order: &KeyOrder,
        request: Acquire,
    ) -> StoreFuture<Result<Acquired, Error>> {
        let (sender, answer) = oneshot::channel();
        // With replicas, the time includes WAIT, and the release of a lock that too few replicas have acknowledged.
        let time = match &self.replicated {
            Some(replicated) => self.timeout * 2 + replicated.time_to_wait(),
            None => self.timeout,
        };
        let deadline = self.deadline();
        let undo = Undo {
            store: self.clone(),
            release: release_of(&request),
        };
        let store = Arc::downgrade(self);
        order.push(request.key.clone(), async move {
            let Some(shared) = store.upgrade() else {
                return;
            };
            if sender.is_closed() || Instant::now() >= deadline {
                let _ = sender.send(Err(explain::not_sent_in_time()));
                return;
            }
            let mut under_way = UnderWay {
                store: shared,
                release: release_of(&request),
                in_doubt: None,
            };
            let UnderWay {
                store, in_doubt, ..
            } = &mut under_way;
            let outcome = store.acquire_now(&request, deadline, in_doubt).await;
            let in_doubt = under_way.in_doubt.take();
            // The caller of an acquire that was answered but does not count gets the error after the release.
            let mut tell_later = None;
            match outcome {
                Ok(acquired) => {
                    let must_be_released = must_be_released(&acquired, request.queueing);
                    let is_taken = sender.send(Ok(acquired)).is_ok();
                    if is_taken || !must_be_released {
                        return;
                    }
                }
                Err(error) => {
                    if matches!(in_doubt, Some(InDoubt::Answered)) {
                        tell_later = Some((sender, error));
                    } else {
                        let _ = sender.send(Err(error));
                    }
                    if in_doubt.is_none() {
                        return;
                    }
                }
            }
            let repeated = under_way.store.repeated(release_of(&request), in_doubt);
            drop(under_way);
            let tell = |_| {
                if let Some((sender, error)) = tell_later {
                    let _ = sender.send(Err(error));
                }
            };
            repeated.until_answered(tell).await;
        });
        let undo = Some(undo);
        Box::pin(Answer { answer, undo }.within(time))
    }

    /// Makes an acquire, within the job: all earlier calls for the key have been made. `in_doubt` is set before the sending, and
    /// `None` again when the acquire certainly has no effect.
    async fn acquire_now(
        &self,
        request: &Acquire,
        deadline: Instant,
        in_doubt: &mut Option<InDoubt>,
    ) -> Result<Acquired, Error> {
        if let Some(replicated) = &self.replicated {
            let acquiring = self.acquire_replicated(replicated, request, deadline, in_doubt);
            return acquiring.await;
        }
        let start = |lane: &Arc<Lane>, form: CallForm| {
            let call = form.of(Operation::Acquire(request.clone()).into());
            plain(lane, call, form.before(), deadline)
        };
        *in_doubt = Some(InDoubt::SentOnLane);
        match self.topology.call(&request.key, deadline, start).await {
            Outcome::Answered(Answered { value, .. }) => {
                *in_doubt = Some(InDoubt::Answered);
                self.acquired(request, value)
            }
            Outcome::MayHaveTakenEffect(error) => Err(error),
            Outcome::Refused(error) => {
                *in_doubt = None;
                Err(error)
            }
            // `call` follows every redirect and never returns one.
            Outcome::Redirected { redirect, .. } => Err(redirect.error()),
        }
    }

    /// A release that counts as owed from now on.
    fn repeated(self: &Arc<Self>, releasing: ReleaseAll, in_doubt: Option<InDoubt>) -> Repeated {
        Repeated {
            store: Arc::downgrade(self),
            topology: Some(self.topology.clone()),
            limit: self.timeout,
            expires: after(releasing.release.owed_for),
            releasing,
            in_doubt,
            debt: Some(self.owed.debt()),
        }
    }

    /// Releases as a job. The job goes on after the caller has been answered with an error.
    pub(super) fn release_in_order(
        self: &Arc<Self>,
        order: &KeyOrder,
        request: Release,
    ) -> StoreFuture<Result<Released, Error>> {
        let (sender, answer) = oneshot::channel();
        let (key, owner) = (request.key.clone(), request.owner);
        let is_record = matches!(request.ending, Ending::Record { .. });
        let repeated = self.repeated(request.into(), None);
        let owed = self.owed.clone();
        let tell = move |answer: Result<Released, Error>| {
            if let Err(error) = &answer {
                trace::release_failed(owner, error, owed.failed());
            }
            let _ = sender.send(answer);
        };
        match &self.replicated {
            Some(replicated) if is_record => {
                let (deadline, store) = (self.deadline(), Arc::downgrade(self));
                order.push(key, repeated.once_replicated(store, deadline, tell));
                self.answer_in_time(answer, self.timeout + replicated.time_to_wait())
            }
            _ => {
                let tell = move |outcome: Outcome| tell(released(outcome, false).into_result());
                order.push(key, repeated.until_answered(tell));
                self.answer_in_time(answer, self.timeout)
            }
        }
    }

    /// Makes a call that needs no release when it fails.
    pub(super) fn question_in_order(
        self: &Arc<Self>,
        order: &KeyOrder,
        key: LockKey,
        deadline: Instant,
        start: impl Fn(&Arc<Lane>, CallForm) -> Pending + Send + Sync + 'static,
    ) -> StoreFuture<Result<Value, Error>> {
        let (sender, answer) = oneshot::channel();
        // The store would wait in its own queue, and keep itself alive.
        let topology = self.topology.clone();
        order.push(key.clone(), async move {
            if sender.is_closed() || Instant::now() >= deadline {
                let _ = sender.send(Err(explain::not_sent_in_time()));
                return;
            }
            let outcome = topology.call(&key, deadline, start).await;
            let _ = sender.send(outcome.value());
        });
        self.answer_in_time(answer, self.timeout)
    }

    /// Waits for the answer of a job within the time limit.
    fn answer_in_time<T: Send + 'static>(
        self: &Arc<Self>,
        answer: oneshot::Receiver<Result<T, Error>>,
        limit: Duration,
    ) -> StoreFuture<Result<T, Error>> {
        let until = Instant::now() + limit;
        Box::pin(async move {
            match timeout_at(until, answer).await {
                Some(Ok(answer)) => answer,
                // The job was dropped with its runtime.
                Some(Err(_)) => Err(explain::runtime_ended()),
                None => Err(explain::no_answer(limit)),
            }
        })
    }
}

/// Starts a call that the lane drops when it fails, because the job makes the call again.
fn plain(lane: &Arc<Lane>, call: Call, before: Before, deadline: Instant) -> Pending {
    lane.call(Start {
        call,
        before,
        failure: Failure::GiveUp,
        deadline,
    })
}

/// Whether an acquire has to be released if its answer is not taken.
fn must_be_released(acquired: &Acquired, queueing: Queueing) -> bool {
    match acquired {
        Acquired::Granted(_) => true,
        Acquired::Held(_) => matches!(queueing, Queueing::Wait { .. }),
        Acquired::Recorded(_) => false,
    }
}
