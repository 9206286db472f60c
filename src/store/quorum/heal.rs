//! Adding nodes to a lease that lacks them.
//!
//! 1. A node is asked for the lease as if for a new one, but only before the deadline of the lease. Until then no
//!    other attempt can have a majority, because none gets one with nodes that may have forgotten.
//! 2. A healed node counts if its answer, too, came before that deadline, and if the lease was not released in the
//!    meantime. Otherwise the node's grant is returned.
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
use tokio::time::Instant;

use super::{
    Shared,
    attempts::PartOf,
    failures::{Failures, is_answered},
    renew::RenewalCount,
    round::Round,
};
use crate::{
    Error,
    store::{Acquire, Acquired, Queueing, Renew, Tokens},
};

/// How many leases are healed at a time when healing is not urgent.
const HEALED_AT_ONCE: usize = 32;

impl Shared {
    /// Heals all gaps of a lease that needs them for a majority.
    pub(super) async fn heal_now(&self, request: &Renew, count: &mut RenewalCount) {
        let gaps = std::mem::take(&mut count.gaps);
        let healing = gaps.iter().map(|node| self.heal(request, *node));
        for (node, healed) in gaps.iter().zip(join_all(healing).await) {
            match healed {
                Ok(Some(tokens)) => {
                    count.ours += 1;
                    count.tokens.push((*node, tokens));
                }
                Ok(None) => {}
                Err(error) => count.failures.add(error),
            }
        }
    }

    /// Heals gaps, each given as the index of a request and of a node, unless another task is already healing.
    pub(super) async fn heal_all(
        self: Arc<Self>,
        requests: Arc<[Renew]>,
        gaps: Vec<(usize, usize)>,
    ) {
        let Some(_one_at_a_time) = self.healing.try_lock().ok() else {
            return;
        };
        for gaps in gaps.chunks(HEALED_AT_ONCE) {
            let heal = |(lease, node): &(usize, usize)| self.heal(&requests[*lease], *node);
            let healed = join_all(gaps.iter().map(heal)).await;
            if !healed.iter().all(is_answered) {
                return; // a node is away again; the next renewal heals the rest
            }
        }
    }

    /// Adds one node to a lease. Returns the node's tokens if the node holds the lease now.
    async fn heal(&self, request: &Renew, node: usize) -> Result<Option<Tokens>, Error> {
        let Renew { key, owner, .. } = request;
        let Some((name, fingerprint)) = self.attempts.ask_for(key, *owner, node, Instant::now())
        else {
            return Ok(None);
        };
        let part = PartOf {
            key,
            owner: *owner,
            node,
            name,
        };
        let request = Acquire {
            key: key.clone(),
            owner: name,
            lease: request.lease,
            block: request.refill.max(1),
            queueing: Queueing::Skip,
            mode: request.mode,
            fingerprint,
            more: Vec::new(),
            ends: Vec::new(),
        };
        let asking = self.ask(node, request.clone());
        let mut asking = Round::new([(node, asking)], self.node_timeout);
        let Some((_, outcome)) = asking.next().await else {
            self.health.heard(node, false);
            self.attempts.rename(part);
            let nodes = self.nodes.len();
            return Err(Failures::default().no_quorum(nodes, nodes - 1));
        };
        let is_wanted = self.attempts.answered(part, request.queueing, &outcome);
        let answer = outcome.into_result();
        self.health.heard(node, is_answered(&answer));
        let is_in_time = self.attempts.may_heal(key, *owner, Instant::now());
        match answer? {
            Acquired::Granted(grant) if is_wanted && is_in_time => Ok(Some(grant.tokens)),
            Acquired::Granted(_) if is_wanted => {
                self.give_back(part, &request);
                Ok(None)
            }
            Acquired::Granted(_) | Acquired::Held(_) | Acquired::Recorded(_) => Ok(None),
        }
    }
}
