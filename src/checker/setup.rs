//! What a world is like.

use std::time::Duration;

use super::random::Random;
use crate::{Locks, store::MemoryStore};

const SECOND: Duration = Duration::from_secs(1);
/// A lost hint costs a poll, a dead head of the queue its head start.
const STALL: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, Copy)]
pub(super) struct Setup {
    pub(super) lease: Duration,
    pub(super) max_hold: Duration,
    pub(super) pass_turns: u32,
    /// Whether calls may fail.
    pub(super) may_fail: bool,
    /// Whether turns may be lost: faults outlast leases, holds outlast `max_hold`, the store forgets.
    pub(super) may_lose: bool,
    /// Whether requests claim their keys.
    pub(super) claims: bool,
    /// Whether the store forgets its leases while answers to renewals are on their way.
    pub(super) forgets: bool,
    pub(super) instances: usize,
    pub(super) requests: usize,
    pub(super) keys: usize,
}

impl Setup {
    pub(super) fn draw(random: &mut Random) -> Self {
        let (may_fail, may_lose) =
            *random.pick(&[(false, false), (true, false), (true, true), (true, true)]);
        let claims = random.percent(30);
        let forgets = may_lose && !claims && random.percent(60);
        let short_hold = may_lose && !forgets && random.percent(50);
        Self {
            lease: if may_lose { 6 * SECOND } else { 60 * SECOND },
            max_hold: if short_hold { 3 * SECOND } else { 600 * SECOND },
            pass_turns: *random.pick(&[0, 1, 16]),
            may_fail,
            may_lose,
            claims,
            forgets,
            instances: if forgets {
                2
            } else {
                random.within(1..3) as usize
            },
            requests: random.within(3..7) as usize,
            keys: if forgets {
                1
            } else {
                random.within(1..3) as usize
            },
        }
    }

    /// Places in the store's queue last longer than a free key may stand still.
    pub(super) fn locks(&self, store: &MemoryStore) -> Locks {
        let builder = Locks::builder(store.clone())
            .lease(self.lease)
            .max_hold(self.max_hold)
            .pass_turns(self.pass_turns)
            .waiter_deadline(self.lease)
            .wait_forever();
        builder.build().expect("the settings go together")
    }

    /// How long a key may stand still while requests wait for it, no request holds it and the store works. The lease of work whose
    /// result could not be stored is left to run out.
    pub(super) fn stall(&self) -> Duration {
        match self.claims {
            true => STALL + self.lease,
            false => STALL,
        }
    }

    /// How long a fault lasts: mostly a moment, sometimes so long that leases run out.
    pub(super) fn fault(&self, random: &mut Random) -> Duration {
        match random.within(0..4) {
            0 if self.may_lose => self.lease + random.millis(0..3_000),
            1 => random.millis(100..3_000),
            _ => random.millis(0..100),
        }
    }

    /// When a task makes its next request.
    pub(super) fn pause(&self, random: &mut Random) -> Duration {
        match random.percent(if self.forgets { 75 } else { 50 }) {
            true => random.millis(0..5_000),
            false => Duration::ZERO,
        }
    }

    /// How long a turn or a work lasts: mostly a moment, sometimes to an edge.
    pub(super) fn hold(&self, random: &mut Random) -> Duration {
        match random.within(0..8) {
            0..4 if self.forgets => random.millis(0..self.lease.as_millis() as u64),
            0 | 4 if self.max_hold < self.lease => self.max_hold,
            0 if self.may_lose => 2 * self.lease,
            1 if self.may_lose => random.millis(0..(3 * self.lease).as_millis() as u64),
            2 => self.lease / 3,
            3 => random.millis(0..1_000),
            _ => Duration::ZERO,
        }
    }
}
