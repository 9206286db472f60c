//! A store whose lanes are driven on one runtime and used on another, and locks whose background is
//! elsewhere. On real time, as runtimes share no clock.

use std::{
    future::pending,
    pin::pin,
    task::{Context, Waker},
    time::Duration,
};

use futures_util::StreamExt;
use tokio::{
    runtime::{Builder, Runtime},
    time::timeout,
};
use tower_distributed_lock::{
    Background, ErrorKind, LockKey, Locks,
    store::{Owner, RedisStore, Renewed, Store},
};

use crate::{
    impatient, keys,
    orphans::assert_clean,
    server_and_store,
    support::{
        PATIENCE, eventually,
        proxy::{Network, Proxy},
        redis_server::RedisServer,
        warnings::Warnings,
        words::*,
    },
};

fn one_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn two_threads() -> Runtime {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(2).enable_all().build().unwrap()
}

/// A runtime on which timers panic.
fn without_timers() -> Runtime {
    Builder::new_current_thread().build().unwrap()
}

/// Fails instead of waiting for ever.
async fn in_time<T>(answer: impl Future<Output = T>) -> T {
    let answer = timeout(PATIENCE, answer).await;
    answer.expect("every call is answered")
}

#[test]
fn calls_are_answered_although_the_runtime_of_the_lane_ends() {
    for first in [one_thread(), two_threads()] {
        let second = two_threads();
        let server = second.block_on(RedisServer::start());
        let store = RedisStore::builder(server.url()).timeout(PATIENCE * 2);
        let store = first.block_on(store.connect()).unwrap();
        let (held, a) = (key("held"), owner());
        first.block_on(store.take(&held, a));

        server.freeze();
        let (acquire, inspect, mut renew) = second.block_on(async {
            (
                store.ask_for(attempt(&key("k"), owner())),
                store.inspect(held.clone()),
                store.renew(vec![renewal(&held, a, 0)]),
            )
        });
        drop(first);
        second.block_on(async {
            let error = in_time(acquire).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unreachable);
            assert!(in_time(inspect).await.is_err());
            let answer = in_time(renew.next()).await;
            assert!(matches!(answer, Some((0, Renewed::Unknown(_)))));
            server.thaw();
            // The acquire may have run, and its release goes on with the next runtime.
            store.free(&held, a).await;
            assert_clean(&server).await;
            in_time(store.settled()).await;
        });
    }
}

#[test]
fn a_release_on_a_runtime_without_timers_is_made() {
    let runtime = two_threads();
    let (server, store) = runtime.block_on(server_and_store());
    let (key, a) = (key("k"), owner());
    runtime.block_on(store.take(&key, a));
    without_timers().block_on(async { drop(store.end(ending(&key, a))) });
    runtime.block_on(assert_clean(&server));
}

#[test]
fn a_release_that_finds_only_a_runtime_without_timers_is_made_on_the_next_runtime() {
    let runtime = two_threads();
    let (server, store) = runtime.block_on(server_and_store());
    let (key, a) = (key("k"), owner());
    runtime.block_on(store.take(&key, a));
    // The connection has ended with its runtime.
    drop(runtime);
    without_timers().block_on(async {
        drop(store.end(ending(&key, a)));
        // Time for a task of the store, which would panic.
        tokio::task::yield_now().await;
    });
    assert_eq!(store.owed(), 1);
    two_threads().block_on(async {
        store.take(&self::key("other"), a).await;
        store.free(&self::key("other"), a).await;
        assert_clean(&server).await;
    });
}

#[test]
fn a_call_is_answered_although_the_runtime_of_its_first_poll_has_ended() {
    let (driver, polled_first, polled_next) = (two_threads(), one_thread(), one_thread());
    let server = polled_next.block_on(RedisServer::start());
    let store = RedisStore::builder(server.url()).timeout(Duration::from_secs(2));
    let store = driver.block_on(store.connect()).unwrap();
    let (key, a) = (key("k"), owner());
    server.freeze();
    let (mut acquire, mut renew) = polled_first.block_on(async {
        let mut acquire = store.ask_for(attempt(&key, a));
        let mut renew = store.renew(vec![renewal(&key, a, 0)]);
        let mut context = Context::from_waker(Waker::noop());
        assert!(acquire.as_mut().poll(&mut context).is_pending());
        assert!(pin!(renew.next()).poll(&mut context).is_pending());
        (acquire, renew)
    });
    drop(polled_first);
    polled_next.block_on(async {
        // Both calls are polled before their time is up.
        let (acquired, renewed) = in_time(async { tokio::join!(&mut acquire, renew.next()) }).await;
        assert_eq!(acquired.unwrap_err().kind(), ErrorKind::Unreachable);
        assert!(matches!(renewed, Some((0, Renewed::Unknown(_)))));
    });
}

/// Releases a key when dropped, as a guard does under the lock of its line, where nothing may be logged.
struct ReleaseOnDrop {
    store: RedisStore,
    key: LockKey,
    owner: Owner,
}

impl Drop for ReleaseOnDrop {
    fn drop(&mut self) {
        drop(self.store.end(ending(&self.key, self.owner)));
    }
}

#[test]
fn a_release_that_fails_while_its_runtime_shuts_down_is_logged_on_the_next_runtime() {
    let log = Warnings::default();
    let _recording = tracing::subscriber::set_default(log.clone());
    let (first, shuts_down, next) = (one_thread(), one_thread(), one_thread());
    let (server, store) = first.block_on(server_and_store());
    let (key, owner) = (key("k"), owner());
    first.block_on(store.take(&key, owner));
    drop(first);
    let guard = ReleaseOnDrop {
        store: store.clone(),
        key,
        owner,
    };
    shuts_down.spawn(async move {
        let _guard = guard;
        pending::<()>().await;
    });
    drop(shuts_down);
    assert_eq!(log.all(), "", "logged within `start_release`");
    assert_eq!(store.owed(), 1, "the release was started");
    next.block_on(async {
        in_time(store.settled()).await;
        assert_clean(&server).await;
    });
    assert_eq!(log.count("lock.release_failed"), 1, "{}", log.all());
}

