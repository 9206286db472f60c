//! Jobs of a store whose lanes keep no order, on runtimes that end. On real time, as runtimes share no clock.

use std::{
    task::{Context, Waker},
    time::Duration,
};

use redis::Value;
use tokio::{
    runtime::{Builder, Runtime},
    time::timeout,
};
use tower_distributed_lock::{
    ErrorKind,
    store::{RedisStore, Store},
};

use crate::{
    replicas::{ENOUGH, Pair},
    subject::*,
    support::{
        PATIENCE,
        proxy::{Network, Proxy},
        redis_server::{RedisServer, pass},
    },
};

fn one_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn two_threads() -> Runtime {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(2).enable_all().build().unwrap()
}

/// Starts a call on a runtime, and returns the future of the answer.
fn started<T>(runtime: &Runtime, call: impl FnOnce() -> T) -> T {
    let _entered = runtime.enter();
    call()
}

/// Fails instead of waiting for ever.
async fn in_time<T>(answer: impl Future<Output = T>) -> T {
    let answer = timeout(PATIENCE, answer).await;
    answer.expect("every call is answered")
}

/// Asserts that nothing is left in the server after one call for another key, which resumes the jobs of runtimes that have ended.
async fn assert_clean_after_a_call(store: &RedisStore, server: &RedisServer) {
    in_time(store.inspect(key("other"))).await.unwrap();
    eventually("nothing is left in the server", async || {
        server.leftovers().await.is_empty()
    })
    .await;
    in_time(store.settled()).await;
}

/// A store that waits for a replica, behind a proxy.
struct Proxied {
    pair: Pair,
    proxy: Proxy,
    store: RedisStore,
}

impl Proxied {
    /// The servers run on `servers`, and the lane is driven on `driver`.
    fn start(servers: &Runtime, driver: &Runtime) -> Self {
        let pair = servers.block_on(Pair::start());
        let proxy = servers.block_on(Proxy::start(pair.primary.port()));
        let store = RedisStore::builder(proxy.url()).replicas(1, ENOUGH);
        let store = driver.block_on(store.timeout(PATIENCE * 2).connect());
        Self {
            pair,
            proxy,
            store: store.unwrap(),
        }
    }

    async fn has_leftovers(&self) -> bool {
        !self.pair.primary.leftovers().await.is_empty()
    }
}

#[test]
fn an_acquire_whose_job_ends_with_its_runtime_is_released() {
    for (is_driven_elsewhere, is_dropped) in
        [(false, false), (false, true), (true, false), (true, true)]
    {
        let (first, next) = (two_threads(), two_threads());
        let driver = if is_driven_elsewhere { &next } else { &first };
        let proxied = Proxied::start(&next, driver);
        let (store, key, a) = (&proxied.store, key("k"), owner());
        // The pool has a connection from here on.
        first.block_on(async {
            store.take(&key, a).await;
            store.free(&key, a).await;
        });
        proxied.proxy.set(Network::RepliesHeldBack);
        let mut acquire = Some(started(&first, || store.ask_for(attempt(&key, owner()))));
        next.block_on(eventually("the acquire has run", async || {
            proxied.has_leftovers().await
        }));
        if is_dropped {
            acquire = None;
        }
        drop(first);
        proxied.proxy.set(Network::Fine);
        next.block_on(async {
            if let Some(acquire) = acquire {
                let error = in_time(acquire).await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Unreachable);
            }
            assert_clean_after_a_call(store, &proxied.pair.primary).await;
        });
    }
}

#[test]
fn an_acquire_that_waits_for_a_replica_when_its_runtime_ends_is_released() {
    let (first, next) = (two_threads(), two_threads());
    let proxied = Proxied::start(&next, &first);
    let (store, key) = (&proxied.store, key("k"));
    proxied.pair.replica.freeze();
    let acquire = started(&first, || store.ask_for(attempt(&key, owner())));
    next.block_on(eventually("the acquire has run", async || {
        proxied.has_leftovers().await
    }));
    drop(first);
    next.block_on(async {
        in_time(acquire).await.unwrap_err();
        assert_clean_after_a_call(store, &proxied.pair.primary).await;
    });
}

