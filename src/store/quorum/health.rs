//! The nodes that answer, as far as this process has seen.
//!
//! Health is a guess that saves time, and no decision about safety depends on it: a call goes to
//! all nodes in any case.
//!
//! | the node | is waited for | may lead |
//! |---|---|---|
//! | answers in time | yes | yes, the first such node does |
//! | is *late*: answers after the others | as long as its answer matters | no |
//! | is *silent*: has not answered its last call | only if the others are too few | no |

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use tokio::time::Instant;

use super::round::Round;

/// A node is late that takes more than three times as long as the middle one of all nodes, and this
/// time, in microseconds. The limit is generous, because a leading node that changes costs votes,
/// which are split until all instances have noticed.
const SLACK: u64 = 20_000;
/// The share of one answer in the mean.
const SHARE: u64 = 8;

/// Tracks which nodes answer. A node that was not reached by its last call, or has not answered in
/// time, is *silent* until it answers again. Silent nodes still get all calls, but no call waits
/// for them if the other nodes are enough.
#[derive(Debug)]
pub(super) struct Health {
    nodes: Vec<Node>,
}

#[derive(Debug, Default)]
struct Node {
    is_silent: AtomicBool,
    /// How long the node takes to answer in a vote, in microseconds: a mean in which the last
    /// answers count most.
    took: AtomicU64,
}

impl Health {
    /// No node is silent until a call has failed.
    pub(super) fn new(nodes: usize) -> Self {
        Self {
            nodes: (0..nodes).map(|_| Node::default()).collect(),
        }
    }

    /// Whether the node's last call was not answered.
    pub(super) fn is_silent(&self, node: usize) -> bool {
        self.nodes[node].is_silent.load(Ordering::Relaxed)
    }

    /// Whether the node usually answers in time.
    pub(super) fn is_in_time(&self, node: usize) -> bool {
        !self.is_silent(node) && self.nodes[node].took() <= self.in_time()
    }

    /// The time in which a node has to answer.
    fn in_time(&self) -> u64 {
        let mut took: Vec<u64> = self.nodes.iter().map(Node::took).collect();
        took.sort_unstable();
        took[took.len() / 2] * 3 + SLACK
    }

    /// The nodes that may lead, the leading node first, in the order that all instances share.
    /// While a majority answers, at least one of them is in time, because half of all nodes are.
    pub(super) fn leaders(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.nodes.len()).filter(|node| self.is_in_time(*node))
    }

    /// Notes whether a node's last call was answered.
    pub(super) fn heard(&self, node: usize, is_answered: bool) {
        self.nodes[node]
            .is_silent
            .store(!is_answered, Ordering::Relaxed);
    }

    /// Notes how long a node took to answer in a vote.
    pub(super) fn took(&self, node: usize, took: Duration) {
        // No answer takes so long that the sums overflow.
        let took = u64::try_from(took.as_micros()).unwrap_or(0);
        let mean = self.nodes[node].took();
        let mean = mean - mean / SHARE + took / SHARE;
        // An update of another vote that is lost here does no harm.
        self.nodes[node].took.store(mean, Ordering::Relaxed);
    }

    /// Marks nodes as silent that have not answered within the time of a round.
    pub(super) fn mark_silent<T>(&self, round: &Round<T>) {
        if Instant::now() >= round.deadline() {
            round.pending().for_each(|node| self.heard(node, false));
        }
    }
}

impl Node {
    fn took(&self) -> u64 {
        self.took.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_node_that_answers_in_time_leads() {
        let health = Health::new(3);
        assert_eq!(health.leaders().next(), Some(0));
        let vote = |millis: [u64; 3]| {
            for (node, millis) in millis.into_iter().enumerate() {
                health.took(node, Duration::from_millis(millis));
            }
        };
        for _ in 0..10 {
            vote([60, 1, 1]);
        }
        assert_eq!(health.leaders().collect::<Vec<_>>(), [1, 2]);
        assert!(!health.is_in_time(0));
        health.heard(1, false);
        assert_eq!(health.leaders().collect::<Vec<_>>(), [2]);
        health.heard(1, true);
        for _ in 0..10 {
            vote([1, 1, 1]);
        }
        assert_eq!(health.leaders().next(), Some(0));
        // All of them are far away, or on a slow machine.
        for _ in 0..10 {
            vote([100, 60, 70]);
        }
        assert_eq!(health.leaders().next(), Some(0));
    }
}
