//! The releases of a lane that wait for their next sending.
//!
//! A server that refuses a release, because it is full or has too few replicas, refuses all of them, and thousands can be owed. They rest
//! together, and are repeated in rounds:
//!
//! ```text
//! rest ──> 1 release ──> 2 ──> 4 ──> … ──> 128 ──> 128 ──> … ──> the end of the round; the next rest, if some are left
//!               └─ refused: the round is over, and the next rest is longer
//! ```
//!
//! The next releases of a round are sent when those before are answered. So a server that refuses releases gets one in each rest, and
//! other calls have few releases in front of them.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use tokio::time::Instant;

use super::{
    BATCH,
    entry::{Entry, Failure},
};
use crate::LockKey;

const FIRST_REST: Duration = Duration::from_millis(20);
const LONGEST_REST: Duration = Duration::from_secs(1);

/// Releases that were refused, or are repeated because their acquires may still take effect.
#[derive(Debug)]
pub(super) struct Resting {
    /// Each release has rested for longer than those behind it.
    entries: VecDeque<Entry>,
    /// The number of entries of each key.
    keys: HashMap<LockKey, usize>,
    /// The end of the rest. `None` during a round, and without entries.
    until: Option<Instant>,
    /// The length of the next rest.
    pause: Duration,
    /// The number of entries that this round has not repeated yet: the first ones.
    left: usize,
    /// The number of releases to be repeated next.
    portion: usize,
    /// The number of releases of this round that the server has not answered.
    under_way: usize,
}

impl Default for Resting {
    fn default() -> Self {
        Self {
            entries: VecDeque::new(),
            keys: HashMap::new(),
            until: None,
            pause: FIRST_REST,
            left: 0,
            portion: 1,
            under_way: 0,
        }
    }
}

impl Resting {
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// When releases are to be repeated. `None` while some are on their way, and without entries.
    pub(super) fn next_at(&self) -> Option<Instant> {
        self.until
    }

    /// Adds a release that has left the queue of calls. `refused`: the server would refuse the others, too.
    pub(super) fn add(&mut self, mut entry: Entry, refused: bool, now: Instant) {
        let Some(key) = entry.call.key().cloned() else {
            return;
        };
        if std::mem::take(&mut entry.is_repeated) {
            self.under_way -= 1;
        }
        entry.answer = None;
        entry.is_in_flight = false;
        self.entries.push_back(entry);
        *self.keys.entry(key).or_default() += 1;
        if refused && self.left > 0 {
            (self.left, self.until) = (0, None);
        }
        self.go_on(now);
    }

    /// Notes that a repeated release has ended.
    pub(super) fn ended(&mut self, now: Instant) {
        self.under_way -= 1;
        self.go_on(now);
    }

    /// Sets the time of the next releases, once those before are answered: now, or at the end of a rest.
    fn go_on(&mut self, now: Instant) {
        if self.under_way > 0 || self.until.is_some() {
            return;
        }
        if self.is_empty() {
            *self = Self::default();
        } else if self.left > 0 {
            self.until = Some(now);
        } else {
            self.until = Some(now + self.pause);
            self.pause = (self.pause * 2).min(LONGEST_REST);
            self.portion = 1;
        }
    }

    /// Takes the releases that are to be repeated now, and drops those that are not owed any more.
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<Entry> {
        if self.until.is_none_or(|until| now < until) {
            return Vec::new();
        }
        if self.left == 0 {
            self.drop_expired(now);
            self.left = self.entries.len();
        }
        self.until = None;
        let count = self.portion.min(self.left);
        self.portion = (self.portion * 2).min(BATCH);
        self.left -= count;
        self.under_way = count;
        let mut due: Vec<Entry> = self.entries.drain(..count).collect();
        for entry in &mut due {
            entry.is_repeated = true;
            forget(&mut self.keys, entry);
        }
        due
    }

    /// Takes the releases of a key.
    pub(super) fn take(&mut self, key: &LockKey) -> Vec<Entry> {
        if !self.keys.contains_key(key) {
            return Vec::new();
        }
        let (mut taken, mut index, mut left) = (Vec::new(), 0, self.left);
        for entry in std::mem::take(&mut self.entries) {
            if entry.call.key() == Some(key) {
                left -= usize::from(index < self.left);
                taken.push(entry);
            } else {
                self.entries.push_back(entry);
            }
            index += 1;
        }
        self.left = left;
        self.keys.remove(key);
        taken
    }

    fn drop_expired(&mut self, now: Instant) {
        let keys = &mut self.keys;
        self.entries.retain(|entry| {
            let is_owed = matches!(entry.failure, Failure::Repeat { expires, .. } if now < expires);
            if !is_owed {
                forget(keys, entry);
            }
            is_owed
        });
    }
}

/// Counts one entry less of its key.
fn forget(keys: &mut HashMap<LockKey, usize>, entry: &Entry) {
    let Some(key) = entry.call.key() else {
        return;
    };
    if let Some(count) = keys.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            keys.remove(key);
        }
    }
}
