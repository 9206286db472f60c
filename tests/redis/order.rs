//! Calls for one key take effect in the order in which they were started, even if connections break and scripts are flushed.

use futures_util::future::join_all;
use redis::Value;
use tower_distributed_lock::store::{Acquired, RedisStore, Released, Store};

use crate::{
    keys,
    orphans::assert_clean,
    support::{
        PATIENCE, eventually,
        proxy::{Network, Proxy},
        redis_server::{RedisServer, pass},
        words::*,
    },
};

/// Takes and frees every key, without waiting for any answer. Then the connections break.
async fn break_during_pairs(network: Network, lanes: usize) {
    let server = RedisServer::start().await;
    let mut proxy = Proxy::start(server.port()).await;
    let store = RedisStore::builder(proxy.url()).lanes(lanes);
    let store = store.timeout(PATIENCE).connect().await.unwrap();
    for _ in 0..10 {
        proxy.set(network);
        let pairs: Vec<_> = keys()
            .into_iter()
            .map(|key| {
                let a = owner();
                let take = tokio::spawn(store.ask_for(attempt(&key, a)));
                (take, tokio::spawn(store.end(ending(&key, a))))
            })
            .collect();
        // Time for the calls to be sent.
        pass(20).await;
        proxy.cut();
        for (take, release) in pairs {
            granted(take.await.unwrap().unwrap());
            assert_eq!(release.await.unwrap().unwrap(), Released::Freed);
        }
    }
    assert_clean(&server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_whose_replies_are_lost_are_repeated_in_order() {
    break_during_pairs(Network::RepliesHeldBack, 4).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_did_not_arrive_are_repeated_in_order() {
    break_during_pairs(Network::BlackHole, 1).await;
}

#[tokio::test]
async fn more_calls_than_a_connection_buffers_keep_their_order() {
    let server = RedisServer::start().await;
    let store = RedisStore::builder(server.url()).timeout(PATIENCE);
    let store = store.connect().await.unwrap();
    let (key, mut takes, mut releases) = (key("k"), Vec::new(), Vec::new());
    for _ in 0..3000 {
        let a = owner();
        takes.push(store.ask_for(attempt(&key, a)));
        releases.push(store.end(ending(&key, a)));
    }
    for released in join_all(releases).await {
        assert_eq!(released.unwrap(), Released::Freed);
    }
    for taken in join_all(takes).await {
        granted(taken.unwrap());
    }
    assert_eq!(server.leftovers().await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_keep_their_order_while_scripts_are_flushed_and_loaded() {
    let server = RedisServer::start().await;
    let store = RedisStore::connect(server.url()).await.unwrap();
    // The calls of this store load the scripts again, between the calls of the other store.
    let other = RedisStore::connect(server.url()).await.unwrap();
    let flushing = tokio::spawn({
        let mut control = server.connection().await;
        async move {
            for n in 0..300 {
                let _: Value = redis::cmd("SCRIPT")
                    .arg("FLUSH")
                    .query_async(&mut control)
                    .await
                    .unwrap();
                let (key, a) = (key(&format!("other/{n}")), owner());
                let _ = other.ask_for(attempt(&key, a)).await;
                let _ = other.end(ending(&key, a)).await;
            }
        }
    });
    let key = key("k");
    while !flushing.is_finished() {
        let pairs: Vec<_> = (0..20)
            .map(|_| {
                let a = owner();
                let take = store.ask_for(attempt(&key, a));
                (take, store.end(ending(&key, a)))
            })
            .collect();
        for (take, release) in pairs {
            // An acquire that a later call has overtaken has failed. An acquire that was granted is freed.
            let taken = take.await;
            let released = release.await;
            if let (Ok(Acquired::Granted(_)), Ok(released)) = (taken, released) {
                assert_eq!(released, Released::Freed);
            }
        }
    }
    flushing.await.unwrap();
    store.settled().await;
    eventually("nothing is left", async || {
        server.leftovers().await.is_empty()
    })
    .await;
}
