//! A store whose lanes are driven on one runtime and used on another. On real time, as runtimes share no clock.

use std::{
    future::pending,
    pin::pin,
    task::{Context, Waker},
};

use futures_util::StreamExt;
use tokio::{
    runtime::{Builder, Runtime},
    time::timeout,
};
use tower_distributed_lock::{
    ErrorKind, LockKey,
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
                store.acquire(attempt(&key("k"), owner())),
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

/// A runtime of one thread stands still between two calls of `block_on`.
#[test]
fn calls_are_answered_while_the_runtime_of_the_lane_is_not_driven() {
    let (idle, driven) = (one_thread(), one_thread());
    let server = driven.block_on(RedisServer::start());
    let store = idle.block_on(impatient(&server.url()));
    let (key, a) = (key("k"), owner());
    driven.block_on(async {
        let error = in_time(store.acquire(attempt(&key, a))).await;
        assert_eq!(error.unwrap_err().kind(), ErrorKind::Unreachable);
        assert!(in_time(store.inspect(key.clone())).await.is_err());
        let mut renew = store.renew(vec![renewal(&key, a, 0)]);
        let answer = in_time(renew.next()).await;
        assert!(matches!(answer, Some((0, Renewed::Unknown(_)))));
    });
    idle.block_on(async {
        eventually("the lane works again", async || {
            store.inspect(key.clone()).await.is_ok()
        })
        .await;
        assert_clean(&server).await;
        in_time(store.settled()).await;
    });
}

#[test]
fn a_release_on_a_runtime_without_timers_is_made() {
    let runtime = two_threads();
    let (server, store) = runtime.block_on(server_and_store());
    let (key, a) = (key("k"), owner());
    runtime.block_on(store.take(&key, a));
    without_timers().block_on(async { drop(store.start_release(ending(&key, a))) });
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
        drop(store.start_release(ending(&key, a)));
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
    let (idle, polled_first, polled_next) = (one_thread(), one_thread(), one_thread());
    let server = polled_next.block_on(RedisServer::start());
    let store = idle.block_on(impatient(&server.url()));
    let (key, a) = (key("k"), owner());
    let (mut acquire, mut renew) = polled_first.block_on(async {
        let mut acquire = store.acquire(attempt(&key, a));
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
        drop(self.store.start_release(ending(&self.key, self.owner)));
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
fn the_releases_of_all_lanes_go_on_with_the_first_call_on_the_next_runtime() {
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
            drop(store.start_release(ending(key, *a)));
        }
    });
    drop(first);
    proxy.cut();
    assert_eq!(store.owed(), keys().len());
    next.block_on(async {
        // One call, on one of the lanes.
        let seen = in_time(store.renew_one(renewal(&keys()[0], owner(), 0))).await;
        assert!(!is_renewed(&seen));
        assert_clean(&server).await;
    });
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
        let error = in_time(store.acquire(attempt(&key("k"), owner()))).await;
        let error = error.unwrap_err().to_string();
        assert!(error.starts_with("no connection to Redis at"), "{error}");
    });
}
