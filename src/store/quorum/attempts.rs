//! The attempts of this process at the nodes: which of them ask, wait or hold, and the name of each
//! on every node.
//!
//! 1. A node knows an attempt by its owner while nothing has gone wrong there. A name is given up,
//!    and the attempt takes a new one on that node, after a question that was dropped or whose
//!    outcome is not known, when a grant was returned, and when the node has lost the lease. A
//!    release of the old name, and an answer about it, whenever these come, must not end a later
//!    grant.
//! 2. At most one question at a time asks for a part under a given name.
//! 3. Whoever ends an attempt, or gives up a name, while a question for it is under way, also ends
//!    the name, in doubt. An answer that comes later changes nothing.
//! 4. An attempt that is ending, or has ended, gets no new part.
//! 5. No entry stays forever: an attempt is removed when its release is answered, and one that no
//!    call returns to some time after its end.
//! 6. A node is sent a release only for a part that [may be there](Part::may_be_there).
//! 7. A name whose release is under way, or may come late, is not used again, also if the owner
//!    asks again after its attempt was removed: see [`first_name`](Attempts::first_name).
//!
//! The names of an attempt on a node, in hexadecimal digits, where the lower 48 bits are the number
//! of the attempt:
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

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use tokio::time::Instant;

use super::{
    super::{Acquire, Acquired, Ending, Mode, Outcome, Owner, Queueing, Release},
    node::Node,
};
use crate::{LockKey, sync::Mutex, time::later};

/// The number of bits that count the attempts of an instance. The bits above count the names of an
/// attempt on a node.
const NAMES: u32 = 48;
/// The table is swept when at least this many attempts are in it.
const SMALLEST_SWEEP: usize = 64;

/// The attempts of this process that have a part on any node.
#[derive(Debug)]
pub(super) struct Attempts {
    nodes: usize,
    table: Mutex<Table>,
    /// How many names the attempts have given up that were removed.
    given_up: AtomicU64,
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
    pub(super) key: LockKey,
    pub(super) owner: Owner,
    pub(super) mode: Mode,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    parts: Vec<Part>,
    /// For how long a node keeps a lease or a place in its queue without a release.
    lasts: Duration,
    /// Until when the attempt holds a majority.
    valid_until: Instant,
    /// Until when a call may return to the attempt.
    kept_until: Instant,
    /// A release of the attempt has started.
    is_ending: bool,
    fingerprint: Option<Bytes>,
    /// How many names were given up, on all nodes together.
    given_up: u64,
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

/// The name for the next question to a node.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) name: Owner,
    /// The name before, which was given up while a question for it is under way.
    pub(super) given_up: Option<Owner>,
}

impl Attempts {
    pub(super) fn new(nodes: usize) -> Self {
        Self {
            nodes,
            table: Mutex::default(),
            given_up: AtomicU64::new(0),
        }
    }

    /// Begins an attempt, or continues one that waits. Also returns whether the attempt was known
    /// before.
    pub(super) fn enter(
        &self,
        request: &Acquire,
        nodes: &[Node],
        now: Instant,
    ) -> (Arc<Attempt>, bool) {
        let mut was_known = true;
        let mut table = self.table.lock();
        table.sweep(now);
        let entry = (request.key.clone(), request.owner);
        let attempt = table.attempts.entry(entry).or_insert_with(|| {
            was_known = false;
            let part = Part::new(self.first_name(request, nodes), Has::Nothing);
            let Acquire { key, owner, .. } = request;
            Attempt::new(key.clone(), *owner, request.mode, vec![part; self.nodes])
        });
        let mut state = attempt.state.lock();
        state.lasts = state.lasts.max(lasts(request));
        state.kept_until = state.kept_until.max(later(now, state.lasts));
        state.fingerprint = request.fingerprint.clone();
        (attempt.clone(), was_known)
    }

