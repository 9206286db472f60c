//! The settings of a world.

use std::time::Duration;

use super::{random::Random, turns::Uses};
use crate::{Locks, store::FaultyStore};

const SECOND: Duration = Duration::from_secs(1);
/// How long a free key may stand still where calls fail: a lost hint costs a poll, and a crashed
/// head of the queue costs its head start.
const STALL: Duration = Duration::from_millis(1_350);
/// How long a key may stand still where every hint arrives and no call fails. Time passes in small
/// steps while tasks work.
const PROMPT: Duration = Duration::from_millis(100);

/// The settings of one execution.
#[derive(Debug, Clone, Copy)]
pub(super) struct Setup {
    pub(super) lease: Duration,
    pub(super) max_hold: Duration,
    pub(super) pass_turns: u32,
    /// Whether calls may fail.
    pub(super) may_fail: bool,
    /// Whether turns may be lost: faults outlast leases, holds outlast `max_hold`, the store
    /// forgets.
    pub(super) may_lose: bool,
    /// Whether requests claim their keys.
    pub(super) claims: bool,
    /// How requests that do not claim use their keys.
    pub(super) uses: Uses,
    /// If set, the store forgets its leases while the answer to a renewal is under way.
    pub(super) forgets: Option<Forgetting>,
    /// Most turns last exactly for `max_hold`.
    pub(super) to_the_edge: bool,
    /// If set, the first instance is closed while requests are made, with so much time for the
    /// turns under way.
    pub(super) closes: Option<Duration>,
    pub(super) limits: Limits,
    pub(super) instances: usize,
    pub(super) requests: usize,
    pub(super) keys: usize,
}

/// The limits of an instance, beyond which requests are refused.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Limits {
    pub(super) fail_fast: bool,
    pub(super) longest_line: Option<usize>,
    pub(super) max_keys: Option<usize>,
}

impl Limits {
    fn draw(random: &mut Random) -> Self {
        Self {
            fail_fast: random.percent(15),
            longest_line: random.percent(15).then(|| random.within(0..3) as usize),
            max_keys: random.percent(15).then_some(1),
        }
    }
}

/// When the store forgets its leases, as times since the start of the world.
#[derive(Debug, Clone, Copy)]
pub(super) struct Forgetting {
    /// Answers are held back from this time on.
    pub(super) muted: Duration,
    /// The store forgets.
    pub(super) forgotten: Duration,
    /// The answers arrive.
    pub(super) over: Duration,
}

impl Forgetting {
    /// `renewed`: when a lease from the start of the world is renewed.
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

    /// A random time between the forgetting and the arrival of the answers.
    fn meanwhile(&self, random: &mut Random) -> Duration {
        let lasts = (self.over - self.forgotten).as_millis() as u64;
        self.forgotten + random.millis(0..lasts)
    }
}

impl Setup {
    /// Two kinds of worlds make one class of faults likely. The third kind mixes everything.
    pub(super) fn draw(random: &mut Random) -> Self {
        match random.within(0..10) {
            0..2 => Self::to_the_edge(random),
            2..5 => Self::forgetting(random),
            _ => Self::any(random),
        }
    }

    /// A world whose turns end exactly when `max_hold` does, one after another under one lease.
    fn to_the_edge(random: &mut Random) -> Self {
        Self {
            lease: 6 * SECOND,
            max_hold: 3 * SECOND,
            pass_turns: 16,
            may_fail: false,
            may_lose: true,
            claims: false,
            uses: uses(random),
            forgets: None,
            to_the_edge: true,
            closes: None,
            limits: Limits::default(),
            instances: 1,
            requests: random.within(3..6) as usize,
            keys: 1,
        }
    }

    /// A world whose store forgets its leases while the answer to a renewal is under way.
    fn forgetting(random: &mut Random) -> Self {
        let lease = 6 * SECOND;
        Self {
            lease,
            max_hold: 600 * SECOND,
            pass_turns: *random.pick(&[1, 16]),
            may_fail: true,
            may_lose: true,
            claims: false,
            uses: uses(random),
            forgets: Some(Forgetting::draw(lease / 3, random)),
            to_the_edge: false,
            closes: None,
            limits: Limits::default(),
            instances: 2,
            requests: random.within(5..8) as usize,
            keys: 1,
        }
    }

