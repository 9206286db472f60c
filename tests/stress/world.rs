//! Several instances on one store, tasks that use them, faults, and an end at which nothing may be
//! left.
//!
//! The thread of the test watches from outside of the runtime, and so sees a stuck runtime, too.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, Once,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use tokio::runtime::{Builder, Runtime};
use tower_distributed_lock::{
    Error, LockKey, Locks, LocksBuilder, Stats,
    store::{Store, StoreFuture},
};

use super::{
    random::Random,
    requests::{Actor, Habits},
    turns::Uses,
    witness::{Settings, Witness},
};

/// How long a request may last, and how long the end may take, before something counts as stuck.
/// Longer than every fault, and shorter than a lease of a world in which nothing is lost: a lease
/// without a holder is found.
const STUCK: Duration = Duration::from_secs(10);
/// The pause between two looks of the watching thread.
const LOOK: Duration = Duration::from_millis(20);
/// How many looks may find a key standing still: those of a few polls, which a lost hint costs
/// where calls fail. A count of looks, since a machine that is busy delays the looks as well.
const LOOKS_AT_MOST: u32 = 200;
/// The poll interval where no hint is lost: a key whose requests depend on a poll there stands
/// still for longer than allowed.
const LONG_POLL: Duration = Duration::from_secs(3 * STUCK.as_secs());
/// How much longer than its time a world runs until every key has had a turn.
const FIRST_TURNS: Duration = Duration::from_secs(60);
/// A lease that outlasts every test.
pub(crate) const LONG_LEASE: Duration = Duration::from_secs(60);

/// The settings of a world.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setup {
    pub(crate) lease: Duration,
    pub(crate) max_hold: Duration,
    /// The longest hold of a task, in milliseconds.
    pub(crate) longest_hold: u64,
    /// Whether calls may fail.
    pub(crate) may_fail: bool,
    /// Whether turns may be lost.
    pub(crate) may_lose: bool,
    /// Whether some requests are made on runtimes that are driven now and then, and end in the
    /// middle of everything. A call may get no answer then, because the runtime of the
    /// background stands still or has ended; requests that wait go on.
    pub(crate) has_visitors: bool,
}

impl Setup {
    /// Nothing goes wrong.
    pub(crate) const QUIET: Self = Self {
        lease: LONG_LEASE,
        max_hold: Duration::from_secs(600),
        longest_hold: 3,
        may_fail: false,
        may_lose: false,
        has_visitors: false,
    };
    /// Some requests are made on runtimes of their own.
    pub(crate) const VISITED: Self = Self {
        has_visitors: true,
        ..Self::QUIET
    };
    /// Calls fail, and no fault outlasts a lease.
    pub(crate) const FAULTS: Self = Self {
        may_fail: true,
        ..Self::QUIET
    };
    /// Faults outlast leases, and turns outlast `max_hold`.
    pub(crate) const LOSSES: Self = Self {
        lease: Duration::from_millis(150),
        max_hold: Duration::from_millis(20),
        longest_hold: 30,
        may_fail: true,
        may_lose: true,
        has_visitors: false,
    };

    /// How many instances are used by visitors only.
    pub(crate) fn guests(&self) -> usize {
        usize::from(self.has_visitors)
    }

    /// An instance on a store. Where no lease is lost, a place in the queue that outlives its
    /// attempt blocks its key for as long as a lease would, and so is found.
    pub(crate) fn instance(&self, store: impl Store) -> Instance {
        let builder: LocksBuilder = Locks::builder(store);
        // No limit hides a request that is stuck.
        let builder = builder.wait_forever();
        let mut builder = builder.lease(self.lease).max_hold(self.max_hold);
        if !self.may_lose {
            builder = builder.waiter_deadline(LONG_LEASE);
        }
        if !self.may_fail {
            builder = builder.poll_interval(LONG_POLL);
        }
        Instance {
            locks: builder.build().expect("the settings go together"),
        }
    }
}

/// One process of a fleet.
pub(crate) struct Instance {
    pub(crate) locks: Locks,
}

pub(crate) struct World {
    pub(crate) setup: Setup,
    pub(crate) began: Instant,
    pub(crate) instances: Vec<Instance>,
    pub(crate) witness: Arc<Witness>,
    over: AtomicBool,
    waits: Box<[Mutex<Option<Doing>>]>,
}

