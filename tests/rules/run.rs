//! Runs sequences side by side, and makes a failing one as short as it can be.

use std::{
    collections::BTreeMap,
    iter,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant, SystemTime},
};

use tokio::{task::JoinSet, time::sleep};
use tower_distributed_lock::store::RedisStore;

use crate::{
    call::{Call, LABEL, Said},
    pair::{Compared, Pairs, Worker},
    sequence::{INSTANCES, Op, Seats, Sequence},
    support::{redis_server::RedisServer, words::key},
};

/// How many sequences run at the same time: most of them pause.
const WORKERS: usize = 8;

/// How long a failing sequence is made shorter.
const SHORTENING: Duration = Duration::from_secs(20);

/// A server, and a store on it.
pub(crate) struct Subject {
    server: RedisServer,
    store: RedisStore,
    keys: AtomicU64,
}

/// What the sequences have compared.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    pub(crate) steps: u64,
    pub(crate) sequences: u64,
    /// Acquires, renewals and releases, and how many scripts fewer than that were run.
    pub(crate) daily: u64,
    pub(crate) joint: u64,
    /// Sequences that ended early, because the machine was too slow to tell what was right.
    pub(crate) unclear: u64,
    pub(crate) blur: Duration,
    /// How often each answer and each hint was seen.
    pub(crate) seen: BTreeMap<String, u64>,
}

/// What a sequence has done, for the report.
#[derive(Debug)]
#[allow(dead_code)] // printed
enum Done {
    Paused(u64),
    Said(Vec<(Call, Said)>),
}

/// A difference between Redis and the rules.
struct Difference {
    steps: usize,
    /// The calls of the sequence so far, and how the last one differed.
    report: String,
}

impl Subject {
    pub(crate) async fn start() -> Self {
        let server = RedisServer::start().await;
        let store = RedisStore::builder(server.url())
            .label(LABEL)
            .lanes(1)
            .timeout(Duration::from_secs(20));
        Self {
            store: store.connect().await.unwrap(),
            server,
            keys: AtomicU64::new(0),
        }
    }

    pub(crate) async fn worker(&self, instances: usize) -> Worker {
        Worker::new(&self.store, &self.server, instances).await
    }

    /// Pairs at keys that were not used before.
    pub(crate) async fn pairs<'a>(&self, worker: &'a mut Worker, keys: u64) -> Pairs<'a> {
        let first = self.keys.fetch_add(keys, Relaxed);
        let keys = (first..first + keys).map(|number| key(&format!("key-{number}")));
        Pairs::new(worker, keys.collect()).await
    }

    /// Runs a sequence at fresh keys.
    async fn run(
        &self,
        worker: &mut Worker,
        sequence: &Sequence,
        totals: &mut Totals,
    ) -> Result<(), Difference> {
        let instances = worker.instances.clone();
        let mut pairs = self.pairs(worker, sequence.keys).await;
        let mut seats: Vec<_> = (pairs.keys())
            .map(|key| Seats::new(key, &instances, sequence.seats))
            .collect();
        let mut done = Vec::new();
        for ops in &sequence.steps {
            if let [Op::Pause(millis), ..] = ops[..] {
                sleep(Duration::from_millis(millis)).await;
                pairs.read_clock().await;
                done.push(Done::Paused(millis));
                continue;
            }
            let calls = seats.iter_mut().zip(ops);
            let calls: Vec<_> = calls.map(|(seats, op)| seats.call(op)).collect();
            match pairs.step(&calls).await {
                Ok(Compared::Equal(equal)) => {
                    totals.steps += calls.len() as u64;
                    totals.daily += calls.iter().filter(|call| call.is_daily()).count() as u64;
                    let mut said = Vec::new();
                    for ((seats, call), (answer, told)) in seats.iter_mut().zip(calls).zip(equal) {
                        let names = told.into_iter().map(|(_, name)| name);
                        for name in iter::once(answer.said.kind().to_owned()).chain(names) {
                            *totals.seen.entry(name).or_default() += 1;
                        }
                        seats.answered(&call, &answer);
                        said.push((call, answer.said));
                    }
                    done.push(Done::Said(said));
                }
                Ok(Compared::Unclear) => {
                    totals.unclear += 1;
                    break;
                }
                Err(how) => {
                    let report: String = done.iter().map(|done| format!("{done:?}\n")).collect();
                    return Err(Difference {
                        steps: 1 + done.len(),
                        report: report + &format!("{calls:?}\nof which {how}"),
                    });
                }
            }
        }
        totals.sequences += 1;
        totals.blur = totals.blur.max(pairs.blur());
        Ok(())
    }

    /// Runs a sequence again, because a difference may depend on the times at which leases end.
    async fn run_thrice(&self, worker: &mut Worker, sequence: &Sequence) -> Result<(), Difference> {
        for _ in 0..3 {
            self.run(worker, sequence, &mut Totals::default()).await?;
        }
        Ok(())
    }

    /// Takes away from a failing sequence what it does not need to fail.
    async fn shorten(&self, mut sequence: Sequence, first: Difference) -> Difference {
        let mut worker = self.worker(INSTANCES).await;
        let mut shortest = first;
        let until = Instant::now() + SHORTENING;
        let mut size = sequence.steps.len() / 2;
        while size > 0 && Instant::now() < until {
            let mut at = 0;
            while at < sequence.steps.len() && Instant::now() < until {
                let mut fewer = sequence.clone();
                fewer.steps.drain(at..(at + size).min(fewer.steps.len()));
                match self.run_thrice(&mut worker, &fewer).await {
                    Err(difference) => (sequence, shortest) = (fewer, difference),
                    Ok(()) => at += size,
                }
            }
            size /= 2;
        }
        shortest
    }
}

