//! Counting the nodes' answers to one acquire, without any I/O, so that every case can be tested.
//!
//! Answers of three nodes, and the verdict:
//!
//! | node 1 | node 2 | node 3 | verdict |
//! |---|---|---|---|
//! | granted | granted | – | granted |
//! | granted | granted, young | granted | granted: all nodes together |
//! | granted | granted, young | – | failed: the young node may have forgotten a lease |
//! | granted | held | held | held |
//! | granted | held | – | held, split: no attempt may have a majority |
//! | granted | – | – | failed: no quorum |
//! | granted | foreign | foreign | failed: foreign |
//! | granted | record | granted | recorded |

use std::time::Duration;

use bytes::Bytes;

use super::{
    super::{Acquired, Grant, Held, Tokens},
    failures::Failures,
};
use crate::Error;

/// The nodes' answers in one vote.
#[derive(Debug)]
pub(super) struct Ballot {
    nodes: usize,
    grants: Vec<Granted>,
    held: Vec<Held>,
    records: Vec<Bytes>,
    failures: Failures,
    /// The nodes of `failures`.
    failed: Vec<usize>,
}

/// The grant of one node.
#[derive(Debug)]
struct Granted {
    node: usize,
    grant: Grant,
    /// The node restarted so recently that it may have forgotten a lease.
    is_young: bool,
}

/// The meaning of the answers.
#[derive(Debug)]
pub(super) enum Verdict {
    /// A majority has granted, which no other attempt can have at the same time.
    Granted,
    /// Another attempt has a majority, or the vote was split and none has.
    Held {
        /// The answer for the caller.
        held: Held,
        /// This attempt has some grants, but no majority, and perhaps no other attempt has one
        /// either.
        split: bool,
    },
    /// The work was already done, with this record.
    Recorded(Bytes),
    /// Too few nodes have answered, or too many have answered with an error.
    Failed(Error),
}

impl Ballot {
    pub(super) fn new(nodes: usize) -> Self {
        Self {
            nodes,
            grants: Vec::new(),
            held: Vec::new(),
            records: Vec::new(),
            failures: Failures::default(),
            failed: Vec::new(),
        }
    }

    /// Adds the answer of a node. `is_young`: the node may have forgotten a lease that is still
    /// valid.
    pub(super) fn add(&mut self, node: usize, answer: Result<Acquired, Error>, is_young: bool) {
        match answer {
            Ok(Acquired::Granted(grant)) => self.grants.push(Granted {
                node,
                grant,
                is_young,
            }),
            Ok(Acquired::Held(held)) => self.held.push(held),
            Ok(Acquired::Recorded(record)) => self.records.push(record),
            Err(error) => {
                self.failures.add(error);
                self.failed.push(node);
            }
        }
    }

    /// Whether the node has answered with an error, or was not reached.
    pub(super) fn has_failed(&self, node: usize) -> bool {
        self.failed.contains(&node)
    }

    /// Whether further answers cannot change the verdict, other than by a record.
    pub(super) fn is_decided(&self) -> bool {
        self.is_granted()
            || self.is_held()
            || !self.records.is_empty()
            || self.failures.leave_no_majority(self.nodes)
    }

    /// Whether a majority of nodes refuses.
    pub(super) fn is_held(&self) -> bool {
        self.held.len() >= majority(self.nodes)
    }

    /// The verdict from the answers so far. Nodes without an answer count as failed.
    pub(super) fn verdict(&self) -> Verdict {
        if let Some(record) = most_frequent(&self.records) {
            return Verdict::Recorded(record.clone());
        }
        if self.is_granted() {
            return Verdict::Granted;
        }
        let majority = majority(self.nodes);
        let alive = self.grants.len() + self.held.len();
        if alive < majority || self.held.is_empty() {
            return Verdict::Failed(self.no_quorum());
        }
        Verdict::Held {
            held: self.held_until(),
            split: !self.grants.is_empty() && self.grants.len() < majority,
        }
    }