/// The present step of a task, and when the step began.
type Doing = (String, Instant);

/// A world's store, as the test sees it.
pub(crate) trait Subject: Send + Sync + 'static {
    /// Plays faults until the world is over, and then lets the store work.
    fn play_faults(self: Arc<Self>, world: Arc<World>, random: Random) -> StoreFuture<()>;
    /// All that is left in the store, tokens aside.
    fn leftovers(self: Arc<Self>) -> StoreFuture<Vec<String>>;
    /// The state of a key in the store.
    fn inspect(self: Arc<Self>, key: LockKey) -> StoreFuture<String>;
}

impl World {
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Remembers the present step of a task, until the result is dropped.
    pub(crate) fn waits(self: &Arc<Self>, task: usize, what: String) -> Waits {
        *self.waits[task].lock().unwrap() = Some((what, Instant::now()));
        Waits(self.clone(), task)
    }

    fn stuck(&self) -> Vec<String> {
        let waits = self
            .waits
            .iter()
            .filter_map(|waits| waits.lock().unwrap().clone());
        let stuck = waits.filter(|(_, since)| since.elapsed() > STUCK);
        stuck
            .map(|(what, since)| format!("{what}: stuck for {:?}", since.elapsed()))
            .collect()
    }
}

/// A task is about something.
pub(crate) struct Waits(Arc<World>, usize);

impl Drop for Waits {
    fn drop(&mut self) {
        *self.0.waits[self.1].lock().unwrap() = None;
    }
}

/// A world with its runtime.
pub(crate) struct Run {
    name: &'static str,
    seed: u64,
    runtime: Runtime,
    world: Arc<World>,
    subject: Arc<dyn Subject>,
    keys: Vec<String>,
    /// The keys that stand still: since when, and how many looks have found them so.
    standing: Mutex<BTreeMap<String, (tokio::time::Instant, u32)>>,
}

/// Runs a world for its time. Panics with all violations, and with the seed to repeat the run.
pub(crate) fn run<S: Subject>(
    name: &'static str,
    setup: Setup,
    start: impl AsyncFnOnce(Setup) -> (S, Vec<Instance>),
) {
    note_panics();
    let seed = number("TDL_STRESS_SEED")
        .unwrap_or_else(|| Instant::now().elapsed().as_nanos() as u64 ^ clock());
    let seconds = number("TDL_STRESS_SECONDS").unwrap_or(2);
    println!("{name}: TDL_STRESS_SEED={seed} TDL_STRESS_SECONDS={seconds}");
    let runtime = Builder::new_multi_thread()
        .worker_threads(3)
        .enable_all()
        .build()
        .unwrap();
    let (subject, instances) = runtime.block_on(start(setup));
    let mut random = Random::new(seed);
    let cast = cast(instances.len() - setup.guests());
    let keys = keys(&cast);
    let world = Arc::new(World {
        setup,
        began: Instant::now(),
        instances,
        witness: Witness::new(
            Settings {
                lease: setup.lease,
                max_hold: setup.max_hold,
                may_lose: setup.may_lose,
            },
            &keys,
        ),
        over: AtomicBool::new(false),
        waits: (0..cast.len() + VISITS * VISITORS)
            .map(|_| Mutex::default())
            .collect(),
    });
    let run = Run {
        name,
        seed,
        runtime,
        world,
        subject: Arc::new(subject),
        keys,
        standing: Mutex::default(),
    };
    run.play(cast, Duration::from_secs(seconds), &mut random);
}

/// How many threads have runtimes that end.
const VISITS: usize = 2;
/// How many requests are made on each of these runtimes.
const VISITORS: usize = 6;

/// Makes requests on one runtime after another. Each is driven now and then, and ends in the middle
/// of its requests, which must not keep the others from their turns. The last instance is used on
/// such runtimes only, and so is its background.
fn visit(world: Arc<World>, first: usize, mut random: Random) {
    let instances = world.instances.len();
    let visitors = [
        (Uses::Locks, &["hot/1", "hot/2"][..]),
        (Uses::Reports, &["report"]),
        (Uses::Permits(2), &["exports"]),
    ];
    while !world.is_over() {
        let mut runtime = Builder::new_current_thread();
        let runtime = runtime.enable_all().build().unwrap();
        for at in 0..VISITORS {
            let (uses, keys) = visitors[at / 2 % visitors.len()];
            let actor = Actor {
                world: world.clone(),
                number: first + at,
                instance: match at % 2 {
                    0 => instances - 1,
                    _ => at / 2 % instances,
                },
                keys: keys.iter().map(|key| (*key).to_owned()).collect(),
                habits: Habits::Wild(uses),
                random: random.fork(),
            };
            runtime.spawn(actor.run());
        }
        for _ in 0..random.within(1..20) {
            runtime.block_on(async { tokio::time::sleep(random.millis(1..10)).await });
            thread::sleep(random.millis(1..30));
        }
    }
}

