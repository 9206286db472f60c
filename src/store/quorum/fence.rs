//! Tokens that rise from turn to turn, although every node counts for itself.

use futures_util::FutureExt;

use super::{
    Shared,
    ballot::{majority, no_quorum},
    round::{Round, detach},
};
use crate::{
    Error, LockKey,
    store::{Renew, Tokens},
};

impl Shared {
    /// Lifts a majority of the counters to the highest of them, so that whoever asks a majority later is told a
    /// higher one. Where all agree already, as they do while all nodes are well and nobody contends, nothing is sent.
    pub(super) async fn agree(
        &self,
        key: &LockKey,
        counters: &[(usize, u64)],
    ) -> Result<u64, Error> {
        let highest = counters.iter().map(|(_, counter)| *counter).max();
        let highest = highest.unwrap_or(0);
        if !self.fencing {
            return Ok(highest);
        }
        let behind = counters.iter().filter(|(_, counter)| *counter < highest);
        let raising = behind.map(|(node, _)| {
            let raising = self.nodes[*node].raise_fence(key.clone(), highest);
            (*node, raising)
        });
        let mut agreed = counters.iter().filter(|(_, c)| *c == highest).count();
        let mut error = None;
        let mut raising = Round::new(raising, self.node_timeout);
        while agreed < majority(self.nodes.len()) {
            match raising.next().await {
                Some((_, Ok(_))) => agreed += 1,
                Some((_, Err(failed))) => error = Some(failed),
                None => {
                    let nodes = self.nodes.len();
                    return Err(no_quorum(nodes, nodes - agreed, 0, error));
                }
            }
        }
        // The rest is lifted in the background, so that the counters agree next time.
        if raising.pending().next().is_some() {
            detach(raising.all().map(drop));
        }
        Ok(highest)
    }

    /// As with a grant: from a majority, and a majority is lifted to its end.
    pub(super) async fn refill(
        &self,
        request: &Renew,
        counters: &[(usize, u64)],
    ) -> Option<Tokens> {
        if request.refill == 0 || counters.len() < majority(self.nodes.len()) {
            return None;
        }
        // Without it the lease is no worse: the holder asks again, or ends its lease with the tokens that it has.
        let last = self.agree(&request.key, counters).await.ok()?;
        let first = (last + 1).saturating_sub(request.refill.into());
        Some(Tokens::new(first, request.refill))
    }
}
