//! A store whose lanes are driven on one runtime and used on another. On real time, as runtimes share no clock.

use futures_util::StreamExt;
use tokio::{
    runtime::{Builder, Runtime},
    time::timeout,
};
use tower_distributed_lock::{
    ErrorKind,
    store::{RedisStore, Renewed, Store},
};

use crate::{
    impatient,
    orphans::assert_clean,
    support::{PATIENCE, eventually, redis_server::RedisServer, words::*},
};

fn one_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn two_threads() -> Runtime {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(2).enable_all().build().unwrap()
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
