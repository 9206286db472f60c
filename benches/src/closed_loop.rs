//! Runs actors, each of which begins its next operation when the last one has ended.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU8, Ordering::Relaxed},
    },
    thread::sleep,
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use tokio::{runtime::Runtime, task::JoinHandle, time::timeout};

use crate::{
    bench::Bench,
    meter::{CountAllocations, Counter, Counts, CpuTimes, Sample},
    redis_server::RedisServer,
};

/// One of many that work at the same time.
pub trait Actor: Send + 'static {
    /// Does one operation and says how long the part of it took whose latency counts.
    fn act(&mut self) -> impl Future<Output = Duration> + Send;
}

/// How long a slice takes.
#[derive(Debug, Clone, Copy)]
pub struct Slice {
    pub time: Duration,
    /// How long the last operations may take after the slice. Contestants that retry every 100 ms would need seconds
    /// until the last of 32 tasks has had its turn.
    pub grace: Duration,
}

impl Slice {
    /// With time for all operations to end: the next slice uses the same keys.
    pub fn new(time: Duration) -> Self {
        let grace = Duration::from_secs(5);
        Self { time, grace }
    }

    /// With little time after the slice: the next one uses other keys.
    pub fn cut_short(time: Duration) -> Self {
        let grace = Duration::from_millis(20);
        Self { time, grace }
    }

    /// A part of the time.
    pub fn part(self, divisor: u32) -> Self {
        Self {
            time: self.time / divisor,
            ..self
        }
    }
}

/// All actors get busy; nothing is recorded yet.
const RAMP: u8 = 0;
/// Operations that end now are recorded.
const RECORD: u8 = 1;
/// All operations are recorded, the last one included.
const COUNT: u8 = 2;
/// Actors end after their operation.
const STOP: u8 = 3;

/// Runs the actors for some time and measures while all of them are busy.
///
/// `client`: the process whose CPU time counts, where that is not this one.
pub fn timed<A: Actor>(bench: &Bench, client: Option<u32>, actors: Vec<A>, slice: Slice) -> Sample {
    let runtime = &bench.runtime;
    let running = Running::start(runtime, actors, RAMP);
    sleep(slice.time / 4);
    let (begin, before) = (Instant::now(), CpuTimes::now(bench, client));
    running.phase.store(RECORD, Relaxed);
    sleep(slice.time);
    running.phase.store(STOP, Relaxed);
    let (elapsed, after) = (begin.elapsed(), CpuTimes::now(bench, client));
    before.sample(after, elapsed, running.join(runtime, slice.grace))
}

/// What a counted slice counts.
pub struct Counted<'a> {
    /// The commands that the client sends.
    pub commands: &'a [&'a str],
    pub allocations: CountAllocations<'a>,
}

/// Runs the actors for some time and counts everything from their beginning to their end.
///
/// `settle` waits for what the actors leave behind, such as releases under way.
pub fn counted<A: Actor>(
    runtime: &Runtime,
    server: &mut RedisServer,
    counted: Counted<'_>,
    actors: Vec<A>,
    slice: Slice,
    settle: impl FnOnce(),
) -> Counts {
    let counter = Counter::start(server, counted.allocations);
    let running = Running::start(runtime, actors, COUNT);
    sleep(slice.time);
    running.phase.store(STOP, Relaxed);
    let operations = running.join(runtime, slice.grace).len();
    settle();
    counter.stop(counted.commands, operations)
}

struct Running {
    phase: Arc<AtomicU8>,
    actors: Vec<JoinHandle<()>>,
    recorded: Vec<Recorded>,
}

/// The latencies of an actor, out of its task, so that they are there when the task is aborted.
type Recorded = Arc<Mutex<Vec<Duration>>>;

impl Running {
    fn start<A: Actor>(runtime: &Runtime, actors: Vec<A>, initial: u8) -> Self {
        let phase = Arc::new(AtomicU8::new(initial));
        // One allocation for thousands of operations: the loop counts allocations.
        let empty = || Arc::new(Mutex::new(Vec::with_capacity(4096)));
        let recorded: Vec<Recorded> = actors.iter().map(|_| empty()).collect();
        let counts_all = initial == COUNT;
        let start = |(actor, recorded): (A, &Recorded)| {
            runtime.spawn(act(actor, phase.clone(), recorded.clone(), counts_all))
        };
        Self {
            actors: actors.into_iter().zip(&recorded).map(start).collect(),
            phase,
            recorded,
        }
    }

    /// Waits for the actors' last operations, then ends those that still wait. Returns all recorded latencies.
    fn join(mut self, runtime: &Runtime, grace: Duration) -> Vec<Duration> {
        let ended = runtime.block_on(async {
            let last = timeout(grace, join_all(&mut self.actors)).await;
            if last.is_err() {
                self.actors.iter().for_each(JoinHandle::abort);
            }
            last.unwrap_or_default()
        });
        for ended in ended {
            ended.expect("an actor failed");
        }
        let take =
            |recorded: &Recorded| std::mem::take(&mut *recorded.lock().expect("no actor panicked"));
        self.recorded.iter().flat_map(take).collect()
    }
}

async fn act<A: Actor>(mut actor: A, phase: Arc<AtomicU8>, recorded: Recorded, counts_all: bool) {
    loop {
        let latency = actor.act().await;
        let phase = phase.load(Relaxed);
        if counts_all || phase == RECORD {
            recorded.lock().expect("no actor panicked").push(latency);
        }
        if phase == STOP {
            return;
        }
    }
}
