//! Several instances on one memory store, with their requests, and the check that nothing is left
//! at the end.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use futures_util::FutureExt;

use super::{
    clock::{self, nothing_else_runs, settle},
    faults,
    random::Random,
    requests::{Actor, RETAIN},
    setup::Setup,
    witness::{Settings, Witness},
};
use crate::{
    LockKey, Locks, Stats,
    store::{Fault, FaultyStore, Store},
    sync::Runtime,
    time::{Instant, model, now},
};

/// How often, at most, time advances in small steps while tasks are in the middle of their work.
const STEPS: u32 = 40;

/// One execution: the instances, their store, and the counts that the checks need.
pub(super) struct World {
    pub(super) setup: Setup,
    began: Instant,
    pub(super) keys: Vec<String>,
    pub(super) instances: Vec<Locks>,
    pub(super) witness: Arc<Witness>,
    store: FaultyStore,
    /// Tasks that have not finished, requests that wait or hold, and those of them that hold. Not
    /// shuttle's atomics: no part of the core uses these.
    unfinished: AtomicUsize,
    waiting: AtomicUsize,
    holding: AtomicUsize,
    /// How often an event happened that can end a wait.
    events: AtomicUsize,
    faulty: AtomicUsize,
    forgot: AtomicUsize,
    /// The steps of all tasks, for the report of a failure.
    log: Mutex<Vec<String>>,
}

/// Runs one execution.
pub(super) async fn run() {
    let began = clock::reset();
    Runtime::reset();
    let seed = shuttle::rand::Rng::r#gen(&mut shuttle::rand::thread_rng());
    let mut random = Random::new(seed);
    let world = Arc::new(World::new(Setup::draw(&mut random), began));
    drop(shuttle::future::spawn(faults::play(
        world.clone(),
        random.fork(),
    )));
    if let Some(grace) = world.setup.closes {
        drop(shuttle::future::spawn(close(
            world.clone(),
            grace,
            random.fork(),
        )));
    }
    for number in 0..world.setup.requests {
        let actor = Actor {
            number,
            instance: number % world.setup.instances,
            world: world.clone(),
            random: random.fork(),
        };
        drop(shuttle::future::spawn(actor.run()));
    }
    world.drive(&mut random).await;
    world.end().await;
}

/// Closes the first instance at some moment.
async fn close(world: Arc<World>, grace: Duration, mut random: Random) {
    clock::sleep(random.millis(0..5_000)).await;
    world.note(format_args!(
        "instance 0 is closed with a grace of {grace:?}"
    ));
    let began = now();
    let closed = world.instances[0].close(grace).await;
    let took = now().saturating_duration_since(began);
    world.note(format_args!(
        "instance 0 is closed after {took:?}: {closed:?}"
    ));
    if !world.setup.may_fail && !world.setup.claims && !closed.is_complete() {
        world
            .witness
            .violation(format_args!("the end was not complete: {closed:?}"));
    }
    world.finished();
}

impl World {
    fn new(setup: Setup, began: Instant) -> Self {
        let store = FaultyStore::new();
        let keys: Vec<_> = (0..setup.keys).map(|n| format!("k{n}")).collect();
        let settings = Settings {
            lease: setup.lease,
            max_hold: setup.max_hold,
            may_lose: setup.may_lose,
        };
        Self {
            instances: (0..setup.instances).map(|_| setup.locks(&store)).collect(),
            witness: Witness::new(settings, &keys),
            // The faults count as one more task, and so does the end of an instance.
            unfinished: AtomicUsize::new(setup.requests + 1 + usize::from(setup.closes.is_some())),
            waiting: AtomicUsize::new(0),
            holding: AtomicUsize::new(0),
            events: AtomicUsize::new(0),
            faulty: AtomicUsize::new(0),
            log: Mutex::default(),
            forgot: AtomicUsize::new(0),
            setup,
            began,
            keys,
            store,
        }
    }

    /// Runs requests and advances time until all requests have ended.
    async fn drive(&self, random: &mut Random) {
        let (mut stall, mut events, mut steps) = (Duration::ZERO, 0, 0);
        // How long each key has stood still since nobody came or went.
        let mut stalls: BTreeMap<(&str, Instant), Duration> = BTreeMap::new();
        while self.unfinished.load(Relaxed) > 0 {
            let is_quiet = nothing_else_runs().await;
            if self.unfinished.load(Relaxed) == 0 {
                return;
            }
            if !is_quiet {
                if steps < STEPS && random.percent(5) {
                    steps += 1;
                    clock::step(random);
                }
                continue;
            }
            self.check();
            self.check_owners();
            if self.forgot.swap(0, Relaxed) > 0 {
                self.note("every instance knows that the store forgot");
                self.witness.fleet_knows();
            }
            let standing = self.witness.standing();
            let Some(passed) = clock::jump() else {
                self.fail("requests wait, and nothing will ever happen");
            };
            let happened = self.events.load(Relaxed);
            let is_idle = self.waiting.load(Relaxed) > 0
                && self.holding.load(Relaxed) == 0
                && self.faulty.load(Relaxed) == 0;
            stall = if is_idle && happened == events {
                stall + passed
            } else {
                Duration::ZERO
            };
            events = happened;
            if stall > self.setup.stall() {
                self.fail("a free key stands still while requests wait");
            }
            stalls = standing
                .into_iter()
                .filter(|_| self.faulty.load(Relaxed) == 0)
                .map(|(key, since)| {
                    let before = stalls.get(&(key, since)).copied().unwrap_or_default();
                    ((key, since), before + passed)
                })
                .collect();
            for ((key, _), stood) in &stalls {
                if *stood > self.setup.stall_of_a_key() {
                    self.fail(&format!(
                        "{key} stands still for {stood:?} while a request waits that fits beside the holders"
                    ));
                }
            }
        }
    }

