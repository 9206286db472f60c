//! The store's operations where no lane keeps the order of calls: in a Cluster, and with replicas.
//!
//! 1. Every call but a renewal is a job in the key's queue (see `key_order`). The caller only waits for the answer.
//! 2. A job whose caller is gone, or whose time is up before it begins, sends nothing; unless it is a release.
//! 3. The job of an acquire that failed, or whose answer nobody has taken, ends with the release. So that comes before every later
//!    call for the key. An answer that is not taken after the job has ended is released by a job of its own.
//! 4. The job of a release ends when the server has answered, or when `owed_for` has passed. Between two attempts it does
//!    not keep the store alive.

mod answer;
mod release;

use std::sync::Arc;

use redis::Value;
use tokio::{
    sync::oneshot,
    time::{Instant, sleep_until},
};

use self::{
    answer::{Answer, Undo},
    release::{InDoubt, Repeated},
};
use super::{
    Shared,
    calls::{Call, Operation},
    connection::Peer,
    explain,
    key_order::KeyOrder,
    lane::{Before, Failure, Lane, Pending, Start, Way, after, release_of},
    outcome::{Answered, Outcome},
};
use crate::{
    Error, LockKey,
    store::{Acquire, Acquired, Queueing, Release, Released, StoreFuture},
};

/// An acquire that failed.
pub(super) struct Failed {
    pub(super) error: Error,
    /// What has to be done about it, if it may have taken effect.
    pub(super) in_doubt: Option<InDoubt>,
}

impl Shared {
    pub(super) fn acquire_in_order(
        self: &Arc<Self>,
        order: &KeyOrder,
        request: Acquire,
    ) -> StoreFuture<Result<Acquired, Error>> {
        let (sender, answer) = oneshot::channel();
        // With replicas: to wait for them, and to give back what they have not acknowledged.
        let time = match &self.replicated {
            Some(replicated) => self.timeout * 2 + replicated.time(),
            None => self.timeout,
        };
        let begun = self.deadline();
        let undo = Undo {
            store: self.clone(),
            key: request.key.clone(),
            owner: request.owner,
            owed_for: release_of(&request).owed_for,
        };
        let store = Arc::downgrade(self);
        order.push(request.key.clone(), async move {
            let Some(shared) = store.upgrade() else {
                return;
            };
            if sender.is_closed() || Instant::now() >= begun {
                let _ = sender.send(Err(explain::too_many_before()));
                return;
            }
            let release = release_of(&request);
            let outcome = shared.acquire_now(&request, begun).await;
            drop(shared);
            let mut untold = None;
            let in_doubt = match outcome {
                Ok(acquired) => {
                    let leaves_something = leaves_something(&acquired, request.queueing);
                    match sender.send(Ok(acquired)) {
                        Err(_) if leaves_something => None,
                        _ => return,
                    }
                }
                Err(Failed { error, in_doubt }) => {
                    let is_given_back = in_doubt.as_ref().is_some_and(|it| it.was_answered);
                    if is_given_back {
                        untold = Some((sender, error));
                    } else {
                        let _ = sender.send(Err(error));
                    }
                    if in_doubt.is_none() {
                        return;
                    }
                    in_doubt
                }
            };
            let Some(shared) = store.upgrade() else {
                return;
            };
            let repeated = shared.repeated(release, in_doubt);
            drop(shared);
            let tell = |_| {
                if let Some((sender, error)) = untold {
                    let _ = sender.send(Err(error));
                }
            };
            repeated.until_answered(tell).await;
        });
        Box::pin(Answer {
            answer,
            time_up: Box::pin(sleep_until(Instant::now() + time)),
            limit: time,
            undo: Some(undo),
        })
    }

