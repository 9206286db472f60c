//! Ten thousand leases of one instance.

use std::time::Duration;

use futures_util::{StreamExt, stream};
use tower_distributed_lock::{Locks, Stats, store::RedisStore};

use crate::support::{eventually, redis_server::RedisServer};

const LEASES: usize = 10_000;
/// Long enough that a busy machine does not lose one, short enough to wait for several.
const LEASE: Duration = Duration::from_secs(6);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_leases_are_kept_for_several_times_their_length() {
    let server = RedisServer::start().await;
    let store = RedisStore::connect(server.url()).await.unwrap();
    let locks = Locks::builder(store)
        .wait_forever()
        .lease(LEASE)
        .build()
        .unwrap();
    let tasks = tokio::runtime::Handle::current()
        .metrics()
        .num_alive_tasks();
    let guards: Vec<_> = stream::iter(0..LEASES)
        .map(|n| locks.lock(format!("k/{n}")))
        .buffer_unordered(64)
        .map(Result::unwrap)
        .collect()
        .await;
    // The scheduler, the subscription, its connection and the driver of the lane; a question that was
    // not answered at once ends in a task of its own.
    eventually("four tasks are enough for all leases", async || {
        let metrics = tokio::runtime::Handle::current().metrics();
        metrics.num_alive_tasks() - tasks <= 4
    })
    .await;

    server.reset_stats().await;
    tokio::time::sleep(3 * LEASE).await;
    let intervals = 9.0;
    let round_trips = server.reads().await as f64 / intervals;
    // One script renews several leases, each of them by this command.
    let renewals = server.stats().await["pexpire"].calls as f64 / intervals;
    println!(
        "per renewal interval: {renewals:.0} renewals in at most {round_trips:.0} round trips"
    );
    assert!(guards.iter().all(|guard| guard.is_held()), "none is lost");
    assert!(
        round_trips <= 400.0,
        "{round_trips} round trips in each interval"
    );
    assert!(
        renewals >= LEASES as f64 * 0.8,
        "all of them are renewed: {renewals}"
    );

    drop(guards);
    eventually("all is given back", async || {
        locks.stats() == Stats::default()
    })
    .await;
    assert_eq!(server.leftovers().await, [""; 0]);
}
