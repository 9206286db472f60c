//! One vote: asking all nodes, hearing them, and undoing what came of it.

use std::{sync::Arc, time::Duration};

use super::{Shared, attempts::Seat, ballot::Ballot, round::Round};
use crate::{
    Error, LockKey,
    store::{Acquire, Acquired, Ending, Owner, Queueing, Release, Released, StoreFuture},
};

pub(super) type Questions = Round<Result<Acquired, Error>>;

/// One vote: whose it is, and what the nodes have said so far.
pub(super) struct Vote {
    pub(super) key: LockKey,
    pub(super) owner: Owner,
    pub(super) seats: Vec<Seat>,
    pub(super) ballot: Ballot,
    /// Nodes that have not answered.
    pub(super) silent: Vec<usize>,
    /// Nodes that may have put the attempt into their queue.
    pub(super) queued: Vec<usize>,
}

impl Shared {
    pub(super) async fn open_vote(
        &self,
        request: &Acquire,
        queueing: Queueing,
        seats: Vec<Seat>,
    ) -> (Vote, Questions) {
        let questions = seats.iter().zip(&self.nodes).map(|(seat, node)| {
            node.acquire(Acquire {
                owner: seat.owner,
                queueing,
                ..request.clone()
            })
        });
        let questions = Round::start(questions.enumerate(), self.node_timeout).await;
        let vote = Vote {
            key: request.key.clone(),
            owner: request.owner,
            ballot: Ballot::new(seats.len()),
            silent: (0..seats.len()).collect(),
            queued: Vec::new(),
            seats,
        };
        (vote, questions)
    }

    /// Hears the nodes until the vote is decided.
    pub(super) async fn count(
        &self,
        vote: &mut Vote,
        questions: &mut Questions,
        (request, queueing): (&Acquire, Queueing),
    ) {
        // Any node may have the record of what was claimed.
        let claims = request.fingerprint.is_some();
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

    /// Nodes that are slower than the majority may still become a part of the lease, within their time.
    pub(super) async fn hear_the_rest(self: Arc<Self>, mut vote: Vote, mut questions: Questions) {
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

    /// Gives back what these nodes have granted, and what those that did not answer may yet grant.
    pub(super) async fn undo(&self, vote: &Vote, nodes: &[usize]) {
        // A node works in order: its release comes after its acquire, however late that is. Where the acquire
        // fails, the node itself clears up.
        let release = |node: &usize| (*node, self.give_back(vote, *node));
        let silent = Round::start(vote.silent.iter().map(release), Duration::ZERO).await;
        drop(silent); // it goes on in the background: who did not answer before is not waited for again
        let answered = Round::start(nodes.iter().map(release), self.node_timeout).await;
        answered.all().await;
    }

    /// The attempt has failed.
    pub(super) async fn undo_all(&self, vote: &Vote) {
        let nodes: Vec<usize> = vote.ballot.granted().collect();
        self.end(vote, nodes).await;
    }

    /// The attempt is over: gives back what these nodes have granted, and all places in queues.
    pub(super) async fn end(&self, vote: &Vote, mut nodes: Vec<usize>) {
        let (key, owner) = (vote.key.clone(), vote.owner);
        self.attempts.begin_to_end(&key, owner);
        nodes.extend(&vote.queued);
        self.undo(vote, &nodes).await;
        self.attempts.remove(&key, owner);
    }

    /// Ends an attempt on one node, and takes a new name there.
    fn give_back(&self, vote: &Vote, node: usize) -> StoreFuture<Result<Released, Error>> {
        let (key, owner, name) = (&vote.key, vote.owner, vote.seats[node].owner);
        self.attempts.rename(key, owner, node, name);
        self.nodes[node].start_release(Release {
            key: key.clone(),
            owner: name,
            ending: Ending::Free,
            owed_for: self.longest_lease(),
        })
    }
}
