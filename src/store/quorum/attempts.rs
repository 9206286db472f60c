//! The attempts of this process at the nodes: which of them ask, wait or hold, and the name of each on every node.
//!
//! 1. A node knows an attempt by its owner while nothing has gone wrong there. A name is given up, and the attempt
//!    takes a new one on that node, after a question that was dropped or whose outcome is not known, when a grant was
//!    returned, and when the node has lost the lease. A release of the old name, and an answer about it, whenever
//!    these come, must not end a later grant.
//! 2. At most one question at a time asks for a part under a given name.
//! 3. Whoever ends an attempt, or gives up a name, while a question for it is under way, also ends the name, in doubt.
//!    An answer that comes later changes nothing.
//! 4. An attempt that is ending, or has ended, gets no new part.
//! 5. No entry stays forever: an attempt is removed when its release is answered, and one that no call returns to some
//!    time after its end.
//! 6. A node is sent a release only for a part that [may be there](Part::may_be_there).
//!
//! The names of an attempt on a node, in hexadecimal digits, where the lower 48 bits are the number of the attempt:
//!
//! ```text
//! 0000_000000000007   the owner itself
//! 0001_000000000007   after a question that was given up
//! 0002_000000000007   after a grant that was returned, or that the node has lost
//! ```
//!
//! What a node has under a name, as far as this process knows:
//!
//! ```text
//! Nothing ── held, and waits ──▶ Place ── granted ──▶ Lease ──▶ released, or given back under a new name
//!    │                             └── held, and does not wait ──▶ Nothing
//!    └── granted ──▶ Lease
//! ```

use std::collections::HashMap;

use bytes::Bytes;
use tokio::time::Instant;

use super::{
    super::{Acquire, Acquired, Outcome, Owner, Queueing},
    node::Node,
};
use crate::{LockKey, sync::Mutex, time::later};

/// The number of bits that count the attempts of an instance. The bits above count the names of an attempt on a node.
const NAMES: u32 = 48;
/// The table is swept when at least this many attempts are in it.
const SMALLEST_SWEEP: usize = 64;

/// The attempts of this process that have a part on any node.
#[derive(Debug)]
pub(super) struct Attempts {
    nodes: usize,
    table: Mutex<Table>,
}

/// All attempts, by key and owner.
#[derive(Debug, Default)]
struct Table {
    attempts: HashMap<(LockKey, Owner), Attempt>,
    sweep_at: usize,
}

/// One attempt, with its part on each node.
#[derive(Debug)]
struct Attempt {
    parts: Vec<Part>,
    /// Until when the attempt holds a majority.
    valid_until: Instant,
    /// Until when a call may return to the attempt.
    kept_until: Instant,
    /// A release of the attempt has started.
    is_ending: bool,
    fingerprint: Option<Bytes>,
}

/// The part of an attempt that one node has.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part {
    /// The attempt's name on that node.
    pub(super) name: Owner,
    has: Has,
    /// A question for the part is under way, or about to be asked.
    is_asked: bool,
}

/// What a node has under a name, unless its time is over or the node has lost its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Has {
    Nothing,
    /// A place in the node's queue.
    Place,
    Lease,
}

/// The names of an attempt for its next questions.
#[derive(Debug)]
pub(super) struct Asking {
    /// The name on each node.
    pub(super) names: Vec<Owner>,
    /// Names that were given up while questions for them are under way, each with its node.
    pub(super) given_up: Vec<(usize, Owner)>,
}

/// Identifies one part of one attempt by the name that a call used.
#[derive(Debug, Clone, Copy)]
pub(super) struct PartOf<'a> {
    pub(super) key: &'a LockKey,
    pub(super) owner: Owner,
    pub(super) node: usize,
    pub(super) name: Owner,
}

impl Attempts {
    pub(super) fn new(nodes: usize) -> Self {
        Self {
            nodes,
            table: Mutex::default(),
        }
    }

