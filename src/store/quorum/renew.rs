//! Extending leases on a majority of nodes.
//!
//! 1. A lease is renewed when a majority holds the lease, and lost when a majority answers *not ours*; otherwise the
//!    result is unknown. The answer is given as soon as one of these is certain. The remaining nodes are waited for
//!    in the background.
//! 2. A node that lacks the lease is healed (`heal`): at once if the renewal needs the node for a majority, otherwise
//!    after all nodes have answered.
//!
//! A lease that nodes 1 and 2 of three have granted, and that node 2 has lost by a restart:
//!
//! ```text
//! renew at 1: ours      renew at 2: not ours      node 3: a gap, because the node never had the lease
//! ours 1, not ours 1, gaps [2, 3]                 no majority yet
//! heal 3: granted                                 ours 2: renewed
//! ```

use std::sync::Arc;

use futures_util::{
    Stream, StreamExt,
    stream::{self, FuturesUnordered},
};
use tokio::{
    sync::mpsc,
    time::{Instant, timeout_at},
};

use super::{
    Shared,
    attempts::{Part, PartOf},
    ballot::majority,
    failures::{Failures, is_answer},
};
use crate::{
    store::{Owner, Renew, RenewAnswers, Renewed, StoreFuture, Tokens},
    time::later,
};

type NodeAnswers = std::pin::Pin<Box<dyn Stream<Item = FromNode> + Send>>;

/// A node's message about a batch of renewals.
enum FromNode {
    Answer {
        node: usize,
        /// The index of the lease.
        lease: usize,
        name: Owner,
        answer: Renewed,
    },
    /// The node has no further answers.
    End { node: usize },
}

/// One batch of renewals.
struct Renewal {
    store: Arc<Shared>,
    requests: Arc<[Renew]>,
    counts: Vec<RenewalCount>,
    /// Nodes that have not given all of their answers.
    pending: Vec<usize>,
    sent: Instant,
    /// Leases whose result is certain, but which need another call for their answer.
    judging: FuturesUnordered<StoreFuture<(usize, Renewed)>>,
    answers: mpsc::UnboundedSender<(usize, Renewed)>,
}

/// The nodes' answers for one lease.
#[derive(Default)]
pub(super) struct RenewalCount {
    /// How many nodes hold the lease.
    pub(super) ours: usize,
    pub(super) not_ours: usize,
    others_wait: bool,
    /// The tokens of the nodes that granted a refill.
    pub(super) tokens: Vec<(usize, Tokens)>,
    /// Nodes that lack the lease.
    pub(super) gaps: Vec<usize>,
    /// Nodes that have not answered.
    pending: Vec<usize>,
    pub(super) failures: Failures,
    is_judged: bool,
}

impl Shared {
    /// Sends all renewals now.
    pub(super) fn start_renewal(self: &Arc<Self>, requests: Vec<Renew>) -> RenewAnswers {
        for request in &requests {
            self.note_lease(request.lease);
        }
        let asked = requests.len();
        let (answers, mut receiver) = mpsc::unbounded_channel();
        let (renewal, from_nodes) = Renewal::start(self.clone(), requests, answers);
        self.home.spawn(renewal.run(from_nodes));
        // The background task goes on to hear the remaining nodes after the last answer.
        Box::pin(stream::poll_fn(move |cx| receiver.poll_recv(cx)).take(asked))
    }
}

impl Renewal {
    /// Sends all renewals now. Returns the messages of the nodes with the renewal that hears them.
    fn start(
        store: Arc<Shared>,
        requests: Vec<Renew>,
        answers: mpsc::UnboundedSender<(usize, Renewed)>,
    ) -> (Self, stream::SelectAll<NodeAnswers>) {
        let mut renewal = Self {
            store,
            counts: requests.iter().map(|_| RenewalCount::default()).collect(),
            requests: requests.into(),
            pending: Vec::new(),
            sent: Instant::now(),
            judging: FuturesUnordered::new(),
            answers,
        };
        let from_nodes = renewal.ask();
        (renewal, from_nodes)
    }

