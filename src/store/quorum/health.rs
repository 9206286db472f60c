//! The nodes that answer, as far as this process has seen.
//!
//! Health is a guess that saves time, and no decision about safety depends on it: a call goes to all nodes in any case.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::time::Instant;

use super::round::Round;

/// Tracks which nodes answer. A node whose last call failed, or was not answered in time, is *silent* until it
/// answers again. Silent nodes still get all calls, but no call waits for them if the other nodes are enough.
#[derive(Debug)]
pub(super) struct Health(Vec<AtomicBool>);

impl Health {
    /// All nodes count as well until a call has failed.
    pub(super) fn new(nodes: usize) -> Self {
        Self((0..nodes).map(|_| AtomicBool::new(true)).collect())
    }

    /// Whether the node's last call was answered.
    pub(super) fn is_well(&self, node: usize) -> bool {
        self.0[node].load(Ordering::Relaxed)
    }

    /// The leading node: the first node that answers, in the order that all instances share.
    pub(super) fn leading(&self) -> Option<usize> {
        (0..self.0.len()).find(|node| self.is_well(*node))
    }

    /// Notes whether a node's last call was answered.
    pub(super) fn heard(&self, node: usize, is_well: bool) {
        self.0[node].store(is_well, Ordering::Relaxed);
    }

    /// Marks nodes as silent that have not answered within the time of a round.
    pub(super) fn count_silent<T>(&self, round: &Round<T>) {
        if Instant::now() >= round.deadline() {
            round.pending().for_each(|node| self.heard(node, false));
        }
    }
}
