//! Commands that arrive after their own release. Leases last ten minutes here, so no lease vanishes by its expiry.

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

/// Sends acquires into a network that delivers them later, and closes their connections. New connections work at once, or only after
/// the acquires have failed. Returns the number of acquires that failed.
async fn strand(proxy: &mut Proxy, store: &RedisStore, fine_at_once: bool) -> usize {
    proxy.set(Network::BlackHole);
    let calls: Vec<_> = keys()
        .into_iter()
        .map(|key| tokio::spawn(store.ask_for(attempt(&key, owner()))))
        .collect();
    // Time for the acquires to be sent. If the time is too short, the test proves nothing, and still passes.
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
async fn an_acquire_that_arrives_after_its_own_release_does_not_count() {
    let server = RedisServer::start().await;
    let mut proxy = Proxy::start(server.port()).await;
    let store = impatient(&proxy.url()).await;
    assert_eq!(strand(&mut proxy, &store, false).await, keys().len());
    // Time for every release.
    pass(1000).await;
    proxy.old_ones_go_on();
    pass(500).await;
    assert_eq!(server.leftovers().await, [""; 0]);
}

/// Connects as a user without the permission to close connections.
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
    eventually("the acquires have run", async || {
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
    // A first sending could take effect after the second one and after the release, and would leave a lease without an owner.
    assert_eq!(strand(&mut proxy, &store, true).await, keys().len());
    proxy.old_ones_go_on();
    assert_clean(&server).await;
}