    /// Sends one batch to each node, with the leases that the node has a part in.
    fn ask(&mut self) -> stream::SelectAll<NodeAnswers> {
        let attempts = &self.store.attempts;
        let parts = self.requests.iter().map(|Renew { key, owner, .. }| {
            let parts = attempts.parts(key, *owner);
            parts.unwrap_or_else(|| attempts.unknown_parts(*owner))
        });
        let parts: Vec<Vec<Part>> = parts.collect();
        let mut from_nodes = stream::SelectAll::new();
        for (node, store) in self.store.nodes.iter().enumerate() {
            let mut batch = Vec::new();
            for (lease, parts) in parts.iter().enumerate() {
                if parts[node].is_held() {
                    batch.push((lease, parts[node].name));
                    self.counts[lease].pending.push(node);
                } else if parts[node].is_missing() {
                    self.counts[lease].gaps.push(node);
                }
            }
            if batch.is_empty() {
                continue;
            }
            self.pending.push(node);
            let renew = |(lease, name): &(usize, Owner)| Renew {
                owner: *name,
                ..self.requests[*lease].clone()
            };
            let answers = store.renew(batch.iter().map(renew).collect());
            let answers = answers.map(move |(at, answer)| FromNode::Answer {
                node,
                lease: batch[at].0,
                name: batch[at].1,
                answer,
            });
            let end = stream::iter([FromNode::End { node }]);
            from_nodes.push(Box::pin(answers.chain(end)) as NodeAnswers);
        }
        from_nodes
    }

    /// Hears the nodes until all have answered or the timeout has passed, and answers each renewal as soon as
    /// possible.
    async fn run(mut self, mut from_nodes: stream::SelectAll<NodeAnswers>) {
        let until = later(self.sent, self.store.node_timeout);
        let mut is_heard = false;
        (0..self.requests.len()).for_each(|lease| self.judge_if_known(lease));
        while !is_heard || !self.judging.is_empty() {
            tokio::select! {
                biased;
                Some((lease, answer)) = self.judging.next(), if !self.judging.is_empty() => {
                    let _ = self.answers.send((lease, answer));
                }
                said = timeout_at(until, from_nodes.next()), if !is_heard => match said {
                    Ok(Some(said)) => self.hear(said),
                    Ok(None) => is_heard = true,
                    Err(_) => {
                        is_heard = true;
                        self.give_up_pending();
                    }
                },
            }
        }
        self.heal_the_rest();
    }

    fn hear(&mut self, said: FromNode) {
        match said {
            FromNode::Answer {
                node,
                lease,
                name,
                answer,
            } => {
                let is_unreachable =
                    matches!(&answer, Renewed::Unknown(error) if !is_answer(error));
                self.store.health.heard(node, !is_unreachable);
                if matches!(answer, Renewed::NotOurs) {
                    // The part is healed under a new name. The answer of another renewal, which the node gave before
                    // that and which is heard later, is about the old one.
                    let Renew { key, owner, .. } = &self.requests[lease];
                    let part = PartOf {
                        key,
                        owner: *owner,
                        node,
                        name,
                    };
                    self.store.attempts.rename(part);
                }
                self.counts[lease].add(node, answer);
                self.judge_if_known(lease);
            }
            FromNode::End { node } => self.forget(node),
        }
    }

    /// Notes that no further answers will come from a node.
    fn forget(&mut self, node: usize) {
        self.pending.retain(|pending| *pending != node);
        for lease in 0..self.counts.len() {
            let pending = &mut self.counts[lease].pending;
            if pending.contains(&node) {
                pending.retain(|pending| *pending != node);
                self.judge_if_known(lease);
            }
        }
    }

    /// Marks the nodes that have not answered within the timeout as silent.
    fn give_up_pending(&mut self) {
        for node in std::mem::take(&mut self.pending) {
            self.store.health.heard(node, false);
            self.forget(node);
        }
    }

