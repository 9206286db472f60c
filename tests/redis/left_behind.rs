//! Whatever goes wrong, locks leave nothing in Redis, and a connection that breaks fails no
//! request. Leases last ten minutes here, so no lease vanishes by its expiry.

use std::time::Duration;

use futures_util::future::join_all;
use redis::Value;
use tokio::time::{Instant, timeout};
use tower_distributed_lock::{
    ErrorKind, Locks,
    store::{RedisStore, Store},
};

use crate::{
    LIMIT, assert_clean, impatient, keys, server_and_store,
    support::{
        PATIENCE, eventually,
        proxy::{Network, Proxy},
        redis_server::{RedisServer, pass},
        warnings::Warnings,
        words::{LONG, key},
    },
};

fn locks_on(store: RedisStore) -> Locks {
    Locks::builder(store).lease(LONG).build().unwrap()
}

/// Asks for all keys at once, and expects every request to fail.
async fn fail_to_lock_all(locks: &Locks) {
    let asking = keys().into_iter().map(|key| locks.lock(key).within(LIMIT));
    for answer in join_all(asking).await {
        assert_eq!(answer.unwrap_err().kind(), ErrorKind::Unreachable);
    }
}

/// Waits until some acquire has run.
async fn an_acquire_has_run(server: &RedisServer) {
    eventually("an acquire has run", async || {
        let counters: Vec<String> = server.send(&["KEYS", "*:fence"]).await;
        !counters.is_empty()
    })
    .await;
}

#[tokio::test]
async fn acquires_that_run_after_their_deadline_leave_nothing() {
    let server = RedisServer::start().await;
    let locks = locks_on(impatient(&server.url()).await);
    let mut control = server.connection().await;
    let _: Value = redis::cmd("CLIENT")
        .arg(&["PAUSE", "600", "WRITE"])
        .query_async(&mut control)
        .await
        .unwrap();
    fail_to_lock_all(&locks).await;
    an_acquire_has_run(&server).await;
    assert_clean(&server).await;
    drop(locks.lock(keys()[0].clone()).await.unwrap());
}

#[tokio::test]
async fn acquires_that_a_frozen_server_runs_later_leave_nothing() {
    let server = RedisServer::start().await;
    for _ in 0..5 {
        let locks = locks_on(impatient(&server.url()).await);
        server.freeze();
        fail_to_lock_all(&locks).await;
        // Time for the lanes to give up their silent connections and to try new ones, in vain.
        let until = Instant::now() + LIMIT * 5;
        while Instant::now() < until {
            fail_to_lock_all(&locks).await;
        }
        server.thaw();
        assert_clean(&server).await;
        drop(locks.lock(keys()[0].clone()).await.unwrap());
    }
}

#[tokio::test]
async fn a_place_in_the_queue_of_a_failed_request_is_given_up() {
    let (server, store) = server_and_store().await;
    let [holder, locks] = [locks_on(store), locks_on(impatient(&server.url()).await)];
    let guard = holder.lock("k").await.unwrap();
    server.freeze();
    let failed = locks.lock("k").within(LIMIT).await;
    assert!(failed.is_err());
    server.thaw();
    guard.release().await.unwrap();
    assert_clean(&server).await;
}

#[tokio::test]
async fn a_lock_whose_answer_is_lost_is_taken_nevertheless() {
    let server = RedisServer::start().await;
    let mut proxy = Proxy::start(server.port()).await;
    let store = RedisStore::builder(proxy.url()).timeout(PATIENCE);
    let locks = locks_on(store.connect().await.unwrap());
    drop(locks.lock("other").await.unwrap());
    assert_clean(&server).await;
    for round in 0..10 {
        proxy.set(Network::RepliesHeldBack);
        let asking = tokio::spawn({
            let locks = locks.clone();
            async move { locks.lock("k").await }
        });
        eventually("the acquire has run", async || {
            !server.leftovers().await.is_empty()
        })
        .await;
        // However long the question has taken: its connection breaks before its time is over.
        pass(100 * (round % 4)).await;
        proxy.cut();
        let guard = asking.await.unwrap().unwrap();
        assert!(guard.is_held());
        assert_eq!(locks.inspect("k").await.unwrap().holders.len(), 1);
        drop(guard);
        assert_clean(&server).await;
    }
}