    /// The first name of a new attempt. It is above all names that attempts of the same owner have
    /// given up before, and above those whose releases had an unknown outcome. The name that
    /// was released last counts if it ends by now.
    fn first_name(&self, request: &Acquire, nodes: &[Node]) -> Owner {
        let unknown: u64 = nodes.iter().map(Node::unknown_releases).sum();
        let first = self.given_up.load(Ordering::Relaxed) + unknown;
        let mut names = (first..).map(|number| later_name(request.owner, number));
        let ends = |name| nodes.iter().any(|node| node.is_ending(&request.key, name));
        names.find(|name| !ends(*name)).unwrap_or(request.owner)
    }

    /// The attempt of an owner, if it is known.
    pub(super) fn find(&self, key: &LockKey, owner: Owner) -> Option<Arc<Attempt>> {
        let table = self.table.lock();
        table.attempts.get(&(key.clone(), owner)).cloned()
    }

    /// An attempt that is not known: it may hold every node under the name of its owner.
    pub(super) fn unknown(&self, key: &LockKey, owner: Owner, mode: Mode) -> Arc<Attempt> {
        let parts = vec![Part::new(owner, Has::Lease); self.nodes];
        Attempt::new(key.clone(), owner, mode, parts)
    }

    /// Removes an attempt that has ended.
    pub(super) fn remove(&self, attempt: &Arc<Attempt>) {
        let given_up = attempt.state.lock().given_up;
        self.given_up.fetch_add(given_up, Ordering::Relaxed);
        let entry = (attempt.key.clone(), attempt.owner);
        let mut table = self.table.lock();
        let known = table.attempts.get(&entry);
        if known.is_some_and(|known| Arc::ptr_eq(known, attempt)) {
            table.attempts.remove(&entry);
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.table.lock().attempts.len()
    }
}

impl Attempt {
    fn new(key: LockKey, owner: Owner, mode: Mode, parts: Vec<Part>) -> Arc<Self> {
        let now = Instant::now();
        Arc::new(Self {
            key,
            owner,
            mode,
            state: Mutex::new(State {
                parts,
                lasts: Duration::ZERO,
                valid_until: now,
                kept_until: now,
                is_ending: false,
                fingerprint: None,
                given_up: 0,
            }),
        })
    }

    /// The names for a question to each node, unless the attempt was ended.
    pub(super) fn ask(&self) -> Option<Vec<Asked>> {
        let mut state = self.state.lock();
        let nodes = 0..state.parts.len();
        (!state.is_ending).then(|| nodes.map(|node| state.ask(node)).collect())
    }

    /// The name for a question to a node that the lease lacks, and the fingerprint of the lease.
    /// `None` if the node is asked already, or if the lease is over.
    pub(super) fn ask_missing(&self, node: usize) -> Option<(Owner, Option<Bytes>)> {
        let mut state = self.state.lock();
        let is_wanted = state.may_heal() && state.parts[node].is_missing();
        is_wanted.then(|| (state.ask(node).name, state.fingerprint.clone()))
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
        if !state.has_name(node, name) {
            return false;
        }
        let part = &mut state.parts[node];
        part.is_asked = matches!(outcome, Outcome::Unknown(_));
        if let Outcome::Answered(answer) = outcome {
            part.has = match (answer, queueing) {
                (Acquired::Granted(_), _) => Has::Lease,
                (Acquired::Held(_), Queueing::Wait { .. }) => Has::Place,
                // A place in the queue is still there.
                (Acquired::Held(_), Queueing::Skip) => part.has.min(Has::Place),
                (Acquired::Held(_), Queueing::No) | (Acquired::Recorded(_), _) => Has::Nothing,
            };
        }
        true
    }

    /// Gives up a name, after a question was given up or the lease was lost.
    pub(super) fn give_up(&self, node: usize, name: Owner) {
        let mut state = self.state.lock();
        if state.has_name(node, name) {
            state.rename(node);
        }
    }

    /// Gives up the lease on a node. Returns its name there.
    pub(super) fn give_back(&self, node: usize) -> Option<Owner> {
        let mut state = self.state.lock();
        let is_held = state.parts[node].is_held() && !state.is_ending;
        is_held.then(|| state.rename(node))
    }

