//! What a call costs the server, which the whole fleet shares.

use futures_util::future::join_all;
use redis::{aio::MultiplexedConnection, cmd};
use tower_distributed_lock::store::{RedisStore, Store};

use crate::{
    server_and_store,
    support::{redis_server::RedisServer, words::*},
};

const SET_NX: &str = "return redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])";
const COMPARE_AND_DELETE: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end";

/// Calls in one measurement.
const CALLS: usize = 200;
/// Measurements before a ratio counts as too high.
const ROUNDS: usize = 100;

/// The least that was ever measured: whatever else the machine does can only make it seem more.
struct Least {
    set_nx: f64,
    compare_and_delete: f64,
    acquire: f64,
    release: f64,
}

#[tokio::test]
async fn acquire_and_release_are_cheap_on_the_server() {
    let (server, store) = server_and_store().await;
    let mut plain = server.connection().await;
    for script in [SET_NX, COMPARE_AND_DELETE] {
        let script = redis::Script::new(script);
        script.load_async(&mut plain).await.unwrap();
    }
    let mut least = Least {
        set_nx: f64::MAX,
        compare_and_delete: f64::MAX,
        acquire: f64::MAX,
        release: f64::MAX,
    };
    let (mut acquire, mut release) = (f64::MAX, f64::MAX);
    for round in 0..ROUNDS {
        measure(&server, &store, &plain, &mut least).await;
        acquire = least.acquire / least.set_nx;
        release = least.release / least.compare_and_delete;
        if round >= 10 && acquire <= 1.7 && release <= 1.4 {
            break;
        }
    }
    println!(
        "acquire {acquire:.2} × SET NX PX ({:.2} µs), release {release:.2} × compare-and-delete ({:.2} µs)",
        least.set_nx, least.compare_and_delete
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
    least: &mut Least,
) {
    let a = owner();
    let value = format!("lease:{a}");
    let name = |n| format!("plain:{{b1}}:lock:orders/{n}");
    let name_of = |n| key(&format!("orders/{n}"));

    let set = |n| evalsha(plain, SET_NX, [name(n), value.clone(), "600000".into()]);
    lower(&mut least.set_nx, cost(server, (0..CALLS).map(set)).await);

    let take = |n| store.acquire(waiting(&name_of(n), a));
    lower(&mut least.acquire, cost(server, (0..CALLS).map(take)).await);

    let delete = |n| evalsha(plain, COMPARE_AND_DELETE, [name(n), value.clone()]);
    let compare_and_delete = cost(server, (0..CALLS).map(delete)).await;
    lower(&mut least.compare_and_delete, compare_and_delete);

    let free = |n| store.release(ending(&name_of(n), a));
    lower(&mut least.release, cost(server, (0..CALLS).map(free)).await);
    assert_eq!(server.leftovers().await, [""; 0]);
}

/// What one call costs the server, in µs, when many come at once: only a busy server's time is dear.
async fn cost<F: Future>(server: &RedisServer, calls: impl Iterator<Item = F>) -> f64 {
    server.reset_stats().await;
    join_all(calls).await;
    let evalsha = server.stats().await["evalsha"];
    assert_eq!(evalsha.calls, CALLS as u64);
    evalsha.usec_per_call
}

fn lower(least: &mut f64, measured: f64) {
    *least = least.min(measured);
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