    /// Checks that nothing is left: at once in lines, schedulers and queues, and in time among the
    /// records.
    async fn end(&self) {
        let begin = now();
        loop {
            settle().await;
            self.check();
            self.check_owners();
            let left = self.leftovers().await;
            if left.is_empty() {
                break;
            }
            if clock::jump().is_none() || now() > begin + self.setup.stall() {
                self.fail(&left.join("\n"));
            }
        }
        model::advance(RETAIN + self.setup.lease);
        settle().await;
        if !self.store.is_empty() {
            self.fail("the store is not empty although all time has passed");
        }
    }

    async fn leftovers(&self) -> Vec<String> {
        let mut left = Vec::new();
        for locks in &self.instances {
            if locks.stats() != Stats::default() {
                left.push(format!("left in an instance: {:?}", locks.stats()));
            }
        }
        for key in &self.keys {
            for key in [key.clone(), format!("once,{key}")] {
                let seen = self
                    .store
                    .inspect(LockKey::new(key).expect("a short key"))
                    .await;
                let seen = seen.expect("there is no fault any more");
                if !seen.holders.is_empty() || !seen.queue.is_empty() {
                    left.push(format!("left in the store: {seen:?}"));
                }
            }
        }
        left
    }

    fn check(&self) {
        let violations = self.witness.violations();
        if !violations.is_empty() {
            self.fail(&violations.join("\n"));
        }
    }

    /// Every owner that the store has is known to its instance (invariant 7 of `locks/line`). The
    /// leases of claims are left out, because those of work without a known outcome are left to
    /// their time.
    fn check_owners(&self) {
        for key in self.keys.iter().map(|key| LockKey::new(&**key)) {
            let key = key.expect("a short key");
            let seen = self.store.peek(&key);
            let holders = seen.holders.iter();
            let holders = holders.filter(|holder| holder.fingerprint.is_none());
            let owners = holders.map(|holder| holder.owner).chain(seen.queue);
            for owner in owners {
                let mut instances = self.instances.iter();
                let locks = instances.find(|locks| locks.instance() == owner.instance);
                if !locks.is_some_and(|locks| locks.knows(&key, owner)) {
                    self.fail(&format!(
                        "nobody knows {owner}, which the store has at {key:?}"
                    ));
                }
            }
        }
    }

    fn fail(&self, what: &str) -> ! {
        let stats: Vec<_> = self.instances.iter().map(Locks::stats).collect();
        let log = self.log.lock().expect("nothing panics here").join("\n");
        panic!("{what}\n{:?}\n{stats:?}\n{log}", self.setup);
    }

    pub(super) fn elapsed(&self) -> Duration {
        now().saturating_duration_since(self.began)
    }

    /// Logs a step, for the report of a failure.
    pub(super) fn note(&self, what: impl std::fmt::Display) {
        let line = format!("{:?} {what}", self.elapsed());
        self.log.lock().expect("nothing panics here").push(line);
    }

    pub(super) fn set_fault(&self, fault: Option<Fault>) {
        self.faulty.store(usize::from(fault.is_some()), Relaxed);
        self.happened();
        self.note(format_args!("the store's fault: {fault:?}"));
        self.store.set_fault(fault);
    }

    /// The runtime of the background ends, for all instances.
    pub(super) fn end_runtime(&self) {
        self.note("the runtime of the background ends");
        self.happened();
        Runtime::end();
    }

    /// Each instance is used again.
    pub(super) fn use_all(&self) {
        self.instances.iter().for_each(Locks::start_background);
    }

    /// The store restarts empty.
    pub(super) fn forget(&self) {
        self.note("the store forgets");
        self.witness.store_forgets();
        self.store.restart();
        self.forgot.store(1, Relaxed);
    }

    /// An operator frees a key, unless the store is away. The holders learn that from their next
    /// renewals.
    pub(super) fn force_release(&self) {
        if self.faulty.load(Relaxed) > 0 {
            return;
        }
        self.note("an operator frees the first key");
        self.witness.store_forgets();
        drop(
            self.instances[0]
                .force_release(&*self.keys[0])
                .now_or_never(),
        );
    }

    pub(super) fn finished(&self) {
        self.unfinished.fetch_sub(1, Relaxed);
    }

    /// Counts a request that waits or holds, until the returned value is dropped.
    pub(super) fn waits(&self) -> Count<'_> {
        self.count(&self.waiting)
    }

    /// Counts a request that holds, until the returned value is dropped.
    pub(super) fn inside(&self) -> Count<'_> {
        self.count(&self.holding)
    }

    fn count<'a>(&'a self, counter: &'a AtomicUsize) -> Count<'a> {
        counter.fetch_add(1, Relaxed);
        self.happened();
        Count {
            world: self,
            counter,
        }
    }

    fn happened(&self) {
        self.events.fetch_add(1, Relaxed);
    }
}

/// Counts one until dropped.
pub(super) struct Count<'a> {
    world: &'a World,
    counter: &'a AtomicUsize,
}

impl Drop for Count<'_> {
    fn drop(&mut self) {
        self.counter.fetch_sub(1, Relaxed);
        self.world.happened();
    }
}