#[test]
fn an_acquire_in_a_cluster_whose_job_ends_with_its_runtime_is_released_before_later_calls() {
    let (first, next) = (two_threads(), two_threads());
    let node = next.block_on(cluster_of_one());
    let store = RedisStore::cluster([node.url()]).timeout(PATIENCE * 2);
    // The lane outlives the job.
    let store = next.block_on(store.connect()).unwrap();
    let send = |words: &[&str]| {
        let _: Value = next.block_on(node.send(words));
    };
    send(&["CLIENT", "PAUSE", "600000", "WRITE"]);
    let key = key("k");
    let acquire = started(&first, || store.ask_for(attempt(&key, owner())));
    next.block_on(eventually("the acquire waits at the node", async || {
        let clients: String = node.send(&["CLIENT", "LIST"]).await;
        clients.contains("flags=b")
    }));
    let later = started(&next, || store.ask_for(attempt(&key, owner())));
    drop(first);
    send(&["CLIENT", "UNPAUSE"]);
    next.block_on(async {
        in_time(acquire).await.unwrap_err();
        // A call for another key resumes the jobs of runtimes that have ended.
        in_time(store.inspect(self::key("other"))).await.unwrap();
        granted(in_time(later).await.unwrap());
    });
}

#[test]
fn a_release_whose_job_ends_with_its_runtime_is_made_on_the_next_runtime() {
    let (first, next) = (two_threads(), two_threads());
    let mut proxied = Proxied::start(&next, &first);
    let (key, a) = (key("k"), owner());
    first.block_on(proxied.store.take(&key, a));
    proxied.proxy.set(Network::BlackHole);
    let release = started(&first, || proxied.store.end(ending(&key, a)));
    // Time for the job to begin.
    first.block_on(pass(100));
    drop(first);
    proxied.proxy.cut();
    assert_eq!(proxied.store.owed(), 1);
    next.block_on(async {
        in_time(release).await.unwrap_err();
        assert_clean_after_a_call(&proxied.store, &proxied.pair.primary).await;
    });
}

#[test]
fn a_release_on_a_runtime_without_timers_is_made_on_the_next_runtime() {
    let runtime = two_threads();
    let pair = runtime.block_on(Pair::start());
    let store = runtime.block_on(pair.store(ENOUGH));
    let (key, a) = (key("k"), owner());
    runtime.block_on(store.take(&key, a));
    let without_timers = Builder::new_current_thread().build().unwrap();
    without_timers.block_on(async {
        drop(store.end(ending(&key, a)));
        // Time for the job, which would panic.
        tokio::task::yield_now().await;
    });
    drop(without_timers);
    runtime.block_on(assert_clean_after_a_call(&store, &pair.primary));
}

#[test]
fn calls_are_answered_although_the_runtime_of_their_first_poll_has_ended() {
    let (idle, polled_first, polled_next) = (one_thread(), one_thread(), one_thread());
    let limit = Duration::from_millis(250);
    let store = RedisStore::builder("redis://127.0.0.1/").replicas(1, limit);
    let store = store.timeout(limit).build().unwrap();
    let key = key("k");
    // The jobs of the key stand still, because their runtime is not driven.
    idle.block_on(async { drop(store.end(ending(&key, owner()))) });
    let (mut acquire, mut inspect) = polled_first.block_on(async {
        let mut acquire = store.ask_for(attempt(&key, owner()));
        let mut inspect = store.inspect(key.clone());
        let mut context = Context::from_waker(Waker::noop());
        assert!(acquire.as_mut().poll(&mut context).is_pending());
        assert!(inspect.as_mut().poll(&mut context).is_pending());
        (acquire, inspect)
    });
    drop(polled_first);
    polled_next.block_on(async {
        in_time(&mut acquire).await.unwrap_err();
        in_time(&mut inspect).await.unwrap_err();
    });
}

/// A node that has all slots.
async fn cluster_of_one() -> RedisServer {
    let node = RedisServer::start_with(&["--cluster-enabled", "yes"]).await;
    let slots: Vec<String> = (0..16384).map(|slot: u16| slot.to_string()).collect();
    let mut add_slots = vec!["CLUSTER", "ADDSLOTS"];
    add_slots.extend(slots.iter().map(String::as_str));
    let _: Value = node.send(&add_slots).await;
    eventually("the Cluster works", async || {
        let info: String = node.send(&["CLUSTER", "INFO"]).await;
        info.contains("cluster_state:ok")
    })
    .await;
    node
}
