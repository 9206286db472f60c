//! What a world is like.

use std::time::Duration;

use super::random::Random;
use crate::{Locks, store::FaultyStore};

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
    /// The store forgets its leases while the answer to a renewal is on its way.
    pub(super) forgets: Option<Forgetting>,
    pub(super) instances: usize,
    pub(super) requests: usize,
    pub(super) keys: usize,
}

/// When the store forgets its leases: points in time, from the beginning of the world on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Forgetting {
    /// Answers are held back from here on.
    pub(super) muted: Duration,
    pub(super) forgotten: Duration,
    /// The answers come.
    pub(super) over: Duration,
}

impl Forgetting {
    /// A lease from the very beginning is renewed after `renewed`.
    fn draw(renewed: Duration, random: &mut Random) -> Self {
        let muted = random.millis(0..1_000);
        let forgotten = renewed + random.millis(1..1_000);
        let over = forgotten + random.millis(1..2_000);
        Self {
            muted,
            forgotten,
            over,
        }
    }

    /// Some time between the two.
    fn meanwhile(&self, random: &mut Random) -> Duration {
        let lasts = (self.over - self.forgotten).as_millis() as u64;
        self.forgotten + random.millis(0..lasts)
    }
}

impl Setup {
    pub(super) fn draw(random: &mut Random) -> Self {
        let (may_fail, may_lose) =
            *random.pick(&[(false, false), (true, false), (true, true), (true, true)]);
        let claims = random.percent(30);
        let lease = if may_lose { 6 * SECOND } else { 60 * SECOND };
        let forgets = may_lose && !claims && random.percent(50);
        let short_hold = may_lose && !forgets && random.percent(50);
        Self {
            lease,
            max_hold: if short_hold { 3 * SECOND } else { 600 * SECOND },
            pass_turns: *random.pick(&[0, 1, 16]),
            may_fail,
            may_lose,
            claims,
            forgets: forgets.then(|| Forgetting::draw(lease / 3, random)),
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
    pub(super) fn locks(&self, store: &FaultyStore) -> Locks {
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

    /// How long a task pauses before a request. Where the store forgets, the first task has the key before, and others come
    /// while the answers are on their way.
    pub(super) fn pause(&self, task: usize, elapsed: Duration, random: &mut Random) -> Duration {
        if let Some(forgetting) = &self.forgets
            && (task == 0 || random.percent(75))
        {
            let at = match task {
                0 => Duration::ZERO,
                _ => forgetting.meanwhile(random),
            };
            return at.saturating_sub(elapsed);
        }
        match random.percent(50) {
            true => random.millis(0..5_000),
            false => Duration::ZERO,
        }
    }

    /// How long a turn or a work lasts: mostly a moment, sometimes to an edge.
    pub(super) fn hold(&self, task: usize, elapsed: Duration, random: &mut Random) -> Duration {
        if let Some(forgetting) = &self.forgets
            && task == 0
        {
            return forgetting.meanwhile(random).saturating_sub(elapsed);
        }
        match random.within(0..8) {
            0 | 4 if self.max_hold < self.lease => self.max_hold,
            0 if self.may_lose => 2 * self.lease,
            1 if self.may_lose => random.millis(0..(3 * self.lease).as_millis() as u64),
            2 => self.lease / 3,
            3 => random.millis(0..1_000),
            _ => Duration::ZERO,
        }
    }
}
