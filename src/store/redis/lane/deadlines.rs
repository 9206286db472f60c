//! The deadlines of a lane's calls.
//!
//! ```text
//! in_order   (12.10, 4) (12.11, 5) (12.15, 7)      calls with the usual time limit
//! others     (12.90, 3) (41.00, 6)                 renewals of a large batch, releases that are repeated
//! ```

use std::collections::{BTreeSet, VecDeque};

use tokio::time::Instant;

use super::order::Id;

/// Deadlines, each with the id of a call, earliest first.
///
/// Nearly all calls have the same time limit and so are due in the order in which they came: a queue holds these, and only the other
/// calls pay for a tree.
#[derive(Debug, Default)]
pub(super) struct Deadlines {
    /// Both times and ids rise.
    in_order: VecDeque<(Instant, Id)>,
    others: BTreeSet<(Instant, Id)>,
}

impl Deadlines {
    /// Adds a call. An id is added again only after its removal.
    pub(super) fn insert(&mut self, due: Instant, id: Id) {
        let last = self.in_order.back();
        if last.is_none_or(|last| last.0 <= due && last.1 < id) {
            self.in_order.push_back((due, id));
        } else {
            self.others.insert((due, id));
        }
    }

    /// Removes a call, whose deadline is `due`.
    pub(super) fn remove(&mut self, due: Instant, id: Id) {
        match self.in_order.front() {
            Some((_, first)) if *first == id => {
                self.in_order.pop_front();
            }
            _ => match self.in_order.binary_search_by_key(&id, |(_, id)| *id) {
                Ok(at) => {
                    self.in_order.remove(at);
                }
                Err(_) => {
                    self.others.remove(&(due, id));
                }
            },
        }
    }

    /// The earliest deadline.
    pub(super) fn first(&self) -> Option<Instant> {
        let in_order = self.in_order.front();
        let earliest = in_order.into_iter().chain(self.others.first()).min();
        earliest.map(|(due, _)| *due)
    }

    /// Takes the id of a call that is due by `now`.
    pub(super) fn pop(&mut self, now: Instant) -> Option<Id> {
        if self.in_order.front().is_some_and(|(due, _)| *due <= now) {
            return self.in_order.pop_front().map(|(_, id)| id);
        }
        let first = *self.others.first()?;
        if first.0 > now {
            return None;
        }
        self.others.remove(&first);
        Some(first.1)
    }

    pub(super) fn clear(&mut self) {
        self.in_order.clear();
        self.others.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn calls_are_due_at_their_deadlines_whatever_their_order() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut deadlines = Deadlines::default();
        let due = [(5, 0), (5, 1), (90, 2), (6, 3), (7, 4), (95, 5), (1, 6)];
        for (due, id) in due {
            deadlines.insert(at(due), id);
        }
        deadlines.remove(at(5), 1);
        deadlines.remove(at(6), 3);
        deadlines.remove(at(90), 2);
        deadlines.insert(at(20), 2);

        let mut popped = Vec::new();
        for now in 0..100 {
            while let Some(id) = deadlines.pop(at(now)) {
                popped.push((now, id));
            }
            let rest = deadlines.first();
            assert!(rest.is_none_or(|first| first > at(now)));
        }
        assert_eq!(popped, [(1, 6), (5, 0), (7, 4), (20, 2), (95, 5)]);
        assert_eq!(deadlines.first(), None);
    }
}
