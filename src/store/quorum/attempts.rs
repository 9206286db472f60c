//! The attempts of this process at the nodes: which of them ask, wait or hold, and the name of each
//! on every node.
//!
//! 1. A node knows an attempt by its owner while nothing has gone wrong. A name is given up after a
//!    question that was dropped or whose outcome is not known, when a grant was returned, and when
//!    the node has lost the lease. The next question to that node has a later name ([`Names`]): a
//!    release of the old one, and an answer about it, whenever these come, must not end a later
//!    grant.
//! 2. At most one question at a time asks for a part.
//! 3. Whoever ends an attempt while a question for it is under way also ends its name, in doubt. An
//!    answer that comes later changes nothing.
//! 4. An attempt that is ending, or has ended, gets no new part.
//! 5. No entry stays forever: an attempt is removed when its release is answered, and one that no
//!    call returns to some time after its end.
//! 6. A node is sent a release only for a part, which is something that may be there.
//!
//! The names of an attempt on a node, in hexadecimal digits, where the lower 48 bits are the number
//! of the attempt:
//!
//! ```text
//! 0000_000000000007   the owner itself
//! 0001_000000000007   after the first name that was given up, by any attempt
//! 0002_000000000007   after the second one
//! ```
//!
//! What a node has under a name, as far as this process knows:
//!
//! ```text
//! nothing ── held, and waits ──▶ Place ── granted ──▶ Lease ──▶ released, or given back
//!    │                             └── held, and does not wait ──▶ nothing
//!    └── granted ──▶ Lease
//! ```

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

use super::super::{Acquire, Acquired, Outcome, Owner, Queueing, Release};
use crate::{LockKey, sync::Mutex, time::later};

/// The number of bits that count the attempts of an instance, which are enough for 89 years with a
/// hundred thousand attempts a second. The bits above count the names that were given up.
const NAMES: u32 = 48;
/// The table is swept when at least this many attempts are in it.
const SMALLEST_SWEEP: usize = 64;

/// Counts the names that were given up, and the releases of unknown outcome, which may come late. A
/// new name has the count of its time, so that it differs from all of them.
#[derive(Debug, Clone, Default)]
pub(super) struct Names(Arc<AtomicU64>);

/// The attempts of this process that have a part on any node.
#[derive(Debug)]
pub(super) struct Attempts {
    nodes: usize,
    names: Names,
    table: Mutex<Table>,
}

/// All attempts, by key and owner.
#[derive(Debug, Default)]
struct Table {
    attempts: HashMap<(LockKey, Owner), Arc<Attempt>>,
    sweep_at: usize,
}

/// One attempt, with its part on each node.
#[derive(Debug)]
pub(super) struct Attempt {
    /// The first question of the attempt.
    pub(super) request: Acquire,
    names: Names,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    parts: Vec<Option<Part>>,
    /// For how long a node keeps a lease or a place in its queue without a release.
    lasts: Duration,
    /// When the attempt was entered last.
    entered: Instant,
    /// Until when the attempt holds a majority.
    valid_until: Instant,
    /// A release of the attempt has started.
    is_ending: bool,
}

/// What a node has of an attempt, or may have.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part {
    /// The attempt's name on that node.
    pub(super) name: Owner,
    /// What the node has, unless its time is over or the node has lost its data.
    has: Option<Has>,
    /// A question for the part is under way: the node may still grant it, or queue the attempt.
    pub(super) is_asked: bool,
    /// The vote of that question is lost: it may add a place in the queue, but no lease.
    is_too_late: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Has {
    /// A place in the node's queue.
    Place,
    Lease,
}

impl Names {
    /// Sees to it that no later name is an earlier one.
    pub(super) fn give_up(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn name(&self, owner: Owner) -> Owner {
        let names = self.0.load(Ordering::Relaxed);
        Owner {
            attempt: owner.attempt.wrapping_add(names << NAMES),
            ..owner
        }
    }
}

impl Attempts {
    pub(super) fn new(nodes: usize, names: Names) -> Self {
        Self {
            nodes,
            names,
            table: Mutex::default(),
        }
    }

