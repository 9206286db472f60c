//! The store's operations: what is sent, what the answer means, and what a failure leaves to be done.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures_util::future::join_all;
use redis::Value;
use tokio::{sync::MutexGuard, time::Instant};

use super::{
    BATCH, Shared, calls, explain,
    fence::END_OF_TOKENS,
    lane::{Failure, Lane},
    orphans::Behind,
    reply,
    script::Call,
};
use crate::{
    Error, ErrorKind, LockKey,
    store::{Acquire, Acquired, Ending, Inspection, Release, Released, Renew, Renewed},
};

/// The reply to one call.
struct Reply {
    value: Result<Value, Error>,
    repeated: bool,
}

impl Shared {
    pub(super) async fn acquire(self: Arc<Self>, request: Acquire) -> Result<Acquired, Error> {
        self.note_lease(request.lease);
        if let Some(replicated) = &self.replicated {
            return self.acquire_replicated(replicated, request).await;
        }
        let floor = self.floors.of(&request.key);
        let call = calls::acquire(self.names.of(&request.key), &request);
        let outcome = match self.call(&request.key, call).await {
            Ok(reply) => match reply.value {
                Ok(value) => reply::acquired(value, request.block.max(1), floor),
                // The server's own refusal: nothing was taken.
                Err(error) => return Err(error),
            },
            Err(Failure::NotSent(error)) => return Err(error),
            Err(Failure::Unknown(error)) => Err(error),
        };
        if outcome.is_err() {
            let undo = Release {
                key: request.key,
                owner: request.owner,
                ending: Ending::Free,
                owed_for: request.lease,
            };
            self.clean_up(undo, request.lease, Behind::Lane);
        }
        outcome
    }

    pub(super) async fn release(self: Arc<Self>, request: Release) -> Result<Released, Error> {
        let call = calls::release(&self.names.of(&request.key), &request);
        let outcome = match self.call(&request.key, call).await {
            Ok(reply) => match reply.value.and_then(reply::flag) {
                Ok(true) => return Ok(Released::Freed),
                // It may be the first of the two that freed it.
                Ok(false) if reply.repeated => return Err(freed_or_lost()),
                Ok(false) => return Ok(Released::NotOurs),
                Err(error) => Err(error),
            },
            Err(failure) => Err(failure.error()),
        };
        let longest = Duration::from_millis(self.longest_lease.load(Ordering::Relaxed));
        self.clean_up(request, longest, Behind::Lane);
        outcome
    }

    pub(super) async fn renew(self: Arc<Self>, requests: Vec<Renew>) -> Vec<Renewed> {
        for request in &requests {
            self.note_lease(request.lease);
        }
        let deadline = Instant::now() + self.timeout;
        let keys = requests.iter().map(|request| &request.key);
        let (groups, lost) = self.routes.group(keys, deadline).await;
        let batches = groups.iter().flat_map(|(lane, indices)| {
            let batches = indices.chunks(BATCH).zip(0..);
            batches.map(move |(batch, before)| (lane, before, batch))
        });
        // All are sent at once, so that none is overtaken by what is started after this.
        let renewing =
            batches.map(|(lane, before, batch)| self.renew_batch(lane, before, batch, &requests));
        let mut answers: Vec<(usize, Renewed)> =
            join_all(renewing).await.into_iter().flatten().collect();
        let lost = lost.into_iter();
        answers.extend(lost.map(|(index, error)| (index, Renewed::Unknown(error))));
        answers.sort_unstable_by_key(|(index, _)| *index);
        answers.into_iter().map(|(_, answer)| answer).collect()
    }

