//! Extending leases on a majority of nodes.
//!
//! 1. A lease is renewed when a majority holds the lease, and lost when a majority answers *not
//!    ours*; otherwise the result is unknown. The answer is given as soon as one of these is
//!    certain. The remaining nodes are waited for in the background.
//! 2. A node that lacks the lease is healed (`heal`): at once if the renewal needs the node for a
//!    majority, otherwise after all nodes have answered.
//!
//! A lease that nodes 1 and 2 of three have granted, and that node 2 has lost by a restart:
//!
//! ```text
//! renew at 1: ours      renew at 2: not ours      node 3: a gap, because the node never had the lease
//! ours 1, not ours 1, gaps [2, 3]                 no majority yet
//! heal 3: granted                                 ours 2: renewed
//! ```

use std::sync::Arc;

use futures_util::{StreamExt, future::join_all, stream};
use tokio::{sync::mpsc, time::Instant};

use super::{
    Shared,
    attempts::{Attempt, Part},
    ballot::majority,
    failures::{Failures, is_answer},
    round::Round,
};
use crate::store::{Owner, Renew, RenewAnswers, Renewed, StoreFuture, Tokens};

/// The renewal of one lease, with the answers of the nodes so far.
struct Renewal {
    store: Arc<Shared>,
    request: Renew,
    attempt: Arc<Attempt>,
    sent: Instant,
    /// The answers that are to come, each with the attempt's name at that node.
    asked: Round<(Owner, Option<(usize, Renewed)>)>,
    /// How many nodes hold the lease.
    ours: usize,
    not_ours: usize,
    others_wait: bool,
    /// The tokens of the nodes that granted a refill.
    tokens: Vec<(usize, Tokens)>,
    failures: Failures,
}

impl Shared {
    /// Sends all renewals now. The leases are judged in the background, where slow nodes are heard
    /// after the answers.
    pub(super) fn start_renewal(self: &Arc<Self>, requests: Vec<Renew>) -> RenewAnswers {
        let (answers, mut receiver) = mpsc::unbounded_channel();
        let asked = requests.len();
        let mut renewals = Vec::new();
        for (lease, request) in requests.into_iter().enumerate() {
            let answers = answers.clone();
            let answer = move |answer| drop(answers.send((lease, answer)));
            match self.attempts.find(&request.key, request.owner) {
                Some(attempt) => renewals.push(Renewal::send(self, request, attempt).run(answer)),
                None => answer(Renewed::NotOurs),
            }
        }
        let store = self.clone();
        self.home.spawn(async move {
            let renewed = join_all(renewals).await.into_iter().flatten();
            store.heal_all(&renewed.collect::<Vec<_>>()).await;
        });
        Box::pin(stream::poll_fn(move |cx| receiver.poll_recv(cx)).take(asked))
    }
}

impl Renewal {
    /// Asks the nodes that have a part in the lease.
    fn send(store: &Arc<Shared>, request: Renew, attempt: Arc<Attempt>) -> Self {
        store.note_lease(request.lease);
        let mut held = attempt.parts();
        held.retain(|(_, part)| part.is_held());
        let asked = held.into_iter().map(|(node, Part { name, .. })| {
            let mut renewed = store.nodes[node].renew(vec![Renew {
                owner: name,
                ..request.clone()
            }]);
            let answer = async move { (name, renewed.next().await) };
            (node, Box::pin(answer) as StoreFuture<_>)
        });
        Self {
            asked: Round::new(asked, store.node_timeout),
            store: store.clone(),
            request,
            attempt,
            sent: Instant::now(),
            ours: 0,
            not_ours: 0,
            others_wait: false,
            tokens: Vec::new(),
            failures: Failures::default(),
        }
    }

    /// Answers as soon as the nodes that have not answered cannot change the result, and hears
    /// these nodes then. Returns a lease that was renewed, for its gaps.
    async fn run(mut self, answer: impl FnOnce(Renewed)) -> Option<(Renew, Arc<Attempt>)> {
        while !self.is_known() && self.hear_next().await {}
        let judged = self.judge().await;
        let is_renewed = matches!(judged, Renewed::Renewed { .. });
        answer(judged);
        while self.hear_next().await {}
        is_renewed.then_some((self.request, self.attempt))
    }

