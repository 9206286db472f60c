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
    attempts::Attempt,
    ballot::majority,
    failures::{Failures, is_answer},
    heal::Gap,
};
use crate::{
    store::{Owner, Renew, RenewAnswers, Renewed, Tokens},
    time::{later, timeout_at},
};

/// The renewal of one lease, with the answers of the nodes so far.
struct Renewal {
    store: Arc<Shared>,
    request: Renew,
    attempt: Arc<Attempt>,
    sent: Instant,
    /// Each answer, with its node. Ends when no node will answer any more.
    answers: mpsc::UnboundedReceiver<(usize, Renewed)>,
    /// The nodes that have not answered, each with the attempt's name there.
    pending: Vec<(usize, Owner)>,
    /// How many nodes hold the lease.
    ours: usize,
    not_ours: usize,
    others_wait: bool,
    /// The tokens of the nodes that granted a refill.
    tokens: Vec<(usize, Tokens)>,
    /// Nodes that lack the lease.
    gaps: Vec<usize>,
    failures: Failures,
}

/// The renewals that a node is asked for in one call, and where each answer goes.
#[derive(Default)]
struct Batch {
    requests: Vec<Renew>,
    answers: Vec<mpsc::UnboundedSender<(usize, Renewed)>>,
}

impl Shared {
    /// Sends all renewals now. The leases are judged in the background, where slow nodes are heard
    /// after the answers.
    pub(super) fn start_renewal(self: &Arc<Self>, requests: Vec<Renew>) -> RenewAnswers {
        let (answers, mut receiver) = mpsc::unbounded_channel();
        let asked = requests.len();
        let (renewals, hearing) = self.send_renewals(requests);
        self.home.spawn(hearing);
        let store = self.clone();
        self.home.spawn(async move {
            let renewing = renewals.into_iter().enumerate();
            let renewing = renewing.map(|(lease, renewal)| {
                let answers = answers.clone();
                renewal.run(move |answer| drop(answers.send((lease, answer))))
            });
            let gaps: Vec<Gap> = join_all(renewing).await.into_iter().flatten().collect();
            store.heal_all(&gaps).await;
        });
        Box::pin(stream::poll_fn(move |cx| receiver.poll_recv(cx)).take(asked))
    }

    /// Sends one batch to each node, with the leases that the node has a part in. Returns the
    /// renewals, with the task that hears the nodes.
    fn send_renewals(
        self: &Arc<Self>,
        requests: Vec<Renew>,
    ) -> (Vec<Renewal>, impl Future<Output = ()> + Send + use<>) {
        let mut batches: Vec<Batch> = self.nodes.iter().map(|_| Batch::default()).collect();
        let renewal = |request| Renewal::new(self, request, &mut batches);
        let renewals = requests.into_iter().map(renewal).collect();
        let batches = batches.into_iter().enumerate();
        let asked = batches.filter(|(_, batch)| !batch.requests.is_empty());
        let hearing = asked.map(|(node, batch)| {
            let answers = self.nodes[node].renew(batch.requests);
            self.clone().hear(node, answers, batch.answers)
        });
        let hearing = join_all(hearing);
        (renewals, async move { drop(hearing.await) })
    }

    /// Hands the answers of a node to their renewals, until the node's time is over.
    async fn hear(
        self: Arc<Self>,
        node: usize,
        mut answers: RenewAnswers,
        to: Vec<mpsc::UnboundedSender<(usize, Renewed)>>,
    ) {
        let until = later(Instant::now(), self.node_timeout);
        loop {
            let (lease, answer) = match timeout_at(until, answers.next()).await {
                Some(Some(answer)) => answer,
                Some(None) => return,
                None => return self.health.heard(node, false),
            };
            let is_unreachable = matches!(&answer, Renewed::Unknown(error) if !is_answer(error));
            self.health.heard(node, !is_unreachable);
            let _ = to[lease].send((node, answer));
        }
    }
}

