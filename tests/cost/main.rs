//! The cost of a call at the server, which the whole fleet shares. This test has a binary to itself, so that no other test runs beside it.

#[path = "../support/mod.rs"]
mod support;

use futures_util::future::join_all;
use redis::{aio::MultiplexedConnection, cmd};
use tower_distributed_lock::store::{RedisStore, Store};

use support::{redis_server::RedisServer, words::*};

const SET_NX: &str = "return redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])";
const COMPARE_AND_DELETE: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end";

/// The number of calls in one measurement.
const CALLS: usize = 200;
/// The number of measurements after which a ratio counts as too high.
const ROUNDS: usize = 100;

/// The ratio of two costs that are measured side by side, many times. Other load on the machine hits both costs, and the median
/// leaves outliers out.
#[derive(Default)]
struct Ratio(Vec<f64>);

impl Ratio {
    fn add(&mut self, cost: f64, plain: f64) {
        self.0.push(cost / plain);
        self.0.sort_by(f64::total_cmp);
    }

    fn median(&self) -> f64 {
        self.0[self.0.len() / 2]
    }
}

#[tokio::test]
async fn acquire_and_release_are_cheap_on_the_server() {
    let server = RedisServer::start().await;
    let store = RedisStore::connect(server.url()).await.unwrap();
    let mut plain = server.connection().await;
    for script in [SET_NX, COMPARE_AND_DELETE] {
        let script = redis::Script::new(script);
        script.load_async(&mut plain).await.unwrap();
    }
    let (mut acquire, mut release) = (Ratio::default(), Ratio::default());
    for round in 0..ROUNDS {
        measure(&server, &store, &plain, (&mut acquire, &mut release)).await;
        if round >= 20 && acquire.median() <= 1.7 && release.median() <= 1.4 {
            break;
        }
    }
    let (rounds, acquire, release) = (acquire.0.len(), acquire.median(), release.median());
    println!(
        "{rounds} rounds: acquire {acquire:.2} × SET NX PX, release {release:.2} × compare-and-delete"
    );
    assert!(acquire <= 1.7, "an acquire costs {acquire:.2} × SET NX PX");
    assert!(
        release <= 1.4,
        "a release costs {release:.2} × compare-and-delete"
    );
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
    let take = |n| store.acquire(waiting(&name_of(n), a));
    let plainly = cost(server, (0..CALLS).map(set)).await;
    acquire.add(cost(server, (0..CALLS).map(take)).await, plainly);

    let delete = |n| evalsha(plain, COMPARE_AND_DELETE, [name(n), value.clone()]);
    let free = |n| store.start_release(ending(&name_of(n), a));
    let plainly = cost(server, (0..CALLS).map(delete)).await;
    release.add(cost(server, (0..CALLS).map(free)).await, plainly);
    assert_eq!(server.leftovers().await, [""; 0]);
}

/// Measures the cost of one call at the server in µs, while many calls come at once, because only the time of a busy server is scarce.
async fn cost<F: Future>(server: &RedisServer, calls: impl Iterator<Item = F>) -> f64 {
    server.reset_stats().await;
    join_all(calls).await;
    let evalsha = server.stats().await["evalsha"];
    assert_eq!(evalsha.calls, CALLS as u64);
    evalsha.usec_per_call
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
