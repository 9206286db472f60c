//! The line under a model checker: `RUSTFLAGS="--cfg shuttle" cargo test --lib --release model`.
//!
//! [`Lines`] and all its transitions are the real ones. What carries out their [`Effect`]s is a toy: each store
//! call is a thread of its own, so that its reply may come at any time, and the store is one key in memory. Local
//! requests, another instance, a clock that jumps and a shutdown run against each other in the order that the checker
//! chooses.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use shuttle::{
    Config, Runner,
    rand::{Rng, thread_rng},
    scheduler::{PctScheduler, RandomScheduler, Scheduler},
    thread::{self, JoinHandle, yield_now},
};
use tokio::{sync::oneshot, time::Instant};

use super::{
    line::{Answer, Contention, Effect, Effects, Granted, Limits, Wish},
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
    key: LockKey,
    lines: Lines,
    epoch: Instant,
    ticks: AtomicU64,
    attempts: AtomicU64,
    store: Mutex<Store>,
    /// The scheduler's leases, and of each the renewal that is under way.
    tracked: Mutex<HashMap<u64, (Arc<Lease>, Renewal)>>,
    inside: Mutex<Inside>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Default)]
struct Store {
    holder: Option<(u64, u64)>,
    fence: u64,
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
    fn acquire(&mut self, attempt: u64, block: u32, now: u64) -> Option<Tokens> {
        self.holder.take_if(|(_, until)| *until <= now);
        if self.holder.is_some() {
            return None;
        }
        self.holder = Some((attempt, now + LEASE));
        Some(self.hand_out(block))
    }

    fn hand_out(&mut self, count: u32) -> Tokens {
        let first = self.fence + 1;
        self.fence += u64::from(count);
        Tokens::new(first, count)
    }

    fn renew(&mut self, attempt: u64, refill: u32, now: u64) -> Option<Option<Tokens>> {
        self.holder.take_if(|(_, until)| *until <= now);
        let (holder, until) = self.holder.as_mut()?;
        if *holder != attempt {
            return None;
        }
        *until = now + LEASE;
        Some((refill > 0).then(|| self.hand_out(refill)))
    }

    fn release(&mut self, attempt: u64) -> bool {
        self.holder
            .take_if(|(holder, _)| *holder == attempt)
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
    fn new() -> Arc<Self> {
        let limits = Limits {
            longest_line: 8,
            pass_turns: 2,
            pass_time: Duration::from_secs(3),
        };
        Arc::new(Self {
            key: LockKey::new("k").unwrap(),
            lines: Lines::new(limits),
            epoch: Instant::now(),
            ticks: AtomicU64::new(0),
            attempts: AtomicU64::new(0),
            store: Mutex::default(),
            tracked: Mutex::default(),
            inside: Mutex::default(),
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
        Arc::new(Lease::new(self.key.clone(), owner, sent, validity))
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
                        self.carry_out(self.lines.end(&granted, None, self.now()));
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
            let lease = lease.clone();
            self.spawn(move |world| _ = world.release(&lease));
        }
        self.carry_out(self.lines.lost(lease));
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
            let granted = self
                .store
                .lock()
                .acquire(owner.attempt, demand.block, self.ticks());
            if let Some(tokens) = granted {
                yield_now();
                return self.granted(contention, self.lease(owner, sent), tokens);
            }
            let (anybody, effects) = self.lines.held(&self.key, contention, &None);
            self.carry_out(effects);
            if anybody {
                yield_now();
            }
        }
    }

    fn granted(self: &Arc<Self>, contention: &Arc<Contention>, lease: Arc<Lease>, tokens: Tokens) {
        self.track(&lease);
        let others_wait = now_and_then(2);
        let grant = Grant {
            tokens,
            others_wait,
        };
        self.carry_out(
            self.lines
                .granted(contention, lease, (grant, None), self.now()),
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
            claim: None,
        };
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
        if let Ok(granted) = told {
            self.take_turn(granted);
        }
    }

    /// As [`Waiter`](super::waiter::Waiter) does it when it is dropped.
    fn go_away(self: &Arc<Self>, id: u64, answer: &mut Answer) {
        let effects = match last_word(answer) {
            Some(Ok(granted)) => self.lines.end(&granted, None, self.now()),
            Some(Err(_)) => return,
            None => self.lines.leave(&self.key, id),
        };
        self.carry_out(effects);
    }

    fn take_turn(self: &Arc<Self>, granted: Granted) {
        // A guard that is not held any more when it arrives is not given to anybody.
        if self.enter(&granted.lease, granted.token) {
            yield_now();
            self.exit(&granted.lease);
        }
        if now_and_then(3) {
            let (ask, answer) = oneshot::channel();
            self.carry_out(self.lines.end(&granted, Some(ask), self.now()));
            let _ = shuttle::future::block_on(answer).expect("whoever asks is told");
        } else {
            self.carry_out(self.lines.end(&granted, None, self.now()));
        }
        // An end that comes twice changes nothing.
        if now_and_then(4) {
            self.carry_out(self.lines.end(&granted, None, self.now()));
        }
    }

    /// Says whether the lease was valid. If so, nobody else may be inside, and the token must be new.
    fn enter(&self, lease: &Arc<Lease>, token: u64) -> bool {
        let mut inside = self.inside.lock();
        let now = self.now();
        if !lease.is_valid(now) {
            return false;
        }
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
            let granted = self.store.lock().acquire(owner.attempt, 1, self.ticks());
            self.lines.wanted(&self.key, self.now());
            if let Some(mut tokens) = granted {
                let lease = self.lease(owner, sent);
                if self.enter(&lease, tokens.take().unwrap()) {
                    yield_now();
                    self.exit(&lease);
                }
                self.store.lock().release(owner.attempt);
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
    let world = World::new();
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
    let left = world.store.lock().holder;
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
