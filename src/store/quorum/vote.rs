//! One vote: asking all nodes, counting their answers, and undoing a lost vote.
//!
//! ```text
//! open_vote ──▶ count ──▶ granted: hear_the_rest, the slow nodes may still join the lease
//!                   └───▶ not granted: lost, the grants are given back (unless the attempt leads and asks again)
//! ```
//!
//! A vote does not wait for the slowest node: the vote ends as soon as the answers that are missing cannot change the verdict.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    Shared,
    attempts::{PartOf, PartState},
    ballot::{Ballot, Verdict},
    question::{Heard, Question},
    round::{Round, detach},
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
    pub(super) fn open_vote(
        &self,
        request: &Acquire,
        queueing: Queueing,
        names: Vec<Owner>,
    ) -> Vote {
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
            self.health.heard(node, answer.is_ok());
            self.note_answer(part_of(request, node, &vote.names), vote.queueing, &answer);
            vote.ballot.add(node, answer, self.is_mature(node));
        }
        self.health.count_silent(&vote.questions);
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
        let is_answer_due = vote
            .questions
            .pending()
            .any(|node| self.health.is_well(node));
        if let Some(since) = held_since {
            // The remaining places in queues come at about the same time, if they come. They are not worth the
            // timeout of a node.
            let queues = matches!(vote.queueing, Queueing::Wait { .. });
            return (queues && is_answer_due)
                .then(|| later(since, self.node_timeout / 10).min(end));
        }
        // Any node may have the record of a claimed key.
        let claims = request.fingerprint.is_some();
        let waits = match vote.ballot.is_decided() && !claims {
            true => false,
            false => is_answer_due || matches!(vote.ballot.verdict(), Verdict::Failed(_)),
        };
        waits.then_some(end)
    }

    /// Applies an answer to the attempt's part. Returns whether the attempt still has the name that the node was
    /// asked under.
    fn note_answer(
        &self,
        part: PartOf<'_>,
        queueing: Queueing,
        answer: &Result<Acquired, Error>,
    ) -> bool {
        match answer {
            Ok(Acquired::Granted(_)) => self.attempts.set(part, PartState::Held),
            Ok(Acquired::Held(_)) if queueing != Queueing::No => {
                self.attempts.set(part, PartState::Queued)
            }
            Ok(_) => self.attempts.set(part, PartState::Nothing),
            Err(_) => self.attempts.rename(part),
        }
    }

    /// Whether the attempt has the grant of the leading node.
    pub(super) fn leads(&self, vote: &Vote) -> bool {
        let first = self.health.leading();
        first.is_some_and(|first| vote.ballot.granted().any(|node| node == first))
    }

    /// Ends a lost vote. The grants are returned, unless the attempt leads and asks again at once.
    pub(super) fn lost(self: &Arc<Self>, vote: Vote, request: &Acquire, leads: bool) {
        if !leads {
            for node in vote.ballot.granted() {
                self.give_back(part_of(request, node, &vote.names), request);
            }
        }
        if matches!(vote.queueing, Queueing::Wait { .. }) {
            self.hear_the_rest(vote, request);
            return;
        }
        for node in vote.questions.pending() {
            self.attempts.rename(part_of(request, node, &vote.names));
        }
    }

    /// Waits in the background for nodes that are slower than the majority. Until their time is over, they may still
    /// join the lease or queue the attempt.
    pub(super) fn hear_the_rest(self: &Arc<Self>, vote: Vote, request: &Acquire) {
        let until = vote.questions.deadline();
        let mut late = Vec::new();
        for (node, call) in vote.questions.into_pending() {
            let question = Question::new(call);
            let state = PartState::Late(question.clone());
            // An attempt that has ended in the meantime needs no further part. Dropping the question withdraws it.
            if self
                .attempts
                .set(part_of(request, node, &vote.names), state)
            {
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
            detach(self.clone().hear_late(vote, request.clone()));
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
            self.health.heard(node, answer.is_ok());
            let part = part_of(&request, node, &vote.names);
            let is_wanted = self.note_answer(part, vote.queueing, &answer);
            let is_surplus = matches!(answer, Ok(Acquired::Granted(_))) && !is_granted;
            if answer.is_ok() && !is_released && (!is_wanted || is_surplus) {
                // The attempt has continued without the answer, or was answered that the key is held.
                self.give_back(part, &request);
            }
            vote.ballot.add(node, answer, false);
        }
        self.health.count_silent(&vote.questions);
        for node in vote.questions.pending() {
            self.attempts.rename(part_of(&request, node, &vote.names));
        }
        drop(vote.questions); // withdraws them
        if is_granted {
            // Makes the counters agree, so that the next turn does not have to wait for that.
            let _ = self.agree(&request.key, &vote.ballot.counters()).await;
        }
    }

    /// Ends the attempt on one node, and takes a new name there. A node works in order, so the release takes effect
    /// after the acquire.
    pub(super) fn give_back(&self, part: PartOf<'_>, request: &Acquire) {
        self.attempts.rename(part);
        // The node finishes the release by itself.
        drop(self.nodes[part.node].start_release(Release {
            key: request.key.clone(),
            owner: part.name,
            ending: Ending::Free,
            owed_for: owed_for(request),
            mode: request.mode,
        }));
    }
}

/// How long a lease, or a place in a queue, lasts without a release.
pub(super) fn owed_for(request: &Acquire) -> Duration {
    match request.queueing {
        Queueing::Wait { deadline, .. } => request.lease.max(deadline),
        _ => request.lease,
    }
}
