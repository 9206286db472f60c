//! The metrics of calls, connections and hints, on a real Redis.

use std::time::Duration;

use tower_distributed_lock::{Locks, store::RedisStore};

use crate::{
    scrape::Scrape,
    support::{eventually, redis_server::RedisServer},
};

async fn locks(server: &RedisServer) -> Locks {
    let store = RedisStore::builder(server.url()).timeout(Duration::from_millis(300));
    let store = store.connect().await.unwrap();
    Locks::builder(store).build().unwrap()
}

#[tokio::test]
async fn calls_are_counted_by_operation_and_result() {
    let scrape = Scrape::new();
    let _recording = scrape.start();
    let server = RedisServer::start().await;
    let locks = locks(&server).await;
    for _ in 0..3 {
        // Nobody waits for the answers to the releases, and they are counted nevertheless.
        drop(locks.lock("a").await.unwrap());
    }
    let guard = locks.lock("a").await.unwrap();
    guard.confirm().await.unwrap();
    eventually("three releases are answered", async || {
        locks.stats().releases == 0
    })
    .await;
    scrape.expect(&[
        (
            r#"store_call_seconds_count{operation="acquire",result="answered"}"#,
            4.0,
        ),
        (
            r#"store_call_seconds_count{operation="release",result="answered"}"#,
            3.0,
        ),
        (
            r#"store_call_seconds_count{operation="renew",result="answered"}"#,
            1.0,
        ),
        (
            r#"store_call_seconds_count{operation="acquire",result="failed"}"#,
            0.0,
        ),
        (r#"renewals_total{result="renewed"}"#, 1.0),
    ]);

    // A release that the server does not answer fails once, and is owed until the server does.
    server.freeze();
    drop(guard);
    let failed = r#"store_call_seconds_count{operation="release",result="failed"}"#;
    eventually("the release fails", async || scrape.value(failed) == 1.0).await;
    Locks::record_gauges([&locks]);
    scrape.expect(&[("owed_releases", 1.0)]);
    server.thaw();
    eventually("nothing is owed", async || {
        Locks::record_gauges([&locks]);
        scrape.value("owed_releases") == 0.0
    })
    .await;
}

#[tokio::test]
async fn connects_and_hints_are_counted() {
    let scrape = Scrape::new();
    let _recording = scrape.start();
    let server = RedisServer::start().await;
    let (one, other) = (locks(&server).await, locks(&server).await);
    let listening = async |instances: f64| {
        let listening = r#"hints_total{kind="listening"}"#;
        eventually("hints arrive", async || {
            scrape.value(listening) == instances
        })
        .await;
    };
    let guard = one.lock("a").await.unwrap();
    listening(1.0).await;
    let waiting = tokio::spawn({
        let other = other.clone();
        async move { other.lock("a").await }
    });
    let wanted = r#"hints_total{kind="wanted"}"#;
    eventually("the holder gets a hint", async || {
        scrape.value(wanted) == 1.0
    })
    .await;
    listening(2.0).await;
    drop(guard);
    drop(waiting.await.unwrap().unwrap());
    let free = r#"hints_total{kind="free"}"#;
    eventually("the waiting instance gets a hint", async || {
        scrape.value(free) >= 1.0
    })
    .await;

    let calls = r#"connects_total{connection="calls",result="connected"}"#;
    let hints = r#"connects_total{connection="hints",result="connected"}"#;
    // A lane and a subscription for each of the two.
    scrape.expect(&[(calls, 2.0), (hints, 2.0)]);
    server.break_connections().await;
    let _: i64 = server.send(&["CLIENT", "KILL", "TYPE", "pubsub"]).await;
    eventually("both listen again", async || scrape.value(hints) == 4.0).await;
    let reconnected = r#"hints_total{kind="reconnected"}"#;
    eventually("both are told", async || scrape.value(reconnected) == 2.0).await;
    drop(one.lock("b").await.unwrap());
    assert!(scrape.value(calls) > 2.0);
}
