//! A call that was sent twice may have taken effect at the first sending.

use redis::Value;
use tower_distributed_lock::{
    ErrorKind,
    store::{RedisStore, Store},
};

use crate::{
    orphans::assert_clean,
    support::{
        PATIENCE, eventually,
        proxy::{Network, Proxy},
        redis_server::RedisServer,
        words::*,
    },
};

/// An acquire runs, its reply is lost, and the repetition is refused.
async fn refuse_the_repetition(refuse: &[&str], accept: &[&str]) {
    let server = RedisServer::start().await;
    let mut proxy = Proxy::start(server.port()).await;
    let store = RedisStore::connect(proxy.url()).await.unwrap();
    let key = key("k");
    proxy.set(Network::RepliesHeldBack);
    let taking = tokio::spawn(store.ask_for(attempt(&key, owner())));
    eventually("the first acquire has run", async || {
        !server.leftovers().await.is_empty()
    })
    .await;
    let _: Value = server.send(refuse).await;
    proxy.cut();
    let error = taking.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    let _: Value = server.send(accept).await;
    assert_clean(&server).await;
    store.settled().await;
    assert_eq!(store.owed(), 0);
    store.take(&key, owner()).await;
}

#[tokio::test]
async fn an_acquire_whose_repetition_is_refused_for_want_of_replicas_leaves_nothing() {
    let set = |replicas| ["CONFIG", "SET", "min-replicas-to-write", replicas];
    refuse_the_repetition(&set("1"), &set("0")).await;
}

#[tokio::test]
async fn an_acquire_whose_repetition_meets_a_replica_leaves_nothing() {
    let demote = ["REPLICAOF", "127.0.0.1", "1"];
    refuse_the_repetition(&demote, &["REPLICAOF", "NO", "ONE"]).await;
}

#[tokio::test]
async fn a_forced_release_whose_answer_is_lost_does_not_end_the_next_lease() {
    let server = RedisServer::start().await;
    let mut proxy = Proxy::start(server.port()).await;
    let store = RedisStore::builder(proxy.url()).timeout(PATIENCE);
    let store = store.connect().await.unwrap();
    let elsewhere = RedisStore::connect(server.url()).await.unwrap();
    let (key, a, b) = (key("k"), owner(), owner());
    elsewhere.take(&key, a).await;
    proxy.set(Network::RepliesHeldBack);
    let forcing = tokio::spawn(store.force_release(key.clone()));
    eventually("the forced release has run", async || {
        server.leftovers().await.is_empty()
    })
    .await;
    elsewhere.take(&key, b).await;
    proxy.cut();
    let error = forcing.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert_eq!(store.holder(&key).await, Some(b));
}
