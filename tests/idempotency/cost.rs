//! The commands of an idempotent request, counted by the Redis server.

use crate::{
    subject::{Redis, Subject},
    support::{eventually, redis_server::RedisServer},
    web::{Runs, app, layer, pay, pay_as, send, sending},
};

/// All commands but those of scripts and tests.
async fn commands(server: &RedisServer) -> Vec<(String, u64)> {
    server.commands().await.into_iter().collect()
}

fn evalsha(calls: u64) -> Vec<(String, u64)> {
    vec![("evalsha".to_owned(), calls)]
}

#[tokio::test]
async fn a_first_request_costs_two_commands_a_replay_one_and_a_local_duplicate_none() {
    let redis = Redis::start().await;
    let (server, runs) = (&redis.server, Runs::gated());
    let locks = redis.replica().build().unwrap();
    let app = app(layer(&locks), runs.handler());
    // The server is given its scripts, and the subscription is there.
    runs.open();
    send(&app, pay_as("warm up")).await;
    runs.arrival().await;
    eventually("it has subscribed", async || {
        let channels: Vec<String> = server.send(&["PUBSUB", "CHANNELS"]).await;
        !channels.is_empty()
    })
    .await;
    server.reset_stats().await;

    let first = sending(&app, pay());
    runs.arrival().await;
    assert_eq!(commands(server).await, evalsha(1));
    let duplicates: Vec<_> = (0..10).map(|_| sending(&app, pay())).collect();
    eventually("they wait", async || locks.stats().waiting == 10).await;
    assert_eq!(commands(server).await, evalsha(1));
    runs.open();
    first.await.unwrap();
    for duplicate in duplicates {
        assert!(duplicate.await.unwrap().is_replayed());
    }
    assert_eq!(commands(server).await, evalsha(2));

    server.reset_stats().await;
    for replay in 1..=3 {
        assert!(send(&app, pay()).await.is_replayed());
        assert_eq!(commands(server).await, evalsha(replay));
    }
}
