//! The keys of a store, in pages: SCAN, on one node after another.
//!
//! A cursor is `<cursor of SCAN>@<address of the node>`, with an empty address outside of a
//! Cluster.

use std::{collections::BTreeSet, sync::Arc};

use bytes::Bytes;
use redis::{RedisWrite, Value};
use tokio::time::Instant;

use super::{
    super::{Shared, explain},
    Operation, Writer,
    reply::{read, text},
};
use crate::{
    Error, LockKey,
    store::{Cursor, KeyPage, List, StoreFuture},
};

/// The number of names that the server looks at in one step, which takes the server less than a
/// millisecond.
const LONGEST_STEP: usize = 1000;
/// The least number of names in one step.
const SHORTEST_STEP: usize = 10;
/// The number of names after which a page ends, however few keys are on it.
const MOST_NAMES: usize = 10_000;

/// Where the next step of a listing starts.
#[derive(Debug, Default)]
struct Position {
    /// The cursor of SCAN.
    cursor: u64,
    /// The address of the node.
    node: Arc<str>,
}

/// One step of a listing.
#[derive(Debug, Clone)]
pub(in super::super) struct Scan {
    /// The server's own cursor, which is zero at the start and at the end.
    cursor: u64,
    /// The number of names that the server looks at.
    count: usize,
    /// The pattern that names must match.
    pattern: Bytes,
}

/// The reply to SCAN.
struct Scanned {
    /// The cursor of the next step, or zero at the end.
    next: u64,
    names: Vec<Value>,
}

impl Shared {
    /// Lists keys until the page is full, until [`MOST_NAMES`] names were looked at, or until half
    /// of the time limit has passed.
    ///
    /// # Cancel safety
    ///
    /// The listing has no effect on the keys.
    pub(in super::super) fn list(
        self: &Arc<Self>,
        request: List,
    ) -> StoreFuture<Result<KeyPage, Error>> {
        let shared = self.clone();
        Box::pin(async move {
            let now = Instant::now();
            let last_start = now + shared.timeout / 2;
            let deadline = now + shared.timeout;
            let at = request.cursor.as_ref().map(Position::read).transpose()?;
            let mut at = at.unwrap_or_default();
            let nodes = shared.topology.nodes(deadline).await?;
            let pattern = Bytes::from(shared.names.pattern(&request.prefix));
            let at_most = request.at_most.max(1);
            let (mut keys, mut seen, mut empty_steps) = (BTreeSet::new(), 0, 0);
            let next = loop {
                let Some(from) = at.first_in(&nodes) else {
                    break None;
                };
                let is_over = seen >= MOST_NAMES || seen > 0 && Instant::now() >= last_start;
                if keys.len() >= at_most || is_over {
                    break Some(from);
                }
                // A step without a key means that keys are rare among the names, and so a longer
                // step brings few keys.
                let step = (at_most - keys.len()) << (2 * empty_steps).min(10);
                let count = step.clamp(SHORTEST_STEP, LONGEST_STEP);
                let scan = Scan {
                    cursor: from.cursor,
                    count,
                    pattern: pattern.clone(),
                };
                match shared.scan(&from.node, scan, deadline).await {
                    Ok(scanned) => {
                        let found = shared.keys(&scanned, &request.prefix);
                        empty_steps = if found.is_empty() { empty_steps + 1 } else { 0 };
                        keys.extend(found);
                        at = from.after(scanned.next);
                    }
                    Err(error) if keys.is_empty() => return Err(error),
                    // The caller gets the keys, and the next page tries again.
                    Err(_) => break Some(from),
                }
                seen += count;
            };
            Ok(KeyPage {
                keys: keys.into_iter().collect(),
                next: next.as_ref().map(Position::write),
            })
        })
    }

    /// Makes one step at a node.
    async fn scan(&self, node: &Arc<str>, scan: Scan, deadline: Instant) -> Result<Scanned, Error> {
        let lane = self.topology.lane_to(node);
        let outcome = lane.call(Operation::Scan(scan).into(), deadline).await;
        let page = read(outcome, scanned).into_result();
        if page.is_err() {
            self.topology.mark_stale();
        }
        page
    }

    /// The keys of the names, without names that only look like those of keys.
    fn keys(&self, scanned: &Scanned, prefix: &str) -> Vec<LockKey> {
        let key = |name: &Value| match name {
            Value::BulkString(name) => self.names.key(name),
            _ => None,
        };
        let keys = scanned.names.iter().filter_map(key);
        keys.filter(|key| key.as_str().starts_with(prefix))
            .collect()
    }
}

impl Writer<'_> {
    pub(super) fn scan(&mut self, scan: &Scan) {
        self.command.write_arg(b"SCAN");
        self.number(scan.cursor);
        self.command.write_arg(b"MATCH");
        self.command.write_arg(&scan.pattern);
        self.command.write_arg(b"COUNT");
        self.number(scan.count as u64);
    }
}

/// Reads the reply to SCAN.
fn scanned(reply: Value) -> Result<Scanned, Error> {
    let parts = match reply {
        Value::Array(parts) => <[Value; 2]>::try_from(parts).ok(),
        _ => None,
    };
    let Some([next, Value::Array(names)]) = parts else {
        return Err(explain::unexpected_reply());
    };
    let next = text(&next).and_then(|next| next.parse().ok());
    let next = next.ok_or_else(explain::unexpected_reply)?;
    Ok(Scanned { next, names })
}

impl Position {
    /// The position itself, or the start of the next node if its node has gone. `None` at the end.
    fn first_in(&self, nodes: &[Arc<str>]) -> Option<Self> {
        let node = nodes.iter().find(|node| **node >= self.node)?.clone();
        let cursor = if node == self.node { self.cursor } else { 0 };
        Some(Self { cursor, node })
    }

    /// The position after a step, with the cursor that the server has returned. Behind the last
    /// name of a node, it comes before every other node behind that node.
    fn after(self, next: u64) -> Self {
        match next {
            0 => Self {
                cursor: 0,
                node: format!("{}!", self.node).into(),
            },
            cursor => Self { cursor, ..self },
        }
    }

    fn write(&self) -> Cursor {
        Cursor::new(format!("{}@{}", self.cursor, self.node))
    }

    fn read(cursor: &Cursor) -> Result<Self, Error> {
        let position = cursor.as_str().split_once('@');
        let position = position.and_then(|(cursor, node)| {
            Some(Self {
                cursor: cursor.parse().ok()?,
                node: node.into(),
            })
        });
        position.ok_or_else(Cursor::foreign)
    }
}
