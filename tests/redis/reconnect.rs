//! Connections that break, and servers that go away and come back.

use redis::Value;
use tokio::time::Instant;
use tower_distributed_lock::{
    ErrorKind,
    store::{Hint, RedisStore, Released, Renewed, Store},
};

use crate::{
    LIMIT, impatient, server_and_store,
    support::{
        PATIENCE, eventually,
        proxy::{Network, Proxy},
        redis_server::RedisServer,
        words::*,
    },
};

#[tokio::test]
async fn a_connection_whose_server_has_vanished_is_replaced() {
    let server = RedisServer::start().await;
    let mut proxy = Proxy::start(server.port()).await;
    let store = impatient(&proxy.url()).await;
    let key = key("k");
    store.take(&key, owner()).await;
    proxy.set(Network::BlackHole);
    proxy.only_new_ones_are_fine();
    eventually("a new connection is made", async || {
        store.inspect(key.clone()).await.is_ok()
    })
    .await;
    // Without CLIENT KILL, the server would keep the old connections for ever.
    let clients: String = server.send(&["CLIENT", "LIST", "TYPE", "normal"]).await;
    assert!(clients.lines().count() <= 5, "{clients}");
}

#[tokio::test]
async fn calls_to_a_stopped_server_fail_in_time_and_its_return_sends_a_hint() {
    let (mut server, _) = server_and_store().await;
    let store = impatient(&server.url()).await;
    let (key, a) = (key("k"), owner());
    let mut hints = store.watch_for_sure(a.instance).await;
    let before = store.take(&key, a).await.tokens.last().unwrap();

    server.kill();
    let asked = Instant::now();
    let error = store.ask_for(attempt(&key, owner())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    let Renewed::Unknown(error) = store.renew_one(renewal(&key, a, 1)).await else {
        panic!("the server is gone");
    };
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert!(asked.elapsed() < LIMIT * 2 + PATIENCE / 10);

    server.restart().await;
    hinted(&mut hints, Hint::Reconnected).await;
    // The server came back empty: the lease is lost, and tokens go on rising.
    assert!(matches!(
        store.renew_one(renewal(&key, a, 1)).await,
        Renewed::NotOurs
    ));
    let b = owner();
    assert!(store.take(&key, b).await.tokens.first().unwrap() > before);
    held(store.queue(&key, a).await);
    store.free(&key, b).await;
    hinted(&mut hints, Hint::Free(key)).await;
}

#[tokio::test]
async fn a_killed_subscription_is_replaced() {
    let (server, store) = server_and_store().await;
    let (key, a) = (key("k"), owner());
    let mut hints = store.watch_for_sure(a.instance).await;
    for _ in 0..3 {
        let _: Value = server.send(&["CLIENT", "KILL", "TYPE", "pubsub"]).await;
        hinted(&mut hints, Hint::Reconnected).await;
    }
    store.take(&key, a).await;
    held(store.queue(&key, owner()).await);
    hinted(&mut hints, Hint::Wanted(key)).await;
}

#[tokio::test]
async fn a_subscription_ends_with_its_receiver() {
    let (server, store) = server_and_store().await;
    let hints = store.watch_for_sure(owner().instance).await;
    let subscribers = async || -> usize {
        let channels: Vec<String> = server.send(&["PUBSUB", "CHANNELS"]).await;
        channels.len()
    };
    assert_eq!(subscribers().await, 1);
    drop(hints);
    eventually("the channel has no subscriber", async || {
        subscribers().await == 0
    })
    .await;
}

#[tokio::test]
async fn without_publish_no_call_fails_and_every_waiter_gets_the_key() {
    let server = RedisServer::start().await;
    let _: Value = server
        .send(&[
            "ACL", "SETUSER", "app", "on", ">secret", "~*", "+@all", "-publish", "&*",
        ])
        .await;
    let url = server.url().replace("redis://", "redis://app:secret@");
    let store = RedisStore::connect(url).await.unwrap();
    let (key, a, b, c) = (key("k"), owner(), owner(), owner());
    store.take(&key, a).await;
    held(store.queue(&key, b).await);
    held(store.queue(&key, c).await);
    assert_eq!(store.free(&key, a).await, Released::Freed);
    granted(store.queue(&key, b).await);
    assert_eq!(store.record(&key, b, b"done").await, Released::Freed);
    assert!(store.force_release(key.clone()).await.unwrap());
    granted(store.queue(&key, c).await);
    store.free(&key, c).await;
    assert_eq!(server.leftovers().await, [""; 0]);
}
