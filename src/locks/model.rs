//! The line under a model checker: `RUSTFLAGS="--cfg shuttle" cargo test --lib --release model`.
//!
//! [`Lines`] and all its transitions are the real ones. What carries out their [`Effect`]s is a toy: each store
//! call is a thread of its own, so that its reply may come at any time, and the store is one key in memory. Local
//! requests, another instance, a clock that jumps and a shutdown run against each other in the order that the checker
//! chooses. They lock the key, or claim it: all for the same thing, or for different ones.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use shuttle::{
    Config, Runner,
    rand::{Rng, thread_rng},
    scheduler::{PctScheduler, RandomScheduler, Scheduler},
    thread::{self, JoinHandle, yield_now},
};
use tokio::{sync::oneshot, time::Instant};

use super::{
    line::{Answer, Confirmation, Contention, Effect, Effects, Granted, Limits, Miss, Wish},
    lines::Lines,
    waiter::last_word,
};
use crate::{
    Error, ErrorKind, LockKey, Loss,
    lease::Lease,
    store::{Grant, Instance, Owner, Tokens},
    sync::Mutex,
};

/// The store keeps a lease for so many ticks; the one who holds it trusts it for fewer.
const LEASE: u64 = 10;
const VALIDITY: u64 = 8;

const REQUESTS: usize = 3;
const ROUNDS: usize = 2;

struct World {
    /// What requests claim; nothing if they only lock.
    claims: &'static [&'static [u8]],
    key: LockKey,
    lines: Lines,
    epoch: Instant,
    ticks: AtomicU64,
    attempts: AtomicU64,
    store: Mutex<Store>,
    /// The scheduler's leases, and of each the renewal that is under way.
    tracked: Mutex<HashMap<u64, (Arc<Lease>, Renewal)>>,
    inside: Mutex<Inside>,
    /// All that was ever to be recorded.
    answers: Mutex<Vec<Bytes>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Default)]
struct Store {
    holder: Option<Holder>,
    record: Option<(u64, Bytes)>,
    fence: u64,
}

#[derive(Debug)]
struct Holder {
    attempt: u64,
    until: u64,
    claim: Option<Bytes>,
    /// Nobody answers for it any more: its time will end it.
    abandoned: bool,
}

enum Acquired {
    Granted(Tokens),
    Held(Option<Bytes>),
    Recorded(Bytes),
}

#[derive(Clone, Copy, PartialEq)]
enum Renewal {
    Idle,
    UnderWay,
    UnderWayAndWantedAgain,
}

/// Who is inside, as far as the world can see.
#[derive(Default)]
struct Inside {
    lease: Option<Arc<Lease>>,
    highest_token: u64,
}

impl Store {
    fn acquire(&mut self, attempt: u64, claim: Option<Bytes>, block: u32, now: u64) -> Acquired {
        if let Some((_, record)) = &self.record {
            return Acquired::Recorded(record.clone());
        }
        self.holder.take_if(|holder| holder.until <= now);
        if let Some(holder) = &self.holder {
            return Acquired::Held(holder.claim.clone());
        }
        self.holder = Some(Holder {
            attempt,
            until: now + LEASE,
            claim,
            abandoned: false,
        });
        Acquired::Granted(self.hand_out(block))
    }

    /// Says whether the lease was the owner's until now.
    fn record(&mut self, attempt: u64, record: &Bytes, now: u64) -> bool {
        if let Some((by, _)) = &self.record {
            return *by == attempt;
        }
        self.holder.take_if(|holder| holder.until <= now);
        let ours = self.release(attempt);
        if ours {
            self.record = Some((attempt, record.clone()));
        }
        ours
    }

    fn hand_out(&mut self, count: u32) -> Tokens {
        let first = self.fence + 1;
        self.fence += u64::from(count);
        Tokens::new(first, count)
    }

    fn renew(&mut self, attempt: u64, refill: u32, now: u64) -> Option<Option<Tokens>> {
        self.holder.take_if(|holder| holder.until <= now);
        let holder = self.holder.as_mut()?;
        if holder.attempt != attempt {
            return None;
        }
        holder.until = now + LEASE;
        Some((refill > 0).then(|| self.hand_out(refill)))
    }