    /// Acquires, now that it is the call's turn.
    async fn acquire_now(&self, request: &Acquire, deadline: Instant) -> Result<Acquired, Failed> {
        if let Some(replicated) = &self.replicated {
            return self.acquire_replicated(replicated, request, deadline).await;
        }
        let start = |lane: &Arc<Lane>, way: Way| {
            let call = way.form(Operation::Acquire(request.clone()).into());
            plain(lane, call, way.before(), deadline)
        };
        match self.routes.call(&request.key, deadline, start).await {
            Outcome::Answered(Answered { value, .. }) => {
                self.acquired(request, value).map_err(Failed::answered)
            }
            Outcome::MayHaveTakenEffect(error) => Err(Failed::in_doubt(error, None)),
            refused => match refused.value() {
                Ok(_) => Err(Failed::in_doubt(explain::nonsense(), None)),
                Err(error) => Err(Failed {
                    error,
                    in_doubt: None,
                }),
            },
        }
    }

    fn repeated(self: &Arc<Self>, request: Release, in_doubt: Option<InDoubt>) -> Repeated {
        Repeated {
            store: Arc::downgrade(self),
            expires: after(request.owed_for),
            request,
            in_doubt,
            _debt: self.owed.debt(),
        }
    }

    pub(super) fn release_in_order(
        self: &Arc<Self>,
        order: &KeyOrder,
        request: Release,
    ) -> StoreFuture<Result<Released, Error>> {
        let (sender, answer) = oneshot::channel();
        let key = request.key.clone();
        let repeated = self.repeated(request, None);
        let tell = |answer| {
            let _ = sender.send(answer);
        };
        order.push(key, repeated.until_answered(tell));
        self.answer_in_time(answer)
    }

    /// Makes a call that leaves nothing to be done when it fails.
    pub(super) fn question_in_order(
        self: &Arc<Self>,
        order: &KeyOrder,
        key: LockKey,
        deadline: Instant,
        start: impl Fn(&Arc<Lane>, Way) -> Pending + Send + Sync + 'static,
    ) -> StoreFuture<Result<Value, Error>> {
        let (sender, answer) = oneshot::channel();
        let shared = self.clone();
        order.push(key.clone(), async move {
            if sender.is_closed() || Instant::now() >= deadline {
                let _ = sender.send(Err(explain::too_many_before()));
                return;
            }
            let outcome = shared.routes.call(&key, deadline, start).await;
            let _ = sender.send(outcome.value());
        });
        self.answer_in_time(answer)
    }

    fn answer_in_time<T: Send + 'static>(
        self: &Arc<Self>,
        answer: oneshot::Receiver<Result<T, Error>>,
    ) -> StoreFuture<Result<T, Error>> {
        let (deadline, limit) = (self.deadline(), self.timeout);
        Box::pin(async move {
            match tokio::time::timeout_at(deadline, answer).await {
                Ok(Ok(answer)) => answer,
                Ok(Err(_)) | Err(_) => Err(explain::no_answer(limit)),
            }
        })
    }
}

impl Failed {
    /// After an answer: nothing can take effect after the release.
    pub(super) fn answered(error: Error) -> Self {
        Self {
            error,
            in_doubt: Some(InDoubt {
                was_answered: true,
                sent_on: None,
                cannot_be_closed: false,
            }),
        }
    }

    pub(super) fn in_doubt(error: Error, sent_on: Option<Peer>) -> Self {
        Self {
            error,
            in_doubt: Some(InDoubt {
                was_answered: false,
                sent_on,
                cannot_be_closed: false,
            }),
        }
    }
}

fn plain(lane: &Arc<Lane>, call: Call, before: Before, deadline: Instant) -> Pending {
    lane.call(Start {
        call,
        before,
        failure: Failure::Forget,
        deadline,
    })
}

/// Whether an answered acquire has to be released if nobody takes the answer.
fn leaves_something(acquired: &Acquired, queueing: Queueing) -> bool {
    match acquired {
        Acquired::Granted(_) => true,
        Acquired::Held(_) => matches!(queueing, Queueing::Wait { .. }),
        Acquired::Recorded(_) => false,
    }
}