    /// Gives up all parts that may be there. Returns each with its node.
    pub(super) fn give_up_all(&self) -> Vec<(usize, Part)> {
        let mut state = self.state.lock();
        let parts = state.parts.clone().into_iter().enumerate();
        let given_up: Vec<_> = parts.filter(|(_, part)| part.may_be_there()).collect();
        for (node, _) in &given_up {
            state.rename(*node);
        }
        given_up
    }

    /// Notes that the attempt holds a majority until the given time.
    pub(super) fn confirm(&self, until: Instant) {
        let mut state = self.state.lock();
        state.valid_until = state.valid_until.max(until);
        state.kept_until = state.kept_until.max(until);
    }

    pub(super) fn parts(&self) -> Vec<Part> {
        self.state.lock().parts.clone()
    }

    /// Whether a node has been added to the lease in time.
    pub(super) fn is_healed(&self, node: usize) -> bool {
        let state = self.state.lock();
        state.may_heal() && state.parts[node].is_held()
    }

    /// Ends the attempt, which gets no new part from now on. The names are kept until the given
    /// time, for a release that is repeated, or until the attempt is removed.
    pub(super) fn end(&self, until: Instant) -> Vec<Part> {
        let mut state = self.state.lock();
        state.is_ending = true;
        state.kept_until = until;
        state.parts.clone()
    }

    /// The same attempt on nodes that have no part in it, for a record: in new names, because this
    /// one has ended.
    pub(super) fn successor(&self, lasts: Duration) -> Arc<Self> {
        let parts = self.parts().into_iter().map(Part::renamed).collect();
        let successor = Self::new(self.key.clone(), self.owner, self.mode, parts);
        successor.state.lock().lasts = lasts;
        successor
    }

    /// Ends what a node may have under this name. `in_doubt`: a question may still take effect, and
    /// what comes late lasts as long from then on.
    pub(super) fn end_of(&self, name: Owner, in_doubt: bool) -> Release {
        let lasts = self.state.lock().lasts;
        Release {
            key: self.key.clone(),
            owner: name,
            mode: self.mode,
            ending: Ending::Free,
            in_doubt,
            lasts: lasts.saturating_mul(1 + u32::from(in_doubt)),
        }
    }
}

impl State {
    /// Whether the attempt has this name on a node, and does not end.
    fn has_name(&self, node: usize, name: Owner) -> bool {
        self.parts[node].name == name && !self.is_ending
    }

    fn ask(&mut self, node: usize) -> Asked {
        // The answer to an earlier question is not for this one.
        let given_up = self.parts[node].is_asked.then(|| self.rename(node));
        let part = &mut self.parts[node];
        part.is_asked = true;
        Asked {
            name: part.name,
            given_up,
        }
    }

    /// Takes a new name on a node. Returns the old one.
    fn rename(&mut self, node: usize) -> Owner {
        let part = &mut self.parts[node];
        let name = part.name;
        *part = part.renamed();
        self.given_up += 1;
        name
    }

    fn may_heal(&self) -> bool {
        !self.is_ending && Instant::now() < self.valid_until
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
        Self::new(later_name(self.name, 1), Has::Nothing)
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
    /// Removes attempts that have ended. Runs only when the table has doubled, so that the cost per
    /// attempt is small.
    fn sweep(&mut self, now: Instant) {
        if self.attempts.len() >= self.sweep_at {
            let is_kept = |attempt: &Attempt| now < attempt.state.lock().kept_until;
            self.attempts.retain(|_, attempt| is_kept(attempt));
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

/// Whether the owner's number leaves room for names. An instance with a hundred thousand attempts a
/// second runs out after 89 years.
pub(super) fn can_be_named(owner: Owner) -> bool {
    owner.attempt >> NAMES == 0
}

/// A name that follows this one on a node.
pub(super) fn later_name(owner: Owner, names: u64) -> Owner {
    Owner {
        attempt: owner.attempt.wrapping_add(names << NAMES),
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
