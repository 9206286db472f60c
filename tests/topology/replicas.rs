//! Acquires that wait for replicas.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use futures_util::future::join_all;
use tokio::time::Instant;
use tower_distributed_lock::{
    ErrorKind, Locks,
    store::{Credentials, Outcome, RedisStore, Release, Released, Store},
};

use crate::{
    subject::*,
    support::{
        proxy::{Network, Proxy},
        redis_server::{RedisServer, pass},
        sentinels::replica_of,
    },
};

/// A time limit in which a working replica acknowledges a lock, even on a slow machine.
pub(crate) const ENOUGH: Duration = Duration::from_secs(5);

pub(crate) struct Pair {
    pub(crate) primary: RedisServer,
    pub(crate) replica: RedisServer,
}

impl Pair {
    pub(crate) async fn start() -> Self {
        let primary = RedisServer::start_with(&["--repl-diskless-sync-delay", "0"]).await;
        let replica = replica_of(primary.port()).await;
        Self { primary, replica }
    }

    pub(crate) async fn store(&self, timeout: Duration) -> RedisStore {
        let store = RedisStore::builder(self.primary.url()).replicas(1, timeout);
        store.connect().await.unwrap()
    }
}

tokio::task_local! {
    static PAIR: Arc<Pair>;
}

/// A store that waits for a replica, as a subject of the conformance suite.
pub(crate) struct WithReplica {
    pair: Arc<Pair>,
    store: RedisStore,
    prefix: String,
}

impl WithReplica {
    pub(crate) async fn within_one(tests: impl Future<Output = ()>) {
        PAIR.scope(Arc::new(Pair::start().await), tests).await;
    }
}

impl Subject for WithReplica {
    async fn start() -> Self {
        static STARTED: AtomicUsize = AtomicUsize::new(0);
        let pair = PAIR.get();
        let prefix = format!("test{}", STARTED.fetch_add(1, Relaxed));
        let store = RedisStore::builder(pair.primary.url()).prefix(&prefix);
        let store = store.replicas(1, ENOUGH).timeout(ENOUGH).label(LABEL);
        let store = store.connect().await.unwrap();
        Self {
            pair,
            store,
            prefix,
        }
    }

    fn store(&self) -> &dyn Store {
        &self.store
    }

    fn label(&self) -> Option<&str> {
        Some(LABEL)
    }

    async fn is_empty(&self) -> bool {
        let leftovers = self.pair.primary.leftovers().await;
        leftovers
            .iter()
            .all(|key| !key.starts_with(&format!("{}:", self.prefix)))
    }

    async fn break_connections(&self) {
        self.pair.primary.break_connections().await;
    }

    async fn interrupt_hints(&self) -> bool {
        self.pair.primary.interrupt_hints().await;
        true
    }

    async fn refuse_writes(&self, refused: bool) -> bool {
        self.pair.primary.refuse_writes(refused).await;
        true
    }
}

#[tokio::test]
async fn a_granted_lock_is_on_the_replica() {
    let pair = Pair::start().await;
    let store = pair.store(ENOUGH).await;
    for n in 0..50 {
        let (key, a) = (key(&format!("k/{n}")), owner());
        store.take(&key, a).await;
        let found = pair.replica.leftovers().await;
        assert!(
            found.iter().any(|found| found.ends_with(key.as_str())),
            "{found:?}"
        );
        store.free(&key, a).await;
    }
}

#[tokio::test]
async fn a_lock_that_no_replica_acknowledges_is_of_unknown_outcome() {
    let pair = Pair::start().await;
    let timeout = Duration::from_secs(3);
    let (store, patient) = (pair.store(timeout).await, pair.store(ENOUGH).await);
    let (held, a) = (key("held"), owner());
    // A replica that works may still be slow on a busy machine.
    patient.take(&held, a).await;
    pair.replica.freeze();
    let keys: Vec<_> = (0..40).map(|n| key(&format!("k/{n}"))).collect();
    let asked = Instant::now();
    let owners: Vec<_> = keys.iter().map(|_| owner()).collect();
    let asked_for = || keys.iter().zip(&owners);
    let asking = join_all(asked_for().map(|(key, owner)| store.acquire(waiting(key, *owner))));
    let renewing = async {
        pass(50).await;
        let asked = Instant::now();
        assert!(is_renewed(&store.renew_one(renewal(&held, a, 1)).await));
        assert!(
            asked.elapsed() < timeout / 2,
            "a renewal waits for no replica"
        );
    };
    let (answers, ()) = tokio::join!(asking, renewing);
    assert!(asked.elapsed() >= timeout);
    let (mut waited, mut were_late) = (0, 0);
    for (outcome, (key, owner)) in answers.into_iter().zip(asked_for()) {
        match outcome {
            Outcome::Answered(answer) => panic!("{answer:?}"),
            Outcome::Unknown(error) => {
                waited += usize::from(error.to_string().contains("0 replicas of Redis, not 1"));
                let release = Release {
                    in_doubt: true,
                    ..ending(key, *owner)
                };
                assert_eq!(store.end(release).await.unwrap(), Released::Freed);
            }
            Outcome::Refused(error) => {
                let words = "earlier calls have taken all the time";
                were_late += usize::from(error.to_string().contains(words));
            }
        }
    }
    assert!(
        waited >= 16,
        "{waited} acquires have waited: one for each connection"
    );
    assert!(were_late > 0, "the other acquires say why they failed");
    store.free(&held, a).await;
    assert_eq!(pair.primary.leftovers().await, [""; 0]);

    pair.replica.thaw();
    for key in &keys {
        patient.take(key, owner()).await;
    }
}