    fn any(random: &mut Random) -> Self {
        let (may_fail, may_lose) =
            *random.pick(&[(false, false), (true, false), (true, true), (true, true)]);
        let short_hold = may_lose && random.percent(50);
        Self {
            lease: if may_lose { 6 * SECOND } else { 60 * SECOND },
            max_hold: if short_hold { 3 * SECOND } else { 600 * SECOND },
            pass_turns: *random.pick(&[0, 1, 16]),
            may_fail,
            may_lose,
            claims: random.percent(25),
            uses: match random.within(0..5) {
                0 => Uses::Reads,
                1 => Uses::Plenty,
                _ => uses(random),
            },
            forgets: None,
            to_the_edge: false,
            closes: random.percent(15).then(|| {
                if may_lose {
                    random.millis(0..5_000)
                } else {
                    10_000 * SECOND
                }
            }),
            limits: Limits::draw(random),
            instances: random.within(1..3) as usize,
            requests: random.within(3..7) as usize,
            keys: random.within(1..3) as usize,
        }
    }

    /// Places in the store's queue last longer than a free key may stand still.
    pub(super) fn locks(&self, store: &FaultyStore) -> Locks {
        let builder = Locks::builder(store.clone())
            .lease(self.lease)
            .max_hold(self.max_hold)
            .pass_turns(self.pass_turns)
            .waiter_deadline(self.lease)
            .fail_fast(self.limits.fail_fast)
            .longest_line(self.limits.longest_line.unwrap_or(100))
            .max_keys(self.limits.max_keys.unwrap_or(100))
            .wait_forever();
        builder.build().expect("the settings go together")
    }

    /// How long a free key may stand still while requests wait for the key and the store works. The
    /// lease of work whose result could not be stored has to expire first.
    pub(super) fn stall(&self) -> Duration {
        if self.claims {
            STALL + self.lease
        } else {
            STALL
        }
    }

    /// How long a key may stand still while a request waits that fits beside the holders.
    pub(super) fn stall_of_a_key(&self) -> Duration {
        if self.may_fail || self.claims || self.may_lose {
            self.stall()
        } else {
            PROMPT
        }
    }

    /// How long a fault lasts: mostly a moment, sometimes longer than a lease.
    pub(super) fn fault(&self, random: &mut Random) -> Duration {
        match random.within(0..4) {
            0 if self.may_lose => self.lease + random.millis(0..3_000),
            1 => random.millis(100..3_000),
            _ => random.millis(0..100),
        }
    }

    /// How long a task pauses before a request. Where the store forgets, the first task takes the
    /// key before; another task of the same instance waits early, so that tokens are reserved
    /// for the line; and the other tasks come while the answers are under way.
    pub(super) fn pause(&self, task: usize, elapsed: Duration, random: &mut Random) -> Duration {
        if let Some(forgetting) = &self.forgets
            && (task == 0 || random.percent(75))
        {
            let at = match task {
                0 => Duration::ZERO,
                2 => random.millis(0..1_000),
                _ => forgetting.meanwhile(random),
            };
            return at.saturating_sub(elapsed);
        }
        if random.percent(50) {
            random.millis(0..5_000)
        } else {
            Duration::ZERO
        }
    }

    /// How long a turn or the work of a claim lasts: mostly a moment, sometimes exactly up to a
    /// limit.
    pub(super) fn hold(&self, task: usize, elapsed: Duration, random: &mut Random) -> Duration {
        if let Some(forgetting) = &self.forgets
            && task == 0
        {
            return forgetting.meanwhile(random).saturating_sub(elapsed);
        }
        match random.within(0..8) {
            0..6 if self.to_the_edge => self.max_hold,
            0 | 4 if self.max_hold < self.lease => self.max_hold,
            0 if self.may_lose => 2 * self.lease,
            1 if self.may_lose => random.millis(0..(3 * self.lease).as_millis() as u64),
            2 => self.lease / 3,
            3 => random.millis(0..1_000),
            _ => Duration::ZERO,
        }
    }
}

fn uses(random: &mut Random) -> Uses {
    *random.pick(&[Uses::Locks, Uses::Reports, Uses::Reports, Uses::Permits(2)])
}
