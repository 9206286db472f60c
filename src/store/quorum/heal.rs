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

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;

use super::{
    Shared,
    attempts::Attempt,
    failures::{Failures, is_answer},
};
use crate::{
    Error,
    store::{Acquire, Acquired, Mode, Queueing, Renew, Tokens},
    time::timeout,
};

/// How many leases are healed at a time when healing is not urgent.
const HEALED_AT_ONCE: usize = 32;

impl Shared {
    /// Heals leases.
    pub(super) async fn heal_all(&self, leases: &[(Renew, Arc<Attempt>)]) {
        for leases in leases.chunks(HEALED_AT_ONCE) {
            let healing = leases
                .iter()
                .map(|(request, lease)| self.heal(request, lease));
            let mut healed = join_all(healing).await.into_iter().flatten();
            if !healed.all(|(_, healed)| healed.as_ref().err().is_none_or(is_answer)) {
                return; // a node is away again; the next renewal heals the rest
            }
        }
    }

    /// Adds all nodes to a lease that it lacks. Returns the tokens of those that hold the lease
    /// now.
    pub(super) async fn heal(
        &self,
        request: &Renew,
        attempt: &Arc<Attempt>,
    ) -> Vec<(usize, Result<Option<Tokens>, Error>)> {
        let (lease, block) = (request.lease, request.refill.max(1));
        let healing = attempt.gaps().into_iter().map(async |node| {
            let mut healed = self.join(attempt, node, lease, block, request.mode).await;
            if !attempt.may_heal() {
                self.give_back(attempt, |at, part| at == node && part.is_held());
            }
            if !attempt.holds(node) {
                healed = healed.map(|_| None);
            }
            (node, healed)
        });
        join_all(healing).await
    }

    /// Asks one node for its part of an attempt, past the node's queue. Returns the tokens of a
    /// grant.
    pub(super) async fn join(
        &self,
        attempt: &Arc<Attempt>,
        node: usize,
        lease: Duration,
        block: u32,
        mode: Mode,
    ) -> Result<Option<Tokens>, Error> {
        let Some(name) = attempt.ask(node) else {
            return Ok(None);
        };
        let request = Acquire {
            owner: name,
            lease,
            block,
            queueing: Queueing::Skip,
            mode,
            ..attempt.request.clone()
        };
        let asking = self.nodes[node].acquire(attempt, request);
        let Some(outcome) = timeout(self.node_timeout, asking).await else {
            self.health.heard(node, false);
            let nodes = self.nodes.len();
            return Err(Failures::default().no_quorum(nodes, nodes - 1));
        };
        match outcome.into_result()? {
            Acquired::Granted(grant) => Ok(Some(grant.tokens)),
            Acquired::Held(_) | Acquired::Recorded(_) => Ok(None),
        }
    }
}
