//! The attempts of this process at the nodes: which of them ask, wait or hold, and the name of each on every node.
//!
//! 1. A node knows an attempt by its owner while nothing has gone wrong there. After a call that failed or was given
//!    up, after a vote that was undone, and when the node has lost the lease, the attempt takes a new name on that
//!    node. A clean-up of the old name, and an answer about it, whenever these come, must not end a later grant. (The
//!    contract forbids to ask in the name of an owner after a failed acquire.)
//! 2. At most one call at a time asks for a part under a given name. A grant under that name is therefore returned
//!    only by that call, or by the call that ends the attempt.
//! 3. An attempt that is ending, or has ended, gets no new part. A call that asked for one notices when the answer
//!    comes, and returns the part.
//! 4. No entry stays forever: a release removes the attempt when the release starts, and an attempt that no call
//!    returns to is removed some time after its end.
//! 5. A part is [`Nothing`](PartState::Nothing) only if the node has nothing under the part's name and never will.
//!    Such a node is owed no release.
//! 6. A node cleans up after a failed call only if the call was sent. A node that had the part before the call
//!    therefore keeps the part, and is sent a release when the attempt takes a new name there
//!    ([`Part::needs_release`]).
//!
//! The names of an attempt on a node, in hexadecimal digits, where the lower 48 bits are the number of the attempt:
//!
//! ```text
//! 0000_000000000007   the owner itself
//! 0001_000000000007   after a call that was given up
//! 0002_000000000007   after a grant that was returned, or that the node has lost
//! ```
//!
//! The life of a part:
//!
//! ```text
//! Nothing ──▶ Asked ──▶ Held ────────────▶ released, or given back under a new name
//!   ▲           ├─────▶ Queued ──▶ Asked   the attempt asks again
//!   │           ├─────▶ Late ────▶ Held    the node is slower than the majority
//!   └───────────┴─ the call failed: a new name
//! ```

use std::collections::HashMap;

use bytes::Bytes;
use tokio::time::Instant;

