//! What this process has under way on the nodes: which attempts ask, wait or hold, and under which name on each node.
//!
//! 1. A node knows an attempt by its owner as long as nothing went wrong there. After a call that failed or was given
//!    up, and after a vote that was undone, the attempt takes a new name on that node: a clean-up behind the old name,
//!    whenever it comes, must not end what was granted since. (The contract forbids to use an owner again
//!    after a failed acquire.)
//! 2. A part is asked for by one call at a time. So what is held under a name is only given up by the call that ends the
//!    attempt.
//! 3. An attempt that is ending, or is gone, gets no new part: a call that asked for one finds that out when the answer comes,
//!    and gives the part back.
//! 4. Nothing stays: a release removes its attempt when it starts; an attempt that no call comes back for is swept away some
//!    time after it expired.
//! 5. A part is [`Nothing`](PartState::Nothing) only if the node has nothing under its name and will not have: such a node
//!    is owed no release.

use std::collections::HashMap;

use bytes::Bytes;
use tokio::time::Instant;

use super::{
    super::{Acquire, Owner},
    question::Question,
};
use crate::{LockKey, sync::Mutex, time::later};

/// Attempts of an instance are counted from one; the bits above say which name on a node it is.
const NAMES: u32 = 48;
const SMALLEST_SWEEP: usize = 64;

#[derive(Debug)]
pub(super) struct Attempts {
    nodes: usize,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    attempts: HashMap<(LockKey, Owner), Attempt>,
    sweep_at: usize,
}

#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) parts: Vec<Part>,
    /// Until when it holds a majority.
    valid_until: Instant,
    /// Until when a call may come back for it.
    kept_until: Instant,
    is_ending: bool,
    fingerprint: Option<Bytes>,
}

/// An attempt's part at a node.
#[derive(Debug, Clone)]
pub(super) struct Part {
    /// The attempt's name on that node.
    pub(super) name: Owner,
    pub(super) state: PartState,
}

#[derive(Debug, Clone)]
pub(super) enum PartState {
    /// The node has nothing under this name.
    Nothing,
    /// The attempt is in the node's queue, if its place has not expired.
    Queued,
    /// A call that asks for the part is under way.
    Asked,
    /// A call that asks for the part is under way, and is heard in the background.
    Late(Question),
    /// Ours, if the node has not forgotten.
    Held,
}

/// One attempt's part at one node, by the name that a call used.
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

    /// Begins an attempt, or goes on with one that waits. Its parts count as asked for now, by the names that are returned.
    pub(super) fn enter(&self, request: &Acquire, now: Instant) -> Vec<Owner> {
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

    /// Goes on with an attempt, unless it was ended meanwhile.
    pub(super) fn ask_again(&self, key: &LockKey, owner: Owner) -> Option<Vec<Owner>> {
        self.with(key, owner, |attempt| {
            (!attempt.is_ending).then(|| attempt.ask())
        })?
    }

    /// Keeps the entry of a waiting attempt as long as its places in the queues.
    pub(super) fn keep(&self, key: &LockKey, owner: Owner, until: Instant) {
        self.with(key, owner, |attempt| {
            attempt.kept_until = attempt.kept_until.max(until);
        });
    }

    /// What a node answered for the part. Says whether the attempt still goes by that name there.
    pub(super) fn set(&self, part: PartOf<'_>, state: PartState) -> bool {
        self.with_part(part, |part| part.state = state)
    }

    /// The name is used up: a call failed or is given up, or what it was granted is given back.
    pub(super) fn rename(&self, part: PartOf<'_>) -> bool {
        self.with_part(part, |part| {
            *part = Part {
                name: next_name(part.name),
                state: PartState::Nothing,
            };
        })
    }

    /// The attempt holds a majority, which is valid until then.
    pub(super) fn confirm(&self, key: &LockKey, owner: Owner, until: Instant) {
        self.with(key, owner, |attempt| {
            attempt.valid_until = attempt.valid_until.max(until);
            attempt.kept_until = attempt.kept_until.max(until);
        });
    }

    /// The parts of a holder. An attempt that is not known here has its own name everywhere.
    pub(super) fn parts(&self, key: &LockKey, owner: Owner) -> Vec<Part> {
        self.with(key, owner, |attempt| attempt.parts.clone())
            .unwrap_or_else(|| fresh_parts(owner, self.nodes, &PartState::Held))
    }

    /// Asks for a part that is missing, as long as the attempt is valid. Returns its name and the attempt's fingerprint.
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
            attempt.parts[node].state = PartState::Asked;
            Some((attempt.parts[node].name, attempt.fingerprint.clone()))
        })?
    }

    /// A part that was asked for by [`ask_for`](Self::ask_for) was granted. Says whether the grant came in time and is wanted.
    pub(super) fn heal(&self, part: PartOf<'_>, now: Instant) -> bool {
        let valid = self.with(part.key, part.owner, |attempt| attempt.may_heal(now));
        valid == Some(true) && self.set(part, PartState::Held)
    }

    /// Ends an attempt: it gets no new part. An attempt that is not known here may hold everything in its own name.
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

    /// Remembers an attempt whose release failed, so that the next release uses the same names. It gets no new part.
    pub(super) fn put_back(&self, key: LockKey, owner: Owner, attempt: Attempt, until: Instant) {
        let mut table = self.table.lock();
        table.sweep(Instant::now());
        table.attempts.entry((key, owner)).or_insert(Attempt {
            kept_until: until,
            is_ending: true,
            ..attempt
        });
    }

    /// Forgets an attempt.
    pub(super) fn remove(&self, key: &LockKey, owner: Owner) -> Option<Attempt> {
        self.table.lock().attempts.remove(&(key.clone(), owner))
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

    /// Works on the part if it still has this name. Says whether.
    fn with_part(&self, of: PartOf<'_>, work: impl FnOnce(&mut Part)) -> bool {
        self.with(of.key, of.owner, |attempt| {
            let part = &mut attempt.parts[of.node];
            let found = part.name == of.name;
            if found {
                work(part);
            }
            found
        })
        .unwrap_or(false)
    }
}

impl Attempt {
    fn ask(&mut self) -> Vec<Owner> {
        let ask = |part: &mut Part| {
            match std::mem::replace(&mut part.state, PartState::Asked) {
                PartState::Late(question) => {
                    question.take_back();
                    part.name = next_name(part.name);
                }
                // The other call's answer is not for this one.
                PartState::Asked => part.name = next_name(part.name),
                _ => {}
            }
            part.name
        };
        self.parts.iter_mut().map(ask).collect()
    }

    fn may_heal(&self, now: Instant) -> bool {
        !self.is_ending && now < self.valid_until
    }
}

impl Part {
    pub(super) fn is_held(&self) -> bool {
        matches!(self.state, PartState::Held)
    }

    /// Whether the lease lacks this part, and no call asks for it.
    pub(super) fn is_missing(&self) -> bool {
        matches!(self.state, PartState::Nothing | PartState::Queued)
    }
}

impl Table {
    /// Now and then, so that it costs each attempt next to nothing.
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

/// Whether there is room for names in the owner's number. A hundred thousand attempts a second fill it in 89 years.
pub(super) fn can_be_named(owner: Owner) -> bool {
    owner.attempt >> NAMES == 0
}

pub(super) fn next_name(owner: Owner) -> Owner {
    Owner {
        attempt: owner.attempt.wrapping_add(1 << NAMES),
        ..owner
    }
}

/// The attempt that a node knows by this name.
pub(super) fn named(name: Owner) -> Owner {
    Owner {
        attempt: name.attempt & ((1 << NAMES) - 1),
        ..name
    }
}
