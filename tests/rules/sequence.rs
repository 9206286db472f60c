//! Random sequences of calls, at one key or at several.
//!
//! An [`Op`] names seats instead of owners, and says nothing that depends on an answer: a sequence
//! is the same in each run of a seed, and what is left of it without some of its ops is a sequence,
//! too. [`Seats`] makes the calls, within the contract: an owner asks in one mode, and never again
//! after its release.

use std::time::Duration;

use bytes::Bytes;
use tower_distributed_lock::{
    LockKey,
    store::{Acquire, End, Ending, Expected, Instance, Mode, Owner, Queueing, Release, Renew},
};

use crate::{
    call::{Answer, Call, Said},
    random::Random,
};

/// How many instances use a key.
pub(crate) const INSTANCES: usize = 3;

#[derive(Debug, Clone)]
pub(crate) enum Op {
    Acquire {
        seat: usize,
        /// The mode, unless the owner has asked before.
        mode: Mode,
        lease: u64,
        queueing: Queue,
        block: u32,
        fingerprint: Option<u8>,
        /// How many further owners ask for a permit.
        more: usize,
        /// Seats of the same instance whose owners are ended first.
        ends: Vec<(usize, Which)>,
    },
    Renew {
        seat: Pick,
        which: Which,
        lease: u64,
        refill: u32,
        is_downgrade: bool,
    },
    Release {
        seat: Pick,
        which: Which,
        record: Option<u64>,
    },
    Force(Force),
    Inspect,
    /// By how much the floor is above the last token.
    Raise(u64),
    Pause(u64),
}

/// Times are in milliseconds.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Queue {
    No,
    Skip,
    Wait { deadline: u64, head_start: u64 },
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Force {
    Anything,
    Holder(Pick),
    Record,
}

/// A seat: this one, or with `is_granted`, one of those with a lease, if there are any.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pick {
    number: usize,
    is_granted: bool,
}

/// The owner of a seat that a call names.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Which {
    Present,
    /// The present owner, in the mode from before its downgrade: the call was delayed.
    PresentDelayed,
    /// The one before, whose release was made already.
    Former,
}

/// Steps, each of which has one call for each key.
#[derive(Debug, Clone)]
pub(crate) struct Sequence {
    pub(crate) steps: Vec<Vec<Op>>,
    pub(crate) keys: u64,
    /// How many seats each instance has at each key.
    pub(crate) seats: usize,
}

/// What the random sequences of a seed are like.
struct Taste {
    /// Several keys are used together, mostly in the same way, and mostly by calls of the usual kind:
    /// those share a script.
    keys: u64,
    permits: Option<u32>,
    /// In percent: calls for the other kind of leases.
    other_kind: u64,
    /// In percent: readers, and times that end within a sequence.
    shared: u64,
    short: u64,
    /// Seats of each instance that ask, and those behind them that ask for further permits.
    asking: usize,
    further: usize,
    ops: u64,
}

impl Taste {
    fn new(random: &mut Random) -> Self {
        let is_crowded = random.percent(8);
        let is_joint = !is_crowded && random.percent(60);
        let has_permits = !is_joint && random.percent(50);
        Self {
            keys: if is_joint { random.within(3..9) } else { 1 },
            permits: has_permits.then(|| random.within(1..6) as u32),
            other_kind: *random.pick(&[0, 0, 5]),
            shared: *random.pick(&[20, 50, 80]),
            short: *random.pick(if is_joint { &[0, 5, 20] } else { &[0, 25, 60] }),
            asking: if is_crowded { 16 } else { 3 },
            further: if is_crowded { 0 } else { 2 },
            ops: if is_crowded { 160 } else { 70 },
        }
    }

    fn mode(&self, random: &mut Random) -> Mode {
        match self.permits {
            Some(of) if !random.percent(self.other_kind) => Mode::Permit { of },
            None if random.percent(self.other_kind) => Mode::Permit { of: 2 },
            _ if random.percent(self.shared) => Mode::Shared,
            _ => Mode::Exclusive,
        }
    }

    fn time(&self, random: &mut Random) -> u64 {
        if random.percent(self.short) {
            return *random.pick(&[40, 55, 90]);
        }
        600_000
    }

    /// One of the numbers; mostly the usual one, if calls are to share scripts.
    fn unusual(&self, random: &mut Random, usual: u32, numbers: &[u32]) -> u32 {
        if self.keys > 1 && random.percent(85) {
            return usual;
        }
        *random.pick(numbers)
    }

    /// One step: mostly the same call for each key.
    fn step(&self, random: &mut Random) -> Vec<Op> {
        let same = self.op(random);
        let mut op = || {
            if self.keys == 1 || random.percent(75) {
                same.clone()
            } else {
                self.op(random)
            }
        };
        (0..self.keys).map(|_| op()).collect()
    }

    fn seats(&self) -> usize {
        self.asking + self.further
    }

