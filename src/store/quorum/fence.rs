//! Tokens that rise from turn to turn, although every node has its own counter.
//!
//! ```text
//! grants       node 1: 41    node 2: 41    node 3: –       the counters agree: token 41, nothing is sent
//! grants       node 1: –     node 2: 42    node 3: 17      node 3 was away: its counter is raised to 42 before the turn begins
//! ```
//!
//! Without the second step, a later majority of nodes 1 and 3 could hand out 42 again.
//!
//! Nodes may hand out blocks of different lengths, because no counter passes the clock of its node.
//! The shortest length counts: the first of so many tokens up to the highest counter is above all
//! that this counter's node, or any other of the majority, has handed out before.

use futures_util::FutureExt;

use super::{Shared, ballot::majority, failures::Failures, round::Round};
use crate::{
    Error, LockKey,
    store::{Renew, Tokens},
};

impl Shared {
    /// Returns the tokens of a grant or of a refill, from those that the nodes have handed out.
    ///
    /// Raises the counters of a majority to the highest of them, so that every later majority
    /// includes a counter of that height. Nothing is sent if all counters agree, as they do
    /// while all nodes answer and no attempts compete.
    pub(super) async fn agree(
        &self,
        key: &LockKey,
        tokens: &[(usize, Tokens)],
    ) -> Result<Tokens, Error> {
        let counter = |(node, tokens): &(usize, Tokens)| (*node, tokens.last().unwrap_or(0));
        let counters: Vec<(usize, u64)> = tokens.iter().map(counter).collect();
        let highest = counters
            .iter()
            .fold(0, |highest, (_, counter)| highest.max(*counter));
        let shortest = tokens.iter().map(|(_, tokens)| tokens.left()).min();
        let shortest = shortest.unwrap_or(0);
        let agreed_on = Tokens::new((highest + 1).saturating_sub(shortest.into()), shortest);
        if !self.fencing {
            return Ok(agreed_on);
        }
        let behind = counters.iter().filter(|(_, counter)| *counter < highest);
        let raising = behind.map(|(node, _)| {
            let raising = self.nodes[*node].raise_fence(key.clone(), highest);
            (*node, raising)
        });
        let mut agreed = counters.iter().filter(|(_, c)| *c == highest).count();
        let mut failures = Failures::default();
        let mut raising = Round::new(raising, self.node_timeout);
        while agreed < majority(self.nodes.len()) {
            match raising.next().await {
                Some((_, Ok(_))) => agreed += 1,
                Some((_, Err(error))) => failures.add(error),
                None => {
                    let nodes = self.nodes.len();
                    let reason = format!(
                        "{agreed} of {nodes} token counters have reached the token of the turn"
                    );
                    return Err(failures.no_majority(nodes, reason));
                }
            }
        }
        // The other counters are raised in the background, so that the counters agree next time.
        if raising.pending().next().is_some() {
            self.home.spawn(raising.all().map(drop));
        }
        Ok(agreed_on)
    }

    /// Returns the tokens of a refill. As with a grant, a majority has handed them out, and a
    /// majority of counters is raised to the last of them.
    pub(super) async fn refill(
        &self,
        request: &Renew,
        tokens: &[(usize, Tokens)],
    ) -> Option<Tokens> {
        if request.refill == 0 || tokens.len() < majority(self.nodes.len()) {
            return None;
        }
        // A missing refill does not harm the lease: the holder asks again, or releases the lease
        // when its tokens are used up.
        self.agree(&request.key, tokens).await.ok()
    }
}