    /// The nodes that granted.
    pub(super) fn granted(&self) -> impl Iterator<Item = usize> + '_ {
        self.grants.iter().map(|granted| granted.node)
    }

    /// The nodes that granted, with their tokens.
    pub(super) fn tokens(&self) -> Vec<(usize, Tokens)> {
        let tokens = |granted: &Granted| (granted.node, granted.grant.tokens);
        self.grants.iter().map(tokens).collect()
    }

    pub(super) fn others_wait(&self) -> bool {
        self.grants.iter().any(|granted| granted.grant.others_wait)
    }

    /// Whether the grants are enough for a lease.
    ///
    /// A node that restarted may have forgotten a lease. The majority of a holder shares a node
    /// with every majority of nodes that remember, and also with the set of all nodes, unless
    /// the whole majority of that holder has forgotten.
    pub(super) fn is_granted(&self) -> bool {
        let not_young = self.grants.iter().filter(|granted| !granted.is_young);
        not_young.count() >= majority(self.nodes) || self.grants.len() == self.nodes
    }

    /// The error for a vote without a majority, with the number of silent and young nodes.
    fn no_quorum(&self) -> Error {
        let answers = self.grants.len() + self.held.len();
        let mut reason = self.failures.missing(self.nodes, answers);
        // Young nodes are mentioned only where their age is the reason for the failure.
        if self.grants.len() >= majority(self.nodes) {
            let young = self.grants.iter().filter(|granted| granted.is_young);
            let young = young.count();
            reason +=
                &format!("; {young} restarted within a lease's time and may have forgotten one");
        }
        self.failures.no_majority(self.nodes, reason)
    }

    /// When enough nodes may be free to form a majority.
    fn held_until(&self) -> Held {
        let mut remaining: Vec<Duration> = self.held.iter().map(|held| held.remaining).collect();
        remaining.sort_unstable();
        let missing = majority(self.nodes)
            .saturating_sub(self.grants.len())
            .clamp(1, remaining.len());
        // A fingerprint that only a few nodes return belongs to an attempt which may not succeed.
        let fingerprints: Vec<_> = self.held.iter().map(|held| &held.fingerprint).collect();
        let has_majority = |one: &&&_| count(&fingerprints, *one) >= majority(self.nodes);
        let fingerprint = fingerprints.iter().find(has_majority).copied();
        Held {
            remaining: remaining[missing - 1],
            fingerprint: fingerprint.cloned().flatten(),
            label: self.held.iter().find_map(|held| held.label.clone()),
        }
    }
}

/// The smallest number of nodes that is more than half.
pub(super) fn majority(nodes: usize) -> usize {
    nodes / 2 + 1
}

/// The most frequent value, and the first of several.
pub(super) fn most_frequent<T: Eq>(all: &[T]) -> Option<&T> {
    all.iter().rev().max_by_key(|one| count(all, *one))
}

pub(super) fn count<T: Eq>(all: &[T], wanted: &T) -> usize {
    all.iter().filter(|one| *one == wanted).count()
}

#[cfg(test)]
mod tests {
    use super::{super::super::Tokens, *};
    use crate::ErrorKind;

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Node {
        Free,
        Young,
        Taken,
        Dead,
        Foreign,
    }
    use Node::*;

    fn ballot(nodes: &[Node]) -> Ballot {
        let mut ballot = Ballot::new(nodes.len());
        for (at, node) in nodes.iter().enumerate() {
            let answer = match node {
                Free | Young => Ok(Acquired::Granted(Grant {
                    tokens: Tokens::new(at as u64 + 1, 1),
                    count: 1,
                    others_wait: false,
                })),
                Taken => Ok(Acquired::Held(Held {
                    remaining: Duration::from_secs(at as u64),
                    fingerprint: None,
                    label: None,
                })),
                Dead => Err(Error::new(ErrorKind::Unreachable, "dead")),
                Foreign => Err(Error::new(ErrorKind::Foreign, "foreign")),
            };
            ballot.add(at, answer, *node == Young);
        }
        ballot
    }

