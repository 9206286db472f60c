//! The keys of a quorum, in pages. All nodes are listed side by side: every key that is held is on
//! a majority of them, and so on every majority that can be listed.

use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use super::{Shared, ballot::majority, failures::Failures, round::Round};
use crate::{
    Error,
    store::{Cursor, KeyPage, List, StoreFuture},
};

/// The start of every cursor. The positions of the nodes follow, with commas between them.
const NODES: &str = "nodes:";

/// A page of a node takes several round trips, and so more time than another call.
const ROUND_TRIPS: u32 = 10;

/// How far the listing of one node has come.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Position {
    /// The next page starts at the node's own cursor, or is the first one.
    At(Option<Cursor>),
    /// The node has no further page.
    Done,
    /// The node did not answer. Its listing is not resumed, because pages may be missing.
    Failed,
}

impl Shared {
    /// Asks all nodes for their next pages. Fails if fewer than a majority has answered all pages
    /// so far.
    pub(super) fn list(&self, request: &List) -> StoreFuture<Result<KeyPage, Error>> {
        let nodes = self.nodes.len();
        let mut positions = match read(request.cursor.as_ref(), nodes) {
            Ok(positions) => positions,
            Err(error) => return Box::pin(std::future::ready(Err(error))),
        };
        let mut calls = Vec::new();
        for (node, position) in positions.iter_mut().enumerate() {
            if let Position::At(cursor) = position {
                let page = self.nodes[node].list(List {
                    prefix: request.prefix.clone(),
                    cursor: cursor.take(),
                    at_most: request.at_most.div_ceil(nodes),
                });
                calls.push((node, page));
                // Until the node has answered.
                *position = Position::Failed;
            }
        }
        let asking = Round::new(calls, self.node_timeout * ROUND_TRIPS);
        Box::pin(async move {
            let (mut keys, mut failures) = (Vec::new(), Failures::default());
            for (node, page) in asking.all().await {
                match page {
                    Ok(page) => {
                        keys.extend(page.keys);
                        positions[node] = match page.next {
                            Some(next) => Position::At(Some(next)),
                            None => Position::Done,
                        };
                    }
                    Err(error) => failures.add(error),
                }
            }
            let listed = positions.iter().filter(|at| **at != Position::Failed);
            let listed = listed.count();
            if listed < majority(nodes) {
                return Err(failures.no_quorum(nodes, listed));
            }
            keys.sort_unstable();
            keys.dedup();
            Ok(KeyPage {
                keys,
                next: write(&positions),
            })
        })
    }
}

/// The cursor of the next page, if any node has one.
fn write(positions: &[Position]) -> Option<Cursor> {
    let is_left = |position: &Position| matches!(position, Position::At(_));
    if !positions.iter().any(is_left) {
        return None;
    }
    let position = |position: &Position| match position {
        Position::At(Some(cursor)) => {
            let cursor = utf8_percent_encode(cursor.as_str(), NON_ALPHANUMERIC);
            format!("at{cursor}")
        }
        Position::At(None) => "first".to_owned(),
        Position::Done => "done".to_owned(),
        Position::Failed => "failed".to_owned(),
    };
    let positions: Vec<String> = positions.iter().map(position).collect();
    Some(Cursor::new(format!("{NODES}{}", positions.join(","))))
}

/// The positions of the nodes: at the first page without a cursor.
fn read(cursor: Option<&Cursor>, nodes: usize) -> Result<Vec<Position>, Error> {
    let Some(cursor) = cursor else {
        return Ok(vec![Position::At(None); nodes]);
    };
    let position = |text: &str| match text {
        "first" => Some(Position::At(None)),
        "done" => Some(Position::Done),
        "failed" => Some(Position::Failed),
        text => {
            let inner = percent_decode_str(text.strip_prefix("at")?);
            let inner = inner.decode_utf8().ok()?.parse().ok()?;
            Some(Position::At(Some(inner)))
        }
    };
    let positions = cursor.as_str().strip_prefix(NODES);
    let positions = positions.and_then(|all| all.split(',').map(position).collect());
    positions
        .filter(|positions: &Vec<_>| positions.len() == nodes)
        .ok_or_else(Cursor::foreign)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_positions_of_the_nodes_survive_the_cursor() {
        let inner = Cursor::new("after:a,b%2C".into());
        let positions = [
            Position::At(Some(inner)),
            Position::At(None),
            Position::Done,
            Position::Failed,
        ];
        let cursor = write(&positions).unwrap();
        assert_eq!(read(Some(&cursor), 4).unwrap(), positions);
        assert!(read(Some(&cursor), 5).is_err(), "another quorum");
        assert_eq!(write(&[Position::Done, Position::Failed]), None);
    }
}