#[tokio::test]
async fn a_release_whose_answer_is_lost_has_released() {
    let server = RedisServer::start().await;
    let mut proxy = Proxy::start(server.port()).await;
    let locks = locks_on(RedisStore::connect(proxy.url()).await.unwrap());
    let guard = locks.lock("k").await.unwrap();
    proxy.set(Network::RepliesHeldBack);
    let releasing = tokio::spawn(guard.release());
    eventually("the first release has run", async || {
        server.leftovers().await.is_empty()
    })
    .await;
    proxy.cut();
    // Nobody can know whether the lease was held until the release.
    let error = releasing.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert_clean(&server).await;
}

#[tokio::test]
async fn releases_that_did_not_arrive_are_sent_again() {
    let server = RedisServer::start().await;
    let proxy = Proxy::start(server.port()).await;
    let locks = locks_on(impatient(&proxy.url()).await);
    let guards = join_all(keys().into_iter().map(|key| locks.lock(key))).await;
    proxy.set(Network::BlackHole);
    drop(guards);
    pass(1_000).await;
    assert_eq!(server.leftovers().await.len(), keys().len());
    proxy.set(Network::Fine);
    assert_clean(&server).await;
    eventually("the ends are settled", async || locks.stats().releases == 0).await;
}

#[tokio::test]
async fn a_release_that_the_server_refuses_is_repeated_and_logged_once() {
    let (server, store) = server_and_store().await;
    let locks = locks_on(store);
    let log = Warnings::default();
    let _recording = tracing::subscriber::set_default(log.clone());
    let guard = locks.lock("k").await.unwrap();
    server.refuse_writes(true).await;
    drop(guard);
    eventually("the release was repeated", async || {
        // Redis 6.2 counts the error of a script as ERR.
        server.errors("NOREPLICAS").await + server.errors("ERR").await >= 3
    })
    .await;
    server.refuse_writes(false).await;
    assert_clean(&server).await;
    assert_eq!(log.count("lock.release_failed"), 1, "{}", log.all());
}

/// Each of the releases would be repeated once a second at least.
#[tokio::test]
async fn many_refused_releases_are_repeated_a_few_at_a_time() {
    const MANY: usize = 6_000;
    let (server, store) = server_and_store().await;
    let locks = locks_on(store);
    let asking = (0..MANY).map(|n| locks.lock(key(&format!("k/{n}"))));
    let guards: Vec<_> = join_all(asking).await;
    server.refuse_writes(true).await;
    drop(guards);
    eventually("all releases were refused", async || {
        let calls = server.commands().await;
        calls
            .get("evalsha")
            .is_some_and(|calls| *calls >= MANY as u64)
    })
    .await;
    // The first pauses are short.
    pass(3_000).await;
    server.reset_stats().await;
    pass(2_000).await;
    let repeated = server.commands().await["evalsha"];
    assert!((1..200).contains(&repeated), "{repeated} scripts in 2 s");
    server.refuse_writes(false).await;
    assert_clean(&server).await;
}

/// Sends acquires into a network that delivers them later, and closes their connections. New
/// connections work.
async fn strand(proxy: &mut Proxy, locks: &Locks) {
    proxy.set(Network::BlackHole);
    let asking = keys().into_iter().map(|key| {
        let locks = locks.clone();
        tokio::spawn(async move { locks.lock(key).within(LIMIT / 2).await.map(drop) })
    });
    let asking: Vec<_> = asking.collect();
    // Time for the acquires to be sent. If the time is too short, the test proves nothing, and
    // still passes.
    pass(100).await;
    proxy.set(Network::ClientGone);
    for asked in join_all(asking).await {
        assert!(asked.unwrap().is_err());
    }
    proxy.only_new_ones_are_fine();
    eventually("there is a new connection", async || {
        locks.inspect("k").await.is_ok()
    })
    .await;
}

#[tokio::test]
async fn an_acquire_that_arrives_after_its_own_release_does_not_count() {
    let server = RedisServer::start().await;
    let mut proxy = Proxy::start(server.port()).await;
    let locks = locks_on(impatient(&proxy.url()).await);
    strand(&mut proxy, &locks).await;
    eventually("the ends are settled", async || locks.stats().releases == 0).await;
    proxy.old_ones_go_on();
    pass(500).await;
    assert_eq!(server.leftovers().await, [""; 0]);
}

