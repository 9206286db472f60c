//! The cost of a call at the server, which the whole fleet shares. These tests have a binary to
//! themselves and run one after another, so that no other test runs beside them.

mod instructions;

use std::time::Duration;
use test_support as support;

use futures_util::future::join_all;
use redis::{aio::MultiplexedConnection, cmd};
use tokio::{sync::Mutex, task::JoinSet};
use tower_distributed_lock::{
    Error,
    store::{Acquire, Acquired, Mode, Owner, Queueing, RedisStore, Release, Released, Store},
};

use support::{eventually, redis_server::RedisServer, words::*};

const SET_NX: &str = "return redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])";
const COMPARE_AND_DELETE: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end";

/// Held by the test that runs.
static ALONE: Mutex<()> = Mutex::const_new(());

/// The number of calls in one measurement.
const CALLS: usize = 200;
/// The number of measurements after which a ratio counts as too high.
const ROUNDS: usize = 100;

/// The ratio of two costs that are measured side by side, many times. Other load on the machine
/// makes many measurements too high, and a clock that is set meanwhile makes single ones too low,
/// so the tenth part of each cost that is lowest counts, without the very lowest.
#[derive(Default)]
struct Ratio {
    costs: Vec<f64>,
    plain: Vec<f64>,
}

impl Ratio {
    fn add(&mut self, cost: f64, plain: f64) {
        self.costs.push(cost);
        self.plain.push(plain);
    }

    fn get(&self) -> f64 {
        low(&self.costs) / low(&self.plain)
    }

    /// The ratio of the sums of two costs.
    fn with(&self, other: &Self) -> f64 {
        let sum = |a: &[f64], b: &[f64]| low(a) + low(b);
        sum(&self.costs, &other.costs) / sum(&self.plain, &other.plain)
    }
}

fn low(measurements: &[f64]) -> f64 {
    let mut sorted = measurements.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 10]
}

#[tokio::test]
async fn acquire_and_release_are_cheap_on_the_server() {
    let _alone = ALONE.lock().await;
    let server = RedisServer::start().await;
    let store = RedisStore::connect(server.url()).await.unwrap();
    let mut plain = server.connection().await;
    for script in [SET_NX, COMPARE_AND_DELETE] {
        let script = redis::Script::new(script);
        script.load_async(&mut plain).await.unwrap();
    }
    let (mut acquire, mut release) = (Ratio::default(), Ratio::default());
    let mut rounds = 0;
    while rounds < ROUNDS {
        rounds += 1;
        measure(&server, &store, &plain, (&mut acquire, &mut release)).await;
        let pair = acquire.with(&release);
        if rounds > 20 && acquire.get() <= 1.6 && release.get() <= 0.8 && pair <= 1.15 {
            break;
        }
    }
    let pair = acquire.with(&release);
    let (acquire, release) = (acquire.get(), release.get());
    println!(
        "{rounds} rounds: acquire {acquire:.2} × SET NX PX, release {release:.2} × compare-and-delete, both {pair:.2} ×"
    );
    assert!(acquire <= 1.6, "an acquire costs {acquire:.2} × SET NX PX");
    assert!(
        release <= 0.8,
        "a release costs {release:.2} × compare-and-delete"
    );
    assert!(pair <= 1.15, "both together cost {pair:.2} ×");
}

async fn measure(
    server: &RedisServer,
    store: &RedisStore,
    plain: &MultiplexedConnection,
    (acquire, release): (&mut Ratio, &mut Ratio),
) {
    let a = owner();
    let value = format!("lease:{a}");
    let name = |n| format!("plain:{{b1}}:lock:orders/{n}");
    let name_of = |n| key(&format!("orders/{n}"));

    let set = |n| evalsha(plain, SET_NX, [name(n), value.clone(), "600000".into()]);
    let take = |n| store.ask_for(waiting(&name_of(n), a));
    let plainly = cost(server, (0..CALLS).map(set)).await;
    acquire.add(cost(server, (0..CALLS).map(take)).await, plainly);

    let delete = |n| evalsha(plain, COMPARE_AND_DELETE, [name(n), value.clone()]);
    let free = |n| store.end(ending(&name_of(n), a));
    let plainly = cost(server, (0..CALLS).map(delete)).await;
    release.add(cost(server, (0..CALLS).map(free)).await, plainly);
    assert_eq!(server.leftovers().await, [""; 0]);
}