    fn release(&mut self, attempt: u64) -> bool {
        self.holder
            .take_if(|holder| holder.attempt == attempt)
            .is_some()
    }
}

/// One in `n` times.
fn now_and_then(n: u32) -> bool {
    thread_rng().gen_range(0..n) == 0
}

fn unreachable_store() -> Error {
    Error::new(ErrorKind::Unreachable, "the toy store fails")
}

impl World {
    fn new(claims: &'static [&'static [u8]]) -> Arc<Self> {
        let limits = Limits {
            longest_line: 8,
            pass_turns: 2,
            pass_time: Duration::from_secs(3),
        };
        Arc::new(Self {
            claims,
            key: LockKey::new("k").unwrap(),
            lines: Lines::new(limits),
            epoch: Instant::now(),
            ticks: AtomicU64::new(0),
            attempts: AtomicU64::new(0),
            store: Mutex::default(),
            tracked: Mutex::default(),
            inside: Mutex::default(),
            answers: Mutex::default(),
            threads: Mutex::default(),
        })
    }

    fn spawn(self: &Arc<Self>, work: impl FnOnce(&Arc<Self>) + Send + 'static) {
        let world = self.clone();
        let thread = thread::spawn(move || work(&world));
        self.threads.lock().push(thread);
    }

    fn join_all(&self) {
        loop {
            let thread = self.threads.lock().pop();
            match thread {
                Some(thread) => thread.join().unwrap(),
                None => return,
            }
        }
    }

    fn ticks(&self) -> u64 {
        self.ticks.load(Ordering::SeqCst)
    }

    fn now(&self) -> Instant {
        self.epoch + Duration::from_secs(self.ticks())
    }

    fn owner(&self) -> Owner {
        Owner {
            instance: Instance::new(),
            attempt: self.attempts.fetch_add(1, Ordering::SeqCst) + 1,
        }
    }

    fn lease(&self, owner: Owner, sent: Instant) -> Arc<Lease> {
        let validity = Duration::from_secs(VALIDITY);
        let lease = Lease::new(self.key.clone(), owner, sent, validity);
        Arc::new(lease.claimed(!self.claims.is_empty()))
    }

    fn some_claim(&self) -> Option<Bytes> {
        let at = thread_rng().gen_range(0..self.claims.len().max(1));
        self.claims.get(at).copied().map(Bytes::from_static)
    }
}

/// As [`Inner`](super::inner::Inner) does it.
impl World {
    fn carry_out(self: &Arc<Self>, effects: Effects) {
        for effect in effects {
            match effect {
                Effect::Tell(ticket, answer) => {
                    yield_now();
                    if let Err(Ok(granted)) = ticket.send(answer) {
                        self.end_turn(&granted, None);
                    }
                }
                Effect::Confirm(ask, answer) => drop(ask.send(answer)),
                Effect::Contend(contention, _) => {
                    self.spawn(move |world| world.contend(&contention))
                }
                Effect::Wake(contention) => contention.wake.notify_one(),
                Effect::Renew(lease) => self.hurry(lease),
                Effect::Quicken(_) => {}
                Effect::Release(lease, ask) => self.spawn(move |world| {
                    let ours = world.release(&lease);
                    let answer = if ours {
                        Ok(())
                    } else {
                        Err(unreachable_store())
                    };
                    ask.map(|ask| ask.send(answer));
                    world.carry_out(world.lines.released(&lease));
                }),
                Effect::Unpark(lease) => self.spawn(move |world| {
                    if world.lines.unpark(&lease) {
                        world.release(&lease);
                        world.carry_out(world.lines.released(&lease));
                    }
                }),
                Effect::Lose(lease, loss) => self.lose(&lease, loss),
            }
        }
    }

    fn release(&self, lease: &Lease) -> bool {
        self.tracked.lock().remove(&lease.owner.attempt);
        yield_now();
        self.store.lock().release(lease.owner.attempt)
    }

