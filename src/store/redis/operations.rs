//! The operations of the [`Store`](crate::store::Store) contract: each starts a call on the lane of its key and turns the reply into
//! an answer. `in_order` has the operations for stores whose lanes keep no order.
//!
//! | operation | the call fails, or its caller leaves |
//! |---|---|
//! | acquire | the lane releases the key, if the acquire may have taken effect |
//! | release | the lane repeats the release until the server has answered, or `owed_for` has passed |
//! | renew, inspect, force_release, raise_fence | nothing is left to be done |

use std::sync::{Arc, atomic::Ordering};

use futures_util::{FutureExt, StreamExt, stream};
use redis::Value;
use tokio::{sync::mpsc, time::Instant};

use super::{
    Shared,
    calls::Operation,
    floors::END_OF_TOKENS,
    lane::{BATCH, Before, Failure, Lane, Start, after, release_of},
    outcome::{Answered, Outcome, Redirect},
    reply,
    topology::CallForm,
};
use crate::{
    Error, ErrorKind, LockKey,
    store::{
        Acquire, Acquired, Inspection, Release, Released, Renew, RenewAnswers, Renewed, StoreFuture,
    },
};

impl Shared {
    /// Takes a key. The call is started when the method returns, and the future only waits for the answer.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the key is released, before any later call for the key takes effect.
    pub(super) fn acquire(
        self: &Arc<Self>,
        request: Acquire,
    ) -> StoreFuture<Result<Acquired, Error>> {
        self.resume_if_stopped();
        if let Some(order) = &self.order {
            return self.acquire_in_order(order, request);
        }
        let Some(lane) = self.topology.lane_of(&request.key) else {
            return failed(Redirect::Unrouted.error());
        };
        let (release, block) = (release_of(&request), request.block.max(1));
        let pending = lane.call(Start {
            call: Operation::Acquire(request).into(),
            before: Before::Nothing,
            failure: Failure::CleanUp,
            deadline: self.deadline(),
        });
        let shared = self.clone();
        Box::pin(async move {
            let value = pending.await.value()?;
            let acquired = reply::acquired(value, block, shared.floors.of(&release.release.key));
            if acquired.is_err() {
                lane.clean_up(release, false);
            }
            acquired
        })
    }

    /// Reads the reply to an acquire.
    ///
    /// For acquires that are made on a connection other than the lane's.
    pub(super) fn acquired(&self, request: &Acquire, value: Value) -> Result<Acquired, Error> {
        reply::acquired(value, request.block.max(1), self.floors.of(&request.key))
    }

    /// Starts a release, also outside of a runtime. There, a release without a connection waits for [`resume`](Self::resume).
    ///
    /// # Cancel safety
    ///
    /// The release goes on if the future is dropped.
    pub(super) fn release(
        self: &Arc<Self>,
        request: Release,
    ) -> StoreFuture<Result<Released, Error>> {
        let answer = self.start_release(request);
        if tokio::runtime::Handle::try_current().is_err() {
            self.is_stopped.store(true, Ordering::Release);
        }
        answer
    }

    fn start_release(self: &Arc<Self>, request: Release) -> StoreFuture<Result<Released, Error>> {
        if let Some(order) = &self.order {
            return self.release_in_order(order, request);
        }
        let Some(lane) = self.topology.lane_of(&request.key) else {
            return failed(Redirect::Unrouted.error());
        };
        let pending = lane.call(Start {
            before: Before::Nothing,
            failure: Failure::Repeat {
                expires: after(request.owed_for),
                _debt: self.owed.debt(),
                until_expiry: false,
            },
            call: Operation::Release(request.into()).into(),
            deadline: self.deadline(),
        });
        Box::pin(async move { released(pending.await.answered()?) })
    }

    /// Renews leases. The renewals of one lane are sent together, and each is answered when its reply comes.
    pub(super) fn renew(self: &Arc<Self>, requests: Vec<Renew>) -> RenewAnswers {
        self.resume_if_stopped();
        let (sender, outcomes) = mpsc::unbounded_channel();
        let mut groups: Vec<(Arc<Lane>, Vec<usize>)> = Vec::new();
        for (index, request) in requests.iter().enumerate() {
            let Some(lane) = self.topology.lane_of(&request.key) else {
                let unrouted = Outcome::Redirected {
                    redirect: Redirect::Unrouted,
                    may_have_taken_effect: false,
                };
                let _ = sender.send((index, unrouted));
                continue;
            };
            match groups.iter_mut().find(|(it, _)| Arc::ptr_eq(it, &lane)) {
                Some((_, indices)) => indices.push(index),
                None => groups.push((lane, vec![index])),
            }
        }
        for (lane, indices) in groups {
            // Batches are answered one after another, so each batch gets more time than the one before.
            let now = self.deadline();
            let starts = indices.into_iter().enumerate().map(|(place, index)| {
                let behind = u32::try_from(place / BATCH).unwrap_or(u32::MAX);
                let deadline = now + self.timeout / 10 * behind;
                (
                    index,
                    renewal_of(&requests[index], CallForm::default(), deadline),
                )
            });
            lane.call_all(starts, &sender);
        }
        drop(sender);
        let shared = self.clone();
        let answers = stream::unfold(outcomes, |mut outcomes| async {
            let outcome = outcomes.recv().await?;
            Some((outcome, outcomes))
        });
        let all = requests.len();
        let requests: Arc<[Renew]> = requests.into();
        let answers = answers.map(move |(index, outcome)| {
            let (shared, requests) = (shared.clone(), requests.clone());
            async move {
                let request = &requests[index];
                (index, shared.renewed(request, outcome).await)
            }
        });
        // Most answers are ready at once. A renewal that a node of a Cluster has redirected delays no other.
        Box::pin(answers.buffer_unordered(all.max(1)))
    }