    /// Begins an attempt, or continues one that waits. Also returns whether the attempt was known before.
    pub(super) fn enter(&self, request: &Acquire, nodes: &[Node], now: Instant) -> (Asking, bool) {
        let mut was_known = true;
        let mut table = self.table.lock();
        table.sweep(now);
        let attempt = table
            .attempts
            .entry((request.key.clone(), request.owner))
            .or_insert_with(|| {
                was_known = false;
                let name = |node: &Node| node.unused_name(&request.key, request.owner);
                let parts = nodes.iter().map(|node| Part::new(name(node), Has::Nothing));
                Attempt {
                    parts: parts.collect(),
                    valid_until: now,
                    kept_until: now,
                    is_ending: false,
                    fingerprint: None,
                }
            });
        attempt.kept_until = attempt.kept_until.max(later(now, request.lease));
        attempt.fingerprint = request.fingerprint.clone();
        (attempt.ask(), was_known)
    }

    /// Continues an attempt, unless it was ended in the meantime.
    pub(super) fn ask_again(&self, key: &LockKey, owner: Owner) -> Option<Asking> {
        self.with(key, owner, |attempt| {
            (!attempt.is_ending).then(|| attempt.ask())
        })?
    }

    /// Keeps the entry of a waiting attempt for as long as its places in the queues last.
    pub(super) fn keep(&self, key: &LockKey, owner: Owner, until: Instant) {
        self.with(key, owner, |attempt| {
            attempt.kept_until = attempt.kept_until.max(until);
        });
    }

    /// Applies a node's answer to a part. Returns whether the attempt still has that name there.
    pub(super) fn answered(
        &self,
        part: PartOf<'_>,
        queueing: Queueing,
        outcome: &Outcome<Acquired>,
    ) -> bool {
        let answered = self.with_part(part, |part| {
            part.is_asked = false;
            match (outcome, queueing) {
                (Outcome::Answered(Acquired::Granted(_)), _) => part.has = Has::Lease,
                (Outcome::Answered(Acquired::Held(_)), Queueing::Wait { .. }) => {
                    part.has = Has::Place;
                }
                (Outcome::Answered(Acquired::Held(_)), Queueing::Skip) => {
                    part.has = part.has.min(Has::Place); // a place in the queue is still there
                }
                (Outcome::Answered(_), _) => part.has = Has::Nothing,
                (Outcome::Refused(_), _) => {}
                (Outcome::Unknown(_), _) => *part = part.renamed(),
            }
        });
        answered.is_some()
    }

    /// Gives a part a new name, after a question was given up, or its grant was returned or lost.
    pub(super) fn rename(&self, part: PartOf<'_>) {
        self.with_part(part, |part| *part = part.renamed());
    }

    /// Notes that the attempt holds a majority until the given time.
    pub(super) fn confirm(&self, key: &LockKey, owner: Owner, until: Instant) {
        self.with(key, owner, |attempt| {
            attempt.valid_until = attempt.valid_until.max(until);
            attempt.kept_until = attempt.kept_until.max(until);
        });
    }

    /// The parts of an attempt, if the attempt is known.
    pub(super) fn parts(&self, key: &LockKey, owner: Owner) -> Option<Vec<Part>> {
        self.with(key, owner, |attempt| attempt.parts.clone())
    }

    /// The parts of an attempt that is not known: it may hold every node under the name of its owner.
    pub(super) fn unknown_parts(&self, owner: Owner) -> Vec<Part> {
        vec![Part::new(owner, Has::Lease); self.nodes]
    }

    /// Marks a missing part as asked for, if the attempt is valid. Returns the name to use and the attempt's
    /// fingerprint.
    pub(super) fn ask_for(
        &self,
        key: &LockKey,
        owner: Owner,
        node: usize,
        now: Instant,
    ) -> Option<(Owner, Option<Bytes>)> {
        self.with(key, owner, |attempt| {
            if !attempt.may_heal(now) || !attempt.parts[node].is_missing() {
                return None;
            }
            attempt.parts[node].is_asked = true;
            Some((attempt.parts[node].name, attempt.fingerprint.clone()))
        })?
    }