    fn lose(self: &Arc<Self>, lease: &Arc<Lease>, loss: Loss) {
        if lease.lose(loss) {
            self.tracked.lock().remove(&lease.owner.attempt);
            if !(lease.claimed && self.lines.serves(lease)) {
                self.release_in_background(lease);
            }
        }
        self.carry_out(self.lines.lost(lease));
    }

    fn release_in_background(self: &Arc<Self>, lease: &Arc<Lease>) {
        let lease = lease.clone();
        self.spawn(move |world| _ = world.release(&lease));
    }

    fn end_turn(self: &Arc<Self>, granted: &Granted, ask: Option<Confirmation>) {
        self.carry_out(self.lines.end(granted, ask, self.now()));
        let lease = &granted.lease;
        if lease.claimed && lease.loss().is_some_and(|loss| loss != Loss::NotOurs) {
            self.release_in_background(lease);
        }
    }

    fn finish(self: &Arc<Self>, granted: &Granted, record: &Bytes) {
        self.tracked.lock().remove(&granted.lease.owner.attempt);
        self.carry_out(self.lines.finished(granted, record));
    }

    fn contend(self: &Arc<Self>, contention: &Arc<Contention>) {
        loop {
            let Some(demand) = self.lines.demand(&self.key, contention) else {
                if self.lines.gave_up(&self.key, contention) {
                    return;
                }
                continue;
            };
            let (owner, sent) = (self.owner(), self.now());
            if now_and_then(8) {
                let failure = self
                    .lines
                    .failed(&self.key, contention, &unreachable_store());
                return self.carry_out(failure);
            }
            let answer = self.store.lock().acquire(
                owner.attempt,
                demand.claim.clone(),
                demand.block,
                self.ticks(),
            );
            yield_now();
            match answer {
                Acquired::Granted(tokens) => {
                    let lease = self.lease(owner, sent);
                    return self.granted(contention, lease, (tokens, demand.claim));
                }
                Acquired::Recorded(record) => {
                    return self.carry_out(self.lines.recorded(&self.key, contention, &record));
                }
                Acquired::Held(claim) => {
                    let (_, effects) = self.lines.held(&self.key, contention, &claim);
                    self.carry_out(effects);
                }
            }
        }
    }

    fn granted(
        self: &Arc<Self>,
        contention: &Arc<Contention>,
        lease: Arc<Lease>,
        (tokens, claim): (Tokens, Option<Bytes>),
    ) {
        self.track(&lease);
        let others_wait = now_and_then(2);
        let grant = Grant {
            tokens,
            others_wait,
        };
        self.carry_out(
            self.lines
                .granted(contention, lease, (grant, claim), self.now()),
        );
    }

    fn track(&self, lease: &Arc<Lease>) {
        let entry = (lease.clone(), Renewal::Idle);
        self.tracked.lock().insert(lease.owner.attempt, entry);
    }

    /// At most one renewal of a lease is under way.
    fn hurry(self: &Arc<Self>, lease: Arc<Lease>) {
        let mut tracked = self.tracked.lock();
        let Some((_, renewal)) = tracked.get_mut(&lease.owner.attempt) else {
            return;
        };
        if *renewal == Renewal::Idle {
            *renewal = Renewal::UnderWay;
            drop(tracked);
            self.spawn(move |world| world.renew(lease));
        } else {
            *renewal = Renewal::UnderWayAndWantedAgain;
        }
    }

    fn renew(self: &Arc<Self>, lease: Arc<Lease>) {
        let (id, sent) = (lease.owner.attempt, self.now());
        let refill = self.lines.needs(&lease);
        let fails = now_and_then(8);
        let answer = self.store.lock().renew(id, refill, self.ticks());
        yield_now();
        if !self.tracked.lock().contains_key(&id) {
            return;
        }
        match answer {
            _ if fails => {
                lease.set_confirmed(false);
                self.carry_out(self.lines.renewal_unknown(&lease, &unreachable_store()));
            }
            None if lease.is_recording() => {
                lease.set_confirmed(false);
                self.carry_out(self.lines.renewal_unknown(&lease, &unreachable_store()));
            }
            None => self.lose(&lease, Loss::NotOurs),
            Some(_) if !lease.is_valid(self.now()) => self.lose(&lease, Loss::Expired),
            Some(tokens) => {
                lease.set_confirmed(true);
                lease.extend(sent + Duration::from_secs(VALIDITY));
                let news = (sent, tokens, now_and_then(3));
                self.carry_out(self.lines.renewed(&lease, news, self.now()));
            }
        }
        let before = match self.tracked.lock().get_mut(&id) {
            Some((_, renewal)) => std::mem::replace(renewal, Renewal::Idle),
            None => return,
        };
        if before == Renewal::UnderWayAndWantedAgain {
            self.hurry(lease);
        }
    }
}