/// The commands that an uncontended call runs on the server do not depend on the machine, unlike
/// its time.
#[tokio::test]
async fn uncontended_calls_run_few_commands_on_the_server() {
    let _alone = ALONE.lock().await;
    let server = RedisServer::start().await;
    let store = RedisStore::connect(server.url()).await.unwrap();
    // The calls of a message share the look at the keys, and the end of the leases. The first
    // token of a bucket costs more.
    let first = owner();
    join_all(take(&store, Mode::Exclusive, first)).await;
    join_all(free(&store, Mode::Exclusive, first)).await;
    let exclusive = ["incr", "psetex"];
    let shared = ["exists", "incr", "pexpire", "time", "zadd"];
    // Of several leases one may have expired, and is still in the set.
    let end_shared = ["exists", "time", "zrem", "zscore"];
    let permit = Mode::Permit { of: 4 };
    for (mode, acquire, beside, release) in [
        (Mode::Exclusive, &exclusive[..], &[][..], &[][..]),
        (Mode::Shared, &shared, &["zrange"], &end_shared),
        (permit, &shared, &["zcard", "zrange"], &end_shared),
    ] {
        let (a, b) = (owner(), owner());
        assert_eq!(commands(&server, take(&store, mode, a)).await, acquire);
        if !beside.is_empty() {
            let mut commands = commands(&server, take(&store, mode, b)).await;
            // Only if the lease ends after that of the other holder.
            commands.retain(|command| command != "pexpire");
            let of_free_key = acquire.iter().filter(|command| **command != "pexpire");
            let mut expected: Vec<_> = of_free_key.chain(beside).copied().collect();
            expected.sort_unstable();
            assert_eq!(commands, expected, "{mode}, beside another holder");
            join_all(free(&store, mode, b)).await;
        }
        assert_eq!(commands(&server, free(&store, mode, a)).await, release);
        assert_eq!(server.leftovers().await, [""; 0]);
    }
}

/// The commands that each of many calls runs on the server, beside the script itself.
async fn commands<F: Future>(server: &RedisServer, calls: impl Iterator<Item = F>) -> Vec<String> {
    server.reset_stats().await;
    join_all(calls).await;
    let mut commands = Vec::new();
    for (name, stat) in server.stats().await {
        // The connections of the store and of the test run some commands of their own.
        let of_each_call = (stat.calls + CALLS as u64 / 2) / CALLS as u64;
        if name != "evalsha" {
            commands.extend((0..of_each_call).map(|_| name.clone()));
        }
    }
    commands
}

fn take(
    store: &RedisStore,
    mode: Mode,
    owner: Owner,
) -> impl Iterator<Item = impl Future<Output = Result<Acquired, Error>>> {
    (0..CALLS).map(move |n| {
        store.ask_for(Acquire {
            mode,
            ..waiting(&key(&format!("orders/{n}")), owner)
        })
    })
}

fn free(
    store: &RedisStore,
    mode: Mode,
    owner: Owner,
) -> impl Iterator<Item = impl Future<Output = Result<Released, Error>>> {
    (0..CALLS).map(move |n| {
        store.end(Release {
            mode,
            ..ending(&key(&format!("orders/{n}")), owner)
        })
    })
}

/// The number of instances that wait in the tests of long queues.
const WAITING: usize = 1_000;
/// The most commands that a call may run before such a queue. Each of them takes the server some
/// microseconds.
const MOST_WORK: u64 = 130;

/// The most expired places that a call may remove. Each of them has up to three members.
const MOST_REMOVED: u64 = 20;

/// The commands that each script of a call runs on the server, beside the script itself.
async fn work<T>(server: &RedisServer, call: impl Future<Output = T>) -> (T, u64) {
    server.reset_stats().await;
    let answer = call.await;
    let stats = server.stats().await;
    let calls = |names: &dyn Fn(&str) -> bool| {
        let named = stats.iter().filter(|(name, _)| names(name));
        named.map(|(_, stat)| stat.calls).sum::<u64>()
    };
    let of_scripts = calls(&|name| {
        let is_of_key = name.starts_with('z') || name.starts_with('p') && name != "ping";
        is_of_key || ["get", "set", "del", "exists", "time", "incrby"].contains(&name)
    });
    let scripts = calls(&|name| name.starts_with("eval"));
    (answer, of_scripts.div_ceil(scripts))
}

