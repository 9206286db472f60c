//! A call that failed leaves nothing in Redis. Leases last ten minutes here, so no lease vanishes by its expiry.

use futures_util::future::join_all;
use redis::Value;
use tokio::time::Instant;
use tower_distributed_lock::{
    ErrorKind,
    store::{Acquired, RedisStore, Released, Store},
};

use crate::{
    LIMIT, impatient, keys,
    support::{
        eventually,
        proxy::{Network, Proxy},
        redis_server::{RedisServer, pass},
        words::*,
    },
};

/// Asserts that nothing is left in Redis, now and a little later.
pub(crate) async fn assert_clean(server: &RedisServer) {
    eventually("nothing is left in the server", async || {
        server.leftovers().await.is_empty()
    })
    .await;
    pass(300).await;
    assert_eq!(
        server.leftovers().await,
        [""; 0],
        "a name came back after the clean-up"
    );
}

/// Asks for all keys at once, and expects every acquire to fail.
async fn fail_to_take_all(store: &RedisStore) {
    let asked = Instant::now();
    let keys = keys();
    let calls = keys.iter().map(|key| store.ask_for(attempt(key, owner())));
    for answer in join_all(calls).await {
        assert_eq!(answer.unwrap_err().kind(), ErrorKind::Unreachable);
    }
    assert!(asked.elapsed() >= LIMIT / 2);
}

#[tokio::test]
async fn an_acquire_that_runs_after_its_deadline_is_released() {
    let server = RedisServer::start().await;
    let store = impatient(&server.url()).await;
    let mut control = server.connection().await;
    let _: Value = redis::cmd("CLIENT")
        .arg(&["PAUSE", "600", "WRITE"])
        .query_async(&mut control)
        .await
        .unwrap();
    fail_to_take_all(&store).await;
    eventually("the acquires have run", async || {
        let counters: Vec<String> = server.send(&["KEYS", "*:fence"]).await;
        !counters.is_empty()
    })
    .await;
    assert_clean(&server).await;
    store.take(&keys()[0], owner()).await;
}

#[tokio::test]
async fn acquires_that_a_frozen_server_runs_later_are_released() {
    let server = RedisServer::start().await;
    let store = impatient(&server.url()).await;
    server.freeze();
    fail_to_take_all(&store).await;
    server.thaw();
    assert_clean(&server).await;
    store.take(&keys()[0], owner()).await;
}

#[tokio::test]
async fn connections_that_were_given_up_bring_no_lease_back() {
    let server = RedisServer::start().await;
    for _ in 0..5 {
        let store = impatient(&server.url()).await;
        server.freeze();
        fail_to_take_all(&store).await;
        // Time for the lanes to give up their silent connections and to try new ones, in vain.
        let until = Instant::now() + LIMIT * 5;
        while Instant::now() < until {
            let _ = store.ask_for(attempt(&keys()[0], owner())).await;
            let _ = join_all(keys().into_iter().map(|key| store.inspect(key))).await;
        }
        server.thaw();
        assert_clean(&server).await;
    }
}

#[tokio::test]
async fn the_place_in_the_queue_of_a_failed_acquire_is_given_up() {
    let server = RedisServer::start().await;
    let (patient, store) = (
        RedisStore::connect(server.url()).await.unwrap(),
        impatient(&server.url()).await,
    );
    let (key, a) = (key("k"), owner());
    patient.take(&key, a).await;
    server.freeze();
    let failed = store.ask_for(waiting(&key, owner())).await;
    assert_eq!(failed.unwrap_err().kind(), ErrorKind::Unreachable);
    server.thaw();
    patient.free(&key, a).await;
    assert_clean(&server).await;
}

#[tokio::test]
async fn an_acquire_whose_reply_is_lost_is_sent_again_and_freed_by_one_release() {
    let server = RedisServer::start().await;
    let mut proxy = Proxy::start(server.port()).await;
    let store = RedisStore::connect(proxy.url()).await.unwrap();
    let (key, a) = (key("k"), owner());
    proxy.set(Network::RepliesHeldBack);
    let asked = Instant::now();
    let taking = tokio::spawn(store.ask_for(attempt(&key, a)));
    eventually("the first acquire has run", async || {
        !server.leftovers().await.is_empty()
    })
    .await;
    proxy.cut();
    let grant = granted(taking.await.unwrap().unwrap());

    let seen = store.see(&key).await;
    assert!(seen.fence >= grant.tokens.last().unwrap());
    let holder = seen.holder().cloned().unwrap();
    assert_eq!(holder.owner, a);
    assert!(
        holder.remaining + asked.elapsed() >= LONG,
        "counted from before the call, the lease is not longer than in the store"
    );
    assert_eq!(store.free(&key, a).await, Released::Freed);
    assert_clean(&server).await;
}