/// Those who take part.
impl World {
    /// A request that may not wait, may go away at any time, and may ask for a confirmation.
    fn request(self: &Arc<Self>) {
        let wish = Wish {
            patient: !now_and_then(4),
            claim: self.some_claim(),
        };
        let claim = wish.claim.clone();
        let Ok(joined) = self.lines.join(&self.key, wish, self.now()) else {
            return;
        };
        if let Some(contention) = joined.contention {
            self.spawn(move |world| world.contend(&contention));
        }
        self.carry_out(joined.effects);
        let (id, mut answer) = (joined.waiter, joined.answer);
        if now_and_then(3) {
            for _ in 0..thread_rng().gen_range(0..8) {
                yield_now();
            }
            return self.go_away(id, &mut answer);
        }
        let told = shuttle::future::block_on(answer).expect("everybody who waits is told");
        match told {
            Ok(granted) => self.take_turn(granted, claim),
            Err(Miss::Recorded(record)) => {
                assert!(self.answers.lock().contains(&record), "nobody's record");
            }
            Err(Miss::OtherClaim) => assert!(self.claims.len() > 1, "all claim the same"),
            Err(Miss::Failed(_)) => {}
        }
    }

    /// As [`Waiter`](super::waiter::Waiter) does it when it is dropped.
    fn go_away(self: &Arc<Self>, id: u64, answer: &mut Answer) {
        match last_word(answer) {
            Some(Ok(granted)) => self.end_turn(&granted, None),
            Some(Err(_)) => {}
            None => self.carry_out(self.lines.leave(&self.key, id)),
        }
    }

    fn take_turn(self: &Arc<Self>, granted: Granted, claim: Option<Bytes>) {
        if let Some(holder) = &self.store.lock().holder
            && holder.attempt == granted.lease.owner.attempt
        {
            assert_eq!(holder.claim, claim, "others are told of another claim");
        }
        // A guard that is not held any more when it arrives is not given to anybody.
        if self.enter(&granted.lease, granted.token) {
            yield_now();
            self.exit(&granted.lease);
        }
        if !self.claims.is_empty() && now_and_then(2) && self.record(&granted) {
            return;
        }
        if now_and_then(3) {
            let (ask, answer) = oneshot::channel();
            self.end_turn(&granted, Some(ask));
            let _ = shuttle::future::block_on(answer).expect("whoever asks is told");
        } else {
            self.end_turn(&granted, None);
        }
        // An end that comes twice changes nothing.
        if now_and_then(4) {
            self.end_turn(&granted, None);
        }
    }

    /// Ends a turn with a record, as [`Keeping`](crate::idempotency) does it. Says whether it has ended.
    fn record(self: &Arc<Self>, granted: &Granted) -> bool {
        let record = Bytes::from(granted.token.to_string());
        self.answers.lock().push(record.clone());
        let (lease, id) = (&granted.lease, granted.lease.owner.attempt);
        lease.set_recording();
        loop {
            yield_now();
            let (lost_on_the_way, answer_lost) = (now_and_then(8), now_and_then(4));
            let recorded = !lost_on_the_way && self.store.lock().record(id, &record, self.ticks());
            yield_now();
            if !lost_on_the_way && !answer_lost {
                match recorded {
                    true => self.finish(granted, &record),
                    false => self.lose(lease, Loss::NotOurs),
                }
                return recorded;
            }
            if now_and_then(3) {
                let mut store = self.store.lock();
                let holder = store.holder.iter_mut();
                holder
                    .filter(|holder| holder.attempt == id)
                    .for_each(|holder| holder.abandoned = true);
                drop(store);
                self.finish(granted, &record);
                return true;
            }
        }
    }