#[test]
fn the_releases_of_all_lanes_go_on_with_the_first_use_of_locks_on_the_next_runtime() {
    let (first, next) = (two_threads(), two_threads());
    let server = next.block_on(RedisServer::start());
    let mut proxy = next.block_on(Proxy::start(server.port()));
    let store = RedisStore::builder(proxy.url()).lanes(4);
    let store = first.block_on(store.connect()).unwrap();
    first.block_on(async {
        let owners: Vec<_> = keys().into_iter().map(|key| (key, owner())).collect();
        for (key, a) in &owners {
            store.take(key, *a).await;
        }
        proxy.set(Network::BlackHole);
        for (key, a) in &owners {
            drop(store.end(ending(key, *a)));
        }
    });
    drop(first);
    proxy.cut();
    assert_eq!(store.owed(), keys().len());
    next.block_on(async {
        let locks = Locks::builder(store.clone()).build().unwrap();
        // The key is on one of the lanes.
        drop(in_time(locks.lock("other")).await.unwrap());
        assert_clean(&server).await;
    });
}

/// Two instances, each with a store of its own. The first one has its background on `runtime`.
fn two_instances(runtime: &Runtime, server: &RedisServer) -> [Locks; 2] {
    let locks = [(); 2].map(|()| {
        let store = RedisStore::builder(server.url()).timeout(PATIENCE * 2);
        Locks::builder(store.build().unwrap()).wait_forever()
    });
    let locks = locks.map(|builder| builder.build().unwrap());
    drop(runtime.block_on(locks[0].lock("unrelated")).unwrap());
    locks
}

#[test]
fn requests_on_a_living_runtime_wait_on_when_the_runtime_of_the_connection_ends() {
    for ending in [one_thread(), two_threads()] {
        let living = two_threads();
        let server = living.block_on(RedisServer::start());
        let [locks, other] = two_instances(&ending, &server);
        let elsewhere = living.block_on(other.lock("k")).unwrap();
        let wait = || {
            let locks = locks.clone();
            async move { locks.lock("k").await.map(drop) }
        };
        let waiting = [living.spawn(wait()), living.spawn(wait())];
        let has_asked = || async { other.inspect("k").await.unwrap().queue.len() == 1 };
        let until_asked = eventually("the key is asked for", async || has_asked().await);
        // Both runtimes are driven.
        ending.block_on(until_asked);
        drop(ending);
        drop(elsewhere);
        for waiting in waiting {
            living.block_on(in_time(waiting)).unwrap().unwrap();
        }
        living.block_on(assert_clean(&server));
    }
}

#[test]
fn a_question_is_asked_again_when_the_runtime_of_the_connection_ends() {
    let (ending, living) = (two_threads(), two_threads());
    let server = living.block_on(RedisServer::start());
    let [locks, _] = two_instances(&ending, &server);
    server.freeze();
    let asking = living.spawn({
        let locks = locks.clone();
        async move { locks.lock("k").await.map(drop) }
    });
    living.block_on(eventually("the request is in line", async || {
        locks.stats().waiting == 1
    }));
    drop(ending);
    server.thaw();
    living.block_on(in_time(asking)).unwrap().unwrap();
    living.block_on(assert_clean(&server));
}

#[test]
fn with_a_thread_of_its_own_no_runtime_that_stands_still_costs_a_lease() {
    let (idle, blocked) = (one_thread(), one_thread());
    let server = blocked.block_on(RedisServer::start());
    // The connection is made on a runtime that is not driven any more.
    let store = idle.block_on(RedisStore::connect(server.url())).unwrap();
    let locks = Locks::builder(store).background(Background::Thread);
    let second = Duration::from_secs(1);
    let locks = locks.lease(2 * second).renew_every(second / 10).build();
    let locks = locks.unwrap();
    blocked.block_on(async {
        let guard = in_time(locks.lock("k")).await.unwrap();
        std::thread::sleep(4 * second);
        assert!(guard.is_held());
        in_time(guard.release()).await.unwrap();
        assert_clean(&server).await;
    });
}

#[test]
fn a_thread_of_its_own_makes_the_last_release_after_the_last_handle_is_gone() {
    let runtime = one_thread();
    let server = runtime.block_on(RedisServer::start());
    let store = RedisStore::builder(server.url()).build().unwrap();
    let locks = Locks::builder(store).background(Background::Thread);
    let locks = locks.build().unwrap();
    let guard = runtime.block_on(locks.lock("k")).unwrap();
    drop(guard);
    drop(locks);
    runtime.block_on(assert_clean(&server));
}

#[test]
fn a_call_after_the_end_of_a_runtime_tells_why_there_is_no_connection() {
    let (first, next) = (one_thread(), two_threads());
    let server = next.block_on(RedisServer::start());
    let proxy = next.block_on(Proxy::start(server.port()));
    let store = first.block_on(impatient(&proxy.url()));
    drop(first);
    proxy.set(Network::BlackHole);
    next.block_on(async {
        let error = in_time(store.ask_for(attempt(&key("k"), owner()))).await;
        let error = error.unwrap_err().to_string();
        assert!(error.starts_with("no connection to Redis at"), "{error}");
    });
}
