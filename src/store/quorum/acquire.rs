//! Asking the nodes for a key.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::time::{Instant, sleep};

use super::{
    Shared,
    attempts::{Attempt, PartState, can_be_named},
    ballot::Verdict,
    round::detach,
    vote::{Vote, owed_for},
};
use crate::{
    Error, ErrorKind,
    store::{
        Acquire, Acquired, Ending, Grant, Held, Owner, Queueing, Release, StoreFuture, Tokens,
    },
    sync::random,
    time::later,
};

/// How many votes one call takes part in, if they are split.
const VOTES: u32 = 4;

/// What came of one vote.
enum Outcome {
    Settled(Result<Acquired, Error>),
    Held { held: Held, split: bool },
}

/// An attempt that has entered. Dropped before its answer is known, or with an error for an answer, the attempt ends on all
/// nodes: neither a lease nor a place in a queue is left.
struct Entered {
    store: Arc<Shared>,
    request: Acquire,
    is_answered: bool,
}

impl Drop for Entered {
    fn drop(&mut self) {
        if !self.is_answered {
            self.store.abandon(&self.request);
        }
    }
}

impl Shared {
    /// Puts the question to all nodes now.
    pub(super) fn start_acquire(
        self: &Arc<Self>,
        request: Acquire,
    ) -> StoreFuture<Result<Acquired, Error>> {
        if !can_be_named(request.owner) {
            let message = "a quorum counts 2^48 attempts of one instance, and no more";
            let refused = Err(Error::new(ErrorKind::InvalidConfig, message));
            return Box::pin(std::future::ready(refused));
        }
        let asked = Instant::now();
        self.note_lease(request.lease);
        let names = self.attempts.enter(&request, asked);
        let vote = self.open_vote(&request, request.queueing, names);
        let mut entered = Entered {
            store: self.clone(),
            request,
            is_answered: false,
        };
        Box::pin(async move {
            let answer = entered.vote_until_decided(vote, asked).await;
            if answer.is_ok() {
                entered.disarm();
            }
            answer
        })
    }

    /// Ends an attempt that failed. A node whose call was not answered cleans up by itself.
    fn abandon(&self, request: &Acquire) {
        if let Some(attempt) = self.attempts.remove(&request.key, request.owner) {
            self.leave(request, attempt);
        }
    }

    /// Gives back what an attempt holds, and its places in queues.
    fn leave(&self, request: &Acquire, attempt: Attempt) {
        for (part, node) in attempt.parts.into_iter().zip(&self.nodes) {
            match part.state {
                PartState::Nothing | PartState::Asked => {}
                PartState::Late(question) => question.take_back(),
                PartState::Queued | PartState::Held => drop(node.start_release(Release {
                    key: request.key.clone(),
                    owner: part.name,
                    ending: Ending::Free,
                    owed_for: owed_for(request),
                })),
            }
        }
    }
}

impl Entered {
    fn disarm(&mut self) {
        self.is_answered = true;
    }

    async fn vote_until_decided(&self, mut vote: Vote, asked: Instant) -> Result<Acquired, Error> {
        let (store, request) = (&self.store, &self.request);
        let (mut began, mut first_ended, mut votes) = (asked, None, 0);
        loop {
            let queueing = vote.queueing;
            let (held, split) = match self.vote(vote, asked).await {
                Outcome::Settled(answer) => return answer,
                Outcome::Held { held, split } => (held, split),
            };
            votes += 1;
            let now = Instant::now();
            let contested_for = now - *first_ended.get_or_insert(now);
            let queueing = if split && votes < VOTES && contested_for < store.node_timeout {
                sleep(back_off(now - began, votes - 1).min(store.node_timeout)).await;
                // Should every attempt be first in one node's queue, none would get a majority.
                match queueing {
                    Queueing::Wait { .. } => Queueing::Skip,
                    queueing => queueing,
                }
            } else if queueing != request.queueing {
                // A node that granted removed the attempt's place in its queue: the attempt queues again.
                votes = VOTES;
                request.queueing
            } else {
                store.stay_or_go(request);
                return Ok(Acquired::Held(held));
            };
            began = Instant::now();
            vote = match store.attempts.ask_again(&request.key, request.owner) {
                Some(names) => store.open_vote(request, queueing, names),
                None => return Ok(Acquired::Held(held)), // it was released meanwhile
            };
        }
    }