    /// Reads the outcome of a renewal. A renewal that a node of a Cluster has redirected is made again, at the right node.
    async fn renewed(&self, request: &Renew, outcome: Outcome) -> Renewed {
        let outcome = match outcome {
            // A renewal can be made twice without harm.
            Outcome::Redirected { .. } => {
                self.topology.mark_stale();
                let deadline = self.deadline();
                let start = |lane: &Arc<Lane>, form: CallForm| {
                    lane.call(renewal_of(request, form, deadline))
                };
                self.topology.call(&request.key, deadline, start).await
            }
            outcome => outcome,
        };
        match outcome.value() {
            Ok(value) => reply::renewed(value, request.refill, self.floors.of(&request.key)),
            Err(error) => {
                self.topology.mark_stale();
                Renewed::Unknown(error)
            }
        }
    }

    /// Raises the tokens of a key above a number. Fails for a number that Lua and JSON cannot represent exactly.
    pub(super) fn raise_fence(
        self: &Arc<Self>,
        key: LockKey,
        above: u64,
    ) -> StoreFuture<Result<u64, Error>> {
        if above >= END_OF_TOKENS - 1 {
            let message =
                format!("tokens in Redis end at {END_OF_TOKENS} and cannot be raised to {above}");
            return failed(Error::new(ErrorKind::InvalidConfig, message));
        }
        let shared = self.clone();
        let of = key.clone();
        let value = self.question(key.clone(), move || Operation::RaiseFence {
            key: of.clone(),
            above,
        });
        Box::pin(async move { reply::token(value.await?, shared.floors.of(&key)) })
    }

    /// Reads the state of a key.
    pub(super) fn inspect(
        self: &Arc<Self>,
        key: LockKey,
    ) -> StoreFuture<Result<Inspection, Error>> {
        let shared = self.clone();
        let of = key.clone();
        let value = self.question(key.clone(), move || Operation::Inspect(of.clone()));
        Box::pin(async move { reply::inspection(value.await?, shared.floors.of(&key)) })
    }

    /// Ends the lease of a key, or removes its record. Returns whether there was one.
    pub(super) fn force_release(
        self: &Arc<Self>,
        key: LockKey,
    ) -> StoreFuture<Result<bool, Error>> {
        let of = key.clone();
        let value = self.question(key, move || Operation::ForceRelease(of.clone()));
        Box::pin(async move { reply::flag(value.await?) })
    }

    /// Makes a call that leaves nothing to be done when it fails.
    fn question(
        self: &Arc<Self>,
        key: LockKey,
        operation: impl Fn() -> Operation + Send + Sync + 'static,
    ) -> StoreFuture<Result<Value, Error>> {
        let deadline = self.deadline();
        let start = move |lane: &Arc<Lane>, form: CallForm| {
            lane.call(Start {
                call: form.of(operation().into()),
                before: form.before(),
                failure: Failure::Forget,
                deadline,
            })
        };
        match (&self.order, self.topology.lane_of(&key)) {
            (None, Some(lane)) => Box::pin(start(&lane, CallForm::default()).map(Outcome::value)),
            (None, None) => failed(Redirect::Unrouted.error()),
            (Some(order), _) => self.question_in_order(order, key, deadline, start),
        }
    }

    /// The deadline of a call that starts now.
    pub(super) fn deadline(&self) -> Instant {
        Instant::now() + self.timeout
    }

    /// Resumes releases that were started outside of a runtime, if there are any.
    fn resume_if_stopped(&self) {
        if self.is_stopped.load(Ordering::Acquire) {
            self.is_stopped.store(false, Ordering::Release);
            self.resume();
        }
    }

    /// Resumes calls that were started outside of a runtime.
    pub(super) fn resume(&self) {
        self.topology.resume();
        if let Some(order) = &self.order {
            order.resume();
        }
    }
}

/// A renewal to be started, which nothing follows if it fails.
fn renewal_of(request: &Renew, form: CallForm, deadline: Instant) -> Start {
    Start {
        call: form.of(Operation::Renew(request.clone()).into()),
        before: form.before(),
        failure: Failure::Forget,
        deadline,
    }
}

/// Reads the reply to a release.
pub(super) fn released(answered: Answered) -> Result<Released, Error> {
    if reply::flag(answered.value)? {
        Ok(Released::Freed)
    } else if answered.repeated {
        // The first sending of the release may have freed the key.
        Err(freed_or_lost())
    } else {
        Ok(Released::NotOurs)
    }
}

/// An answer to a call that cannot be started.
fn failed<T: Send + 'static>(error: Error) -> StoreFuture<Result<T, Error>> {
    Box::pin(std::future::ready(Err(error)))
}

/// The error of a repeated release that found no lease, because the first sending may have ended the lease.
fn freed_or_lost() -> Error {
    Error::new(
        ErrorKind::Unreachable,
        "the connection to Redis broke during the release: the lease has ended, but may have been lost before the release",
    )
}
