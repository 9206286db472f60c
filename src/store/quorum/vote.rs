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
    attempts::{Asking, Part, PartOf},
    ballot::{Ballot, Verdict},
    failures::is_answered,
    node::end_of,
    round::Round,
};
use crate::{
    store::{Acquire, Acquired, End, Outcome, Owner, Queueing, StoreFuture},
    time::later,
};

/// One vote, with the names that the nodes were asked under and the answers so far.
pub(super) struct Vote {
    pub(super) queueing: Queueing,
    names: Vec<Owner>,
    pub(super) ballot: Ballot,
    questions: Round<Outcome<Acquired>>,
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
        let Asking { names, given_up } = asking;
        for (node, name) in given_up {
            self.nodes[node].end(end_of(request, name, true));
        }
        let carried = self.carried(request).into_iter().enumerate();
        let questions = carried.map(|(node, ends)| {
            let request = Acquire {
                owner: names[node],
                queueing,
                ends,
                ..request.clone()
            };
            (node, self.ask(node, request))
        });
        Vote {
            queueing,
            questions: Round::new(questions, self.node_timeout),
            ballot: Ballot::new(names.len()),
            names,
            opened: Instant::now(),
            took: Duration::ZERO,
        }
    }

    /// Asks one node.
    pub(super) fn ask(&self, node: usize, request: Acquire) -> StoreFuture<Outcome<Acquired>> {
        self.nodes[node].acquire(request, self.health.is_silent(node))
    }

    /// What each node ends before it looks at the attempt: the parts of the owners that the caller ends. Of attempts
    /// that are not known any more, the nodes themselves know what is left.
    fn carried(&self, request: &Acquire) -> Vec<Vec<End>> {
        let mut carried = vec![Vec::new(); self.nodes.len()];
        for end in &request.ends {
            let parts = self.attempts.parts(&request.key, end.owner);
            for (node, part) in parts.into_iter().flatten().enumerate() {
                if part.may_be_there() {
                    carried[node].push(End {
                        owner: part.name,
                        ..*end
                    });
                }
            }
        }
        carried
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
            self.note(vote, request, node, answer);
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

    /// Notes the answer of a node. Returns whether the attempt still has the name that the node was asked under.
    fn note(
        &self,
        vote: &mut Vote,
        request: &Acquire,
        node: usize,
        outcome: Outcome<Acquired>,
    ) -> bool {
        let part = part_of(request, node, &vote.names);
        let is_wanted = self.attempts.answered(part, vote.queueing, &outcome);
        let answer = outcome.into_result();
        vote.took = vote.opened.elapsed();
        self.health.heard(node, is_answered(&answer));
        self.health.took(node, vote.took);
        vote.ballot.add(node, answer, self.is_young(node));
        is_wanted
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
            self.attempts.rename(part_of(request, node, &vote.names));
        }
    }

    /// Waits in the background for nodes that are slower than the majority. Until their time is over, they may still
    /// join the lease or queue the attempt.
    pub(super) fn hear_the_rest(self: &Arc<Self>, vote: Vote, request: &Acquire) {
        if vote.questions.pending().next().is_some() {
            let hearing = self.clone().hear_late(vote, request.clone());
            self.home.spawn(hearing);
        }
    }

    /// Hears the slow nodes of a vote. A grant that the attempt does not need any more is returned.
    async fn hear_late(self: Arc<Self>, mut vote: Vote, request: Acquire) {
        let is_granted = vote.ballot.is_granted();
        while let Some((node, outcome)) = vote.questions.next().await {
            let is_grant = matches!(outcome, Outcome::Answered(Acquired::Granted(_)));
            let is_wanted = self.note(&mut vote, &request, node, outcome);
            if is_grant && is_wanted && !is_granted {
                // The caller was answered that the key is held.
                self.give_back(part_of(&request, node, &vote.names), &request);
            }
        }
        self.health.mark_silent(&vote.questions);
        for node in vote.questions.pending() {
            self.attempts.rename(part_of(&request, node, &vote.names));
        }
        drop(vote.questions);
        if is_granted {
            // Makes the counters agree, so that the next turn does not have to wait for that.
            let _ = self.agree(&request.key, &vote.ballot.tokens()).await;
        }
    }

    /// Ends the attempt on one node, and takes a new name there.
    pub(super) fn give_back(&self, part: PartOf<'_>, request: &Acquire) {
        self.attempts.rename(part);
        self.nodes[part.node].end(end_of(request, part.name, false));
    }

    /// Ends the parts of an attempt, each given with its node.
    pub(super) fn leave<'a>(
        &self,
        request: &Acquire,
        parts: impl Iterator<Item = (usize, &'a Part)>,
    ) {
        for (node, part) in parts.filter(|(_, part)| part.may_be_there()) {
            self.nodes[node].end(end_of(request, part.name, part.is_in_doubt()));
        }
    }
}
