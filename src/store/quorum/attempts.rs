//! What this process has under way on the nodes: who asks, waits or holds, and under which name on each node.
//!
//! 1. A node knows an attempt by its owner as long as nothing went wrong there. After a call that failed or was given
//!    up, and after a vote that was undone, the attempt takes a new name on that node: what still cleans up behind
//!    the old one, whenever that may be, must not end what was granted since. (A node must not be asked again in the
//!    name of an owner whose acquire failed, says the contract.)
//! 2. A seat is asked for by one call at a time. So what is held under a name is only given up by whoever ends the
//!    attempt.
//! 3. An attempt that is ending, or is gone, gets no new seat: whoever asked for one finds that out when it comes,
//!    and gives it back.
//! 4. Nothing stays: who releases removes its attempt; one that nobody comes back for is swept away some time after
//!    it expired.

use std::collections::HashMap;

use bytes::Bytes;
use tokio::time::Instant;

use super::super::{Acquire, Owner};
use crate::{LockKey, sync::Mutex, time::later};

/// Attempts of an instance are counted from one; what is above says which name on a node it is.
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
struct Attempt {
    seats: Vec<Seat>,
    /// Until when it holds a majority.
    valid_until: Instant,
    /// Until when somebody may come back for it.
    kept_until: Instant,
    is_ending: bool,
    fingerprint: Option<Bytes>,
}

/// An attempt's place at a node.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seat {
    /// The attempt's name on that node.
    pub(super) owner: Owner,
    pub(super) is: Is,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Is {
    /// Not ours; perhaps queued for.
    Away,
    /// A call that asks for it is under way.
    Asked,
    /// Ours, if the node has not forgotten.
    Held,
}

impl Attempts {
    pub(super) fn new(nodes: usize) -> Self {
        Self {
            nodes,
            table: Mutex::default(),
        }
    }

    /// Begins an attempt, or goes on with one that waits. Its seats count as asked for now.
    pub(super) fn enter(&self, request: &Acquire, now: Instant) -> Vec<Seat> {
        let mut table = self.table.lock();
        table.sweep(now);
        let attempt = table
            .attempts
            .entry((request.key.clone(), request.owner))
            .or_insert_with(|| Attempt {
                seats: fresh_seats(request.owner, self.nodes),
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
    pub(super) fn ask_again(&self, key: &LockKey, owner: Owner) -> Option<Vec<Seat>> {
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

    /// A node has granted the seat that it was asked for by this name. Says whether it is still wanted.
    pub(super) fn take(&self, key: &LockKey, owner: Owner, node: usize, name: Owner) -> bool {
        self.with_seat(key, owner, node, name, |seat| seat.is = Is::Held)
    }

    /// A node has not granted it, or says that it is not ours any more.
    pub(super) fn miss(&self, key: &LockKey, owner: Owner, node: usize, name: Owner) -> bool {
        self.with_seat(key, owner, node, name, |seat| seat.is = Is::Away)
    }

    /// The name is used up: a call failed, or what it was granted is given back.
    pub(super) fn rename(&self, key: &LockKey, owner: Owner, node: usize, name: Owner) -> bool {
        self.with_seat(key, owner, node, name, |seat| {
            *seat = Seat {
                owner: next_name(seat.owner),
                is: Is::Away,
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

    /// What a holder's seats are. An attempt that is not known here has its own name everywhere.
    pub(super) fn seats(&self, key: &LockKey, owner: Owner) -> Vec<Seat> {
        self.with(key, owner, |attempt| attempt.seats.clone())
            .unwrap_or_else(|| {
                let held = |seat| Seat {
                    is: Is::Held,
                    ..seat
                };
                let seats = fresh_seats(owner, self.nodes);
                seats.into_iter().map(held).collect()
            })
    }

    /// Asks for a seat that is missing, as long as the attempt is valid. Returns its name and fingerprint.
    pub(super) fn ask_for(
        &self,
        key: &LockKey,
        owner: Owner,
        node: usize,
        now: Instant,
    ) -> Option<(Owner, Option<Bytes>)> {
        self.with(key, owner, |attempt| {
            if !attempt.may_heal(now) || attempt.seats[node].is != Is::Away {
                return None;
            }
            attempt.seats[node].is = Is::Asked;
            Some((attempt.seats[node].owner, attempt.fingerprint.clone()))
        })?
    }

    /// A seat that was asked for by [`ask_for`](Self::ask_for) was granted. Says whether it came in time and is wanted.
    pub(super) fn heal(
        &self,
        key: &LockKey,
        owner: Owner,
        (node, name): (usize, Owner),
        now: Instant,
    ) -> bool {
        let valid = self.with(key, owner, |attempt| attempt.may_heal(now));
        valid == Some(true) && self.take(key, owner, node, name)
    }

    /// Begins to end an attempt: from here on it gets no new seat. Returns those it has.
    pub(super) fn begin_to_end(&self, key: &LockKey, owner: Owner) -> Vec<Seat> {
        self.with(key, owner, |attempt| attempt.is_ending = true);
        self.seats(key, owner)
    }

    pub(super) fn remove(&self, key: &LockKey, owner: Owner) {
        self.table.lock().attempts.remove(&(key.clone(), owner));
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

    /// Works on the seat if it still has this name. Says whether.
    fn with_seat(
        &self,
        key: &LockKey,
        owner: Owner,
        node: usize,
        name: Owner,
        work: impl FnOnce(&mut Seat),
    ) -> bool {
        self.with(key, owner, |attempt| {
            let seat = &mut attempt.seats[node];
            let found = seat.owner == name;
            if found {
                work(seat);
            }
            found
        })
        .unwrap_or(false)
    }
}

impl Attempt {
    fn ask(&mut self) -> Vec<Seat> {
        for seat in &mut self.seats {
            if seat.is == Is::Asked {
                seat.owner = next_name(seat.owner); // the other call's answer is not for this one
            }
            seat.is = Is::Asked;
        }
        self.seats.clone()
    }

    fn may_heal(&self, now: Instant) -> bool {
        !self.is_ending && now < self.valid_until
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

fn fresh_seats(owner: Owner, nodes: usize) -> Vec<Seat> {
    let is = Is::Away;
    vec![Seat { owner, is }; nodes]
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