#[tokio::test]
async fn a_release_whose_reply_is_lost_has_released() {
    let server = RedisServer::start().await;
    let mut proxy = Proxy::start(server.port()).await;
    let store = RedisStore::connect(proxy.url()).await.unwrap();
    let (key, a) = (key("k"), owner());
    store.take(&key, a).await;
    proxy.set(Network::RepliesHeldBack);
    let freeing = tokio::spawn(store.end(ending(&key, a)));
    eventually("the first release has run", async || {
        server.leftovers().await.is_empty()
    })
    .await;
    proxy.cut();
    // The store cannot know whether the lease was held until the release, so neither `Freed` nor `NotOurs` would be true.
    let error = freeing.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert!(error.to_string().contains("may have been lost"), "{error}");
    assert_clean(&server).await;
}

#[tokio::test]
async fn a_record_whose_reply_is_lost_is_stored() {
    let server = RedisServer::start().await;
    let mut proxy = Proxy::start(server.port()).await;
    let store = RedisStore::connect(proxy.url()).await.unwrap();
    let (key, a) = (key("k"), owner());
    store.take(&key, a).await;
    proxy.set(Network::RepliesHeldBack);
    let freeing = tokio::spawn(store.end(recording(&key, a, b"done")));
    eventually("the first release has run", async || {
        let value: String = server.send(&["GET", &server.leftovers().await[0]]).await;
        value.starts_with("record:")
    })
    .await;
    proxy.cut();
    assert_eq!(freeing.await.unwrap().unwrap(), Released::Freed);
    assert!(matches!(
        store.ask(&key, owner()).await,
        Acquired::Recorded(_)
    ));
}

#[tokio::test]
async fn a_release_that_did_not_arrive_is_sent_again() {
    let server = RedisServer::start().await;
    let proxy = Proxy::start(server.port()).await;
    let store = impatient(&proxy.url()).await;
    let owners: Vec<_> = keys().into_iter().map(|key| (key, owner())).collect();
    for (key, a) in &owners {
        store.take(key, *a).await;
    }
    proxy.set(Network::BlackHole);
    let freeing = owners.iter().map(|(key, a)| store.end(ending(key, *a)));
    for outcome in join_all(freeing).await {
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Unreachable);
    }
    assert_eq!(server.leftovers().await.len(), owners.len());
    proxy.set(Network::Fine);
    assert_clean(&server).await;
}

#[tokio::test]
async fn a_release_that_is_refused_is_sent_again() {
    let server = RedisServer::start().await;
    let store = RedisStore::connect(server.url()).await.unwrap();
    let (key, a) = (key("k"), owner());
    store.take(&key, a).await;
    let _: Value = server.send(&["REPLICAOF", "127.0.0.1", "1"]).await;
    assert!(store.end(ending(&key, a)).await.is_err());
    let _: Value = server.send(&["REPLICAOF", "NO", "ONE"]).await;
    assert_clean(&server).await;
}

#[tokio::test]
async fn cleaning_up_ends_by_itself_and_with_the_store() {
    let tasks = || {
        tokio::runtime::Handle::current()
            .metrics()
            .num_alive_tasks()
    };
    let at_first = tasks();
    let server = RedisServer::start().await;
    eventually("the test's own connections are closed", async || {
        tasks() == at_first
    })
    .await;

    let store = impatient(&server.url()).await;
    let hints = store.watch_for_sure(owner().instance).await;
    let at_rest = tasks();
    server.freeze();
    fail_to_take_all(&store).await;
    assert!(store.owed() > 0, "somebody cleans up");
    server.thaw();
    assert_clean(&server).await;
    eventually("the cleaning has ended", async || {
        store.owed() == 0 && tasks() <= at_rest
    })
    .await;

    server.freeze();
    fail_to_take_all(&store).await;
    drop((store, hints));
    eventually("no task outlives the store", async || tasks() == at_first).await;
}

#[tokio::test]
async fn a_grant_that_arrived_and_is_not_taken_is_released() {
    let server = RedisServer::start().await;
    let store = RedisStore::connect(server.url()).await.unwrap();
    let key = key("k");
    let answer = store.ask_for(attempt(&key, owner()));
    // The server answers this call after the acquire, on the same connection, so the answer to the acquire has arrived as well.
    let seen = store.inspect(key.clone()).await.unwrap();
    assert!(seen.holder().is_some());
    drop(answer);
    let seen = store.inspect(key.clone()).await.unwrap();
    assert!(seen.holder().is_none(), "nobody has the answer");
    assert_clean(&server).await;
}