/// A task's part.
struct Part {
    instance: usize,
    keys: Vec<String>,
    habits: Habits,
}

/// For each instance a pair on a key of its own, some of a crowd on few keys, readers and writers,
/// some that share permits, some whose requests all fit beside each other, and some claims.
fn cast(instances: usize) -> Vec<Part> {
    let mut cast = Vec::new();
    for instance in 0..instances {
        let pair = [format!("pair/{instance}")];
        let hot = ["hot/1".to_owned(), "hot/2".to_owned()];
        let mut add = |count, keys: &[String], habits| {
            cast.extend((0..count).map(|_| Part {
                instance,
                keys: keys.to_vec(),
                habits,
            }));
        };
        add(2, &pair, Habits::Brisk);
        add(3, &hot, Habits::Wild(Uses::Locks));
        add(4, &["report".to_owned()], Habits::Wild(Uses::Reports));
        add(3, &["exports".to_owned()], Habits::Wild(Uses::Permits(2)));
        add(2, &["page".to_owned()], Habits::Wild(Uses::Reads));
        add(2, &["seats".to_owned()], Habits::Wild(Uses::Plenty));
        add(3, &[], Habits::Claims);
    }
    cast
}

fn keys(cast: &[Part]) -> Vec<String> {
    let mut keys: Vec<_> = cast.iter().flat_map(|part| part.keys.clone()).collect();
    keys.sort();
    keys.dedup();
    keys
}

impl Run {
    fn play(self, cast: Vec<Part>, time: Duration, random: &mut Random) {
        let began = Instant::now();
        let faults = self
            .subject
            .clone()
            .play_faults(self.world.clone(), random.fork());
        let mut tasks = vec![self.runtime.spawn(faults)];
        let visits = VISITS * self.world.setup.guests();
        let visits = (0..visits).map(|at| {
            let (world, random) = (self.world.clone(), random.fork());
            let first = cast.len() + at * VISITORS;
            thread::spawn(move || visit(world, first, random))
        });
        let visits: Vec<_> = visits.collect();
        if !visits.is_empty() {
            // All backgrounds begin with the visitors, and so have to move.
            thread::sleep(2 * LOOK);
        }
        for (number, part) in cast.into_iter().enumerate() {
            let actor = Actor {
                world: self.world.clone(),
                number,
                instance: part.instance,
                keys: part.keys,
                habits: part.habits,
                random: random.fork(),
            };
            tasks.push(self.runtime.spawn(actor.run()));
        }
        let is_early = || began.elapsed() < time + FIRST_TURNS && !self.without_turns().is_empty();
        while self.is_fine() && (began.elapsed() < time || is_early()) {
            thread::sleep(LOOK);
        }
        let without_turns = self.without_turns();
        if !without_turns.is_empty() {
            self.fail(&[format!("nothing was done at {without_turns:?}")]);
        }
        self.world.over.store(true, Ordering::Relaxed);
        let under_way = |are_over| {
            if are_over {
                Vec::new()
            } else {
                vec!["some requests are under way".into()]
            }
        };
        self.until("all visits have ended", || {
            under_way(visits.iter().all(|visit| visit.is_finished()))
        });
        if !visits.is_empty() {
            self.use_all();
        }
        self.until("all requests have ended", || {
            under_way(tasks.iter().all(|task| task.is_finished()))
        });
        self.until("nothing is left", || self.leftovers());
        let (turns, works) = self.world.witness.counts();
        println!(
            "{}: {turns:?} turns, {works} works in {:?}",
            self.name,
            began.elapsed()
        );
        self.runtime.shutdown_background();
    }

