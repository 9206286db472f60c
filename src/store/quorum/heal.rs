//! Adding nodes to a lease that lacks them.
//!
//! 1. A node is asked for the lease as if for a new one, but only before the deadline of the lease.
//!    Until then no other attempt can have a majority, because none gets one with nodes that may
//!    have forgotten.
//! 2. A healed node counts if its answer, too, came before that deadline, and if the lease was not
//!    released in the meantime. Otherwise the node's grant is returned.
//!
//! ```text
//! node 1: held    node 2: restarted, empty    node 3: held
//! renewal: ours at 1 and 3, not ours at 2          the lease is renewed, and node 2 is a gap
//! heal 2: acquire with Queueing::Skip, under the attempt's next name there
//!         granted before the deadline              node 2 is a part of the lease again
//!         held by another attempt                  the gap stays; the next renewal tries again
//! ```

use std::sync::Arc;

use futures_util::future::join_all;

use super::{
    Shared,
    attempts::Attempt,
    failures::{Failures, is_answered},
};
use crate::{
    Error,
    store::{Acquire, Acquired, Queueing, Renew, Tokens},
    time::timeout,
};

/// How many leases are healed at a time when healing is not urgent.
const HEALED_AT_ONCE: usize = 32;

/// A node that a lease lacks.
pub(super) struct Gap {
    pub(super) request: Renew,
    pub(super) attempt: Arc<Attempt>,
    pub(super) node: usize,
}

impl Shared {
    /// Heals gaps, unless another task is already healing.
    pub(super) async fn heal_all(&self, gaps: &[Gap]) {
        let Some(_one_at_a_time) = self.healing.try_lock().ok() else {
            return;
        };
        for gaps in gaps.chunks(HEALED_AT_ONCE) {
            let healed = join_all(gaps.iter().map(|gap| self.heal(gap))).await;
            if !healed.iter().all(is_answered) {
                return; // a node is away again; the next renewal heals the rest
            }
        }
    }

    /// Adds one node to a lease. Returns the node's tokens if the node holds the lease now.
    pub(super) async fn heal(&self, gap: &Gap) -> Result<Option<Tokens>, Error> {
        let Gap {
            request,
            attempt,
            node,
        } = gap;
        let Some((name, fingerprint)) = attempt.ask_missing(*node) else {
            return Ok(None);
        };
        let request = Acquire {
            key: request.key.clone(),
            owner: name,
            lease: request.lease,
            block: request.refill.max(1),
            queueing: Queueing::Skip,
            mode: request.mode,
            fingerprint,
            more: Vec::new(),
            ends: Vec::new(),
        };
        let asking = self.nodes[*node].acquire(attempt, request);
        let Some(outcome) = timeout(self.node_timeout, asking).await else {
            self.health.heard(*node, false);
            let nodes = self.nodes.len();
            return Err(Failures::default().no_quorum(nodes, nodes - 1));
        };
        match outcome.into_result()? {
            Acquired::Granted(grant) if attempt.is_healed(*node) => Ok(Some(grant.tokens)),
            Acquired::Granted(_) => {
                self.give_back(attempt, *node);
                Ok(None)
            }
            Acquired::Held(_) | Acquired::Recorded(_) => Ok(None),
        }
    }
}
