//! Counting what the nodes answered to one acquire: pure, so that every case can be tried.

use std::{collections::HashMap, time::Duration};

use bytes::Bytes;

use super::super::{Acquired, Grant, Held};
use crate::{Error, ErrorKind};

/// The answers to one round of questions.
#[derive(Debug)]
pub(super) struct Ballot {
    nodes: usize,
    grants: Vec<Granted>,
    held: Vec<Held>,
    records: Vec<Bytes>,
    failed: usize,
    error: Option<Error>,
}

/// A node that granted.
#[derive(Debug)]
struct Granted {
    node: usize,
    grant: Grant,
    /// Its memory reaches back further than any lease.
    is_mature: bool,
}

/// What the answers mean.
#[derive(Debug)]
pub(super) enum Verdict {
    /// A majority that nobody else can have.
    Granted,
    /// Somebody else has it, or the vote was split and nobody has it.
    Held {
        /// What to tell whoever asked.
        held: Held,
        /// We had some of it, but not a majority: perhaps nobody has one.
        split: bool,
    },
    /// It was done already.
    Recorded(Bytes),
    /// Too few nodes can answer for it.
    Failed(Error),
}

impl Ballot {
    pub(super) fn new(nodes: usize) -> Self {
        Self {
            nodes,
            grants: Vec::new(),
            held: Vec::new(),
            records: Vec::new(),
            failed: 0,
            error: None,
        }
    }

    pub(super) fn add(&mut self, node: usize, answer: Result<Acquired, Error>, is_mature: bool) {
        match answer {
            Ok(Acquired::Granted(grant)) => self.grants.push(Granted {
                node,
                grant,
                is_mature,
            }),
            Ok(Acquired::Held(held)) => self.held.push(held),
            Ok(Acquired::Recorded(record)) => self.records.push(record),
            Err(error) => {
                self.failed += 1;
                self.error.get_or_insert(error);
            }
        }
    }

    /// Whether further answers could not change the verdict, records aside.
    pub(super) fn is_decided(&self) -> bool {
        self.is_granted() || self.is_held() || !self.records.is_empty()
    }

    /// Whether somebody else has so much that nobody can have a majority beside it.
    pub(super) fn is_held(&self) -> bool {
        self.held.len() >= majority(self.nodes)
    }

    /// The verdict by the answers that came in time; a node without one counts as failed.
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

    /// Those that granted, and their counters.
    pub(super) fn counters(&self) -> Vec<(usize, u64)> {
        let counter = |granted: &Granted| (granted.node, granted.grant.tokens.last().unwrap_or(0));
        self.grants.iter().map(counter).collect()
    }

    pub(super) fn others_wait(&self) -> bool {
        self.grants.iter().any(|granted| granted.grant.others_wait)
    }

    /// A node that restarted may have forgotten a lease. The majority of a holder and a majority of nodes that
    /// remember have a node in common, and so have the majority of a holder and all of the nodes, unless that
    /// holder's whole majority forgot.
    pub(super) fn is_granted(&self) -> bool {
        let mature = self.grants.iter().filter(|granted| granted.is_mature);
        mature.count() >= majority(self.nodes) || self.grants.len() == self.nodes
    }

    fn no_quorum(&self) -> Error {
        let silent = self.nodes - self.grants.len() - self.held.len();
        let young = self.grants.iter().filter(|granted| !granted.is_mature);
        // Their age is worth a word only where it is what is missing.
        let young = match self.grants.len() >= majority(self.nodes) {
            true => young.count(),
            false => 0,
        };
        no_quorum(self.nodes, silent, young, self.error.clone())
    }

    /// When so many of the nodes may be free that it makes a majority.
    fn held_until(&self) -> Held {
        let mut remaining: Vec<Duration> = self.held.iter().map(|held| held.remaining).collect();
        remaining.sort_unstable();
        let missing = majority(self.nodes)
            .saturating_sub(self.grants.len())
            .clamp(1, remaining.len());
        // One that only a few nodes show is that of an attempt which may not succeed.
        let fingerprints: Vec<_> = self
            .held
            .iter()
            .filter_map(|held| held.fingerprint.as_ref())
            .collect();
        let fingerprint = most_frequent(&fingerprints)
            .filter(|fingerprint| count(&fingerprints, fingerprint) >= majority(self.nodes));
        Held {
            remaining: remaining[missing - 1],
            fingerprint: fingerprint.map(|fingerprint| (*fingerprint).clone()),
            label: self.held.iter().find_map(|held| held.label.clone()),
        }
    }
}

/// More than half.
pub(super) fn majority(nodes: usize) -> usize {
    nodes / 2 + 1
}

/// Not to be mistaken for a key that is held.
pub(super) fn no_quorum(nodes: usize, silent: usize, young: usize, source: Option<Error>) -> Error {
    let young = match young {
        0 => String::new(),
        young => format!("; {young} restarted within a lease's time and may have forgotten one"),
    };
    let message = format!("no quorum: {silent} of {nodes} nodes unreachable{young}");
    match source {
        Some(source) => Error::with_source(ErrorKind::Unreachable, message, source),
        None => Error::new(ErrorKind::Unreachable, message),
    }
}

