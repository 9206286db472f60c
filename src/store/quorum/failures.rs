//! The errors of nodes, and the error of a call that has no majority.
//!
//! An error other than *unreachable* is a node's answer: the node cannot carry out the call,
//! because another program uses the key's name, or because of the arguments. Such a node is not
//! silent, and asking again does not help.
//!
//! Errors of three nodes, and the error of the call:
//!
//! | node 1 | node 2 | node 3 | the call |
//! |---|---|---|---|
//! | unreachable | unreachable | – | unreachable: no quorum |
//! | foreign | foreign | – | foreign: the other nodes are no majority |
//! | foreign | unreachable | – | unreachable: the node that is away may decide |

use std::fmt;

use super::ballot::majority;
use crate::{Error, ErrorKind};

/// The errors of the nodes in one call, at most one for each node.
#[derive(Debug, Default)]
pub(super) struct Failures {
    /// The errors that are answers.
    answered: Vec<Error>,
    /// The first error of a node that was not reached.
    unreachable: Option<Error>,
}

impl Failures {
    pub(super) fn add(&mut self, error: Error) {
        if is_answer(&error) {
            self.answered.push(error);
        } else {
            self.unreachable.get_or_insert(error);
        }
    }

    /// Whether so many nodes have answered with an error that the others are no majority.
    pub(super) fn leave_no_majority(&self, nodes: usize) -> bool {
        self.answered.len() > nodes - majority(nodes)
    }

    /// The error of a call without a majority. `answers`: how many nodes have answered without an
    /// error.
    pub(super) fn no_quorum(&self, nodes: usize, answers: usize) -> Error {
        self.no_majority(nodes, self.missing(nodes, answers))
    }

    /// The nodes that are missing, for a message.
    pub(super) fn missing(&self, nodes: usize, answers: usize) -> String {
        let errors = self.answered.len();
        let silent = nodes - answers - errors;
        let missing = format!("{silent} of {nodes} nodes unreachable");
        match errors {
            0 => missing,
            errors => format!("{missing}; {errors} answered with an error"),
        }
    }

    /// The error of a call without a majority, which differs from that of a key that is held: the
    /// nodes' own error if their answers leave no majority, otherwise *no quorum* for this
    /// reason.
    pub(super) fn no_majority(&self, nodes: usize, reason: impl fmt::Display) -> Error {
        let answer = self.answered.first();
        if let Some(answer) = answer.filter(|_| self.leave_no_majority(nodes)) {
            return answer.clone();
        }
        let message = format!("no quorum: {reason}");
        match self.unreachable.as_ref().or(answer) {
            Some(first) => {
                let message = format!("{message}; the first error");
                Error::caused_by(ErrorKind::Unreachable, message, first.clone())
            }
            None => Error::new(ErrorKind::Unreachable, message),
        }
    }
}

/// Whether an error is the answer of a node, which was reached.
pub(super) fn is_answer(error: &Error) -> bool {
    error.kind() != ErrorKind::Unreachable
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(kinds: &[ErrorKind], nodes: usize) -> Error {
        let mut failures = Failures::default();
        for kind in kinds {
            failures.add(Error::new(*kind, format!("{kind:?}")));
        }
        failures.no_quorum(nodes, nodes - kinds.len())
    }

    #[test]
    fn answers_that_leave_no_majority_are_no_outage() {
        use ErrorKind::{Foreign, InvalidConfig, Unreachable};
        let cases: [(&[ErrorKind], usize, ErrorKind); 7] = [
            (&[Foreign, Foreign], 3, Foreign),
            (&[Unreachable, Foreign, Foreign], 3, Foreign),
            (&[InvalidConfig, InvalidConfig], 3, InvalidConfig),
            (&[Foreign, Unreachable], 3, Unreachable),
            (&[Unreachable, Unreachable, Foreign], 3, Unreachable),
            (&[Foreign, Foreign, Unreachable], 5, Unreachable),
            (&[Foreign, Foreign, Foreign], 5, Foreign),
        ];
        for (kinds, nodes, kind) in cases {
            assert_eq!(error(kinds, nodes).kind(), kind, "{kinds:?} of {nodes}");
        }
    }

    #[test]
    fn an_outage_counts_the_nodes_apart_that_answered_with_an_error() {
        let error = error(&[ErrorKind::Foreign, ErrorKind::Unreachable], 3);
        let words = "no quorum: 1 of 3 nodes unreachable; 1 answered with an error; the first error: Unreachable";
        assert_eq!(error.to_string(), words);
        let source = std::error::Error::source(&error).unwrap();
        assert_eq!(source.to_string(), "Unreachable");
    }
}
