//! Asking the nodes for a key.

use std::{hash::BuildHasher, sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::time::{Instant, sleep};

use super::{
    Shared,
    attempts::{Seat, can_be_named},
    ballot::{Ballot, Verdict, majority, no_quorum},
    round::{Round, detach},
};
use crate::{
    Error, ErrorKind, LockKey,
    store::{
        Acquire, Acquired, Ending, Grant, Held, Owner, Queueing, Release, Released, StoreFuture,
        Tokens,
    },
    time::later,
};

/// How many votes one call takes part in, if they are split.
const VOTES: u32 = 4;

/// What came of one vote.
enum Outcome {
    Settled(Result<Acquired, Error>),
    Held { held: Held, split: bool },
}

type Questions = Round<Result<Acquired, Error>>;

/// One vote: whose it is, and what the nodes have said so far.
struct Vote {
    key: LockKey,
    owner: Owner,
    seats: Vec<Seat>,
    ballot: Ballot,
    /// Nodes that have not answered.
    silent: Vec<usize>,
    /// Nodes that may have put the attempt into their queue.
    queued: Vec<usize>,
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
            sleep(back_off(began.elapsed(), vote)).await;
            // The places in the queues are for hints. Should everybody be first in one of them, nobody would get a majority.
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
        let mut vote = Vote {
            key: request.key.clone(),
            owner: request.owner,
            ballot: Ballot::new(seats.len()),
            silent: (0..seats.len()).collect(),
            queued: Vec::new(),
            seats,
        };
        let questions = vote.seats.iter().zip(&self.nodes).map(|(seat, node)| {
            node.acquire(Acquire {
                owner: seat.owner,
                queueing,
                ..request.clone()
            })
        });
        let mut questions = Round::start(questions.enumerate(), self.node_timeout).await;
        self.count(&mut vote, &mut questions, request, queueing)
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

    /// Hears the nodes until the vote is decided.
    async fn count(
        &self,
        vote: &mut Vote,
        questions: &mut Questions,
        request: &Acquire,
        queueing: Queueing,
    ) {
        // Any node may have the record of what was claimed.
        let claims = request.note.is_some();
        // Whoever is to wait keeps its place in the queues of all nodes that it has heard of.
        let queues = matches!(queueing, Queueing::Wait { .. });
        while let Some((node, answer)) = questions.next().await {
            vote.silent.retain(|silent| *silent != node);
            if matches!(answer, Ok(Acquired::Held(_))) {
                vote.queued.push(node);
            }
            self.note_answer(vote, node, &answer);
            vote.ballot.add(node, answer, self.is_mature(node));
            let waits_for_all = claims || queues && vote.ballot.is_held();
            if vote.ballot.is_decided() && !waits_for_all && !questions.is_ready() {
                return;
            }
        }
    }

    /// Says whether the attempt still goes by the name that the node was asked in.
    fn note_answer(&self, vote: &Vote, node: usize, answer: &Result<Acquired, Error>) -> bool {
        let (key, owner, name) = (&vote.key, vote.owner, vote.seats[node].owner);
        match answer {
            Ok(Acquired::Granted(_)) => self.attempts.take(key, owner, node, name),
            Ok(_) => self.attempts.miss(key, owner, node, name),
            Err(_) => self.attempts.rename(key, owner, node, name),
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
                self.undo_all(&vote).await;
                return Err(error);
            }
        };
        self.attempts.confirm(&request.key, request.owner, until);
        let grant = Grant {
            tokens: Tokens::new(last + 1 - u64::from(block), block),
            others_wait: vote.ballot.others_wait(),
        };
        Ok(Acquired::Granted(grant))
    }

    /// Nodes that are slower than the majority may still become a part of the lease, within their time.
    async fn hear_the_rest(self: Arc<Self>, mut vote: Vote, mut questions: Questions) {
        while let Some((node, answer)) = questions.next().await {
            vote.silent.retain(|silent| *silent != node);
            if !self.note_answer(&vote, node, &answer) && answer.is_ok() {
                // The attempt ended before this came, or has gone on without it.
                let _ = self.give_back(&vote, node).await;
            }
            vote.ballot.add(node, answer, false);
        }
        self.undo(&vote, &[]).await;
        // So that they agree next time, and nobody has to wait for that.
        let _ = self.agree(&vote.key, &vote.ballot.counters()).await;
    }

    /// Lifts a majority of the counters to the highest of them, so that whoever asks a majority later is told a higher one. Where
    /// all agree already, as they do while all nodes are well and nobody contends, nothing is sent.
    pub(super) async fn agree(
        &self,
        key: &LockKey,
        counters: &[(usize, u64)],
    ) -> Result<u64, Error> {
        let highest = counters.iter().map(|(_, counter)| *counter).max();
        let highest = highest.unwrap_or(0);
        if !self.fencing {
            return Ok(highest);
        }
        let behind = counters.iter().filter(|(_, counter)| *counter < highest);
        let raising = behind.map(|(node, _)| {
            let raising = self.nodes[*node].raise_fence(key.clone(), highest);
            (*node, raising)
        });
        let mut agreed = counters.iter().filter(|(_, c)| *c == highest).count();
        let mut error = None;
        let mut raising = Round::start(raising, self.node_timeout).await;
        while agreed < majority(self.nodes.len()) {
            match raising.next().await {
                Some((_, Ok(_))) => agreed += 1,
                Some((_, Err(failed))) => error = Some(failed),
                None => {
                    let nodes = self.nodes.len();
                    return Err(no_quorum(nodes, nodes - agreed, 0, error));
                }
            }
        }
        Ok(highest)
    }

    /// Gives back what these nodes have granted, and what those that did not answer may yet grant.
    async fn undo(&self, vote: &Vote, nodes: &[usize]) {
        // A node works in order: its release comes after its acquire, however late that is. Where the acquire
        // fails, the node itself clears up.
        let release = |node: &usize| (*node, self.give_back(vote, *node));
        let silent = Round::start(vote.silent.iter().map(release), Duration::ZERO).await;
        drop(silent); // it goes on in the background: who did not answer before is not waited for again
        let answered = Round::start(nodes.iter().map(release), self.node_timeout).await;
        answered.all().await;
    }

    /// The attempt has failed.
    async fn undo_all(&self, vote: &Vote) {
        let nodes: Vec<usize> = vote.ballot.granted().collect();
        self.end(vote, nodes).await;
    }

    /// The attempt is over: gives back what these nodes have granted, and all places in queues.
    async fn end(&self, vote: &Vote, mut nodes: Vec<usize>) {
        let (key, owner) = (vote.key.clone(), vote.owner);
        self.attempts.begin_to_end(&key, owner);
        nodes.extend(&vote.queued);
        self.undo(vote, &nodes).await;
        self.attempts.remove(&key, owner);
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

    /// Ends an attempt on one node, and takes a new name there.
    fn give_back(&self, vote: &Vote, node: usize) -> StoreFuture<Result<Released, Error>> {
        let (key, owner, name) = (&vote.key, vote.owner, vote.seats[node].owner);
        self.attempts.rename(key, owner, node, name);
        self.nodes[node].release(Release {
            key: key.clone(),
            owner: name,
            ending: Ending::Free,
        })
    }

    fn stay_or_go(&self, request: &Acquire) {
        match request.queueing {
            Queueing::Wait { deadline } => {
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
