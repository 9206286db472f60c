//! A release starts in the call and is owed until the server has answered. A dropped future leaves nothing in Redis.

use std::time::Duration;

use futures_util::{StreamExt, future::join_all};
use tokio::time::Instant;
use tower_distributed_lock::store::{Acquire, RedisStore, Release, Released, Renewed, Store};

use crate::{
    LIMIT, impatient, keys,
    orphans::assert_clean,
    server_and_store,
    support::{
        PATIENCE, eventually,
        proxy::Proxy,
        redis_server::{RedisServer, pass},
        warnings::Warnings,
        words::*,
    },
};

#[tokio::test]
async fn a_release_starts_without_being_polled() {
    let (server, store) = server_and_store().await;
    let (key, a) = (key("k"), owner());
    store.take(&key, a).await;
    drop(store.end(ending(&key, a)));
    assert!(store.owed() <= 1);
    store.settled().await;
    assert_eq!(store.owed(), 0);
    assert_eq!(server.leftovers().await, [""; 0]);
}

#[tokio::test]
async fn a_release_outside_of_a_runtime_is_sent_over_the_existing_connection() {
    let (server, store) = server_and_store().await;
    let (key, a) = (key("k"), owner());
    store.take(&key, a).await;
    let (elsewhere, request) = (store.clone(), ending(&key, a));
    std::thread::spawn(move || drop(elsewhere.end(request)))
        .join()
        .unwrap();
    assert_clean(&server).await;
    store.settled().await;
    assert_eq!(store.owed(), 0);
}

#[test]
fn a_release_without_a_connection_waits_for_a_runtime() {
    let runtime = || tokio::runtime::Runtime::new().unwrap();
    let first = runtime();
    let (server, store) = first.block_on(server_and_store());
    let (key, a) = (key("k"), owner());
    first.block_on(store.take(&key, a));
    // The connection has ended with its runtime.
    drop(first);
    drop(store.end(ending(&key, a)));
    assert_eq!(store.owed(), 1);
    runtime().block_on(async {
        tokio::time::timeout(PATIENCE, store.settled())
            .await
            .expect("the release is sent");
        assert_eq!(server.leftovers().await, [""; 0]);
    });
}

#[tokio::test]
async fn an_acquire_whose_future_is_dropped_is_released_before_later_calls() {
    let (server, store) = server_and_store().await;
    for key in keys() {
        let (b, c) = (owner(), owner());
        drop(store.ask_for(attempt(&key, owner())));
        store.take(&key, b).await;
        drop(store.ask_for(waiting(&key, c)));
        store.free(&key, b).await;
        assert_eq!(store.see(&key).await.queue, []);
    }
    store.settled().await;
    assert_eq!(server.leftovers().await, [""; 0]);
}

#[tokio::test]
async fn a_grant_that_is_not_taken_is_released() {
    let (server, store) = server_and_store().await;
    let key = key("k");
    let taking = store.ask_for(attempt(&key, owner()));
    eventually("the acquire has run", async || {
        !server.leftovers().await.is_empty()
    })
    .await;
    pass(50).await;
    drop(taking);
    assert_clean(&server).await;
    assert_eq!(store.owed(), 0);
}

#[tokio::test]
async fn an_acquire_that_was_never_sent_owes_no_release() {
    let (mut server, _) = server_and_store().await;
    let store = impatient(&server.url()).await;
    server.kill();
    for _ in 0..10 {
        let calls = keys().into_iter().map(|key| {
            let store = store.clone();
            async move { store.ask_for(attempt(&key, owner())).await }
        });
        for answer in join_all(calls).await {
            assert!(answer.is_err());
        }
    }
    // Acquires that were started while the connection broke may have been sent.
    assert!(store.owed() <= keys().len(), "{} are owed", store.owed());
}

#[tokio::test]
async fn an_owed_release_is_forgotten_when_its_time_has_passed() {
    let (server, _) = server_and_store().await;
    let store = impatient(&server.url()).await;
    let (key, a) = (key("k"), owner());
    let lease = Duration::from_secs(1);
    let request = Acquire {
        lease,
        ..attempt(&key, a)
    };
    granted(store.ask_for(request).await.unwrap());
    server.freeze();
    let release = Release {
        in_doubt: false,
        owed_for: lease,
        ..ending(&key, a)
    };
    let asked = Instant::now();
    assert!(store.end(release).await.is_err());
    assert!(asked.elapsed() < lease, "the caller is told in time");
    assert_eq!(store.owed(), 1);
    let settled = tokio::time::timeout(PATIENCE, store.settled()).await;
    settled.expect("the lease has ended by itself");
    server.thaw();
}

