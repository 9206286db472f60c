//! The store in a Cluster of six nodes.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst},
    },
    time::Duration,
};

use futures_util::future::join_all;
use redis::Value;
use tokio::time::{Instant, sleep};
use tower_distributed_lock::{
    ErrorKind, LockGuard, Locks, Loss,
    store::{Hint, Hints, List, Mode, MovedKeys, RedisStore, Released, Renewed, Store},
};

use crate::{
    fail_over::{LEASE, back_in_service, depositor},
    subject::*,
    support::{PATIENCE, cluster::Cluster, ledger::Ledger},
};

tokio::task_local! {
    static CLUSTER: Arc<Cluster>;
}

/// A Cluster as a subject of the conformance suite.
pub(crate) struct InCluster {
    cluster: Arc<Cluster>,
    store: RedisStore,
    prefix: String,
}

impl InCluster {
    pub(crate) async fn within_one(tests: impl Future<Output = ()>) {
        CLUSTER.scope(Arc::new(Cluster::start().await), tests).await;
    }
}

impl Subject for InCluster {
    async fn start() -> Self {
        static STARTED: AtomicUsize = AtomicUsize::new(0);
        let cluster = CLUSTER.get();
        let prefix = format!("test{}", STARTED.fetch_add(1, Relaxed));
        let store = RedisStore::cluster(cluster.urls())
            .prefix(&prefix)
            .label(LABEL);
        Self {
            store: store.connect().await.unwrap(),
            cluster,
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
        let leftovers = self.cluster.leftovers().await;
        leftovers
            .iter()
            .all(|key| !key.starts_with(&format!("{}:", self.prefix)))
    }

    async fn break_connections(&self) {
        for node in &self.cluster.nodes {
            node.break_connections().await;
        }
    }

    async fn interrupt_hints(&self) -> bool {
        for node in &self.cluster.nodes {
            node.interrupt_hints().await;
        }
        true
    }

    async fn refuse_writes(&self, refused: bool) -> bool {
        for node in &self.cluster.nodes {
            node.refuse_writes(refused).await;
        }
        true
    }
}

async fn instance(cluster: &Cluster) -> Locks {
    let store = RedisStore::cluster(cluster.urls()).timeout(Duration::from_millis(300));
    let store = store.connect().await.unwrap();
    Locks::builder(store)
        .wait_forever()
        .lease(LEASE)
        .build()
        .unwrap()
}

/// The slot of the account that depositors use.
async fn slot_of_account(cluster: &Cluster) -> String {
    let store = RedisStore::cluster(cluster.urls()).connect().await.unwrap();
    let (key, a) = (key("account"), owner());
    store.take(&key, a).await;
    let leftovers = cluster.leftovers().await;
    store.free(&key, a).await;
    cluster.slot(&leftovers[0]).await
}

/// The ids of all subscribed clients.
async fn subscriptions(cluster: &Cluster) -> Vec<String> {
    let mut ids = Vec::new();
    for node in &cluster.nodes {
        let list: String = node.send(&["CLIENT", "LIST", "TYPE", "pubsub"]).await;
        let id = |line: &str| line.split(' ').next().map(str::to_owned);
        ids.extend(list.lines().filter_map(id));
    }
    ids
}

/// The keys of the next [`Hint::Moved`].
async fn moved(hints: &mut Hints) -> MovedKeys {
    let arrives = async {
        loop {
            if let Hint::Moved(keys) = hints.recv().await.expect("the store lives") {
                return keys;
            }
        }
    };
    let moved = tokio::time::timeout(PATIENCE, arrives).await;
    moved.expect("the hint should arrive")
}

struct Load {
    ledger: Arc<Ledger>,
    stop: Arc<AtomicBool>,
    depositors: Vec<tokio::task::JoinHandle<()>>,
}

impl Load {
    async fn start(cluster: &Cluster) -> Self {
        let mut load = Self {
            ledger: Arc::new(Ledger::start().await),
            stop: Arc::default(),
            depositors: Vec::new(),
        };
        for _ in 0..3 {
            load.add(&instance(cluster).await);
        }
        back_in_service(&load.ledger).await;
        load
    }