impl Renewal {
    /// Adds the renewal to the batches of the nodes that have a part in the lease.
    fn new(store: &Arc<Shared>, request: Renew, batches: &mut [Batch]) -> Self {
        store.note_lease(request.lease);
        let Renew { key, owner, .. } = &request;
        let attempt = store.attempts.find(key, *owner);
        let attempt = attempt.unwrap_or_else(|| store.attempts.unknown(key, *owner, request.mode));
        let (sender, answers) = mpsc::unbounded_channel();
        let (mut pending, mut gaps) = (Vec::new(), Vec::new());
        for (node, part) in attempt.parts().into_iter().enumerate() {
            if part.is_held() {
                pending.push((node, part.name));
                batches[node].answers.push(sender.clone());
                batches[node].requests.push(Renew {
                    owner: part.name,
                    ..request.clone()
                });
            } else if part.is_missing() {
                gaps.push(node);
            }
        }
        Self {
            store: store.clone(),
            request,
            attempt,
            sent: Instant::now(),
            answers,
            pending,
            ours: 0,
            not_ours: 0,
            others_wait: false,
            tokens: Vec::new(),
            gaps,
            failures: Failures::default(),
        }
    }

    /// Answers as soon as the nodes that have not answered cannot change the result, and hears
    /// these nodes then. Returns the gaps of a lease that has a majority without them.
    async fn run(mut self, answer: impl FnOnce(Renewed)) -> Vec<Gap> {
        while !self.is_known() {
            self.hear_next().await;
        }
        answer(self.judge().await);
        while !self.pending.is_empty() {
            self.hear_next().await;
        }
        let is_lost = self.not_ours >= self.majority();
        if is_lost {
            Vec::new()
        } else {
            self.take_gaps()
        }
    }

    fn majority(&self) -> usize {
        majority(self.store.nodes.len())
    }

    /// Whether the nodes that have not answered cannot change the result, or are not worth waiting
    /// for.
    fn is_known(&self) -> bool {
        let (majority, health) = (self.majority(), &self.store.health);
        let mut pending = self.pending.iter();
        let is_answer_due = pending.any(|(node, _)| !health.is_silent(*node));
        self.ours >= majority
            || self.not_ours >= majority
            || self.pending.is_empty()
            || !is_answer_due && self.ours + self.gaps.len() >= majority
    }

    async fn hear_next(&mut self) {
        let Some((node, answer)) = self.answers.recv().await else {
            self.pending.clear();
            return;
        };
        let pending = self
            .pending
            .iter()
            .position(|(pending, _)| *pending == node);
        let Some((_, name)) = pending.map(|at| self.pending.swap_remove(at)) else {
            return;
        };
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
                self.attempt.give_up(node, name);
                self.not_ours += 1;
                self.gaps.push(node);
            }
            Renewed::Unknown(error) => self.failures.add(error),
        }
    }

    /// The answer for the lease: heals the nodes that a majority needs, and makes the token
    /// counters agree.
    async fn judge(&mut self) -> Renewed {
        let (nodes, majority) = (self.store.nodes.len(), self.majority());
        if self.not_ours >= majority {
            return Renewed::NotOurs;
        }
        if self.ours < majority && self.ours + self.gaps.len() >= majority {
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
        let gaps = self.take_gaps();
        let healing = gaps.iter().map(|gap| self.store.heal(gap));
        for (gap, healed) in gaps.iter().zip(join_all(healing).await) {
            match healed {
                Ok(Some(tokens)) => {
                    self.ours += 1;
                    self.tokens.push((gap.node, tokens));
                }
                Ok(None) => {}
                Err(error) => self.failures.add(error),
            }
        }
    }

    fn take_gaps(&mut self) -> Vec<Gap> {
        let gaps = std::mem::take(&mut self.gaps).into_iter();
        let gap = |node| Gap {
            request: self.request.clone(),
            attempt: self.attempt.clone(),
            node,
        };
        gaps.map(gap).collect()
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
        let (mut late, hearing) = store.0.send_renewals(vec![renewal.clone()]);
        store.renew(vec![renewal]).collect::<Vec<_>>().await;
        tokio::time::sleep(std::time::Duration::from_millis(1)).await; // node 2 is healed
        assert!(!nodes[2].is_empty());
        hearing.await;
        let mut late = late.remove(0);
        while !late.pending.is_empty() {
            late.hear_next().await;
        }
        let releasing = store.end(release(a, Ending::Free));
        releasing.await.unwrap();
        assert!(nodes.iter().all(FaultyStore::is_empty));
    }
}