#[tokio::test]
async fn where_killing_is_denied_releases_are_repeated() {
    let server = RedisServer::start().await;
    let mut proxy = Proxy::start(server.port()).await;
    // A user without the permission to close connections.
    let rule = "ACL SETUSER app on >secret ~* &* +@all -client +client|info";
    let rule: Vec<_> = rule.split_whitespace().collect();
    let _: Value = server.send(&rule).await;
    let store = impatient(&proxy.url().replace("redis://", "redis://app:secret@")).await;
    let locks = locks_on(store);
    strand(&mut proxy, &locks).await;
    pass(1_000).await;
    assert!(locks.stats().releases > 0, "the acquires may still come");
    proxy.old_ones_go_on();
    an_acquire_has_run(&server).await;
    assert_clean(&server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flushed_scripts_fail_no_request() {
    let (server, store) = server_and_store().await;
    let locks = locks_on(store);
    let flushing = tokio::spawn({
        let mut control = server.connection().await;
        async move {
            for _ in 0..300 {
                let _: Value = redis::cmd("SCRIPT")
                    .arg("FLUSH")
                    .query_async(&mut control)
                    .await
                    .unwrap();
                tokio::task::yield_now().await;
            }
        }
    });
    while !flushing.is_finished() {
        let locking = keys().into_iter().map(|key| locks.lock(key));
        for guard in join_all(locking).await {
            drop(guard.unwrap());
        }
    }
    flushing.await.unwrap();
    assert_clean(&server).await;
}

#[tokio::test]
async fn killed_connections_fail_no_request() {
    let (server, store) = server_and_store().await;
    let locks = locks_on(store);
    for _ in 0..20 {
        let _: Value = server.send(&["CLIENT", "KILL", "TYPE", "normal"]).await;
        for key in keys() {
            drop(locks.lock(key).await.unwrap());
        }
    }
    assert_clean(&server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_breaks_in_the_middle_of_many_calls_fails_no_request() {
    let server = RedisServer::start().await;
    for lanes in [1, 4] {
        let mut proxy = Proxy::start(server.port()).await;
        let store = RedisStore::builder(proxy.url()).lanes(lanes);
        let locks = locks_on(store.timeout(PATIENCE).connect().await.unwrap());
        for round in 0..20 {
            if round % 2 == 0 {
                proxy.set(Network::RepliesHeldBack);
            }
            let locking = keys().into_iter().map(|key| {
                let locks = locks.clone();
                tokio::spawn(async move { locks.lock(key).await.unwrap() })
            });
            let locking: Vec<_> = locking.collect();
            // Time for the calls to be sent.
            pass(5).await;
            proxy.cut();
            for locked in join_all(locking).await {
                drop(locked.unwrap());
            }
        }
        assert_clean(&server).await;
    }
}

#[tokio::test]
async fn tasks_end_by_themselves_and_with_the_locks() {
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
    let locks = locks_on(impatient(&server.url()).await);
    let guard = locks.lock("k").await.unwrap();
    // The subscription has tasks of its own, which come later than the first lock.
    eventually("hints arrive", async || {
        server.commands().await.contains_key("subscribe")
    })
    .await;
    let mut at_rest = [0; 20];
    eventually("the number of tasks stays the same", async || {
        at_rest.rotate_left(1);
        at_rest[19] = tasks();
        at_rest == [at_rest[0]; 20]
    })
    .await;
    let at_rest = at_rest[0];
    server.freeze();
    fail_to_lock_all(&locks).await;
    server.thaw();
    eventually("the ends are settled", async || locks.stats().releases == 0).await;
    eventually("no task is left over", async || tasks() <= at_rest).await;

    server.freeze();
    fail_to_lock_all(&locks).await;
    drop((guard, locks));
    eventually("no task outlives the locks", async || tasks() == at_first).await;
}

#[tokio::test]
async fn a_guard_that_is_dropped_outside_of_a_runtime_is_released() {
    let (server, store) = server_and_store().await;
    let locks = locks_on(store.clone());
    let guard = locks.lock("k").await.unwrap();
    std::thread::spawn(move || drop(guard)).join().unwrap();
    let clean = async { assert_clean(&server).await };
    timeout(PATIENCE + Duration::from_secs(1), clean)
        .await
        .unwrap();
    assert_eq!(store.inspect(key("k")).await.unwrap().holder(), None);
}
