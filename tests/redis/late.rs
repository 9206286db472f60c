//! Commands that arrive after their own release. Leases are ten minutes long here: what vanishes did not expire.

use futures_util::future::join_all;
use redis::Value;
use tower_distributed_lock::store::{RedisStore, Store};

use crate::{
    impatient, keys,
    orphans::assert_clean,
    support::{
        eventually,
        proxy::{Network, Proxy},
        redis_server::{RedisServer, pass},
        words::*,
    },
};

/// Sends acquires into a network that keeps them for later, and closes their connections. New ones are fine, at once or
/// when the acquires have failed. Returns how many did.
async fn strand(proxy: &mut Proxy, store: &RedisStore, fine_at_once: bool) -> usize {
    proxy.set(Network::BlackHole);
    let calls: Vec<_> = keys()
        .into_iter()
        .map(|key| tokio::spawn(store.acquire(attempt(&key, owner()))))
        .collect();
    // Until they are on their way; if this is too short, they are not sent at all, and the test proves nothing.
    pass(100).await;
    proxy.set(Network::ClientGone);
    if fine_at_once {
        proxy.only_new_ones_are_fine();
    }
    let outcomes = join_all(calls).await;
    if !fine_at_once {
        proxy.only_new_ones_are_fine();
    }
    for key in keys() {
        eventually("there is a new connection", async || {
            store.inspect(key.clone()).await.is_ok()
        })
        .await;
    }
    let failed = outcomes
        .iter()
        .filter(|outcome| outcome.as_ref().unwrap().is_err());
    failed.count()
}

#[tokio::test]
async fn what_arrives_after_its_own_release_does_not_count() {
    let server = RedisServer::start().await;
    let mut proxy = Proxy::start(server.port()).await;
    let store = impatient(&proxy.url()).await;
    assert_eq!(strand(&mut proxy, &store, false).await, keys().len());
    // Time enough for every release.
    pass(1000).await;
    proxy.old_ones_go_on();
    pass(500).await;
    assert_eq!(server.leftovers().await, [""; 0]);
}

/// A user that may not close the connections of others, not even of its own.
async fn without_client_kill(server: &RedisServer, proxy: &Proxy) -> RedisStore {
    let rule = "ACL SETUSER app on >secret ~* &* +@all -client +client|info";
    let rule: Vec<_> = rule.split_whitespace().collect();
    let _: Value = server.send(&rule).await;
    impatient(&proxy.url().replace("redis://", "redis://app:secret@")).await
}

#[tokio::test]
async fn where_killing_is_denied_the_release_is_repeated() {
    let server = RedisServer::start().await;
    let mut proxy = Proxy::start(server.port()).await;
    let store = without_client_kill(&server, &proxy).await;
    strand(&mut proxy, &store, false).await;
    pass(1000).await;
    proxy.old_ones_go_on();
    eventually("they have run after all", async || {
        let counters: Vec<String> = server.send(&["KEYS", "*:fence"]).await;
        !counters.is_empty()
    })
    .await;
    assert_clean(&server).await;
}

#[tokio::test]
async fn where_killing_is_denied_an_acquire_is_not_repeated() {
    let server = RedisServer::start().await;
    let mut proxy = Proxy::start(server.port()).await;
    let store = without_client_kill(&server, &proxy).await;
    // The first could take effect after the second, and after the second's release: then nobody would answer for it.
    assert_eq!(strand(&mut proxy, &store, true).await, keys().len());
    proxy.old_ones_go_on();
    assert_clean(&server).await;
}