/// The one that most agree on, and of several such the first.
pub(super) fn most_frequent<T: std::hash::Hash + Eq>(all: &[T]) -> Option<&T> {
    let mut counts: HashMap<&T, usize> = HashMap::new();
    for one in all {
        *counts.entry(one).or_default() += 1;
    }
    let most = counts.values().copied().max()?;
    all.iter().find(|one| counts[one] == most)
}

pub(super) fn count<T: Eq>(all: &[T], wanted: &T) -> usize {
    all.iter().filter(|one| *one == wanted).count()
}

#[cfg(test)]
mod tests {
    use super::{super::super::Tokens, *};

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Node {
        Free,
        Young,
        Taken,
        Dead,
    }
    use Node::*;

    fn ballot(nodes: &[Node]) -> Ballot {
        let mut ballot = Ballot::new(nodes.len());
        for (at, node) in nodes.iter().enumerate() {
            let answer = match node {
                Free | Young => Ok(Acquired::Granted(Grant {
                    tokens: Tokens::new(at as u64 + 1, 1),
                    others_wait: false,
                })),
                Taken => Ok(Acquired::Held(Held {
                    remaining: Duration::from_secs(at as u64),
                    fingerprint: None,
                    label: None,
                })),
                Dead => Err(Error::new(ErrorKind::Unreachable, "dead")),
            };
            ballot.add(at, answer, *node == Free);
        }
        ballot
    }

    /// All patterns of so many nodes.
    fn patterns(nodes: usize) -> Vec<Vec<Node>> {
        let more = |pattern: Vec<Node>| {
            [Free, Young, Taken, Dead].map(|node| [&pattern[..], &[node]].concat())
        };
        (0..nodes).fold(vec![Vec::new()], |patterns, _| {
            patterns.into_iter().flat_map(more).collect()
        })
    }

    #[test]
    fn every_pattern_of_nodes() {
        for nodes in [3, 5] {
            for pattern in patterns(nodes) {
                let of = |kind| count(&pattern, &kind);
                let verdict = ballot(&pattern).verdict();
                let granted = of(Free) > nodes / 2 || of(Free) + of(Young) == nodes;
                let alive = nodes - of(Dead) > nodes / 2;
                let told = match &verdict {
                    Verdict::Granted => granted,
                    Verdict::Held { .. } => !granted && alive && of(Taken) > 0,
                    Verdict::Failed(_) => !granted && (!alive || of(Taken) == 0),
                    Verdict::Recorded(_) => false,
                };
                assert!(told, "{pattern:?}: {verdict:?}");
            }
        }
    }

    #[test]
    fn a_lease_is_not_decided_by_less_than_it_takes() {
        for pattern in patterns(3) {
            let mut ballot = ballot(&pattern);
            ballot.nodes = 5;
            let of = |kind| count(&pattern, &kind);
            assert_eq!(
                ballot.is_decided(),
                of(Free) == 3 || of(Taken) == 3,
                "{pattern:?}"
            );
        }
    }

    #[test]
    fn an_error_names_what_is_missing() {
        let told = |pattern: &[Node]| match ballot(pattern).verdict() {
            Verdict::Failed(error) => error.to_string(),
            other => panic!("{other:?}"),
        };
        let unreachable = "no quorum: 2 of 3 nodes unreachable";
        assert_eq!(told(&[Dead, Free, Dead]), unreachable);
        assert_eq!(told(&[Dead, Taken, Dead]), unreachable);
        assert_eq!(told(&[Dead, Young, Dead]), unreachable);
        assert!(
            told(&[Young, Free, Dead])
                .starts_with("no quorum: 1 of 3 nodes unreachable; 1 restarted")
        );
    }

    #[test]
    fn worth_asking_again_when_a_majority_may_be_free() {
        let told = |pattern: &[Node]| match ballot(pattern).verdict() {
            Verdict::Held { held, split } => (held.remaining.as_secs(), split),
            other => panic!("{other:?}"),
        };
        assert_eq!(told(&[Taken, Taken, Taken]), (1, false));
        assert_eq!(told(&[Free, Taken, Taken]), (1, true));
        assert_eq!(told(&[Taken, Taken, Dead]), (1, false));
        assert_eq!(told(&[Free, Dead, Taken]), (2, true));
        assert_eq!(told(&[Young, Young, Taken]), (2, false));
        assert_eq!(told(&[Taken, Taken, Taken, Taken, Taken]), (2, false));
    }

    #[test]
    fn a_record_outweighs_everything() {
        let mut ballot = ballot(&[Free, Free]);
        ballot.nodes = 5;
        for record in ["b", "a", "a"] {
            ballot.add(2, Ok(Acquired::Recorded(record.into())), true);
        }
        assert!(matches!(ballot.verdict(), Verdict::Recorded(record) if record == "a"));
    }
}
