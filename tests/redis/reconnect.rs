//! Connections that break, and servers that go away and come back.

use redis::Value;
use tokio::time::Instant;
use tower_distributed_lock::{
    ErrorKind,
    store::{Hint, RedisStore, Released, Renewed, Store},
};

use crate::{
    LIMIT, impatient, keys, server_and_store,
    support::{
        PATIENCE, eventually,
        proxy::{Network, Proxy},
        redis_server::RedisServer,
        words::*,
    },
};

#[tokio::test]
async fn a_killed_connection_is_replaced_without_a_word() {
    let (server, store) = server_and_store().await;
    for _ in 0..20 {
        let _: Value = server.send(&["CLIENT", "KILL", "TYPE", "normal"]).await;
        for key in keys() {
            let a = owner();
            store.take(&key, a).await;
            assert_eq!(store.free(&key, a).await, Released::Freed);
        }
    }
    assert_eq!(server.leftovers().await, [""; 0]);
}

#[tokio::test]
async fn a_connection_that_breaks_in_the_middle_of_many_calls_loses_none() {
    let server = RedisServer::start().await;
    let mut proxy = Proxy::start(server.port()).await;
    let store = RedisStore::connect(proxy.url()).await.unwrap();
    for _ in 0..20 {
        let calls = keys().into_iter().map(|key| {
            let store = store.clone();
            tokio::spawn(async move {
                let a = owner();
                store.take(&key, a).await;
                // An answer that was lost leaves in doubt whether the lease was ours, but never the lease.
                let _ = store.start_release(ending(&key, a)).await;
            })
        });
        let calls: Vec<_> = calls.collect();
        tokio::task::yield_now().await;
        proxy.cut();
        for call in calls {
            call.await.unwrap();
        }
    }
    eventually("nothing is left", async || {
        server.leftovers().await.is_empty()
    })
    .await;
}

#[tokio::test]
async fn an_end_that_vanished_without_a_word_is_given_up() {
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
    // The server has closed the old one for it, or it would keep it for ever.
    let clients: String = server.send(&["CLIENT", "LIST", "TYPE", "normal"]).await;
    assert!(clients.lines().count() <= 5, "{clients}");
}

#[tokio::test]
async fn a_server_that_is_gone_fails_calls_in_time_and_comes_back_with_a_hint() {
    let (mut server, _) = server_and_store().await;
    let store = impatient(&server.url()).await;
    let (key, a) = (key("k"), owner());
    let mut hints = store.watch_for_sure(a.instance).await;
    let before = store.take(&key, a).await.tokens.last().unwrap();

    server.kill();
    let asked = Instant::now();
    let error = store.acquire(attempt(&key, owner())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    let Renewed::Unknown(error) = store.renew_one(renewal(&key, a, 1)).await else {
        panic!("nobody can know");
    };
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert!(asked.elapsed() < LIMIT * 2 + PATIENCE / 10);

    server.restart().await;
    hinted(&mut hints, Hint::Reconnected).await;
    // It came back empty: the lease is lost, and the tokens go on.
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
async fn a_killed_subscription_comes_back() {
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
    eventually("nobody is subscribed", async || subscribers().await == 0).await;
}

#[tokio::test]
async fn a_denied_publish_fails_nothing_and_everybody_gets_a_turn() {
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
