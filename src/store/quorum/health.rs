//! Which nodes answer, as far as this process has seen.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::time::Instant;

use super::round::Round;

/// Nodes whose last call failed, or was not answered in time, count as silent until they answer again. All calls still go
/// to a silent node, but no call waits for it if the other nodes are enough.
#[derive(Debug)]
pub(super) struct Health(Vec<AtomicBool>);

impl Health {
    pub(super) fn new(nodes: usize) -> Self {
        Self((0..nodes).map(|_| AtomicBool::new(true)).collect())
    }

    pub(super) fn is_well(&self, node: usize) -> bool {
        self.0[node].load(Ordering::Relaxed)
    }

    /// The node that leads: the first of those that answer, in the order that all instances share.
    pub(super) fn leading(&self) -> Option<usize> {
        (0..self.0.len()).find(|node| self.is_well(*node))
    }

    /// The node answered, or its call failed.
    pub(super) fn heard(&self, node: usize, is_well: bool) {
        self.0[node].store(is_well, Ordering::Relaxed);
    }

    /// Nodes that have not answered at the end of a round's time are silent.
    pub(super) fn count_silent<T>(&self, round: &Round<T>) {
        if Instant::now() >= round.deadline() {
            round.pending().for_each(|node| self.heard(node, false));
        }
    }
}
