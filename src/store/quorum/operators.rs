//! The methods for operators, which ask all nodes.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    Shared,
    attempts::named,
    ballot::{majority, most_frequent},
    failures::Failures,
    node::Node,
    round::Round,
};
use crate::{
    Error, ErrorKind, LockKey,
    store::{Expected, Holder, Inspection, Mode, Owner, StoreFuture},
};

impl Shared {
    /// Fails if two nodes are one server, as far as the nodes know: a majority with such nodes
    /// would not be one.
    pub(super) fn check_servers(&self) -> Result<(), Error> {
        let servers: Vec<_> = self.nodes.iter().map(|node| node.server_id()).collect();
        for (node, server) in servers.iter().enumerate() {
            let first = servers[..node].iter().position(|first| first == server);
            if let Some(first) = first.filter(|_| server.is_some()) {
                let message = format!(
                    "a quorum needs independent nodes, and nodes {first} and {node} are one server: `{}` and `{}`",
                    self.nodes[first].space(),
                    self.nodes[node].space()
                );
                return Err(Error::new(ErrorKind::InvalidConfig, message));
            }
        }
        Ok(())
    }

    /// Collects the answers of all nodes to a call. Fails if fewer than a majority answers without
    /// an error, with a message that names the other nodes.
    fn ask_all<T: Send + 'static>(
        &self,
        calls: impl Iterator<Item = StoreFuture<Result<T, Error>>>,
    ) -> StoreFuture<Result<Vec<T>, Error>> {
        let nodes = self.nodes.clone();
        let asking = Round::new(calls.enumerate(), self.node_timeout);
        Box::pin(async move {
            let (mut answers, mut failures) = (BTreeMap::new(), Failures::default());
            for (node, answer) in asking.all().await {
                match answer {
                    Ok(answer) => drop(answers.insert(node, answer)),
                    Err(error) => failures.add(error),
                }
            }
            if answers.len() >= majority(nodes.len()) {
                return Ok(answers.into_values().collect());
            }
            let silent = (0..nodes.len()).filter(|node| !answers.contains_key(node));
            let silent: Vec<_> = silent.map(|node| nodes[node].space()).collect();
            let missing = failures.missing(nodes.len(), answers.len());
            Err(failures.no_majority(nodes.len(), format!("{missing}: {}", silent.join(", "))))
        })
    }

    pub(super) fn raise_fence(&self, key: &LockKey, floor: u64) -> StoreFuture<Result<u64, Error>> {
        let nodes = self.nodes.iter();
        let raised = self.ask_all(nodes.map(|node| node.raise_fence(key.clone(), floor)));
        Box::pin(async move { Ok(raised.await?.into_iter().max().unwrap_or(floor)) })
    }

    /// Each node compares and releases in one step. A node may know the owner by another name, and
    /// so is asked for it before.
    pub(super) fn force_release(
        &self,
        key: &LockKey,
        expected: Expected,
    ) -> StoreFuture<Result<bool, Error>> {
        let releasing = |node: &Node| -> StoreFuture<Result<bool, Error>> {
            let (node, key) = (node.clone(), key.clone());
            Box::pin(async move {
                let expected = match expected {
                    Expected::Anything | Expected::Record => expected,
                    Expected::Holder(owner) => {
                        let seen = node.inspect(key.clone()).await?;
                        let names = seen.holders.iter().map(|holder| holder.owner);
                        let name = names.into_iter().find(|name| named(*name) == owner);
                        Expected::Holder(name.unwrap_or(owner))
                    }
                };
                node.force_release_if(key, expected).await
            })
        };
        let freed = self.ask_all(self.nodes.iter().map(releasing));
        Box::pin(async move { Ok(freed.await?.contains(&true)) })
    }

    /// Fails if fewer than a majority of nodes is ready, or if two nodes are one server.
    pub(super) fn ping(self: &Arc<Self>) -> StoreFuture<Result<(), Error>> {
        let (store, ready) = (
            self.clone(),
            self.ask_all(self.nodes.iter().map(|node| node.ping())),
        );
        Box::pin(async move {
            ready.await?;
            store.check_servers()
        })
    }

    pub(super) fn inspect(&self, key: &LockKey) -> StoreFuture<Result<Inspection, Error>> {
        let (nodes, majority) = (self.nodes.iter(), majority(self.nodes.len()));
        let seen = self.ask_all(nodes.map(|node| node.inspect(key.clone())));
        Box::pin(async move { Ok(merge(&seen.await?, majority)) })
    }
}

/// Merges the nodes' views of a key: the holders that have a majority, the most frequent record,
/// and the highest counter.
fn merge(seen: &[Inspection], majority: usize) -> Inspection {
    let records: Vec<_> = seen.iter().filter_map(|node| node.record.clone()).collect();
    let record = most_frequent(&records).cloned();
    let same = seen.iter().filter(|node| node.record == record);
    Inspection {
        holders: holders(seen, majority),
        queue: queue(seen),
        record_remaining: same.filter_map(|node| node.record_remaining).max(),
        record,
        fence: seen.iter().map(|node| node.fence).max().unwrap_or(0),
    }
}

/// The holders that have a majority, and how long their majorities last.
fn holders(seen: &[Inspection], majority: usize) -> Vec<Holder> {
    let parts: Vec<&Holder> = seen.iter().flat_map(|node| &node.holders).collect();
    let mut owners: Vec<Owner> = parts.iter().map(|part| named(part.owner)).collect();
    owners.sort_unstable();
    owners.dedup();
    let holder = |owner: Owner| {
        let mut parts = parts.clone();
        parts.retain(|part| named(part.owner) == owner);
        parts.sort_unstable_by_key(|part| std::cmp::Reverse(part.remaining));
        // Some nodes may not have heard that the lease was downgraded.
        let modes: Vec<Mode> = parts.iter().map(|part| part.mode).collect();
        Some(Holder {
            owner,
            mode: *most_frequent(&modes)?,
            remaining: parts.get(majority - 1)?.remaining,
            ..parts[0].clone()
        })
    };
    let mut holders: Vec<Holder> = owners.into_iter().filter_map(holder).collect();
    holders.sort_by_key(|holder| holder.remaining);
    holders
}

/// Merges the queues: that of the first node, which usually leads, comes first.
fn queue(seen: &[Inspection]) -> Vec<Owner> {
    let mut merged = Vec::new();
    for owner in seen.iter().flat_map(|node| &node.queue) {
        if !merged.contains(&named(*owner)) {
            merged.push(named(*owner));
        }
    }
    merged
}