    fn add(&mut self, locks: &Locks) {
        let depositors = [0; 2].map(|_| depositor(locks, &self.ledger, &self.stop));
        self.depositors.extend(depositors);
    }

    async fn assert_exact(self, cluster: &Cluster) {
        self.stop.store(true, SeqCst);
        for depositor in self.depositors {
            depositor.await.unwrap();
        }
        self.ledger.assert_exact("account").await;
        eventually("nothing is left", async || {
            cluster.leftovers().await.is_empty()
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_primary_costs_no_deposit() {
    let mut cluster = Cluster::start().await;
    let slot = slot_of_account(&cluster).await;
    let load = Load::start(&cluster).await;
    let old = cluster.owner(&slot, 0).await;
    cluster.nodes[old].kill();
    // The test does not ask the killed node any more.
    let cluster = cluster;
    cluster.failed_over(&slot, old).await;
    let took = back_in_service(&load.ledger).await;
    println!("back {took:?} after the fail-over");
    assert!(took < LEASE + Duration::from_secs(1));
    load.assert_exact(&cluster).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_was_frozen_past_its_fail_over_costs_no_deposit() {
    let cluster = Cluster::start().await;
    let slot = slot_of_account(&cluster).await;
    let idle = instance(&cluster).await;
    drop(idle.lock("account").await.unwrap());
    let mut load = Load::start(&cluster).await;
    let old = cluster.owner(&slot, 0).await;
    cluster.nodes[old].freeze();
    cluster.failed_over(&slot, old).await;
    let took = back_in_service(&load.ledger).await;
    println!("back {took:?} after the fail-over");
    assert!(took < LEASE + Duration::from_secs(1));
    // An instance that made no call meanwhile asks the old primary first.
    cluster.nodes[old].thaw();
    load.add(&idle);
    for _ in 0..5 {
        back_in_service(&load.ledger).await;
        sleep(Duration::from_millis(200)).await;
    }
    eventually("the old primary is a replica", async || {
        !cluster.nodes[old].is_primary().await
    })
    .await;
    load.assert_exact(&cluster).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_move_under_load_and_nothing_is_granted_twice() {
    let cluster = Cluster::start().await;
    let slot = slot_of_account(&cluster).await;
    let load = Load::start(&cluster).await;
    for _ in 0..6 {
        let from = cluster.owner(&slot, 0).await;
        let to = (from + 1) % 3;
        let a_while = || sleep(Duration::from_millis(100));
        cluster.migrate(&slot, from, to, a_while(), a_while()).await;
        back_in_service(&load.ledger).await;
    }
    load.assert_exact(&cluster).await;
}

#[tokio::test]
async fn a_lease_moves_with_its_slot_and_its_instance_gets_a_hint() {
    let cluster = Cluster::start().await;
    let slot = slot_of_account(&cluster).await;
    let store = RedisStore::cluster(cluster.urls()).connect().await.unwrap();
    let (key, a, b) = (key("account"), owner(), owner());
    let mut hints = store.watch_for_sure(b.instance).await;
    let last = store.take(&key, a).await.tokens.last().unwrap();
    held(store.queue(&key, b).await);
    let from = cluster.owner(&slot, 0).await;
    let is_there = async || {
        assert!(is_renewed(&store.renew_one(renewal(&key, a, 1)).await));
        held(store.queue(&key, b).await);
        assert_eq!(store.holder(&key).await, Some(a));
    };
    // The old node answers until the keys have moved, and redirects by ASK after that.
    let to = (from + 1) % 3;
    cluster
        .migrate(&slot, from, to, is_there(), is_there())
        .await;
    is_there().await;
    assert!(moved(&mut hints).await.contains(&key));
    store.free(&key, a).await;
    hinted(&mut hints, Hint::Free(key.clone())).await;
    let next = granted(store.queue(&key, b).await).tokens;
    assert!(next.first().unwrap() > last);
    store.free(&key, b).await;
    eventually("nothing is left", async || {
        cluster.leftovers().await.is_empty()
    })
    .await;
}

/// Nobody calls the store meanwhile: the lane to the node has to notice.
#[tokio::test]
async fn a_node_that_restarts_empty_and_keeps_its_slots_costs_its_leases_at_once() {
    let mut cluster = Cluster::start().await;
    let store = RedisStore::cluster(cluster.urls()).connect().await.unwrap();
    let locks = Locks::builder(store.clone()).lease(PATIENCE * 4);
    let locks = locks.build().unwrap();
    // One key on each node. The subscription is at one of the nodes.
    let mut guards: Vec<Option<LockGuard>> = (0..3).map(|_| None).collect();
    for n in 0.. {
        if guards.iter().all(Option::is_some) {
            break;
        }
        let name = format!("account/{n}");
        let guard = locks.lock(&*name).await.unwrap();
        let found = cluster.leftovers().await;
        let found = found.iter().find(|found| found.ends_with(&name));
        let slot = cluster.slot(found.unwrap()).await;
        let node = cluster.owner(&slot, 0).await;
        if guards[node].is_none() {
            guards[node] = Some(guard);
        }
    }
    for node in 0..3 {
        cluster.nodes[node].restart().await;
        let guard = guards[node].take().unwrap();
        let lost = tokio::time::timeout(PATIENCE, guard.lost()).await;
        assert_eq!(lost.expect("the loss is noticed at once"), Loss::NotOurs);
        for guard in guards.iter().flatten() {
            guard.confirm().await.unwrap();
        }
    }
}

/// The queue does not exist, so neither node has all names of the key: only scripts with one key
/// run.
#[tokio::test]
async fn shared_leases_and_permits_are_renewed_and_released_while_their_slot_moves() {
    let cluster = Cluster::start().await;
    let slot = slot_of_account(&cluster).await;
    let store = RedisStore::cluster(cluster.urls()).timeout(PATIENCE);
    let store = store.connect().await.unwrap();
    let (key, a, b, c) = (key("account"), owner(), owner(), owner());
    for mode in [Mode::Shared, Mode::Permit { of: 2 }] {
        granted(store.ask_as(mode, &key, a).await);
        granted(store.ask_as(mode, &key, b).await);
        let use_and_free = async |owner| {
            for refill in [0, 1] {
                assert!(is_renewed(&store.renew_as(mode, &key, owner, refill).await));
            }
            assert_eq!(store.free_as(mode, &key, owner).await, Released::Freed);
        };
        let from = cluster.owner(&slot, 0).await;
        let to = (from + 1) % 3;
        let (before, after) = (use_and_free(a), use_and_free(b));
        cluster.migrate(&slot, from, to, before, after).await;
        assert_eq!(cluster.leftovers().await, [""; 0]);
    }

    // A lease cannot change its form while the slot moves: it is renewed, and downgraded later.
    for is_wanted in [false, true] {
        store.take(&key, a).await;
        if is_wanted {
            held(store.queue_as(Mode::Shared, &key, b).await);
        }
        let from = cluster.owner(&slot, 0).await;
        let downgrade = || async {
            let answer = store.renew_as(Mode::Shared, &key, a, 0).await;
            assert!(is_renewed(&answer));
        };
        let to = (from + 1) % 3;
        cluster
            .migrate(&slot, from, to, downgrade(), downgrade())
            .await;
        assert_eq!(store.see(&key).await.holders[0].mode, Mode::Exclusive);
        downgrade().await;
        granted(store.queue_as(Mode::Shared, &key, b).await);
        held(store.ask(&key, c).await);
        for owner in [a, b] {
            let freed = store.free_as(Mode::Shared, &key, owner).await;
            assert_eq!(freed, Released::Freed);
        }
    }
    assert_eq!(cluster.leftovers().await, [""; 0]);
}

/// A message that is published at any node of a Cluster arrives at all of them.
#[tokio::test]
async fn a_subscription_stays_at_its_node_when_slots_move() {
    let cluster = Cluster::start().await;
    let slot = slot_of_account(&cluster).await;
    let store = RedisStore::cluster(cluster.urls()).connect().await.unwrap();
    let (key, a) = (key("account"), owner());
    let mut hints = store.watch_for_sure(a.instance).await;
    let before = subscriptions(&cluster).await;
    assert_eq!(before.len(), 1, "{before:?}");
    store.take(&key, a).await;
    let from = cluster.owner(&slot, 0).await;
    cluster
        .migrate(&slot, from, (from + 1) % 3, async {}, async {})
        .await;
    eventually("the store has noticed", async || {
        is_renewed(&store.renew_one(renewal(&key, a, 0)).await)
    })
    .await;
    assert!(moved(&mut hints).await.contains(&key));
    assert_eq!(subscriptions(&cluster).await, before);
    held(store.queue(&key, owner()).await);
    hinted(&mut hints, Hint::Wanted(key)).await;
}

#[tokio::test]
async fn only_the_leases_of_moved_slots_are_renewed() {
    let cluster = Cluster::start().await;
    let slot = slot_of_account(&cluster).await;
    let store = RedisStore::cluster(cluster.urls()).connect().await.unwrap();
    let locks = Locks::builder(store.clone()).lease(LONG).build().unwrap();
    let mut guards = vec![locks.lock("account").await.unwrap()];
    for n in 0..30 {
        guards.push(locks.lock(key(&format!("other/{n}"))).await.unwrap());
    }
    eventually("the instance is subscribed", async || {
        subscriptions(&cluster).await.len() == 1
    })
    .await;
    let from = cluster.owner(&slot, 0).await;
    let to = (from + 1) % 3;
    cluster.migrate(&slot, from, to, async {}, async {}).await;
    for node in &cluster.nodes {
        node.reset_stats().await;
    }
    let renewals = async || {
        let mut renewals = 0;
        for node in &cluster.nodes {
            let stats = node.stats().await;
            renewals += stats.get("evalsha").map_or(0, |stat| stat.calls);
        }
        renewals
    };
    // The store learns of the move from the old node's MOVED.
    store.inspect(key("account")).await.unwrap();
    eventually("the moved lease is renewed", async || renewals().await > 0).await;
    sleep(Duration::from_millis(300)).await;
    assert_eq!(renewals().await, 1, "one of {} leases", guards.len());
}

/// A fail-over leaves the old primary without slots.
#[tokio::test]
async fn a_node_without_slots_is_disconnected() {
    let cluster = Cluster::start().await;
    let slot = slot_of_account(&cluster).await;
    let store = RedisStore::cluster(cluster.urls()).lanes(1);
    let store = store.connect().await.unwrap();
    let (key, a) = (key("account"), owner());
    store.take(&key, a).await;
    let old = cluster.owner(&slot, 0).await;
    let calls_to_old = async || {
        let clients = ["CLIENT", "LIST", "TYPE", "normal"];
        let clients: String = cluster.nodes[old].send(&clients).await;
        clients.matches("cmd=evalsha").count()
    };
    assert_eq!(calls_to_old().await, 1);
    let _: Value = cluster.nodes[old + 3].send(&["CLUSTER", "FAILOVER"]).await;
    cluster.failed_over(&slot, old).await;
    eventually("the store has found the new primary", async || {
        is_renewed(&store.renew_one(renewal(&key, a, 0)).await)
    })
    .await;
    eventually("the connection to the old primary is closed", async || {
        calls_to_old().await == 0
    })
    .await;
}

#[tokio::test]
async fn calls_for_a_moving_slot_wait() {
    let cluster = Cluster::start().await;
    let slot = slot_of_account(&cluster).await;
    let store = RedisStore::cluster(cluster.urls()).timeout(PATIENCE);
    let store = store.connect().await.unwrap();
    let key = key("account");
    for _ in 0..3 {
        let from = cluster.owner(&slot, 0).await;
        let a = owner();
        let mut taking = None;
        let waits = async {
            let taking = taking.insert(store.ask_for(attempt(&key, a)));
            let early = tokio::time::timeout(Duration::from_millis(100), taking).await;
            assert!(early.is_err(), "neither node may grant the key");
        };
        let to = (from + 1) % 3;
        cluster.migrate(&slot, from, to, waits, async {}).await;
        granted(taking.unwrap().await.unwrap());
        assert_eq!(store.free(&key, a).await, Released::Freed);
    }
    assert_eq!(cluster.leftovers().await, [""; 0]);
}

/// A connection to a node can outlive a fail-over, so that connecting alone does not raise the
/// floor.
#[tokio::test]
async fn tokens_follow_the_clock() {
    let cluster = Cluster::start().await;
    let store = RedisStore::cluster(cluster.urls()).connect().await.unwrap();
    let next = async || {
        let (key, a) = (key("k"), owner());
        let token = store.take(&key, a).await.tokens.first().unwrap();
        store.free(&key, a).await;
        token
    };
    let before = next().await;
    sleep(Duration::from_millis(2000)).await;
    assert!(next().await >= before + 1_000_000);
}

/// `build` asks no node, so the first calls find an empty slot map.
#[tokio::test]
async fn the_first_calls_of_a_store_without_a_connection_wait_for_the_slot_map() {
    let cluster = Cluster::start().await;
    let builder = RedisStore::cluster(cluster.urls()).timeout(PATIENCE);
    let (listed, store) = (key("listed"), builder.clone().connect().await.unwrap());
    store.take(&listed, owner()).await;

    let store = builder.build().unwrap();
    let keys: Vec<_> = (0..32).map(|n| key(&format!("k/{n}"))).collect();
    let taking = join_all(keys.iter().map(|key| store.ask_for(attempt(key, owner()))));
    let listing = store.list(List::starting_with("listed"));
    let (taken, page) = tokio::join!(taking, listing);
    for answer in taken {
        granted(answer.unwrap());
    }
    assert_eq!(page.unwrap().keys, [listed]);
}

#[tokio::test]
async fn a_cluster_that_cannot_work_is_refused() {
    let url = "redis://127.0.0.1:1";
    for store in [
        RedisStore::cluster([""; 0]),
        RedisStore::cluster([format!("{url}/1")]),
        RedisStore::cluster([url]).replicas(1, LEASE),
    ] {
        assert_eq!(store.build().unwrap_err().kind(), ErrorKind::InvalidConfig);
    }
    let error = RedisStore::cluster([url]).connect().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    let alone = crate::support::redis_server::RedisServer::start().await;
    let error = RedisStore::cluster([alone.url()])
        .connect()
        .await
        .unwrap_err();
    assert!(error.to_string().contains("is it a Cluster"), "{error}");
}

#[tokio::test]
async fn a_renewal_that_is_redirected_late_ends_at_its_own_deadline() {
    let cluster = Cluster::start().await;
    let limit = Duration::from_secs(4);
    let store = RedisStore::cluster(cluster.urls()).timeout(limit);
    let store = store.connect().await.unwrap();
    let (key, a) = (key("k"), owner());
    store.take(&key, a).await;
    let slot = cluster.slot(&cluster.leftovers().await[0]).await;
    let from = cluster.owner(&slot, 0).await;
    let to = (from + 1) % 3;
    cluster.migrate(&slot, from, to, async {}, async {}).await;
    // The old node redirects the renewal shortly before the deadline, and the new node does not
    // answer.
    let pause = ["CLIENT", "PAUSE", "600000", "ALL"];
    let _: Value = cluster.nodes[to].send(&pause).await;
    cluster.nodes[from].freeze();
    let asked = Instant::now();
    let redirected = async {
        sleep(limit * 3 / 4).await;
        cluster.nodes[from].thaw();
    };
    let renewing = store.renew_one(renewal(&key, a, 0));
    let (answer, ()) = tokio::join!(renewing, redirected);
    assert!(matches!(answer, Renewed::Unknown(_)), "{answer:?}");
    let took = asked.elapsed();
    assert!(took < limit * 3 / 2, "the renewal took {took:?}");
}