    /// Renews those of the requests that a batch has the indices of, when so many others went `before`.
    async fn renew_batch(
        &self,
        lane: &Lane,
        before: u32,
        batch: &[usize],
        requests: &[Renew],
    ) -> Vec<(usize, Renewed)> {
        let call = |index: &usize| {
            let request = &requests[*index];
            calls::renew(self.names.of(&request.key), request)
        };
        let calls: Vec<Call> = batch.iter().map(call).collect();
        let requests = batch.iter().map(|index| &requests[*index]);
        let answers: Vec<Renewed> = match lane.call_behind(before, &calls).await {
            Ok(replies) if replies.redirect.is_some() => {
                // Some have moved. What was renewed already can be renewed again.
                self.routes.doubt();
                let again = requests.zip(&calls);
                join_all(again.map(|(request, call)| self.renew_again(request, call))).await
            }
            Ok(replies) => {
                let answers = replies.each.into_iter().zip(requests);
                answers
                    .map(|(reply, request)| self.renewed(request, reply))
                    .collect()
            }
            Err(failure) => {
                self.routes.doubt();
                vec![Renewed::Unknown(failure.error()); batch.len()]
            }
        };
        batch.iter().copied().zip(answers).collect()
    }

    async fn renew_again(&self, request: &Renew, call: &Call) -> Renewed {
        match self.routes.again(&request.key, call).await {
            Some(Ok(mut replies)) => {
                let reply = replies.each.pop();
                self.renewed(request, reply.unwrap_or_else(|| Err(explain::nonsense())))
            }
            Some(Err(failure)) => Renewed::Unknown(failure.error()),
            None => Renewed::Unknown(explain::nonsense()),
        }
    }

    fn renewed(&self, request: &Renew, reply: Result<Value, Error>) -> Renewed {
        match reply {
            Ok(value) => reply::renewed(value, request.refill, self.floors.of(&request.key)),
            Err(error) => Renewed::Unknown(error),
        }
    }

    pub(super) async fn raise_fence(
        self: Arc<Self>,
        key: LockKey,
        above: u64,
    ) -> Result<u64, Error> {
        if above >= END_OF_TOKENS - 1 {
            let message =
                format!("tokens in Redis end at {END_OF_TOKENS}: cannot raise them to {above}");
            return Err(Error::new(ErrorKind::InvalidConfig, message));
        }
        let floor = self.floors.of(&key);
        let call = calls::raise_fence(self.names.of(&key), above.max(floor.get()));
        let reply = self.call(&key, call).await.map_err(Failure::error)?;
        reply::token(reply.value?, floor)
    }

    pub(super) async fn inspect(self: Arc<Self>, key: LockKey) -> Result<Inspection, Error> {
        let call = calls::inspect(self.names.of(&key));
        let reply = self.call(&key, call).await.map_err(Failure::error)?;
        reply::inspection(reply.value?, self.floors.of(&key))
    }

    pub(super) async fn force_release(self: Arc<Self>, key: LockKey) -> Result<bool, Error> {
        let call = calls::force_release(self.names.of(&key));
        let reply = self.call(&key, call).await.map_err(Failure::error)?;
        reply::flag(reply.value?)
    }

    /// Waits for this call's turn, where lanes do not keep the order.
    pub(super) async fn turn(
        &self,
        key: &LockKey,
        deadline: Instant,
    ) -> Result<Option<MutexGuard<'_, ()>>, Failure> {
        match &self.turns {
            None => Ok(None),
            Some(turns) => turns.wait(key, deadline).await.map(Some),
        }
    }

    async fn call(&self, key: &LockKey, call: Call) -> Result<Reply, Failure> {
        let _turn = self.turn(key, Instant::now() + self.timeout).await?;
        let mut replies = self.routes.call(key, call, &[]).await?;
        Ok(Reply {
            value: replies
                .each
                .pop()
                .unwrap_or_else(|| Err(explain::nonsense())),
            repeated: replies.repeated,
        })
    }

    fn note_lease(&self, lease: Duration) {
        let millis = u64::try_from(lease.as_millis()).unwrap_or(u64::MAX);
        self.longest_lease.fetch_max(millis, Ordering::Relaxed);
    }
}

fn freed_or_lost() -> Error {
    Error::new(
        ErrorKind::Unreachable,
        "the connection to Redis broke during the release: the key is not held any more, but whether it still was is not known",
    )
}
