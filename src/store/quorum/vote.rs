//! One vote: asking all nodes, and counting their answers.
//!
//! ```text
//! open_vote ──▶ count ──▶ granted: hear_the_rest, the slow nodes may still join the lease
//!                   └───▶ not granted: the grants are given back (unless the attempt keeps them and asks again)
//! ```
//!
//! A vote does not wait for the slowest node: the vote ends as soon as the answers that are missing
//! cannot change the verdict. There are two exceptions. A claim waits for all nodes that are not
//! silent, because any of them may have the record. An attempt that is refused and queues waits a
//! tenth of the node timeout for its places in the queues of the other nodes that usually answer in
//! time.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    Shared,
    attempts::{Attempt, Part},
    ballot::{Ballot, Verdict},
    round::Round,
};
use crate::{
    store::{Acquire, Acquired, End, Outcome, Queueing},
    time::later,
};

/// One vote, with the answers so far. Dropping it gives up the questions that were not answered.
pub(super) struct Vote {
    pub(super) queueing: Queueing,
    pub(super) ballot: Ballot,
    questions: Round<Outcome<Acquired>>,
    opened: Instant,
    /// How long the vote took until its last answer.
    pub(super) took: Duration,
}

impl Shared {
    /// Asks all nodes, unless the attempt was ended in the meantime.
    pub(super) fn open_vote(
        &self,
        attempt: &Arc<Attempt>,
        request: &Acquire,
        queueing: Queueing,
    ) -> Vote {
        let mut carried = self.carried(request);
        let nodes = self.nodes.iter().enumerate();
        let questions = nodes.filter_map(|(at, node)| {
            let request = Acquire {
                owner: attempt.ask(at)?,
                queueing,
                ends: std::mem::take(&mut carried[at]),
                ..request.clone()
            };
            Some((at, node.acquire(attempt, request)))
        });
        Vote {
            queueing,
            questions: Round::new(questions, self.node_timeout),
            ballot: Ballot::new(self.nodes.len()),
            opened: Instant::now(),
            took: Duration::ZERO,
        }
    }

    /// What each node ends before it looks at the attempt: the parts of the owners that the caller
    /// ends. Of attempts that are not known any more, the nodes themselves know what is left.
    fn carried(&self, request: &Acquire) -> Vec<Vec<End>> {
        let mut carried = vec![Vec::new(); self.nodes.len()];
        for end in &request.ends {
            let attempt = self.attempts.find(&request.key, end.owner);
            let parts = attempt.map(|attempt| attempt.parts());
            for (node, part) in parts.into_iter().flatten() {
                carried[node].push(End {
                    owner: part.name,
                    ..*end
                });
            }
        }
        carried
    }

    /// Counts answers until the vote is decided, or until no node that usually answers is left to
    /// wait for.
    pub(super) async fn count(&self, vote: &mut Vote, request: &Acquire) {
        let mut held_since = None;
        loop {
            if vote.ballot.is_held() {
                held_since.get_or_insert_with(Instant::now);
            }
            let until = self.worth_waiting(vote, request, held_since);
            let until = until.unwrap_or_else(Instant::now);
            let Some((node, answer)) = vote.questions.next_before(until).await else {
                break;
            };
            self.note(vote, node, answer);
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
            // The nodes that have not answered could only add a place in their queues. Such an
            // answer comes at about the same time as the others, and is not worth a
            // node's timeout.
            let queues = matches!(vote.queueing, Queueing::Wait { .. });
            let is_worth_it = queues && pending.any(|node| self.health.is_in_time(node));
            return is_worth_it.then(|| later(since, self.node_timeout / 10).min(end));
        }
        let is_answer_due = pending.any(|node| !self.health.is_silent(node));
        // Any node may have the record of a claimed key.
        let claims = request.fingerprint.is_some();
        let waits = if vote.ballot.is_decided() {
            claims && is_answer_due
        } else {
            is_answer_due || matches!(vote.ballot.verdict(), Verdict::Failed(_))
        };
        waits.then_some(end)
    }

    fn note(&self, vote: &mut Vote, node: usize, outcome: Outcome<Acquired>) {
        vote.took = vote.opened.elapsed();
        self.health.took(node, vote.took);
        let is_young = self.is_young(node);
        vote.ballot.add(node, outcome.into_result(), is_young);
    }

    /// Whether the attempt has the grant of the leading node. A node that has answered with an
    /// error grants this key to no attempt, and so the next node leads.
    pub(super) fn has_leading_grant(&self, vote: &Vote) -> bool {
        let mut leaders = self.health.leaders();
        let first = leaders.find(|node| !vote.ballot.has_failed(*node));
        first.is_some_and(|first| vote.ballot.granted().any(|node| node == first))
    }

    /// Waits in the background for nodes that are slower than the majority. Until their time is
    /// over, they may still join the lease, or queue the attempt.
    pub(super) fn hear_the_rest(self: &Arc<Self>, mut vote: Vote, attempt: &Arc<Attempt>) {
        if vote.questions.pending().next().is_none() {
            return;
        }
        let (store, key) = (self.clone(), attempt.request.key.clone());
        self.home.spawn(async move {
            let is_granted = vote.ballot.is_granted();
            while let Some((node, outcome)) = vote.questions.next().await {
                store.note(&mut vote, node, outcome);
            }
            store.health.mark_silent(&vote.questions);
            drop(vote.questions);
            if is_granted {
                // Makes the counters agree, so that the next turn does not have to wait for that.
                let _ = store.agree(&key, &vote.ballot.tokens()).await;
            }
        });
    }

    /// Gives up parts of an attempt, and ends them at their nodes.
    pub(super) fn give_back(
        &self,
        attempt: &Attempt,
        which: impl Fn(usize, &Part) -> bool,
    ) -> Vec<(usize, Part)> {
        let parts = attempt.give_up(which);
        for (node, part) in &parts {
            self.nodes[*node].end(attempt.end_of(part.name, part.is_asked));
        }
        parts
    }
}