    /// Begins an attempt, or continues one that waits. Also returns whether the attempt was known
    /// before.
    pub(super) fn enter(&self, request: &Acquire, now: Instant) -> (Arc<Attempt>, bool) {
        let mut was_known = true;
        let mut table = self.table.lock();
        table.sweep(now);
        let entry = (request.key.clone(), request.owner);
        let attempt = table.attempts.entry(entry).or_insert_with(|| {
            was_known = false;
            Arc::new(self.attempt(request))
        });
        let mut state = attempt.state.lock();
        state.lasts = state.lasts.max(lasts(request));
        state.entered = now;
        (attempt.clone(), was_known)
    }

    /// The attempt of an owner, if it is known.
    pub(super) fn find(&self, key: &LockKey, owner: Owner) -> Option<Arc<Attempt>> {
        let table = self.table.lock();
        table.attempts.get(&(key.clone(), owner)).cloned()
    }

    /// The same attempt for nodes that have no part in it, for a record: in new names, because this
    /// one has ended.
    pub(super) fn successor(&self, attempt: &Attempt) -> Arc<Attempt> {
        self.names.give_up();
        Arc::new(self.attempt(&attempt.request))
    }

    fn attempt(&self, request: &Acquire) -> Attempt {
        let now = Instant::now();
        Attempt {
            request: Acquire {
                ends: Vec::new(),
                ..request.clone()
            },
            names: self.names.clone(),
            state: Mutex::new(State {
                parts: vec![None; self.nodes],
                lasts: lasts(request),
                entered: now,
                valid_until: now,
                is_ending: false,
            }),
        }
    }

    /// Removes an attempt that has ended.
    pub(super) fn remove(&self, attempt: &Arc<Attempt>) {
        let entry = (attempt.request.key.clone(), attempt.request.owner);
        let mut table = self.table.lock();
        let known = table.attempts.get(&entry);
        if known.is_some_and(|known| Arc::ptr_eq(known, attempt)) {
            table.attempts.remove(&entry);
        }
    }

    #[cfg(test)]
    pub(super) fn name(&self, owner: Owner) -> Owner {
        self.names.name(owner)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.table.lock().attempts.len()
    }
}

impl Attempt {
    /// The name for a question to a node, unless the node is asked already or the attempt was
    /// ended.
    pub(super) fn ask(&self, node: usize) -> Option<Owner> {
        let mut state = self.state.lock();
        if state.is_ending {
            return None;
        }
        let part = state.parts[node].get_or_insert_with(|| Part {
            name: self.names.name(self.request.owner),
            has: None,
            is_asked: false,
            is_too_late: false,
        });
        let was_asked = std::mem::replace(&mut part.is_asked, true);
        (!was_asked).then_some(part.name)
    }

    /// Applies the outcome of a question. Returns whether the attempt still has that name there.
    /// The name of a question whose outcome is not known is given up later.
    pub(super) fn answered(
        &self,
        node: usize,
        name: Owner,
        queueing: Queueing,
        outcome: &Outcome<Acquired>,
    ) -> bool {
        let mut state = self.state.lock();
        let Some(part) = state.part(node, name) else {
            return false;
        };
        let is_too_late = std::mem::take(&mut part.is_too_late);
        if is_too_late && matches!(outcome, Outcome::Answered(Acquired::Granted(_))) {
            state.parts[node] = None;
            self.names.give_up();
            return false;
        }
        part.is_asked = matches!(outcome, Outcome::Unknown(_));
        if let Outcome::Answered(answer) = outcome {
            part.has = match (answer, queueing) {
                (Acquired::Granted(_), _) => Some(Has::Lease),
                (Acquired::Held(_), Queueing::Wait { .. }) => Some(Has::Place),
                // A place in the queue is still there.
                (Acquired::Held(_), Queueing::Skip) => part.has.and(Some(Has::Place)),
                (Acquired::Held(_), Queueing::No) | (Acquired::Recorded(_), _) => None,
            };
        }
        if part.has.is_none() && !part.is_asked {
            state.parts[node] = None;
        }
        true
    }

    /// Notes that the vote of the questions under way is lost. The caller is told so, and counts on
    /// no lease that comes later.
    pub(super) fn lose_vote(&self) {
        for part in self.state.lock().parts.iter_mut().flatten() {
            part.is_too_late = part.is_asked;
        }
    }