    /// All patterns of the given number of nodes.
    fn patterns(nodes: usize) -> Vec<Vec<Node>> {
        let more = |pattern: Vec<Node>| {
            [Free, Young, Taken, Dead, Foreign].map(|node| [&pattern[..], &[node]].concat())
        };
        (0..nodes).fold(vec![Vec::new()], |patterns, _| {
            patterns.into_iter().flat_map(more).collect()
        })
    }

    #[test]
    fn every_pattern_of_answers_has_the_right_verdict() {
        for nodes in [3, 5] {
            for pattern in patterns(nodes) {
                let of = |kind| count(&pattern, &kind);
                let verdict = ballot(&pattern).verdict();
                let granted = of(Free) > nodes / 2 || of(Free) + of(Young) == nodes;
                let alive = nodes - of(Dead) - of(Foreign) > nodes / 2;
                let failure = if of(Foreign) > nodes / 2 {
                    ErrorKind::Foreign
                } else {
                    ErrorKind::Unreachable
                };
                let is_right = match &verdict {
                    Verdict::Granted => granted,
                    Verdict::Held { .. } => !granted && alive && of(Taken) > 0,
                    Verdict::Failed(error) => {
                        !granted && (!alive || of(Taken) == 0) && error.kind() == failure
                    }
                    Verdict::Recorded(_) => false,
                };
                assert!(is_right, "{pattern:?}: {verdict:?}");
            }
        }
    }

    #[test]
    fn fewer_than_a_majority_of_answers_decides_nothing() {
        for pattern in patterns(3) {
            let mut ballot = ballot(&pattern);
            ballot.nodes = 5;
            let of = |kind| count(&pattern, &kind);
            assert_eq!(
                ballot.is_decided(),
                of(Free) == 3 || of(Taken) == 3 || of(Foreign) == 3,
                "{pattern:?}"
            );
        }
    }

    #[test]
    fn an_error_names_the_nodes_that_are_missing() {
        let result = |pattern: &[Node]| match ballot(pattern).verdict() {
            Verdict::Failed(error) => error.to_string(),
            other => panic!("{other:?}"),
        };
        let unreachable = "no quorum: 2 of 3 nodes unreachable; the first error: dead";
        assert_eq!(result(&[Dead, Free, Dead]), unreachable);
        assert_eq!(result(&[Dead, Taken, Dead]), unreachable);
        assert_eq!(result(&[Dead, Young, Dead]), unreachable);
        assert!(
            result(&[Young, Free, Dead])
                .starts_with("no quorum: 1 of 3 nodes unreachable; 1 restarted")
        );
    }

    #[test]
    fn the_remaining_time_ends_when_a_majority_may_be_free() {
        let result = |pattern: &[Node]| match ballot(pattern).verdict() {
            Verdict::Held { held, split } => (held.remaining.as_secs(), split),
            other => panic!("{other:?}"),
        };
        assert_eq!(result(&[Taken, Taken, Taken]), (1, false));
        assert_eq!(result(&[Free, Taken, Taken]), (1, true));
        assert_eq!(result(&[Taken, Taken, Dead]), (1, false));
        assert_eq!(result(&[Free, Dead, Taken]), (2, true));
        assert_eq!(result(&[Young, Young, Taken]), (2, false));
        assert_eq!(result(&[Taken, Taken, Taken, Taken, Taken]), (2, false));
    }

    #[test]
    fn a_record_outweighs_everything() {
        let mut ballot = ballot(&[Free, Free]);
        ballot.nodes = 5;
        for record in ["b", "a", "a"] {
            ballot.add(2, Ok(Acquired::Recorded(record.into())), false);
        }
        assert!(matches!(ballot.verdict(), Verdict::Recorded(record) if record == "a"));
    }
}