    fn any_seat(&self, random: &mut Random) -> Pick {
        Pick {
            number: random.within(0..(INSTANCES * self.seats()) as u64) as usize,
            is_granted: random.percent(60),
        }
    }

    fn op(&self, random: &mut Random) -> Op {
        let seat = self.any_seat(random);
        let which = *random.pick(&[
            Which::Present,
            Which::Present,
            Which::Present,
            Which::PresentDelayed,
            Which::Former,
        ]);
        match random.within(0..100) {
            0..48 => self.acquire(random),
            48..62 => Op::Renew {
                seat,
                which,
                lease: self.time(random),
                refill: self.unusual(random, 0, &[0, 0, 1, 5, 200]),
                is_downgrade: random.percent(40),
            },
            62..82 => Op::Release {
                seat,
                which,
                record: random.percent(25).then(|| *random.pick(&[40, 40, 600_000])),
            },
            82..86 => Op::Force(*random.pick(&[
                Force::Anything,
                Force::Holder(seat),
                Force::Holder(seat),
                Force::Record,
            ])),
            86..91 => Op::Inspect,
            91 => Op::Raise(random.within(0..1_000)),
            _ => Op::Pause(random.within(1..60)),
        }
    }

    fn acquire(&self, random: &mut Random) -> Op {
        let instance = random.within(0..INSTANCES as u64) as usize;
        let first = instance * self.seats();
        let seat = first + random.within(0..self.asking as u64) as usize;
        let mut ends = Vec::new();
        if random.percent(if self.keys > 1 { 5 } else { 25 }) {
            let others = (first..first + self.seats()).filter(|other| *other != seat);
            let others = others.filter(|_| random.percent(40)).collect::<Vec<_>>();
            let which = |seat| (seat, *random.pick(&[Which::Present, Which::Former]));
            ends = others.into_iter().map(which).collect();
        }
        let queueing = match random.within(0..10) {
            0 | 1 => Queue::No,
            2 => Queue::Skip,
            _ => Queue::Wait {
                deadline: self.time(random),
                head_start: *random.pick(&[20, 60, 300, 600_000, 600_000]),
            },
        };
        Op::Acquire {
            seat,
            mode: self.mode(random),
            lease: self.time(random),
            queueing,
            block: self.unusual(random, 1, &[1, 1, 2, 16, 300]),
            fingerprint: random.percent(25).then(|| random.within(0..4) as u8),
            more: random.within(0..self.further as u64 + 1) as usize,
            ends,
        }
    }
}

impl Sequence {
    /// The random sequence of a seed.
    pub(crate) fn random(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let taste = Taste::new(&mut random);
        Self {
            steps: (0..taste.ops).map(|_| taste.step(&mut random)).collect(),
            keys: taste.keys,
            seats: taste.seats(),
        }
    }
}

/// The owners of a sequence at one key.
pub(crate) struct Seats {
    key: LockKey,
    in_an_instance: usize,
    seats: Vec<Seat>,
}

#[derive(Clone)]
struct Seat {
    owner: Owner,
    /// The mode in which the owner has asked.
    asked: Option<Mode>,
    /// The last answer was a grant.
    is_granted: bool,
    is_downgraded: bool,
    former: Option<(Owner, Mode)>,
}

impl Seat {
    fn mode(&self) -> Mode {
        if self.is_downgraded {
            Mode::Shared
        } else {
            self.asked.unwrap_or_default()
        }
    }

    /// The owner's release is made: the next call is another owner's.
    fn end(&mut self) {
        *self = Self {
            former: Some((self.owner, self.mode())),
            owner: Owner {
                attempt: self.owner.attempt + 1,
                ..self.owner
            },
            asked: None,
            is_granted: false,
            is_downgraded: false,
        };
    }

    fn named(&self, which: Which) -> (Owner, Mode) {
        match (which, self.former) {
            (Which::Former, Some(former)) => former,
            (Which::PresentDelayed, _) => (self.owner, self.asked.unwrap_or_default()),
            (Which::Present | Which::Former, _) => (self.owner, self.mode()),
        }
    }
}

impl Seats {
    pub(crate) fn new(key: &LockKey, instances: &[Instance], in_an_instance: usize) -> Self {
        let seat = |number: usize| Seat {
            owner: Owner {
                instance: instances[number / in_an_instance],
                // The names of owners differ within an instance, however often each is ended.
                attempt: 1_000 * (1 + number as u64),
            },
            asked: None,
            is_granted: false,
            is_downgraded: false,
            former: None,
        };
        Self {
            key: key.clone(),
            in_an_instance,
            seats: (0..INSTANCES * in_an_instance).map(seat).collect(),
        }
    }

