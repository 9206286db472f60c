//! Asking the nodes for a key.

use std::{hash::BuildHasher, sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::time::{Instant, sleep};

use super::{
    Shared,
    attempts::{Seat, can_be_named},
    ballot::Verdict,
    round::detach,
    vote::Vote,
};
use crate::{
    Error, ErrorKind,
    store::{Acquire, Acquired, Grant, Held, Owner, Queueing, Tokens},
    time::later,
};

/// How many votes one call takes part in, if they are split.
const VOTES: u32 = 4;

/// What came of one vote.
enum Outcome {
    Settled(Result<Acquired, Error>),
    Held { held: Held, split: bool },
}

impl Shared {
    pub(super) async fn acquire(self: Arc<Self>, request: Acquire) -> Result<Acquired, Error> {
        if !can_be_named(request.owner) {
            let message = "a quorum counts 2^48 attempts of one instance, and no more";
            return Err(Error::new(ErrorKind::InvalidConfig, message));
        }
        let asked = Instant::now();
        self.note_lease(request.lease);
        let (key, owner) = (&request.key, request.owner);
        let mut seats = self.attempts.enter(&request, asked);
        let mut queueing = request.queueing;
        for vote in 0.. {
            let began = Instant::now();
            let (held, split) = match self.vote(&request, queueing, seats, asked).await {
                Outcome::Settled(answer) => return answer,
                Outcome::Held { held, split } => (held, split),
            };
            let enough = vote + 1 >= VOTES || asked.elapsed() >= self.node_timeout;
            if !split || enough {
                self.stay_or_go(&request);
                return Ok(Acquired::Held(held));
            }
            sleep(back_off(began.elapsed(), vote).min(self.node_timeout)).await;
            // The places in the queues are for hints. Should everybody be first in one of them, nobody would get a
            // majority.
            if matches!(queueing, Queueing::Wait { .. }) {
                queueing = Queueing::Skip;
            }
            seats = match self.attempts.ask_again(key, owner) {
                Some(seats) => seats,
                None => return Ok(Acquired::Held(held)), // it was released meanwhile
            };
        }
        unreachable!("votes are counted");
    }

    async fn vote(
        self: &Arc<Self>,
        request: &Acquire,
        queueing: Queueing,
        seats: Vec<Seat>,
        asked: Instant,
    ) -> Outcome {
        let (mut vote, mut questions) = self.open_vote(request, queueing, seats).await;
        self.count(&mut vote, &mut questions, (request, queueing))
            .await;
        match vote.ballot.verdict() {
            Verdict::Granted => {
                let granted = self.granted(request, &vote, asked).await;
                if granted.is_ok() && !vote.silent.is_empty() {
                    detach(self.clone().hear_the_rest(vote, questions));
                }
                Outcome::Settled(granted)
            }
            Verdict::Held { held, split } => {
                let granted: Vec<usize> = vote.ballot.granted().collect();
                self.undo(&vote, &granted).await;
                Outcome::Held { held, split }
            }
            Verdict::Recorded(record) => {
                self.recorded(&vote, record.clone()).await;
                Outcome::Settled(Ok(Acquired::Recorded(record)))
            }
            Verdict::Failed(error) => {
                self.undo_all(&vote).await;
                Outcome::Settled(Err(error))
            }
        }
    }

    async fn granted(
        &self,
        request: &Acquire,
        vote: &Vote,
        asked: Instant,
    ) -> Result<Acquired, Error> {
        let block = request.block.max(1);
        let outcome = self.agree(&request.key, &vote.ballot.counters()).await;
        let outcome = outcome.and_then(|last| match self.valid_until(asked, request.lease) {
            Some(until) => Ok((last, until)),
            None => Err(too_late(asked, request.lease)),
        });
        let (last, until) = match outcome {
            Ok(granted) => granted,
            Err(error) => {
                self.undo_all(vote).await;
                return Err(error);
            }
        };
        self.attempts.confirm(&request.key, request.owner, until);
        let grant = Grant {
            tokens: Tokens::new((last + 1).saturating_sub(block.into()), block),
            others_wait: vote.ballot.others_wait(),
        };
        Ok(Acquired::Granted(grant))
    }

    /// A record ends the attempt. Nodes that granted have missed it, or lost it: they get it in the place of the lease.
    async fn recorded(self: &Arc<Self>, vote: &Vote, record: Bytes) {
        let missing: Vec<(usize, Owner)> = vote
            .ballot
            .granted()
            .map(|node| (node, vote.seats[node].owner))
            .collect();
        let key = vote.key.clone();
        self.end(vote, Vec::new()).await;
        if !missing.is_empty() {
            detach(self.clone().copy_record(key, record, missing));
        }
    }

    fn stay_or_go(&self, request: &Acquire) {
        match request.queueing {
            Queueing::Wait { deadline, .. } => {
                let until = later(Instant::now(), deadline);
                self.attempts.keep(&request.key, request.owner, until);
            }
            _ => self.attempts.remove(&request.key, request.owner),
        }
    }
}

/// Some time between nothing and a few times what the last vote took, more after each.
fn back_off(took: Duration, vote: u32) -> Duration {
    let window = (took + Duration::from_millis(1)) * (4 << vote);
    let noise = std::hash::RandomState::new().hash_one(vote);
    window.mul_f64(noise as f64 / u64::MAX as f64)
}

fn too_late(asked: Instant, lease: Duration) -> Error {
    let took = asked.elapsed();
    let message =
        format!("the nodes took {took:?} to grant a lease of {lease:?}: too little of it was left");
    Error::new(ErrorKind::Unreachable, message)
}