    async fn vote(&self, mut vote: Vote, asked: Instant) -> Outcome {
        let (store, request) = (&self.store, &self.request);
        store.count(&mut vote, request).await;
        if let Err(error) = store.check_servers() {
            return Outcome::Settled(Err(error));
        }
        match vote.ballot.verdict() {
            Verdict::Granted => {
                let (counters, others_wait) = (vote.ballot.counters(), vote.ballot.others_wait());
                let granted = store.granted(request, asked, &counters).await;
                let granted = granted.map(|tokens| {
                    Acquired::Granted(Grant {
                        tokens,
                        others_wait,
                    })
                });
                if granted.is_ok() {
                    store.hear_the_rest(vote, request);
                }
                Outcome::Settled(granted)
            }
            Verdict::Held { held, split } => {
                store.undo_grants(&vote, request);
                if matches!(vote.queueing, Queueing::Wait { .. }) {
                    store.hear_the_rest(vote, request);
                } else {
                    store.take_back(vote, request);
                }
                Outcome::Held { held, split }
            }
            Verdict::Recorded(record) => {
                store.recorded(&vote, request, record.clone());
                Outcome::Settled(Ok(Acquired::Recorded(record)))
            }
            Verdict::Failed(error) => Outcome::Settled(Err(error)),
        }
    }
}

impl Shared {
    /// A majority has granted. The tokens of the turn, if the lease is still worth having.
    async fn granted(
        &self,
        request: &Acquire,
        asked: Instant,
        counters: &[(usize, u64)],
    ) -> Result<Tokens, Error> {
        let block = request.block.max(1);
        let last = self.agree(&request.key, counters).await?;
        let until = self
            .valid_until(asked, request.lease)
            .ok_or_else(|| too_late(asked, request.lease))?;
        self.attempts.confirm(&request.key, request.owner, until);
        Ok(Tokens::new((last + 1).saturating_sub(block.into()), block))
    }

    /// A record ends the attempt. Nodes that granted have missed it, or lost it: they get it in the place of the lease.
    fn recorded(self: &Arc<Self>, vote: &Vote, request: &Acquire, record: Bytes) {
        let Some(mut attempt) = self.attempts.remove(&request.key, request.owner) else {
            return; // it was released meanwhile
        };
        let mut missing: Vec<(usize, Owner)> = Vec::new();
        for node in vote.ballot.granted() {
            let part = &mut attempt.parts[node];
            if part.is_held() {
                part.state = PartState::Nothing;
                missing.push((node, part.name));
            }
        }
        self.leave(request, attempt);
        if !missing.is_empty() {
            detach(self.clone().copy_record(request.clone(), record, missing));
        }
    }

    fn stay_or_go(&self, request: &Acquire) {
        match request.queueing {
            Queueing::Wait { deadline, .. } => {
                let until = later(Instant::now(), deadline);
                self.attempts.keep(&request.key, request.owner, until);
            }
            _ => self.abandon(request),
        }
    }
}

/// Some time between nothing and a few times what the last vote took, more after each.
fn back_off(took: Duration, vote: u32) -> Duration {
    let window = (took + Duration::from_millis(1)) * (4 << vote);
    window.mul_f64(random())
}

fn too_late(asked: Instant, lease: Duration) -> Error {
    let took = asked.elapsed();
    let message =
        format!("the nodes took {took:?} to grant a lease of {lease:?}: too little of it was left");
    Error::new(ErrorKind::Unreachable, message)
}