    /// The call of an op.
    pub(crate) fn call(&mut self, op: &Op) -> Call {
        match op {
            Op::Acquire {
                seat,
                mode,
                lease,
                queueing,
                block,
                fingerprint,
                more,
                ends,
            } => {
                if self.seats[*seat].is_downgraded {
                    return Call::Inspect;
                }
                let mode = *self.seats[*seat].asked.get_or_insert(*mode);
                let key = self.key.clone();
                let end = |(seat, which): &(usize, Which)| {
                    let seat = &mut self.seats[*seat];
                    let (owner, mode) = seat.named(*which);
                    if owner == seat.owner {
                        seat.end();
                    }
                    End { owner, mode }
                };
                let ends = ends.iter().map(end).collect();
                let more = if mode.is_permit() { *more } else { 0 };
                Call::Acquire(Acquire {
                    key,
                    owner: self.seats[*seat].owner,
                    lease: millis(*lease),
                    block: *block,
                    queueing: match *queueing {
                        Queue::No => Queueing::No,
                        Queue::Skip => Queueing::Skip,
                        Queue::Wait {
                            deadline,
                            head_start,
                        } => Queueing::Wait {
                            deadline: millis(deadline),
                            head_start: millis(head_start),
                        },
                    },
                    mode,
                    more: self.further(*seat, more, mode),
                    fingerprint: fingerprint
                        .filter(|_| mode == Mode::Exclusive)
                        .map(|digest| Bytes::from(format!("digest {digest}"))),
                    ends,
                })
            }
            Op::Renew {
                seat,
                which,
                lease,
                refill,
                is_downgrade,
            } => {
                let seat = self.picked(*seat);
                let (owner, mut mode) = seat.named(*which);
                if *is_downgrade && seat.is_granted && mode == Mode::Exclusive {
                    mode = Mode::Shared;
                }
                Call::Renew(Renew {
                    key: self.key.clone(),
                    owner,
                    lease: millis(*lease),
                    refill: *refill,
                    mode,
                })
            }
            Op::Release {
                seat,
                which,
                record,
            } => {
                let key = self.key.clone();
                let seat = self.picked(*seat);
                let (owner, mode) = seat.named(*which);
                // A record is for a lease that was exclusive, and may be shared by now.
                let was_exclusive = match seat.asked {
                    Some(asked) if owner == seat.owner => asked == Mode::Exclusive,
                    _ => mode == Mode::Exclusive,
                };
                if owner == seat.owner {
                    seat.end();
                }
                let content = Bytes::from(format!("done by {}", owner.attempt));
                Call::Release(Release {
                    key,
                    owner,
                    mode,
                    ending: match record.filter(|_| was_exclusive) {
                        Some(retain) => Ending::Record {
                            content,
                            retain: millis(retain),
                        },
                        None => Ending::Free,
                    },
                    in_doubt: false,
                    lasts: millis(600_000),
                })
            }
            Op::Force(Force::Anything) => Call::Force(Expected::Anything),
            Op::Force(Force::Record) => Call::Force(Expected::Record),
            Op::Force(Force::Holder(seat)) => {
                Call::Force(Expected::Holder(self.picked(*seat).owner))
            }
            Op::Inspect | Op::Pause(_) => Call::Inspect,
            Op::Raise(above) => Call::Raise(*above),
        }
    }

    fn picked(&mut self, pick: Pick) -> &mut Seat {
        let of_holders = || {
            self.seats
                .iter()
                .enumerate()
                .filter(|(_, it)| it.is_granted)
        };
        let holders = of_holders().count();
        let mut number = pick.number;
        if pick.is_granted && holders > 0 {
            number = of_holders().nth(number % holders).map_or(number, |it| it.0);
        }
        &mut self.seats[number]
    }

    /// Owners of the last seats of an instance, which ask for further permits: those that have
    /// none.
    fn further(&mut self, seat: usize, number: usize, mode: Mode) -> Vec<Owner> {
        let end = (seat / self.in_an_instance + 1) * self.in_an_instance;
        let seats = self.seats[end - number..end].iter_mut();
        let asking = seats.filter(|seat| !seat.is_granted).map(|seat| {
            seat.asked = Some(mode);
            seat.owner
        });
        asking.collect()
    }

    /// Takes note of an answer.
    pub(crate) fn answered(&mut self, call: &Call, answer: &Answer) {
        match call {
            Call::Acquire(request) => {
                let count = match answer.said {
                    Said::Granted { count, .. } => count as usize,
                    _ => 0,
                };
                for (place, owner) in request.owners().enumerate() {
                    self.of(owner, |seat| seat.is_granted = place < count);
                }
            }
            Call::Renew(request) => {
                if let (Said::Renewed { .. }, Mode::Shared) = (&answer.said, request.mode) {
                    self.of(request.owner, |seat| {
                        seat.is_downgraded = seat.asked == Some(Mode::Exclusive);
                    });
                }
            }
            Call::Release(_) | Call::Force(_) | Call::Inspect | Call::Raise(_) => {}
        }
    }

    fn of(&mut self, owner: Owner, change: impl FnOnce(&mut Seat)) {
        self.seats
            .iter_mut()
            .find(|seat| seat.owner == owner)
            .map(change);
    }
}

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}