    /// Whether a grant comes in time to be a part of the lease.
    pub(super) fn may_heal(&self, key: &LockKey, owner: Owner, now: Instant) -> bool {
        self.with(key, owner, |attempt| attempt.may_heal(now)) == Some(true)
    }

    /// Ends an attempt, which gets no new part from now on. The names are kept until the given time, for a release
    /// that is repeated, or until the attempt is removed.
    pub(super) fn end(&self, key: &LockKey, owner: Owner, until: Instant) -> Option<Vec<Part>> {
        self.with(key, owner, |attempt| {
            attempt.is_ending = true;
            attempt.kept_until = until;
            attempt.parts.clone()
        })
    }

    /// Removes an attempt.
    pub(super) fn remove(&self, key: &LockKey, owner: Owner) -> Option<Vec<Part>> {
        let removed = self.table.lock().attempts.remove(&(key.clone(), owner));
        removed.map(|attempt| attempt.parts)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.table.lock().attempts.len()
    }

    fn with<T>(
        &self,
        key: &LockKey,
        owner: Owner,
        work: impl FnOnce(&mut Attempt) -> T,
    ) -> Option<T> {
        let mut table = self.table.lock();
        table.attempts.get_mut(&(key.clone(), owner)).map(work)
    }

    /// Runs `work` on a part, if the part still has this name and the attempt does not end.
    fn with_part(&self, of: PartOf<'_>, work: impl FnOnce(&mut Part)) -> Option<()> {
        self.with(of.key, of.owner, |attempt| {
            let part = &mut attempt.parts[of.node];
            (part.name == of.name && !attempt.is_ending).then(|| work(part))
        })?
    }
}

impl Attempt {
    fn ask(&mut self) -> Asking {
        let mut given_up = Vec::new();
        let ask = |(node, part): (usize, &mut Part)| {
            if part.is_asked {
                // The answer to the earlier question is not for this one.
                given_up.push((node, part.name));
                *part = part.renamed();
            }
            part.is_asked = true;
            part.name
        };
        let names = self.parts.iter_mut().enumerate().map(ask).collect();
        Asking { names, given_up }
    }

    fn may_heal(&self, now: Instant) -> bool {
        !self.is_ending && now < self.valid_until
    }
}

impl Part {
    fn new(name: Owner, has: Has) -> Self {
        Self {
            name,
            has,
            is_asked: false,
        }
    }

    fn renamed(self) -> Self {
        Self::new(next_name(self.name), Has::Nothing)
    }

    pub(super) fn is_held(self) -> bool {
        self.has == Has::Lease
    }

    /// Whether the node may have something under this name, so that a release is needed.
    pub(super) fn may_be_there(self) -> bool {
        self.has != Has::Nothing || self.is_asked
    }

    /// Whether the node may still grant the part, or queue the attempt.
    pub(super) fn is_in_doubt(self) -> bool {
        self.is_asked
    }

    /// Whether the lease lacks this part, and no call asks for the part.
    pub(super) fn is_missing(self) -> bool {
        !self.is_held() && !self.is_asked
    }
}

impl Table {
    /// Removes attempts that have ended. Runs only when the table has doubled, so that the cost per attempt is small.
    fn sweep(&mut self, now: Instant) {
        if self.attempts.len() >= self.sweep_at {
            self.attempts.retain(|_, attempt| now < attempt.kept_until);
            self.sweep_at = SMALLEST_SWEEP.max(self.attempts.len() * 2);
        }
    }
}

/// Whether the owner's number leaves room for names. An instance with a hundred thousand attempts a second runs out
/// after 89 years.
pub(super) fn can_be_named(owner: Owner) -> bool {
    owner.attempt >> NAMES == 0
}

/// The name that follows this one on a node.
pub(super) fn next_name(owner: Owner) -> Owner {
    Owner {
        attempt: owner.attempt.wrapping_add(1 << NAMES),
        ..owner
    }
}

/// The owner of the attempt that has this name on a node.
pub(super) fn named(name: Owner) -> Owner {
    Owner {
        attempt: name.attempt & ((1 << NAMES) - 1),
        ..name
    }
}
