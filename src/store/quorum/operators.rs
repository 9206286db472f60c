//! What operators see and do, on all nodes that answer.

use std::{sync::Arc, time::Duration};

use super::{
    Shared,
    attempts::named,
    ballot::{count, majority, most_frequent, no_quorum},
    round::Round,
};
use crate::{
    Error, LockKey,
    store::{Holder, Inspection, Owner, Store, StoreFuture},
};

impl Shared {
    /// What was tried on each node must have worked on a majority.
    #[cfg(feature = "redis")]
    pub(super) fn need_majority(
        &self,
        outcomes: impl IntoIterator<Item = Result<(), Error>>,
    ) -> Result<(), Error> {
        let failed: Vec<Error> = outcomes.into_iter().filter_map(Result::err).collect();
        let nodes = self.nodes.len();
        if nodes - failed.len() < majority(nodes) {
            return Err(no_quorum(nodes, failed.len(), 0, failed.into_iter().next()));
        }
        Ok(())
    }

    /// Puts a question to all nodes, and wants a majority of answers.
    async fn ask_all<T: Send + 'static>(
        &self,
        ask: impl Fn(&Arc<dyn Store>) -> StoreFuture<Result<T, Error>>,
    ) -> Result<Vec<T>, Error> {
        let asking = self.nodes.iter().map(ask).enumerate();
        let asking = Round::start(asking, self.node_timeout).await;
        let (mut answers, mut error) = (Vec::new(), None);
        for (_, answer) in asking.all().await {
            match answer {
                Ok(answer) => answers.push(answer),
                Err(failed) => error = Some(failed),
            }
        }
        let nodes = self.nodes.len();
        if answers.len() < majority(nodes) {
            return Err(no_quorum(nodes, nodes - answers.len(), 0, error));
        }
        Ok(answers)
    }

    pub(super) async fn raise_fence(
        self: Arc<Self>,
        key: LockKey,
        floor: u64,
    ) -> Result<u64, Error> {
        let raised = self.ask_all(|node| node.raise_fence(key.clone(), floor));
        Ok(raised.await?.into_iter().max().unwrap_or(floor))
    }

    pub(super) async fn force_release(self: Arc<Self>, key: LockKey) -> Result<bool, Error> {
        let freed = self.ask_all(|node| node.force_release(key.clone())).await?;
        Ok(freed.contains(&true))
    }

    pub(super) async fn inspect(self: Arc<Self>, key: LockKey) -> Result<Inspection, Error> {
        let seen = self.ask_all(|node| node.inspect(key.clone())).await?;
        Ok(merge(&seen, majority(self.nodes.len())))
    }
}

fn merge(seen: &[Inspection], majority: usize) -> Inspection {
    let records: Vec<_> = seen.iter().filter_map(|node| node.record.clone()).collect();
    let record = most_frequent(&records).cloned();
    let same = seen.iter().filter(|node| node.record == record);
    Inspection {
        holder: holder(seen, majority),
        queue: queue(seen),
        record_remaining: same.filter_map(|node| node.record_remaining).max(),
        record,
        fence: seen.iter().map(|node| node.fence).max().unwrap_or(0),
    }
}

/// Whoever has a majority, for as long as it has that.
fn holder(seen: &[Inspection], majority: usize) -> Option<Holder> {
    let holders: Vec<&Holder> = seen
        .iter()
        .filter_map(|node| node.holder.as_ref())
        .collect();
    let owners: Vec<Owner> = holders.iter().map(|holder| named(holder.owner)).collect();
    let owner = *most_frequent(&owners).filter(|owner| count(&owners, owner) >= majority)?;
    let mut its = holders;
    its.retain(|holder| named(holder.owner) == owner);
    let mut remaining: Vec<Duration> = its.iter().map(|holder| holder.remaining).collect();
    remaining.sort_unstable_by(|a, b| b.cmp(a));
    Some(Holder {
        owner,
        remaining: remaining[majority - 1],
        fingerprint: its[0].fingerprint.clone(),
        label: its[0].label.clone(),
    })
}

/// By the best place that each has anywhere.
fn queue(seen: &[Inspection]) -> Vec<Owner> {
    let longest = seen.iter().map(|node| node.queue.len()).max().unwrap_or(0);
    let mut merged = Vec::new();
    for place in 0..longest {
        for owner in seen.iter().filter_map(|node| node.queue.get(place)) {
            if !merged.contains(&named(*owner)) {
                merged.push(named(*owner));
            }
        }
    }
    merged
}
