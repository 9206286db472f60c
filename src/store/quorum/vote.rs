//! One vote: asking all nodes, counting their answers, and undoing a lost vote.
//!
//! ```text
//! open_vote ──▶ count ──▶ granted: hear_the_rest, the slow nodes may still join the lease
//!                   └───▶ not granted: end_lost_vote, the grants are given back (unless the attempt keeps them and asks again)
//! ```
//!
//! A vote does not wait for the slowest node: the vote ends as soon as the answers that are missing cannot change the verdict. There are
//! two exceptions. A claim waits for all nodes that are not silent, because any of them may have the record. An attempt that is refused
//! and queues waits a tenth of the node timeout for its places in the queues of the other nodes that usually answer in time.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    Shared,
    attempts::{Asking, Part, PartOf, PartState},
    ballot::{Ballot, Verdict},
    failures::is_answered,
    question::{Heard, Question},
    round::Round,
};
use crate::{
    Error,
    store::{Acquire, Acquired, Ending, Owner, Queueing, Release, StoreFuture},
    time::later,
};

/// One vote, with the names that the nodes were asked under and the answers so far.
pub(super) struct Vote<T = Result<Acquired, Error>> {
    pub(super) queueing: Queueing,
    pub(super) names: Vec<Owner>,
    pub(super) ballot: Ballot,
    pub(super) questions: Round<T>,
    opened: Instant,
    /// How long the vote took until its last answer.
    pub(super) took: Duration,
}

/// The attempt's part on a node, under the name that the vote used.
fn part_of<'a>(request: &'a Acquire, node: usize, names: &[Owner]) -> PartOf<'a> {
    PartOf {
        key: &request.key,
        owner: request.owner,
        node,
        name: names[node],
    }
}

impl Shared {
    /// Asks all nodes.
    pub(super) fn open_vote(&self, request: &Acquire, queueing: Queueing, asking: Asking) -> Vote {
        let Asking { names, left } = asking;
        for (node, name) in left {
            self.nodes[node].end(release_of(request, name));
        }
        let questions = names.iter().zip(&self.nodes).map(|(name, node)| {
            node.acquire(Acquire {
                owner: *name,
                queueing,
                ..request.clone()
            })
        });
        Vote {
            queueing,
            questions: Round::new(questions.enumerate(), self.node_timeout),
            ballot: Ballot::new(names.len()),
            names,
            opened: Instant::now(),
            took: Duration::ZERO,
        }
    }

    /// Counts answers until the vote is decided, or until no node that usually answers is left to wait for.
    pub(super) async fn count(&self, vote: &mut Vote, request: &Acquire) {
        let mut held_since = None;
        loop {
            if vote.ballot.is_held() {
                held_since.get_or_insert_with(Instant::now);
            }
            let answer = match self.worth_waiting(vote, request, held_since) {
                Some(until) => vote.questions.next_before(until).await,
                None => vote.questions.next_now(),
            };
            let Some((node, answer)) = answer else {
                break;
            };
            vote.took = vote.opened.elapsed();
            self.health.heard(node, is_answered(&answer));
            self.health.took(node, vote.took);
            let part = part_of(request, node, &vote.names);
            self.note_answer(part, request, vote.queueing, &answer);
            vote.ballot.add(node, answer, self.is_young(node));
        }
        self.health.mark_silent(&vote.questions);
    }

    /// Until when the missing answers are worth waiting for, or `None`.
    ///
    /// A silent node is waited for only where no verdict is possible without that node.
    fn worth_waiting(
        &self,
        vote: &Vote,
        request: &Acquire,
        held_since: Option<Instant>,
    ) -> Option<Instant> {
        let end = vote.questions.deadline();
        let mut pending = vote.questions.pending();
        if let Some(since) = held_since {
            // The nodes that have not answered could only add a place in their queues. Such an answer comes at about
            // the same time as the others, and is not worth a node's timeout.
            let queues = matches!(vote.queueing, Queueing::Wait { .. });
            let is_worth_it = queues && pending.any(|node| self.health.is_in_time(node));
            return is_worth_it.then(|| later(since, self.node_timeout / 10).min(end));
        }
        let is_answer_due = pending.any(|node| !self.health.is_silent(node));
        // Any node may have the record of a claimed key.
        let claims = request.fingerprint.is_some();
        let waits = match vote.ballot.is_decided() {
            true => claims && is_answer_due,
            false => is_answer_due || matches!(vote.ballot.verdict(), Verdict::Failed(_)),
        };
        waits.then_some(end)
    }

    /// Applies an answer to the attempt's part. Returns whether the attempt still has the name that the node was
    /// asked under.
    fn note_answer(
        &self,
        part: PartOf<'_>,
        request: &Acquire,
        queueing: Queueing,
        answer: &Result<Acquired, Error>,
    ) -> bool {
        match answer {
            Ok(Acquired::Granted(_)) => self.attempts.set(part, PartState::Held),
            Ok(Acquired::Held(_)) if queueing != Queueing::No => {
                self.attempts.set(part, PartState::Queued)
            }
            Ok(_) => self.attempts.set(part, PartState::Nothing),
            Err(_) => self.give_up(part, request),
        }
    }