    /// Whether the nodes that have not answered cannot change the result, or are not worth waiting
    /// for.
    fn is_known(&self) -> bool {
        let (majority, health) = (majority(self.store.nodes.len()), &self.store.health);
        let is_answer_due = self.asked.pending().any(|node| !health.is_silent(node));
        self.ours >= majority
            || self.not_ours >= majority
            || !is_answer_due && self.ours + self.attempt.gaps().len() >= majority
    }

    /// Takes the next answer. Returns whether there was one in time.
    async fn hear_next(&mut self) -> bool {
        let Some((node, (name, answer))) = self.asked.next().await else {
            self.store.health.mark_silent(&self.asked);
            return false;
        };
        let Some((_, answer)) = answer else {
            return true;
        };
        let is_unreachable = matches!(&answer, Renewed::Unknown(error) if !is_answer(error));
        self.store.health.heard(node, !is_unreachable);
        match answer {
            Renewed::Renewed {
                tokens,
                others_wait,
            } => {
                self.ours += 1;
                self.others_wait |= others_wait;
                self.tokens.extend(tokens.map(|tokens| (node, tokens)));
            }
            Renewed::NotOurs => {
                // The part is healed under a new name. The answer of another renewal, which the
                // node gave before that and which is heard later, is about the old
                // one.
                self.attempt
                    .give_up(|at, part| at == node && part.name == name);
                self.not_ours += 1;
            }
            Renewed::Unknown(error) => self.failures.add(error),
        }
        true
    }

    /// The answer for the lease: heals the nodes that a majority needs, and makes the token
    /// counters agree.
    async fn judge(&mut self) -> Renewed {
        let nodes = self.store.nodes.len();
        let majority = majority(nodes);
        if self.not_ours >= majority {
            return Renewed::NotOurs;
        }
        if self.ours < majority && self.ours + self.attempt.gaps().len() >= majority {
            self.heal_now().await;
        }
        if self.ours < majority {
            let reason = format!("{} of {nodes} nodes have renewed the lease", self.ours);
            return Renewed::Unknown(self.failures.no_majority(nodes, reason));
        }
        if let Some(until) = self.store.valid_until(self.sent, self.request.lease) {
            self.attempt.confirm(until);
        }
        Renewed::Renewed {
            tokens: self.store.refill(&self.request, &self.tokens).await,
            others_wait: self.others_wait,
        }
    }

    /// Heals all gaps of a lease that needs them for a majority.
    async fn heal_now(&mut self) {
        for (node, healed) in self.store.heal(&self.request, &self.attempt).await {
            match healed {
                Ok(Some(tokens)) => {
                    self.ours += 1;
                    self.tokens.push((node, tokens));
                }
                Ok(None) => {}
                Err(error) => self.failures.add(error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::tests::*, *};
    use crate::store::{Ending, FaultyStore, Mode, Queueing, Store};

    /// Two renewals find node 2 empty. The first one heals the node before the answer to the second
    /// one is heard.
    #[tokio::test(start_paused = true)]
    async fn a_late_answer_does_not_hide_a_part_that_was_healed_in_between() {
        let (nodes, store) = quorum();
        let a = owner(1);
        store.ask_for(request(a, Queueing::No)).await.unwrap();
        nodes[2].restart();
        let renewal = Renew {
            key: request(a, Queueing::No).key,
            owner: a,
            lease: MINUTE,
            refill: 0,
            mode: Mode::Exclusive,
        };
        let attempt = store.0.attempts.find(&renewal.key, a).unwrap();
        let mut late = Renewal::send(&store.0, renewal.clone(), attempt);
        store.renew(vec![renewal]).collect::<Vec<_>>().await;
        tokio::time::sleep(std::time::Duration::from_millis(1)).await; // node 2 is healed
        assert!(!nodes[2].is_empty());
        while late.hear_next().await {}
        let releasing = store.end(release(a, Ending::Free));
        releasing.await.unwrap();
        assert!(nodes.iter().all(FaultyStore::is_empty));
    }
}