/// The number of members in the queue of the key.
async fn members(server: &RedisServer) -> u64 {
    let names = server.leftovers().await;
    let queue = names.iter().find(|name| name.contains(":queue:"));
    match queue {
        Some(queue) => server.send(&["ZCARD", queue]).await,
        None => 0,
    }
}

/// A store and the key that a writer has and many instances wait for.
async fn long_queue(
    server: &RedisServer,
    mode: Mode,
    deadline: Duration,
) -> (RedisStore, Owner, Vec<Owner>) {
    let store = RedisStore::connect(server.url()).await.unwrap();
    let (key, writer) = (key("k"), owner());
    store.take(&key, writer).await;
    let waiting: Vec<Owner> = (0..WAITING).map(|_| owner()).collect();
    for some in waiting.chunks(50) {
        let queue = some.iter().map(|owner| {
            let queueing = Queueing::Wait {
                deadline,
                head_start: LONG,
            };
            store.ask_for(Acquire {
                mode,
                queueing,
                ..attempt(&key, *owner)
            })
        });
        for answer in join_all(queue).await {
            held(answer.unwrap());
        }
    }
    (store, writer, waiting)
}

/// No call blocks the server for longer because many wait: its commands are counted, because its
/// time depends on the machine.
#[tokio::test]
async fn the_work_of_a_call_does_not_grow_with_the_queue() {
    let _alone = ALONE.lock().await;
    let server = RedisServer::start().await;
    let key = key("k");
    let (store, writer, readers) = long_queue(&server, Mode::Shared, LONG).await;
    let mut most = Vec::new();
    let (seen, inspecting) = work(&server, store.see(&key)).await;
    assert_eq!(seen.queue, readers);
    most.push(("inspect", inspecting));
    most.push(("release", work(&server, store.free(&key, writer)).await.1));
    let last = readers.last().copied().unwrap();
    let (answer, asking) = work(&server, store.queue_as(Mode::Shared, &key, last)).await;
    held(answer);
    most.push(("the last reader asks", asking));
    let taking = async {
        for reader in &readers {
            granted(store.queue_as(Mode::Shared, &key, *reader).await);
        }
    };
    let (_, taking) = work(&server, taking).await;
    most.push(("a reader takes the key", taking));
    most.push((
        "a writer waits",
        work(&server, store.queue(&key, writer)).await.1,
    ));
    let (_, renewing) = work(&server, store.renew_as(Mode::Shared, &key, last, 1)).await;
    most.push(("renew", renewing));
    most.push((
        "force release",
        work(&server, store.force_release(key.clone())).await.1,
    ));
    store.free(&key, writer).await;

    let (store, writer, waiting) = long_queue(&server, Mode::Exclusive, LONG).await;
    let (_, recording) = work(&server, store.record(&key, writer, b"done")).await;
    most.push(("record", recording));
    let finding = async {
        for waiter in &waiting {
            let found = store.queue(&key, *waiter).await;
            assert!(matches!(found, Acquired::Recorded(_)), "{found:?}");
        }
    };
    let (_, finding) = work(&server, finding).await;
    most.push(("a record is found", finding));
    store.force_release(key.clone()).await.unwrap();

    // The places of all but one expire at once.
    let (store, writer, _) = long_queue(&server, Mode::Shared, Duration::from_secs(1)).await;
    held(store.queue(&key, last).await);
    tokio::time::sleep(Duration::from_secs(2)).await;
    most.push((
        "release after an expiry",
        work(&server, store.free(&key, writer)).await.1,
    ));
    let mut left = members(&server).await;
    eventually("the live attempt has the key", async || {
        let (answer, asking) = work(&server, store.queue(&key, last)).await;
        most.push(("ask after an expiry", asking));
        let removed = left - members(&server).await;
        left -= removed;
        assert!(removed <= 3 * MOST_REMOVED, "{removed} members are removed");
        matches!(answer, Acquired::Granted(_))
    })
    .await;
    let too_much: Vec<_> = most.iter().filter(|(_, work)| *work > MOST_WORK).collect();
    println!(
        "at most {:?} commands",
        most.iter().map(|(_, work)| work).max()
    );
    assert!(too_much.is_empty(), "{too_much:?}");
}

/// The ratios of the other modes' costs to those of an exclusive lease: on a free key, and beside
/// another holder.
#[derive(Default)]
struct ModeCosts {
    acquire: Ratio,
    release: Ratio,
    beside: Ratio,
}