#[tokio::test]
async fn a_record_is_confirmed_once_the_replica_has_it() {
    let pair = Pair::start().await;
    let (hasty, patient) = (
        pair.store(Duration::from_millis(100)).await,
        pair.store(ENOUGH).await,
    );
    let (key, a) = (key("k"), owner());
    patient.take(&key, a).await;
    pair.replica.freeze();
    let recording = || recording(&key, a, b"paid");
    for _ in 0..2 {
        let error = hasty.end(recording()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unreachable);
        let words = "0 replicas of Redis, not 1, have acknowledged the record";
        assert!(error.to_string().contains(words), "{error}");
        assert_eq!(hasty.see(&key).await.record.as_deref(), Some(&b"paid"[..]));
    }
    let confirming = tokio::spawn(patient.end(recording()));
    pass(100).await;
    assert!(!confirming.is_finished());
    pair.replica.thaw();
    assert_eq!(confirming.await.unwrap().unwrap(), Released::Freed);
    let found = pair.replica.leftovers().await;
    assert!(found[0].ends_with(key.as_str()), "{found:?}");
}

#[tokio::test]
async fn an_acquire_that_arrives_after_its_own_release_does_not_count() {
    let pair = Pair::start().await;
    let mut proxy = Proxy::start(pair.primary.port()).await;
    let limit = Duration::from_secs(1);
    let store = RedisStore::builder(proxy.url()).replicas(1, ENOUGH);
    let store = store.timeout(limit).connect().await.unwrap();
    let locks = Locks::builder(store).lease(LONG).build().unwrap();
    let keys: Vec<_> = (0..16).map(|n| key(&format!("k/{n}"))).collect();
    let lock_all = || join_all(keys.iter().map(|key| locks.lock(key.clone()).within(limit)));
    eventually("the pool has all of its connections", async || {
        lock_all().await.iter().all(Result::is_ok)
    })
    .await;
    proxy.set(Network::BlackHole);
    for answer in lock_all().await {
        assert_eq!(answer.unwrap_err().kind(), ErrorKind::Unreachable);
    }
    proxy.set(Network::ClientGone);
    proxy.only_new_ones_are_fine();
    eventually("the ends are settled", async || locks.stats().releases == 0).await;
    proxy.old_ones_go_on();
    pass(500).await;
    assert_eq!(pair.primary.leftovers().await, [""; 0]);
    drop(locks.lock(keys[0].clone()).await.unwrap());
}

/// Otherwise the release would have to be repeated until the store makes another connection.
#[tokio::test]
async fn a_release_in_doubt_has_those_connections_closed_that_were_given_up() {
    let pair = Pair::start().await;
    let store = pair.store(ENOUGH).await;
    pair.replica.freeze();
    let waiting = tokio::spawn(store.ask_for(attempt(&key("k"), owner())));
    eventually("the acquire waits", async || {
        !pair.primary.leftovers().await.is_empty()
    })
    .await;
    waiting.abort();
    assert!(waiting.await.unwrap_err().is_cancelled());
    let release = Release {
        in_doubt: true,
        ..ending(&key("other"), owner())
    };
    assert_eq!(store.end(release).await.unwrap(), Released::NotOurs);
}

#[tokio::test]
async fn a_primary_without_replicas_grants_nothing() {
    let server = RedisServer::start().await;
    let store = RedisStore::builder(server.url()).replicas(1, Duration::from_millis(50));
    let store = store.connect().await.unwrap();
    let locks = Locks::builder(store).lease(LONG).build().unwrap();
    let error = locks.lock("k").now().await.unwrap_err();
    let words = "0 replicas of Redis, not 1, have acknowledged the lock";
    assert!(error.to_string().contains(words), "{error}");
    eventually("the lock is released again", async || {
        server.leftovers().await.is_empty()
    })
    .await;
}