/// Compares so many steps, in sequences of the seeds from `seed` on.
pub(crate) async fn compare(steps: u64, seed: u64) -> Totals {
    let subject = Arc::new(Subject::start().await);
    let (next, compared) = (Arc::new(AtomicU64::new(seed)), Arc::new(AtomicU64::new(0)));
    let failed: Arc<Mutex<Option<(u64, Difference)>>> = Arc::default();
    subject.server.reset_stats().await;
    let mut workers = JoinSet::new();
    for _ in 0..WORKERS {
        let (subject, next, compared) = (subject.clone(), next.clone(), compared.clone());
        let failed = failed.clone();
        workers.spawn(async move {
            let mut worker = subject.worker(INSTANCES).await;
            let mut totals = Totals::default();
            while compared.load(Relaxed) < steps && failed.lock().unwrap().is_none() {
                let seed = next.fetch_add(1, Relaxed);
                let sequence = Sequence::random(seed);
                let before = totals.steps;
                let outcome = subject.run(&mut worker, &sequence, &mut totals).await;
                compared.fetch_add(totals.steps - before, Relaxed);
                if let Err(difference) = outcome {
                    failed.lock().unwrap().get_or_insert((seed, difference));
                }
            }
            totals
        });
    }
    let mut totals = Totals::default();
    while let Some(done) = workers.join_next().await {
        let done = done.unwrap();
        totals.steps += done.steps;
        totals.daily += done.daily;
        totals.sequences += done.sequences;
        totals.unclear += done.unclear;
        totals.blur = totals.blur.max(done.blur);
        for (name, count) in done.seen {
            *totals.seen.entry(name).or_default() += count;
        }
    }
    totals.joint = (totals.daily).saturating_sub(subject.server.commands().await["evalsha"]);
    let failed = failed.lock().unwrap().take();
    if let Some((seed, difference)) = failed {
        let after = totals.steps;
        println!("a difference after about {after} steps; making its sequence shorter");
        let whole = difference.steps;
        let shortest = subject.shorten(Sequence::random(seed), difference).await;
        panic!(
            "Redis and the rules differ (step {whole} of its sequence, {} steps when shortened).\n\
             {}\n\
             To run it again: TDL_RULES_SEED={seed} TDL_RULES_STEPS=1",
            shortest.steps, shortest.report,
        );
    }
    totals
}

/// The value of an environment variable that is a number.
pub(crate) fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{variable} is a number")),
    )
}

pub(crate) fn seed_of_today() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.map_or(0, |since| since.as_nanos() as u64)
}