    /// Whether the attempt has the grant of the leading node. A node that has answered with an error grants this key to no attempt, and so
    /// the next node leads.
    pub(super) fn has_leading_grant(&self, vote: &Vote) -> bool {
        let mut answering = self.health.answering();
        let first = answering.find(|node| !vote.ballot.has_failed(*node));
        first.is_some_and(|first| vote.ballot.granted().any(|node| node == first))
    }

    /// Ends a vote that was not granted. The grants are returned, unless the attempt keeps them and asks again.
    pub(super) fn end_lost_vote(
        self: &Arc<Self>,
        vote: Vote,
        request: &Acquire,
        keeps_grants: bool,
    ) {
        if !keeps_grants {
            for node in vote.ballot.granted() {
                self.give_back(part_of(request, node, &vote.names), request);
            }
        }
        if matches!(vote.queueing, Queueing::Wait { .. }) {
            self.hear_the_rest(vote, request);
            return;
        }
        for node in vote.questions.pending() {
            self.give_up(part_of(request, node, &vote.names), request);
        }
    }

    /// Waits in the background for nodes that are slower than the majority. Until their time is over, they may still
    /// join the lease or queue the attempt.
    pub(super) fn hear_the_rest(self: &Arc<Self>, vote: Vote, request: &Acquire) {
        let until = vote.questions.deadline();
        let mut late = Vec::new();
        for (node, call) in vote.questions.into_pending() {
            let question = Question::new(call);
            let part = part_of(request, node, &vote.names);
            // An attempt that has ended in the meantime needs no further part. Dropping the question withdraws it.
            if self.attempts.set_late(part, question.clone()) {
                late.push((node, Box::pin(question) as StoreFuture<_>));
            }
        }
        if !late.is_empty() {
            let vote = Vote {
                queueing: vote.queueing,
                names: vote.names,
                ballot: vote.ballot,
                questions: Round::until(late, until),
                opened: vote.opened,
                took: vote.took,
            };
            let hearing = self.clone().hear_late(vote, request.clone());
            self.home.spawn(hearing);
        }
    }

    /// Hears the slow nodes of a vote. A grant that the attempt does not need any more is returned.
    async fn hear_late(self: Arc<Self>, mut vote: Vote<Heard>, request: Acquire) {
        let is_granted = vote.ballot.is_granted();
        while let Some((node, answer)) = vote.questions.next().await {
            let (answer, is_released) = match answer {
                Heard::Withdrawn => continue,
                Heard::Answer {
                    answer,
                    is_released,
                } => (answer, is_released),
            };
            self.health.heard(node, is_answered(&answer));
            self.health.took(node, vote.opened.elapsed());
            let part = part_of(&request, node, &vote.names);
            let is_wanted = self.note_answer(part, &request, vote.queueing, &answer);
            let is_surplus = matches!(answer, Ok(Acquired::Granted(_))) && !is_granted;
            if answer.is_ok() && !is_released && (!is_wanted || is_surplus) {
                // The attempt has continued without the answer, or was answered that the key is held.
                self.give_back(part, &request);
            }
            vote.ballot.add(node, answer, self.is_young(node));
        }
        self.health.mark_silent(&vote.questions);
        for node in vote.questions.pending() {
            self.give_up(part_of(&request, node, &vote.names), &request);
        }
        drop(vote.questions); // withdraws those that no release keeps
        if is_granted {
            // Makes the counters agree, so that the next turn does not have to wait for that.
            let _ = self.agree(&request.key, &vote.ballot.tokens()).await;
        }
    }

    /// Ends the attempt on one node, and takes a new name there. A node works in order, so the release takes effect
    /// after the acquire.
    pub(super) fn give_back(&self, part: PartOf<'_>, request: &Acquire) {
        self.attempts.rename(part);
        // The node finishes the release by itself.
        self.nodes[part.node].end(release_of(request, part.name));
    }

    /// Takes a new name on a node, after a call failed or was given up. The node cleans up after the call; a part that
    /// the node had before the call is returned. Returns whether the attempt still had the old name.
    pub(super) fn give_up(&self, part: PartOf<'_>, request: &Acquire) -> bool {
        let given_up = self.attempts.rename(part);
        if given_up.as_ref().is_some_and(Part::needs_release) {
            self.nodes[part.node].end(release_of(request, part.name));
        }
        given_up.is_some()
    }
}

/// The release of the part that a node has under this name.
pub(super) fn release_of(request: &Acquire, name: Owner) -> Release {
    // How long a lease, or a place in a queue, lasts without a release.
    let owed_for = match request.queueing {
        Queueing::Wait { deadline, .. } => request.lease.max(deadline),
        _ => request.lease,
    };
    Release {
        key: request.key.clone(),
        owner: name,
        ending: Ending::Free,
        in_doubt: false,
        owed_for,
        mode: request.mode,
    }
}