use super::{
    super::{Acquire, Owner},
    question::Question,
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
pub(super) struct Attempt {
    pub(super) parts: Vec<Part>,
    /// Until when the attempt holds a majority.
    valid_until: Instant,
    /// Until when a call may return to the attempt.
    kept_until: Instant,
    /// A release of the attempt has started.
    is_ending: bool,
    fingerprint: Option<Bytes>,
}

/// The part of an attempt that one node has.
#[derive(Debug, Clone)]
pub(super) struct Part {
    /// The attempt's name on that node.
    pub(super) name: Owner,
    pub(super) state: PartState,
}

/// The state of a part, as far as this process knows.
#[derive(Debug, Clone)]
pub(super) enum PartState {
    /// The node has nothing under this name.
    Nothing,
    /// The attempt is in the node's queue, if its place has not expired.
    Queued,
    /// A call that asks for the part is under way.
    Asked {
        /// The node had the part before that call, and keeps the part if the call is never sent.
        had_part: bool,
    },
    /// A call that asks for the part is under way, and a background task waits for the answer.
    Late { question: Question, had_part: bool },
    /// The node has granted the part, and holds it unless it has lost its data.
    Held,
}

/// The names of an attempt for its next calls.
#[derive(Debug)]
pub(super) struct Asking {
    /// The name on each node.
    pub(super) names: Vec<Owner>,
    /// Earlier names, each with its node, under which the node may still have a part. They are released before the
    /// node is asked again.
    pub(super) left: Vec<(usize, Owner)>,
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

    /// Begins an attempt, or continues one that waits. Marks all parts as asked for, and returns their names.
    pub(super) fn enter(&self, request: &Acquire, now: Instant) -> Asking {
        let mut table = self.table.lock();
        table.sweep(now);
        let attempt = table
            .attempts
            .entry((request.key.clone(), request.owner))
            .or_insert_with(|| Attempt {
                parts: fresh_parts(request.owner, self.nodes, &PartState::Nothing),
                valid_until: now,
                kept_until: now,
                is_ending: false,
                fingerprint: None,
            });
        attempt.kept_until = attempt.kept_until.max(later(now, request.lease));
        attempt.fingerprint = request.fingerprint.clone();
        attempt.is_ending = false;
        attempt.ask()
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

    /// Sets the state of a part after a node's answer. Returns whether the attempt still has that name there.
    pub(super) fn set(&self, part: PartOf<'_>, state: PartState) -> bool {
        self.with_part(part, |part| part.state = state).is_some()
    }

    /// Notes that a background task waits for the answer of the call that asks for a part. Returns whether the
    /// attempt still has that name there.
    pub(super) fn set_late(&self, part: PartOf<'_>, question: Question) -> bool {
        let set = self.with_part(part, |part| {
            let had_part = part.needs_release();
            part.state = PartState::Late { question, had_part };
        });
        set.is_some()
    }

    /// Gives a part a new name, after a call failed or was given up, or its grant was returned or lost. Returns the
    /// part as it was, or `None` if the attempt does not have that name any more.
    pub(super) fn rename(&self, part: PartOf<'_>) -> Option<Part> {
        self.with_part(part, |part| {
            let renamed = Part {
                name: next_name(part.name),
                state: PartState::Nothing,
            };
            std::mem::replace(part, renamed)
        })
    }

    /// Notes that the attempt holds a majority until the given time.
    pub(super) fn confirm(&self, key: &LockKey, owner: Owner, until: Instant) {
        self.with(key, owner, |attempt| {
            attempt.valid_until = attempt.valid_until.max(until);
            attempt.kept_until = attempt.kept_until.max(until);
        });
    }

    /// The parts of a holder. An unknown attempt has the name of its owner on every node.
    pub(super) fn parts(&self, key: &LockKey, owner: Owner) -> Vec<Part> {
        self.with(key, owner, |attempt| attempt.parts.clone())
            .unwrap_or_else(|| fresh_parts(owner, self.nodes, &PartState::Held))
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
            let part = &mut attempt.parts[node];
            let had_part = part.needs_release();
            part.state = PartState::Asked { had_part };
            Some((part.name, attempt.fingerprint.clone()))
        })?
    }

    /// Notes that a part which was asked for by [`ask_for`](Self::ask_for) was granted. Returns whether the grant
    /// came in time and is still wanted.
    pub(super) fn heal(&self, part: PartOf<'_>, now: Instant) -> bool {
        let valid = self.with(part.key, part.owner, |attempt| attempt.may_heal(now));
        valid == Some(true) && self.set(part, PartState::Held)
    }

    /// Removes an attempt that ends. An unknown attempt may hold every node under the name of its owner.
    pub(super) fn take(&self, key: &LockKey, owner: Owner) -> Attempt {
        self.remove(key, owner).unwrap_or_else(|| {
            let now = Instant::now();
            Attempt {
                parts: fresh_parts(owner, self.nodes, &PartState::Held),
                valid_until: now,
                kept_until: now,
                is_ending: true,
                fingerprint: None,
            }
        })
    }

    /// Keeps an attempt whose release failed, so that the next release uses the same names. The attempt gets no new
    /// part.
    pub(super) fn put_back(&self, key: LockKey, owner: Owner, attempt: Attempt, until: Instant) {
        let mut table = self.table.lock();
        table.sweep(Instant::now());
        table.attempts.entry((key, owner)).or_insert(Attempt {
            kept_until: until,
            is_ending: true,
            ..attempt
        });
    }

    /// Removes an attempt.
    pub(super) fn remove(&self, key: &LockKey, owner: Owner) -> Option<Attempt> {
        self.table.lock().attempts.remove(&(key.clone(), owner))
    }

    pub(super) fn contains(&self, key: &LockKey, owner: Owner) -> bool {
        self.with(key, owner, |_| ()).is_some()
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

    /// Runs `work` on a part, if the part still has this name.
    fn with_part<T>(&self, of: PartOf<'_>, work: impl FnOnce(&mut Part) -> T) -> Option<T> {
        self.with(of.key, of.owner, |attempt| {
            let part = &mut attempt.parts[of.node];
            (part.name == of.name).then(|| work(part))
        })?
    }
}

impl Attempt {
    fn ask(&mut self) -> Asking {
        let mut left = Vec::new();
        let ask = |(node, part): (usize, &mut Part)| {
            let needs_release = part.needs_release();
            let is_asked = match &part.state {
                PartState::Late { question, .. } => {
                    question.withdraw();
                    true
                }
                PartState::Asked { .. } => true,
                _ => false,
            };
            if is_asked {
                // The answer of the earlier call is not for this one.
                left.extend(needs_release.then_some((node, part.name)));
                part.name = next_name(part.name);
            }
            part.state = PartState::Asked {
                had_part: needs_release && !is_asked,
            };
            part.name
        };
        let names = self.parts.iter_mut().enumerate().map(ask).collect();
        Asking { names, left }
    }

    fn may_heal(&self, now: Instant) -> bool {
        !self.is_ending && now < self.valid_until
    }
}

impl Part {
    pub(super) fn is_held(&self) -> bool {
        matches!(self.state, PartState::Held)
    }

    /// Whether the node may have this part even if no call under way is ever sent, so that only a release ends the
    /// part before its time.
    pub(super) fn needs_release(&self) -> bool {
        match self.state {
            PartState::Nothing => false,
            PartState::Queued | PartState::Held => true,
            PartState::Asked { had_part } | PartState::Late { had_part, .. } => had_part,
        }
    }

    /// Whether the lease lacks this part, and no call asks for the part.
    pub(super) fn is_missing(&self) -> bool {
        matches!(self.state, PartState::Nothing | PartState::Queued)
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

fn fresh_parts(owner: Owner, nodes: usize, state: &PartState) -> Vec<Part> {
    let part = |_| Part {
        name: owner,
        state: state.clone(),
    };
    (0..nodes).map(part).collect()
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
