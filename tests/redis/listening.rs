//! Hints about the subscription itself.

use tokio::time::timeout;
use tower_distributed_lock::store::{Hint, Hints, RedisStore, Store};

use crate::{
    impatient, server_and_store,
    support::{
        PATIENCE, eventually,
        proxy::Proxy,
        redis_server::{RedisServer, pass},
        warnings::Warnings,
        words::*,
    },
};

/// The next hint that arrives.
async fn next(hints: &mut Hints) -> Option<Hint> {
    let next = timeout(PATIENCE, hints.recv()).await;
    next.expect("a hint should arrive")
}

#[tokio::test]
async fn the_first_subscription_sends_listening_and_later_ones_send_reconnected() {
    let (server, store) = server_and_store().await;
    let mut hints = store.watch(owner().instance);
    assert_eq!(next(&mut hints).await, Some(Hint::Listening));
    for _ in 0..2 {
        let kill = ["CLIENT", "KILL", "TYPE", "pubsub"];
        assert_eq!(server.send::<i64>(&kill).await, 1);
        assert_eq!(next(&mut hints).await, Some(Hint::Reconnected));
        let channels: Vec<String> = server.send(&["PUBSUB", "CHANNELS"]).await;
        assert_eq!(
            channels.len(),
            1,
            "the server has confirmed the subscription by then"
        );
    }
}

#[tokio::test]
async fn no_hint_arrives_before_the_server_confirms_the_subscription() {
    let server = RedisServer::start().await;
    let denied = ["ACL", "SETUSER", "default", "-subscribe"];
    server.send::<String>(&denied).await;
    let store = RedisStore::connect(server.url()).await.unwrap();
    let mut hints = store.watch(owner().instance);
    eventually("the subscription was refused", async || {
        let log: Vec<redis::Value> = server.send(&["ACL", "LOG"]).await;
        format!("{log:?}").contains("subscribe")
    })
    .await;
    assert!(hints.try_recv().is_err());
    let allowed = ["ACL", "SETUSER", "default", "+subscribe"];
    server.send::<String>(&allowed).await;
    assert_eq!(next(&mut hints).await, Some(Hint::Listening));
}

#[tokio::test]
async fn every_interruption_of_a_subscription_and_its_end_are_logged() {
    let (server, store) = server_and_store().await;
    let log = Warnings::with_infos();
    let _recording = tracing::subscriber::set_default(log.clone());
    let mut hints = store.watch(owner().instance);
    assert_eq!(next(&mut hints).await, Some(Hint::Listening));
    for interruptions in 1..=3 {
        server.interrupt_hints().await;
        assert_eq!(next(&mut hints).await, Some(Hint::Reconnected));
        for event in ["redis.subscription_lost", "redis.resubscribed"] {
            assert_eq!(log.count(event), interruptions, "{}", log.all());
        }
    }
}

#[tokio::test]
async fn an_interruption_is_logged_once_however_often_the_store_subscribes_in_vain() {
    let (mut server, store) = server_and_store().await;
    let log = Warnings::with_infos();
    let _recording = tracing::subscriber::set_default(log.clone());
    let mut hints = store.watch(owner().instance);
    assert_eq!(next(&mut hints).await, Some(Hint::Listening));
    server.kill();
    eventually("the interruption is logged", async || {
        log.count("redis.subscription_lost") > 0
    })
    .await;
    // Long enough for several attempts to subscribe.
    pass(500).await;
    server.restart().await;
    assert_eq!(next(&mut hints).await, Some(Hint::Reconnected));
    for event in ["redis.subscription_lost", "redis.resubscribed"] {
        assert_eq!(log.count(event), 1, "{}", log.all());
    }
}

#[tokio::test]
async fn a_subscription_over_which_nothing_arrives_any_more_is_replaced() {
    let server = RedisServer::start().await;
    let mut proxy = Proxy::start(server.port()).await;
    let store = impatient(&proxy.url()).await;
    let mut hints = store.watch(owner().instance);
    assert_eq!(next(&mut hints).await, Some(Hint::Listening));
    proxy.only_new_ones_are_fine();
    proxy.old_ones_stop();
    assert_eq!(next(&mut hints).await, Some(Hint::Reconnected));
}