    /// The keys at which no turn has entered yet, and the claims if no work has begun: a world in
    /// which nothing happens shows nothing.
    fn without_turns(&self) -> Vec<&str> {
        let (turns, works) = self.world.witness.counts();
        let turns = turns.into_iter().chain([("the claims", works)]);
        turns
            .filter(|(_, count)| *count == 0)
            .map(|(key, _)| key)
            .collect()
    }

    /// Uses each instance once more: what is left of a runtime that has ended goes on with the next
    /// use.
    fn use_all(&self) {
        self.until("all instances can be used", || {
            let instances = self.world.instances.iter();
            let all: Vec<_> = instances.map(|instance| instance.locks.clone()).collect();
            let used = self.ask(Box::pin(async move {
                for locks in all {
                    drop(locks.lock("last").await?);
                }
                Ok::<_, Error>(())
            }));
            match used {
                Some(Ok(())) => Vec::new(),
                failed => vec![format!("{failed:?}")],
            }
        });
    }

    /// Waits until nothing is left of a list.
    fn until(&self, what: &str, mut list: impl FnMut() -> Vec<String>) {
        let began = Instant::now();
        loop {
            let left = list();
            if left.is_empty() {
                return;
            }
            if began.elapsed() > STUCK {
                self.fail(&[vec![format!("not so after {STUCK:?}: {what}")], left].concat());
            }
            self.is_fine();
            thread::sleep(LOOK);
        }
    }

    fn is_fine(&self) -> bool {
        let violations = [
            self.world.witness.violations(),
            self.world.stuck(),
            self.stalls(),
            PANICS.lock().unwrap().clone(),
        ]
        .concat();
        violations.is_empty() || self.fail(&violations)
    }

    /// The keys that have stood still for too many looks while a request waits that fits beside the
    /// holders.
    fn stalls(&self) -> Vec<String> {
        let mut before = self.standing.lock().unwrap();
        let standing = self.world.witness.standing().into_iter();
        let standing = standing.map(|(key, since)| {
            let looks = match before.get(key) {
                Some((then, looks)) if *then == since => looks + 1,
                _ => 1,
            };
            (key.to_owned(), (since, looks))
        });
        *before = standing.collect();
        let stalls = before
            .iter()
            .filter(|(_, (_, looks))| *looks > LOOKS_AT_MOST);
        let stalls = stalls.map(|(key, (since, _))| {
            let stood = since.elapsed();
            format!(
                "{key} stands still for {stood:?} while a request waits that fits beside the holders"
            )
        });
        stalls.collect()
    }

    fn leftovers(&self) -> Vec<String> {
        let instances = self.world.instances.iter();
        let stats = instances.map(|instance| instance.locks.stats()).enumerate();
        let busy = stats.filter(|(_, stats)| *stats != Stats::default());
        let mut left: Vec<_> = busy
            .map(|(at, stats)| format!("instance {at}: {stats:?}"))
            .collect();
        left.extend(
            self.ask(self.subject.clone().leftovers())
                .unwrap_or_else(|| vec!["the store does not answer".into()]),
        );
        left
    }

    fn fail(&self, violations: &[String]) -> ! {
        let mut report = format!(
            "{}: TDL_STRESS_SEED={}\n{}",
            self.name,
            self.seed,
            violations.join("\n")
        );
        for (at, instance) in self.world.instances.iter().enumerate() {
            report += &format!("\ninstance {at}: {:?}", instance.locks.stats());
        }
        for key in &self.keys {
            let seen = self.subject.clone().inspect(LockKey::new(&**key).unwrap());
            let seen = self.ask(seen);
            report += &format!(
                "\n{key}: {}",
                seen.as_deref().unwrap_or("the store does not answer")
            );
        }
        panic!("{report}");
    }

    /// Asks within the runtime, if that gets on.
    fn ask<T: Send + 'static>(&self, question: StoreFuture<T>) -> Option<T> {
        let (sender, answer) = std::sync::mpsc::channel();
        self.runtime
            .spawn(async move { sender.send(question.await) });
        answer.recv_timeout(Duration::from_secs(5)).ok()
    }
}

/// Panics of any thread, those that a test plans aside: they unwind without the hook.
static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn note_panics() {
    static NOTED: Once = Once::new();
    NOTED.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if let Ok(mut panics) = PANICS.try_lock() {
                panics.push(format!("a thread panicked: {panic}"));
            }
            usual(panic);
        }));
    });
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{variable}={text} is not a number")),
    )
}

fn clock() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |since| since.as_micros() as u64)
}
