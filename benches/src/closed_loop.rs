//! Runs actors, each of which begins its next operation when the last one has ended.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering::Relaxed},
    },
    thread::sleep,
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use tokio::runtime::Runtime;

use crate::{
    meter::{CountAllocations, Counter, Counts, CpuTimes, Sample},
    redis_server::RedisServer,
};

/// One of many that work at the same time.
pub trait Actor: Send + 'static {
    /// Does one operation and says how long the part of it took whose latency counts.
    fn act(&mut self) -> impl Future<Output = Duration> + Send;
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
pub fn timed<A: Actor>(
    runtime: &Runtime,
    server: &RedisServer,
    client: Option<u32>,
    actors: Vec<A>,
    time: Duration,
) -> Sample {
    let running = Running::start(runtime, actors, RAMP);
    sleep(time / 8);
    let (begin, before) = (Instant::now(), CpuTimes::now(server, client));
    running.phase.store(RECORD, Relaxed);
    sleep(time);
    running.phase.store(STOP, Relaxed);
    let (elapsed, after) = (begin.elapsed(), CpuTimes::now(server, client));
    before.sample(after, elapsed, running.join(runtime))
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
    time: Duration,
    settle: impl FnOnce(),
) -> Counts {
    let counter = Counter::start(server, counted.allocations);
    let running = Running::start(runtime, actors, COUNT);
    sleep(time);
    running.phase.store(STOP, Relaxed);
    let operations = running.join(runtime).len();
    settle();
    counter.stop(counted.commands, operations)
}

struct Running {
    phase: Arc<AtomicU8>,
    actors: Vec<tokio::task::JoinHandle<Vec<Duration>>>,
}

impl Running {
    fn start<A: Actor>(runtime: &Runtime, actors: Vec<A>, initial: u8) -> Self {
        let phase = Arc::new(AtomicU8::new(initial));
        let start = |actor| runtime.spawn(act(actor, phase.clone(), initial == COUNT));
        Self {
            actors: actors.into_iter().map(start).collect(),
            phase,
        }
    }

    /// The latencies of all operations that were recorded.
    fn join(self, runtime: &Runtime) -> Vec<Duration> {
        let ended = runtime.block_on(join_all(self.actors));
        let recorded = ended
            .into_iter()
            .map(|ended| ended.expect("an actor failed"));
        recorded.flatten().collect()
    }
}

async fn act<A: Actor>(mut actor: A, phase: Arc<AtomicU8>, counts_all: bool) -> Vec<Duration> {
    // One allocation for thousands of operations: the loop counts allocations.
    let mut latencies = Vec::with_capacity(4096);
    loop {
        let latency = actor.act().await;
        let phase = phase.load(Relaxed);
        if counts_all || phase == RECORD {
            latencies.push(latency);
        }
        if phase == STOP {
            return latencies;
        }
    }
}