/// By instructions (callgrind on the server, with only the short branches of the scripts), an
/// acquire costs 1.40 times an exclusive one at a free key. Its time varies between 1.2 and 1.5
/// times on one machine, so the limit of the time is higher, and the commands are compared in a
/// test of their own. A release has to look at the clock, and runs twice as many commands as an
/// exclusive one.
/// Exclusive leases of one message share a script, and are ended by one command. The others are
/// not.
#[tokio::test]
async fn shared_leases_and_permits_cost_little_more_than_exclusive_ones() {
    let _alone = ALONE.lock().await;
    let server = RedisServer::start().await;
    let store = RedisStore::connect(server.url()).await.unwrap();
    for mode in [Mode::Shared, Mode::Permit { of: 4 }] {
        let mut costs = ModeCosts::default();
        let mut rounds = 0;
        while rounds < ROUNDS {
            rounds += 1;
            measure_mode(&server, &store, mode, &mut costs).await;
            let is_cheap = costs.acquire.get() <= 2.6 && costs.beside.get() <= 3.7;
            if rounds > 20 && is_cheap && costs.release.get() <= 5.5 {
                break;
            }
        }
        let [acquire, release, beside] =
            [&costs.acquire, &costs.release, &costs.beside].map(Ratio::get);
        println!(
            "{mode}, {rounds} rounds: acquire {acquire:.2} ×, beside another holder {beside:.2} ×, release {release:.2} × exclusive"
        );
        assert!(acquire <= 2.6, "{mode}: an acquire costs {acquire:.2} ×");
        assert!(release <= 5.5, "{mode}: a release costs {release:.2} ×");
        assert!(beside <= 3.7, "{mode}: beside another {beside:.2} ×");
    }
}

async fn measure_mode(
    server: &RedisServer,
    store: &RedisStore,
    mode: Mode,
    ModeCosts {
        acquire,
        release,
        beside,
    }: &mut ModeCosts,
) {
    let (a, b) = (owner(), owner());
    let taken = cost(server, take(store, Mode::Exclusive, a)).await;
    let freed = cost(server, free(store, Mode::Exclusive, a)).await;
    acquire.add(cost(server, take(store, mode, a)).await, taken);
    beside.add(cost(server, take(store, mode, b)).await, taken);
    release.add(cost(server, free(store, mode, a)).await, freed);
    join_all(free(store, mode, b)).await;
    assert_eq!(server.leftovers().await, [""; 0]);
}

/// A packet costs the server more than a command in it, so calls at the same time should share
/// packets.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_at_the_same_time_share_packets() {
    let _alone = ALONE.lock().await;
    let server = RedisServer::start().await;
    let store = RedisStore::connect(server.url()).await.unwrap();
    let mut fewest = f64::MAX;
    for _ in 0..10 {
        fewest = fewest.min(packets(&server, &store).await);
    }
    println!("{fewest:.3} packets for a lock");
    assert!(fewest <= 0.12, "{fewest:.3} packets for a lock");
}

/// Counts the packets that the server reads for a lock and its release, while many tasks lock keys
/// of their own.
async fn packets(server: &RedisServer, store: &RedisStore) -> f64 {
    const TASKS: u32 = 128;
    const TIMES: u32 = 10;
    let before = server.reads().await;
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let (store, key, owner) = (store.clone(), key(&format!("orders/{task}")), owner());
        tasks.spawn(async move {
            for _ in 0..TIMES {
                store.ask_for(waiting(&key, owner)).await.unwrap();
                store.end(ending(&key, owner)).await.unwrap();
            }
        });
    }
    tasks.join_all().await;
    (server.reads().await - before) as f64 / f64::from(TASKS * TIMES)
}

/// Measures the cost of one call at the server in µs, while many calls come at once, because only
/// the time of a busy server is scarce.
async fn cost<F: Future>(server: &RedisServer, calls: impl Iterator<Item = F>) -> f64 {
    server.reset_stats().await;
    join_all(calls).await;
    let evalsha = server.stats().await["evalsha"];
    evalsha.usec_per_call * evalsha.calls as f64 / CALLS as f64
}

async fn evalsha<const N: usize>(
    connection: &MultiplexedConnection,
    script: &str,
    args: [String; N],
) {
    let mut call = cmd("EVALSHA");
    call.arg(redis::Script::new(script).get_hash());
    call.arg(1).arg(&args[..]);
    let mut connection = connection.clone();
    call.query_async::<redis::Value>(&mut connection)
        .await
        .unwrap();
}