    /// Says whether the lease was valid. If so, nobody else may be inside, and the token must be new.
    fn enter(&self, lease: &Arc<Lease>, token: u64) -> bool {
        let mut inside = self.inside.lock();
        let now = self.now();
        if !lease.is_valid(now) {
            return false;
        }
        let record = self.store.lock().record.clone();
        assert_eq!(record, None, "what was done before is done again");
        if let Some(other) = &inside.lease {
            assert!(!other.is_valid(now), "two are inside");
        }
        assert!(
            token > inside.highest_token,
            "a token that is not above the last"
        );
        inside.highest_token = token;
        inside.lease = Some(lease.clone());
        true
    }

    fn exit(&self, lease: &Arc<Lease>) {
        let mut inside = self.inside.lock();
        inside.lease.take_if(|other| Arc::ptr_eq(other, lease));
    }

    /// Another instance, which takes the key when it can.
    fn stranger(&self) {
        let owner = self.owner();
        for _ in 0..4 {
            let sent = self.now();
            let (claim, ticks) = (self.some_claim(), self.ticks());
            let answer = self.store.lock().acquire(owner.attempt, claim, 1, ticks);
            self.lines.wanted(&self.key, self.now());
            if let Acquired::Granted(mut tokens) = answer {
                let lease = self.lease(owner, sent);
                let token = tokens.take().unwrap();
                if self.enter(&lease, token) {
                    yield_now();
                    self.exit(&lease);
                }
                let record = Bytes::from(token.to_string());
                self.answers.lock().push(record.clone());
                let mut store = self.store.lock();
                if lease.claimed && now_and_then(2) {
                    store.record(owner.attempt, &record, self.ticks());
                }
                store.release(owner.attempt);
                return;
            }
            yield_now();
        }
    }

    /// Time goes by, sometimes by more than a lease, and the timers run when they run.
    fn clock(self: &Arc<Self>) {
        for _ in 0..4 {
            let step = if now_and_then(4) { LEASE } else { 2 };
            self.ticks.fetch_add(step, Ordering::SeqCst);
            yield_now();
            let tracked = self.tracked.lock().values().cloned().collect::<Vec<_>>();
            for (lease, _) in tracked {
                match lease.is_valid(self.now()) {
                    true => self.hurry(lease),
                    false => self.lose(&lease, Loss::Expired),
                }
            }
        }
    }

    fn close(self: &Arc<Self>) {
        for _ in 0..thread_rng().gen_range(0..20) {
            yield_now();
        }
        self.carry_out(self.lines.close());
        for lease in self.lines.leases() {
            self.lose(&lease, Loss::Closed);
        }
    }
}

fn one_run() {
    const CLAIMS: [&[&[u8]]; 3] = [&[], &[b"a"], &[b"a", b"b"]];
    let world = World::new(CLAIMS[thread_rng().gen_range(0..CLAIMS.len())]);
    for _ in 0..REQUESTS {
        world.spawn(|world| (0..ROUNDS).for_each(|_| world.request()));
    }
    world.spawn(|world| world.stranger());
    if now_and_then(2) {
        world.spawn(World::clock);
    }
    if now_and_then(4) {
        world.spawn(World::close);
    }
    world.join_all();
    assert_eq!(world.lines.len(), 0, "a line is left");
    assert_eq!(world.lines.waiting(), 0);
    assert!(
        world.tracked.lock().is_empty(),
        "a lease is left with the scheduler"
    );
    let store = world.store.lock();
    let left = store.holder.iter().find(|holder| !holder.abandoned);
    assert!(left.is_none(), "a lease is left in the store: {left:?}");
}

fn check(scheduler: impl Scheduler + 'static) {
    let mut config = Config::new();
    config.stack_size = 0x2_0000;
    Runner::new(scheduler, config).run(one_run);
}

#[test]
fn the_line_keeps_its_promises_in_random_orders() {
    check(RandomScheduler::new(80_000));
}

#[test]
fn the_line_keeps_its_promises_when_one_thread_is_held_back() {
    check(PctScheduler::new(3, 30_000));
    check(PctScheduler::new(10, 30_000));
}