#[tokio::test]
async fn a_silent_lane_does_not_delay_the_renewals_of_another_lane() {
    let server = RedisServer::start().await;
    let mut proxy = Proxy::start(server.port()).await;
    let store = RedisStore::builder(proxy.url()).lanes(2).timeout(LIMIT * 8);
    let store = store.build().unwrap();
    let clients = async || -> usize {
        let list: String = server.send(&["CLIENT", "LIST", "TYPE", "normal"]).await;
        list.lines().count()
    };
    let (silent, a) = (keys()[0].clone(), owner());
    store.take(&silent, a).await;
    proxy.only_new_ones_are_fine();
    let before = clients().await;
    // The first key of the other lane makes the other connection.
    let mut fine = None;
    for key in keys().into_iter().skip(1) {
        store.take(&key, a).await;
        if clients().await > before {
            fine = Some(key);
            break;
        }
    }
    let fine = fine.unwrap();
    proxy.old_ones_stop();
    let asked = Instant::now();
    let mut answers = store.renew(vec![renewal(&silent, a, 0), renewal(&fine, a, 0)]);
    let (index, answer) = answers.next().await.unwrap();
    assert!(index == 1 && is_renewed(&answer), "{index}: {answer:?}");
    assert!(asked.elapsed() < LIMIT * 8, "the answer did not wait");
    let (index, answer) = answers.next().await.unwrap();
    assert!(matches!((index, answer), (0, Renewed::Unknown(_))));
    assert!(answers.next().await.is_none());
}

#[tokio::test]
async fn a_release_that_the_server_refuses_is_logged_once() {
    let (server, store) = server_and_store().await;
    let log = Warnings::default();
    let _recording = tracing::subscriber::set_default(log.clone());
    let (key, a) = (key("k"), owner());
    store.take(&key, a).await;
    server.refuse_writes(true).await;
    drop(store.end(ending(&key, a)));
    eventually("the release was repeated", async || {
        // Redis 6.2 counts the error of a script as ERR.
        server.errors("NOREPLICAS").await + server.errors("ERR").await >= 3
    })
    .await;
    assert_eq!(log.count("lock.release_failed"), 1, "{}", log.all());
    server.refuse_writes(false).await;
    store.settled().await;
    assert_eq!(log.count("lock.release_failed"), 1, "{}", log.all());
    assert_eq!(server.leftovers().await, [""; 0]);
}

/// Each of the releases would be repeated once a second at least.
#[tokio::test]
async fn many_refused_releases_are_repeated_one_at_a_time() {
    const OWED: usize = 2_000;
    let (server, store) = server_and_store().await;
    let keys: Vec<_> = (0..OWED).map(|n| key(&format!("k/{n}"))).collect();
    let a = owner();
    let asking = keys.iter().map(|key| store.ask_for(attempt(key, a)));
    for answer in join_all(asking).await {
        granted(answer.unwrap());
    }
    server.refuse_writes(true).await;
    let releasing = keys.iter().map(|key| store.end(ending(key, a)));
    for answer in join_all(releasing).await {
        answer.unwrap_err();
    }
    assert_eq!(store.owed(), OWED);
    server.reset_stats().await;
    pass(2_000).await;
    let repeated = server.commands().await["evalsha"];
    assert!((1..100).contains(&repeated), "{repeated} scripts in 2 s");

    // A later call for a key comes after the release of that key.
    server.refuse_writes(false).await;
    granted(store.ask(&keys[7], owner()).await);
    tokio::time::timeout(PATIENCE, store.settled())
        .await
        .expect("the server carries all of them out");
    assert_eq!(server.leftovers().await.len(), 1);
}

#[tokio::test]
async fn a_release_that_is_refused_for_its_key_alone_delays_no_other() {
    let (server, store) = server_and_store().await;
    let (foreign, fine, a) = (key("foreign"), key("fine"), owner());
    for key in [&foreign, &fine] {
        store.take(key, a).await;
    }
    let found = server.leftovers().await;
    let name = found.iter().find(|name| name.ends_with("foreign"));
    let name = name.unwrap().clone();
    server.send::<i64>(&["DEL", &name]).await;
    server
        .send::<i64>(&["LPUSH", &name, "of another program"])
        .await;
    store.end(ending(&foreign, a)).await.unwrap_err();
    server.refuse_writes(true).await;
    store.end(ending(&fine, a)).await.unwrap_err();
    server.refuse_writes(false).await;
    eventually("the other key is free", async || {
        server.leftovers().await == [name.clone()]
    })
    .await;
    assert_eq!(store.owed(), 1);
}

#[tokio::test]
async fn a_record_that_is_too_large_for_the_server_harms_no_other_call() {
    let server = RedisServer::start_with(&["--proto-max-bulk-len", "1mb"]).await;
    let store = RedisStore::connect(server.url()).await.unwrap();
    let large: &'static [u8] = vec![b'x'; 3 * 1024 * 1024].leak();
    for round in 0..5 {
        let (key, a) = (key(&format!("large/{round}")), owner());
        store.take(&key, a).await;
        let calls = async {
            for n in 0..50 {
                let (other, b) = (crate::keys()[n % 32].clone(), owner());
                store.take(&other, b).await;
                store.free(&other, b).await;
            }
        };
        let recording = store.end(recording(&key, a, large));
        let (recorded, ()) = tokio::join!(recording, calls);
        let error = recorded.unwrap_err();
        assert!(error.to_string().contains("proto-max-bulk-len"), "{error}");
        store.force_release(key).await.unwrap();
    }
    let (key, a) = (key("k"), owner());
    store.take(&key, a).await;
    assert_eq!(
        store.record(&key, a, &large[..1024 * 1000]).await,
        Released::Freed
    );
}
