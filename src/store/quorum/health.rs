//! The nodes that answer, as far as this process has seen.
//!
//! Health is a guess that saves time, and no decision about safety depends on it: a call goes to all nodes in any case.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::time::Instant;

use super::round::Round;

/// Tracks which nodes answer. A node that was not reached by its last call, or has not answered in time, is *silent*
/// until it answers again. Silent nodes still get all calls, but no call waits for them if the other nodes are enough.
#[derive(Debug)]
pub(super) struct Health {
    silent: Vec<AtomicBool>,
}

impl Health {
    /// No node is silent until a call has failed.
    pub(super) fn new(nodes: usize) -> Self {
        let silent = (0..nodes).map(|_| AtomicBool::new(false)).collect();
        Self { silent }
    }

    /// Whether the node's last call was not answered.
    pub(super) fn is_silent(&self, node: usize) -> bool {
        self.silent[node].load(Ordering::Relaxed)
    }

    /// The nodes that answer, in the order that all instances share.
    pub(super) fn answering(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.silent.len()).filter(|node| !self.is_silent(*node))
    }

    /// The leading node: the first node that answers.
    pub(super) fn leading(&self) -> Option<usize> {
        self.answering().next()
    }

    /// Notes whether a node's last call was answered.
    pub(super) fn heard(&self, node: usize, is_answered: bool) {
        self.silent[node].store(!is_answered, Ordering::Relaxed);
    }

    /// Marks nodes as silent that have not answered within the time of a round.
    pub(super) fn mark_silent<T>(&self, round: &Round<T>) {
        if Instant::now() >= round.deadline() {
            round.pending().for_each(|node| self.heard(node, false));
        }
    }
}
