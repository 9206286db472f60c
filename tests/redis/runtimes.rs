//! A store whose lanes are driven on one runtime and used on another, and locks whose background is
//! elsewhere. On real time, as runtimes share no clock.

use std::{
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
    Background, ErrorKind, Locks,
    store::{RedisStore, Renewed, Store},
};

use crate::{
    assert_clean, impatient, keys, server_and_store,
    support::{
        PATIENCE, eventually,
        proxy::{Network, Proxy},
        redis_server::RedisServer,
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
            store.free(&held, a).await;
        });
    }
}

#[test]
fn a_guard_that_is_dropped_on_a_runtime_without_timers_is_released() {
    let runtime = two_threads();
    let (server, store) = runtime.block_on(server_and_store());
    let locks = Locks::builder(store).build().unwrap();
    let guard = runtime.block_on(locks.lock("k")).unwrap();
    without_timers().block_on(async { drop(guard) });
    runtime.block_on(assert_clean(&server));
}

#[test]
fn guards_that_are_dropped_after_their_runtime_are_released_on_the_next_one() {
    for elsewhere in [None, Some(without_timers())] {
        let first = two_threads();
        let server = first.block_on(RedisServer::start());
        let store = RedisStore::builder(server.url()).lanes(4);
        let store = first.block_on(store.connect()).unwrap();
        let locks = Locks::builder(store).lease(LONG).build().unwrap();
        let mut guards = Vec::new();
        for key in keys() {
            guards.push(first.block_on(locks.lock(key)).unwrap());
        }
        // The connections have ended with their runtime.
        drop(first);
        match elsewhere {
            Some(runtime) => runtime.block_on(async { drop(guards) }),
            None => drop(guards),
        }
        two_threads().block_on(async {
            // The key is on one of the lanes.
            drop(in_time(locks.lock("other")).await.unwrap());
            assert_clean(&server).await;
        });
    }
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