#[tokio::test]
async fn zero_replicas_and_a_zero_timeout_are_refused() {
    for (replicas, timeout) in [(0, ENOUGH), (1, Duration::ZERO)] {
        let store = RedisStore::builder("redis://127.0.0.1/").replicas(replicas, timeout);
        assert_eq!(store.build().unwrap_err().kind(), ErrorKind::InvalidConfig);
    }
}

#[test]
fn a_store_can_be_built_outside_of_a_runtime() {
    let store = RedisStore::builder("redis://127.0.0.1/").replicas(1, ENOUGH);
    store.build().unwrap();
}

#[tokio::test]
async fn many_acquires_at_once_open_at_most_the_connections_of_the_pool() {
    let pair = Pair::start().await;
    let store = RedisStore::builder(pair.primary.url()).replicas(1, ENOUGH);
    let store = store.timeout(ENOUGH * 2).connect().await.unwrap();
    let before = pair.primary.connections_received().await;
    let keys: Vec<_> = (0..400).map(|n| key(&format!("k/{n}"))).collect();
    let asking = keys.iter().map(|key| store.ask_for(attempt(key, owner())));
    for answer in join_all(asking).await {
        granted(answer.unwrap());
    }
    let opened = pair.primary.connections_received().await - before;
    assert!(opened <= 16 + 1, "{opened} connections for a pool of 16");
}

#[tokio::test]
async fn an_acquire_that_waits_for_a_replica_delays_no_other_key() {
    let pair = Pair::start().await;
    let store = RedisStore::builder(pair.primary.url()).replicas(1, ENOUGH);
    let store = store.timeout(ENOUGH).connect().await.unwrap();
    // Two keys with the same token counter are in the same bucket.
    let counters = async || -> Vec<String> { pair.primary.send(&["KEYS", "*:fence"]).await };
    let (one, a) = (key("one"), owner());
    store.take(&one, a).await;
    let mut found = None;
    for n in 0.. {
        let (other, b) = (key(&format!("other/{n}")), owner());
        let before = counters().await.len();
        store.take(&other, b).await;
        store.free(&other, b).await;
        if counters().await.len() == before {
            found = Some(other);
            break;
        }
    }
    let other = found.unwrap();
    pair.replica.freeze();
    let waiting = tokio::spawn(store.ask_for(attempt(&other, owner())));
    eventually("the acquire waits", async || {
        let found = pair.primary.leftovers().await;
        found.iter().any(|found| found.ends_with(other.as_str()))
    })
    .await;
    let asked = Instant::now();
    store.free(&one, a).await;
    assert!(
        asked.elapsed() < ENOUGH / 2,
        "it took {:?}",
        asked.elapsed()
    );
    pair.replica.thaw();
    granted(waiting.await.unwrap().unwrap());
}

#[tokio::test]
async fn a_release_that_was_started_is_made_although_the_store_is_dropped() {
    let pair = Pair::start().await;
    let store = pair.store(ENOUGH).await;
    let (key, a) = (key("k"), owner());
    store.take(&key, a).await;
    // Both drops come before the release's job begins, because this test has one thread.
    drop(store.end(ending(&key, a)));
    drop(store);
    eventually("the key is free", async || {
        pair.primary.leftovers().await.is_empty()
    })
    .await;
}

#[test]
fn calls_that_never_began_do_not_keep_their_store_alive() {
    let credentials = Arc::new(());
    let held = credentials.clone();
    let store = RedisStore::builder("redis://127.0.0.1/").replicas(1, ENOUGH);
    let store = store.credentials(move || {
        let _held = &held;
        async { Ok::<_, std::io::Error>(Credentials::new("app", "secret")) }
    });
    let store = store.build().unwrap();
    let (key, a) = (key("k"), owner());
    // Outside of a runtime, no call can begin.
    drop(store.inspect(key.clone()));
    drop(store.end(ending(&key, a)));
    drop(store);
    assert_eq!(Arc::strong_count(&credentials), 1);
}

#[tokio::test]
async fn timeouts_above_an_hour_are_refused() {
    const HOUR: Duration = Duration::from_secs(60 * 60);
    let builder = || RedisStore::builder("redis://127.0.0.1/");
    let longer = HOUR + Duration::from_nanos(1);
    for timeout in [longer, Duration::MAX] {
        for store in [
            builder().timeout(timeout),
            builder().replicas(1, timeout),
            RedisStore::cluster(["redis://127.0.0.1/"]).timeout(timeout),
        ] {
            let error = store.build().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig);
            let value = format!("{timeout:?}");
            assert!(error.to_string().contains(&value), "{error}");
        }
    }
    // The longest time limits that are accepted must not overflow.
    let server = RedisServer::start().await;
    let store = RedisStore::builder(server.url()).timeout(HOUR);
    let store = store.replicas(1, HOUR).connect().await.unwrap();
    let _waits = store.ask_for(attempt(&key("k"), owner()));
    store.ping().await.unwrap();
}
