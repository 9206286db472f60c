//! Several instances on one memory store, with their requests, and the check that nothing is left at the end.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

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
    /// Tasks that have not finished, requests that wait or hold, and those of them that hold. Not shuttle's atomics: no part
    /// of the core uses these.
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
            // The faults count as one more task.
            unfinished: AtomicUsize::new(setup.requests + 1),
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
            if self.forgot.swap(0, Relaxed) > 0 {
                self.note("every instance knows that the store forgot");
                self.witness.fleet_knows();
            }
            let Some(passed) = clock::jump() else {
                self.fail("requests wait, and nothing will ever happen");
            };
            let happened = self.events.load(Relaxed);
            let is_idle = self.waiting.load(Relaxed) > 0
                && self.holding.load(Relaxed) == 0
                && self.faulty.load(Relaxed) == 0;
            stall = match is_idle && happened == events {
                true => stall + passed,
                false => Duration::ZERO,
            };
            events = happened;
            if stall > self.setup.stall() {
                self.fail("a free key stands still while requests wait");
            }
        }
    }

    /// Checks that nothing is left: at once in lines, schedulers and queues, and in time among the records.
    async fn end(&self) {
        let begin = now();
        loop {
            settle().await;
            self.check();
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
        if !self.store.is_empty() || self.store.owed() > 0 {
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

    /// The store restarts empty.
    pub(super) fn forget(&self) {
        self.note("the store forgets");
        self.witness.store_forgets();
        self.store.restart();
        self.forgot.store(1, Relaxed);
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
