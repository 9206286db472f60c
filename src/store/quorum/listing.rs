//! The keys of a quorum, in pages. One node is listed after another, until a majority of them is:
//! every key that is held is on a majority, and so on one of these nodes.

use super::{Shared, ballot::majority, failures::Failures};
use crate::{
    Error,
    store::{Cursor, KeyPage, List, StoreFuture},
    time::timeout,
};

/// The start of every cursor.
const NODES: &str = "nodes:";

/// A page of a node takes several round trips, and so more time than another call.
const ROUND_TRIPS: u32 = 10;

/// Where the next page begins.
#[derive(Debug, Default, PartialEq, Eq)]
struct Position {
    /// The node that is being listed.
    node: usize,
    /// How many nodes before that were listed to the end. The others have failed; what a node has
    /// listed before it failed does not count.
    listed: usize,
    /// The node's own cursor. `None` for its first page.
    inner: Option<Cursor>,
}

impl Shared {
    /// Asks a node for its next page, or the first node behind it that answers. Fails if the nodes
    /// that are left are too few.
    pub(super) fn list(&self, request: &List) -> StoreFuture<Result<KeyPage, Error>> {
        let (limit, nodes) = (self.node_timeout * ROUND_TRIPS, self.nodes.clone());
        let mut request = request.clone();
        Box::pin(async move {
            let mut at = match request.cursor.take() {
                Some(cursor) => Position::read(&cursor, nodes.len())?,
                None => Position::default(),
            };
            let (majority, mut failures) = (majority(nodes.len()), Failures::default());
            loop {
                let failed = at.node - at.listed;
                let Some(node) = nodes.get(at.node).filter(|_| failed < majority) else {
                    return Err(failures.no_quorum(nodes.len(), nodes.len() - failed));
                };
                let page = node.list(List {
                    cursor: at.inner.take(),
                    ..request.clone()
                });
                let page = timeout(limit, page).await;
                at.node += 1;
                match page {
                    Some(Ok(page)) => {
                        at.inner = page.next;
                        if at.inner.is_some() {
                            at.node -= 1;
                        } else {
                            at.listed += 1;
                        }
                        let next = (at.listed < majority).then(|| at.write());
                        let keys = page.keys;
                        return Ok(KeyPage { keys, next });
                    }
                    Some(Err(error)) => failures.add(error),
                    None => {}
                }
            }
        })
    }
}

impl Position {
    fn write(&self) -> Cursor {
        let Self { node, listed, .. } = self;
        let inner = self.inner.as_ref().map_or("", Cursor::as_str);
        Cursor::new(format!("{NODES}{node},{listed},{inner}"))
    }

    fn read(cursor: &Cursor, nodes: usize) -> Result<Self, Error> {
        let read = || {
            let text = cursor.as_str().strip_prefix(NODES)?;
            let (node, text) = text.split_once(',')?;
            let (listed, inner) = text.split_once(',')?;
            let (node, listed) = (node.parse().ok()?, listed.parse().ok()?);
            let inner = (!inner.is_empty()).then(|| inner.parse().ok());
            (listed <= node && node < nodes).then_some(Self {
                node,
                listed,
                inner: inner.flatten(),
            })
        };
        read().ok_or_else(Cursor::foreign)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_survives_the_cursor() {
        for inner in [None, Some(Cursor::new("after:a,b%2C".into()))] {
            let at = Position {
                node: 2,
                listed: 1,
                inner,
            };
            let cursor = at.write();
            assert_eq!(Position::read(&cursor, 3).unwrap(), at);
            assert!(Position::read(&cursor, 2).is_err(), "another quorum");
        }
    }
}