    /// Answers the renewal of a lease, if the nodes that have not answered cannot change the result.
    fn judge_if_known(&mut self, lease: usize) {
        let (store, count) = (&self.store, &mut self.counts[lease]);
        let majority = majority(store.nodes.len());
        let mut pending = count.pending.iter();
        let is_answer_due = pending.any(|node| !store.health.is_silent(*node));
        let is_known = count.ours >= majority
            || count.not_ours >= majority
            || count.pending.is_empty()
            || !is_answer_due && count.ours + count.gaps.len() >= majority;
        if count.is_judged || !is_known {
            return;
        }
        count.is_judged = true;
        if count.not_ours >= majority {
            let _ = self.answers.send((lease, Renewed::NotOurs));
            return;
        }
        let judged = RenewalCount {
            ours: count.ours,
            not_ours: count.not_ours,
            others_wait: count.others_wait,
            tokens: std::mem::take(&mut count.tokens),
            // Nodes that the majority needs are healed now, the others later.
            gaps: match count.ours < majority {
                true => std::mem::take(&mut count.gaps),
                false => Vec::new(),
            },
            failures: std::mem::take(&mut count.failures),
            ..RenewalCount::default()
        };
        let request = self.requests[lease].clone();
        let judging = self.store.clone().judge(request, judged, self.sent);
        self.judging
            .push(Box::pin(async move { (lease, judging.await) }));
    }

    /// Heals the gaps of leases that have a majority without them.
    fn heal_the_rest(self) {
        let majority = majority(self.store.nodes.len());
        let leases = self.counts.iter().enumerate();
        let gaps = leases
            .filter(|(_, count)| count.not_ours < majority)
            .flat_map(|(lease, count)| count.gaps.iter().map(move |node| (lease, *node)));
        let gaps: Vec<(usize, usize)> = gaps.collect();
        if !gaps.is_empty() {
            let home = self.store.home.clone();
            home.spawn(self.store.heal_all(self.requests, gaps));
        }
    }
}

impl Shared {
    /// Completes the answer for one lease: heals the nodes that a majority needs, and makes the token counters agree.
    async fn judge(
        self: Arc<Self>,
        request: Renew,
        mut count: RenewalCount,
        sent: Instant,
    ) -> Renewed {
        let majority = majority(self.nodes.len());
        if count.ours < majority && count.ours + count.gaps.len() >= majority {
            self.heal_now(&request, &mut count).await;
        }
        if count.ours < majority {
            let (nodes, ours) = (self.nodes.len(), count.ours);
            let reason = format!("{ours} of {nodes} nodes have renewed the lease");
            return Renewed::Unknown(count.failures.no_majority(nodes, reason));
        }
        if let Some(until) = self.valid_until(sent, request.lease) {
            self.attempts.confirm(&request.key, request.owner, until);
        }
        Renewed::Renewed {
            tokens: self.refill(&request, &count.tokens).await,
            others_wait: count.others_wait,
        }
    }
}

impl RenewalCount {
    fn add(&mut self, node: usize, answer: Renewed) {
        self.pending.retain(|pending| *pending != node);
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
                self.not_ours += 1;
                self.gaps.push(node);
            }
            Renewed::Unknown(error) => self.failures.add(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::tests::*, *};
    use crate::store::{Ending, FaultyStore, Mode, Queueing, Store};

    /// Two renewals find node 2 empty. The first one heals the node before the answer to the second one is heard.
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
        let (answers, _answers) = mpsc::unbounded_channel();
        let (mut late, mut from_nodes) =
            Renewal::start(store.0.clone(), vec![renewal.clone()], answers);
        store.renew(vec![renewal]).collect::<Vec<_>>().await;
        tokio::time::sleep(std::time::Duration::from_millis(1)).await; // node 2 is healed
        assert!(!nodes[2].is_empty());
        while let Some(said) = from_nodes.next().await {
            late.hear(said);
        }
        let releasing = store.end(release(a, Ending::Free));
        releasing.await.unwrap();
        assert!(nodes.iter().all(FaultyStore::is_empty));
    }
}