    /// Gives up the names of parts, unless the attempt ends. Returns each part with its node.
    pub(super) fn give_up(&self, which: impl Fn(usize, &Part) -> bool) -> Vec<(usize, Part)> {
        let mut state = self.state.lock();
        if state.is_ending {
            return Vec::new();
        }
        let parts = state.parts.iter_mut().enumerate();
        let parts = parts.filter_map(|(node, part)| {
            let part = part.take_if(|part| which(node, part))?;
            self.names.give_up();
            Some((node, part))
        });
        parts.collect()
    }

    /// Notes that the attempt holds a majority until the given time.
    pub(super) fn confirm(&self, until: Instant) {
        let mut state = self.state.lock();
        state.valid_until = state.valid_until.max(until);
    }

    /// The parts, each with its node.
    pub(super) fn parts(&self) -> Vec<(usize, Part)> {
        let state = self.state.lock();
        let parts = state.parts.iter().enumerate();
        let parts = parts.filter_map(|(node, part)| Some((node, (*part)?)));
        parts.collect()
    }

    /// The nodes that the lease lacks, and that are not asked for it. None if the lease is over.
    pub(super) fn gaps(&self) -> Vec<usize> {
        let state = self.state.lock();
        if !state.may_heal() {
            return Vec::new();
        }
        let is_there = |part: Part| part.is_held() || part.is_asked;
        let nodes = 0..state.parts.len();
        nodes
            .filter(|node| !state.parts[*node].is_some_and(is_there))
            .collect()
    }

    /// Whether a node has a lease, as far as this process knows.
    pub(super) fn holds(&self, node: usize) -> bool {
        self.state.lock().parts[node].is_some_and(Part::is_held)
    }

    /// Whether nodes may be added to the lease.
    pub(super) fn may_heal(&self) -> bool {
        self.state.lock().may_heal()
    }

    /// Ends the attempt, which gets no new part from now on. Returns the release of each part. The
    /// names are kept for a release that is repeated, until the attempt is removed.
    pub(super) fn end(&self, request: &Release) -> Vec<(usize, Release)> {
        self.state.lock().is_ending = true;
        let release = |(node, part): (usize, Part)| {
            let release = Release {
                owner: part.name,
                in_doubt: request.in_doubt || part.is_asked,
                ..request.clone()
            };
            (node, release)
        };
        self.parts().into_iter().map(release).collect()
    }

    /// Ends what a node may have under this name. `in_doubt`: a question may still take effect.
    pub(super) fn end_of(&self, name: Owner, in_doubt: bool) -> Release {
        let lasts = self.state.lock().lasts;
        let request = &self.request;
        Release {
            in_doubt,
            ..Release::free(request.key.clone(), name, request.mode, lasts)
        }
    }
}

impl State {
    /// The part that has this name on a node, unless the attempt ends.
    fn part(&mut self, node: usize, name: Owner) -> Option<&mut Part> {
        let part = self.parts[node].as_mut().filter(|part| part.name == name);
        part.filter(|_| !self.is_ending)
    }

    fn may_heal(&self) -> bool {
        !self.is_ending && Instant::now() < self.valid_until
    }
}

impl Part {
    pub(super) fn is_held(self) -> bool {
        self.has == Some(Has::Lease)
    }
}

impl Table {
    /// Removes attempts of which the nodes have nothing any more. Runs only when the table has
    /// doubled, so that the cost per attempt is small.
    fn sweep(&mut self, now: Instant) {
        if self.attempts.len() >= self.sweep_at {
            self.attempts.retain(|_, attempt| {
                let state = attempt.state.lock();
                now < later(state.entered.max(state.valid_until), state.lasts)
            });
            self.sweep_at = SMALLEST_SWEEP.max(self.attempts.len() * 2);
        }
    }
}

/// For how long a node keeps a lease, or a place in its queue, without a release.
fn lasts(request: &Acquire) -> Duration {
    match request.queueing {
        Queueing::Wait { deadline, .. } => request.lease.max(deadline),
        Queueing::No | Queueing::Skip => request.lease,
    }
}

/// The owner of the attempt that has this name on a node.
pub(super) fn named(name: Owner) -> Owner {
    Owner {
        attempt: name.attempt & ((1 << NAMES) - 1),
        ..name
    }
}
