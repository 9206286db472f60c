//! The store's operations where no lane keeps the order of calls: in a Cluster, and with replicas.
//!
//! 1. Every call but a renewal is a job in the key's queue (see `key_order`). The caller only waits for the answer.
//! 2. A job whose caller is gone, or whose time is up before it begins, sends nothing; unless it is a release.
//! 3. The job of an acquire that failed, or whose answer nobody has taken, ends with the release. So that comes before every later
//!    call for the key. An answer that is not taken after the job has ended is released by a job of its own.
//! 4. The job of a release ends when the server has answered, or when `owed_for` has passed. Between two attempts it does
//!    not keep the store alive.

use std::{
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll},
    time::Duration,
};

use redis::Value;
use tokio::{
    sync::oneshot,
    time::{Instant, Sleep, sleep, sleep_until},
};

use super::{
    Shared, calls,
    connection::Peer,
    explain,
    key_order::KeyOrder,
    lane::{Before, Failure, Lane, Pending, Start, after},
    operations::{owed_for, released},
    outcome::{Answered, Outcome},
    owed::Debt,
};
use crate::{
    Error, LockKey,
    store::{Acquire, Acquired, Ending, Queueing, Release, Released, StoreFuture},
};

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// An acquire that failed.
pub(super) struct Failed {
    pub(super) error: Error,
    /// What has to be done about it, if it may have taken effect.
    pub(super) in_doubt: Option<InDoubt>,
}

/// An acquire that may have taken effect, or may still do so.
pub(super) struct InDoubt {
    /// The acquire was answered, but does not count. Its caller hears of that when the lock was given back.
    pub(super) was_answered: bool,
    /// The connection beside the lanes that it was sent on.
    pub(super) sent_on: Option<Peer>,
    /// That connection, or one of a lane, cannot be closed: the acquire may take effect at any time.
    pub(super) cannot_be_closed: bool,
}

/// A release that is repeated until it was answered.
struct Repeated {
    store: Weak<Shared>,
    request: Release,
    expires: Instant,
    in_doubt: Option<InDoubt>,
    _debt: Debt,
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
            owed_for: owed_for(&request),
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
            let release = shared.release_of(&request);
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
        let start = |lane: &Arc<Lane>, before| {
            let call = calls::acquire(self.names.of(&request.key), request);
            plain(lane, &request.key, call, before, deadline)
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

    fn release_of(&self, request: &Acquire) -> Release {
        Release {
            key: request.key.clone(),
            owner: request.owner,
            ending: Ending::Free,
            owed_for: owed_for(request),
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
        start: impl Fn(&Arc<Lane>, Before) -> Pending + Send + Sync + 'static,
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

impl Repeated {
    /// Calls `tell` with the outcome of the first attempt.
    async fn until_answered(self, tell: impl FnOnce(Result<Released, Error>)) {
        let mut tell = Some(tell);
        let mut pause = FIRST_PAUSE;
        while let Some(shared) = self.store.upgrade() {
            let outcome = match shared.release_now(&self).await {
                Outcome::Answered(answered) => {
                    if let Some(in_doubt) = &self.in_doubt
                        && !in_doubt.was_answered
                        && (in_doubt.cannot_be_closed || !answered.predecessors_closed)
                    {
                        self.repeat_until_expiry(&shared);
                    }
                    if let Some(tell) = tell {
                        tell(released(answered));
                    }
                    return;
                }
                outcome => outcome,
            };
            drop(shared);
            if let (Some(tell), Err(error)) = (tell.take(), outcome.value()) {
                tell(Err(error));
            }
            if Instant::now() + pause >= self.expires {
                return;
            }
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// An answered release does not count where its acquire may still take effect. The lane repeats the release beside the
    /// key's queue, so that later calls need not wait for so long.
    fn repeat_until_expiry(&self, shared: &Shared) {
        let Release {
            key,
            owner,
            owed_for,
            ..
        } = &self.request;
        if let Some(lane) = shared.routes.lane_at_once(key) {
            lane.clean_up(key.clone(), *owner, *owed_for, true);
        }
    }
}

impl Shared {
    async fn release_now(&self, release: &Repeated) -> Outcome {
        let request = &release.request;
        let deadline = self.deadline();
        let start = |lane: &Arc<Lane>, before| {
            let sent_on = release.in_doubt.as_ref().and_then(|it| it.sent_on.clone());
            let before = match sent_on {
                Some(peer) => Before::Close(peer),
                None => before,
            };
            let call = calls::release(&self.names.of(&request.key), request);
            plain(lane, &request.key, call, before, deadline)
        };
        self.routes.call(&request.key, deadline, start).await
    }
}

fn plain(
    lane: &Arc<Lane>,
    key: &LockKey,
    call: super::script::Call,
    before: Before,
    deadline: Instant,
) -> Pending {
    lane.call(Start {
        key: key.clone(),
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

/// What is released if an answer is not taken.
struct Undo {
    store: Arc<Shared>,
    key: LockKey,
    owner: crate::store::Owner,
    owed_for: Duration,
}

/// The answer to an acquire.
///
/// # Cancel safety
///
/// An answer that is not taken is followed by the release of what was acquired.
struct Answer {
    answer: oneshot::Receiver<Result<Acquired, Error>>,
    time_up: Pin<Box<Sleep>>,
    limit: Duration,
    /// Until the answer was taken.
    undo: Option<Undo>,
}

impl Future for Answer {
    type Output = Result<Acquired, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let limit = self.limit;
        let answer = match Pin::new(&mut self.answer).poll(cx) {
            Poll::Ready(answer) => answer.unwrap_or_else(|_| Err(explain::no_answer(limit))),
            Poll::Pending => {
                std::task::ready!(self.time_up.as_mut().poll(cx));
                // From now on the job has nobody to tell, unless it has told already.
                self.answer.close();
                self.answer
                    .try_recv()
                    .unwrap_or_else(|_| Err(explain::no_answer(limit)))
            }
        };
        self.undo = None;
        Poll::Ready(answer)
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        let Some(undo) = self.undo.take() else {
            return;
        };
        self.answer.close();
        let (Ok(Ok(_)), Some(order)) = (self.answer.try_recv(), &undo.store.order) else {
            return;
        };
        let release = Release {
            key: undo.key.clone(),
            owner: undo.owner,
            ending: Ending::Free,
            owed_for: undo.owed_for,
        };
        let repeated = undo.store.repeated(release, None);
        order.push(undo.key, repeated.until_answered(|_| {}));
    }
}
