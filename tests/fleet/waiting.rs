//! Many local requests wait as one.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tower_distributed_lock::Stats;

use crate::{
    instance, instance_and_store,
    support::{eventually, redis_server::RedisServer, words::*},
};

#[tokio::test]
async fn a_hundred_requests_on_a_key_that_is_held_elsewhere_are_one_contender() {
    let server = RedisServer::start().await;
    let (holder, store) = instance_and_store(&server).await;
    let waiting = instance(&server).await;
    let held = holder.lock("k").await.unwrap();

    let requests: Vec<_> = (0..100)
        .map(|_| {
            let locks = waiting.clone();
            tokio::spawn(async move { locks.lock("k").await.unwrap().token() })
        })
        .collect();
    eventually("all wait", async || waiting.stats().waiting == 100).await;
    eventually("one is queued", async || {
        store.see(&key("k")).await.queue.len() == 1
    })
    .await;

    // The poll interval is a second, less up to a fifth; the holder may renew besides.
    server.reset_stats().await;
    let began = Instant::now();
    tokio::time::sleep(Duration::from_secs(3)).await;
    let polls = server.commands().await.get("evalsha").copied().unwrap_or(0);
    let most = (began.elapsed().as_secs_f64() / 0.8).ceil() as u64 + 1;
    assert!(
        (1..=most).contains(&polls),
        "{polls} commands in {:?}",
        began.elapsed()
    );

    drop(held);
    let tokens = join_all(requests).await.into_iter().map(Result::unwrap);
    assert_eq!(tokens.collect::<std::collections::BTreeSet<_>>().len(), 100);
    eventually("nothing is left", async || {
        waiting.stats() == Stats::default()
    })
    .await;
    eventually("nor in Redis", async || server.leftovers().await.is_empty()).await;
}

#[tokio::test]
async fn an_uncontended_lock_costs_one_command_before_and_one_after() {
    let server = RedisServer::start().await;
    let locks = instance(&server).await;
    locks.lock("warm").await.unwrap().release().await.unwrap();
    // The subscription is made in the background.
    eventually("it is subscribed", async || {
        server
            .send::<Vec<String>>(&["PUBSUB", "CHANNELS"])
            .await
            .len()
            == 1
    })
    .await;
    server.reset_stats().await;
    for n in 0..50 {
        let guard = locks.lock(format!("k/{n}")).await.unwrap();
        assert_eq!(server.commands().await.get("evalsha"), Some(&(2 * n + 1)));
        drop(guard);
        eventually("it is released", async || locks.stats() == Stats::default()).await;
    }
    let commands = server.commands().await;
    assert_eq!(commands.get("evalsha"), Some(&100));
    // The subscription is checked now and then, by the same command as it is made.
    let known = ["evalsha", "subscribe"];
    let others: Vec<_> = (commands.keys())
        .filter(|name| !known.contains(&name.as_str()))
        .collect();
    assert_eq!(others, [""; 0], "nothing else was sent");
}
