//! Sentinel replaces a lost primary with a replica.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use tokio::{
    task::JoinHandle,
    time::{Instant, sleep},
};
use tower_distributed_lock::{Locks, store::RedisStore};

use crate::support::{
    eventually,
    ledger::Ledger,
    sentinels::{SERVICE, Sentinels},
};

pub(crate) const LEASE: Duration = Duration::from_secs(2);

/// An instance with its own connections, like a separate process.
pub(crate) async fn instance(topology: &Sentinels) -> Locks {
    let store = RedisStore::sentinel(topology.urls(), SERVICE).timeout(Duration::from_millis(300));
    let store = crate::connected(store).await;
    Locks::builder(store)
        .wait_forever()
        .lease(LEASE)
        .build()
        .unwrap()
}

/// Deposits again and again until `stop` is set.
pub(crate) fn depositor(
    locks: &Locks,
    ledger: &Arc<Ledger>,
    stop: &Arc<AtomicBool>,
) -> JoinHandle<()> {
    let (locks, ledger, stop) = (locks.clone(), ledger.clone(), stop.clone());
    tokio::spawn(async move {
        while !stop.load(SeqCst) {
            match locks.lock("account").within(LEASE).await {
                Ok(guard) => {
                    ledger
                        .deposit("account", guard.token(), Duration::from_millis(2))
                        .await;
                }
                // The store is out of reach, or the key is held: the depositor tries again later.
                Err(_) => sleep(Duration::from_millis(10)).await,
            }
        }
    })
}

/// Waits for a deposit that begins after this call. Returns the time until that deposit.
pub(crate) async fn back_in_service(ledger: &Ledger) -> Duration {
    let (began, before) = (Instant::now(), ledger.written());
    eventually("deposits go on", async || ledger.written() > before + 2).await;
    began.elapsed()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_primary_costs_no_deposit_and_not_more_than_its_fail_over_and_a_lease() {
    let mut topology = Sentinels::start().await;
    let ledger = Arc::new(Ledger::start().await);
    let stop = Arc::new(AtomicBool::new(false));
    let mut depositors = Vec::new();
    for _ in 0..3 {
        let locks = instance(&topology).await;
        depositors.extend([0; 3].map(|_| depositor(&locks, &ledger, &stop)));
    }
    let idle = instance(&topology).await;
    let held = idle.lock("held").await.unwrap();
    back_in_service(&ledger).await;

    let old = topology.primary().await;
    topology.servers[old].kill();
    let new = topology.failed_over(old).await;
    let took = back_in_service(&ledger).await;
    println!("back {took:?} after the fail-over");
    assert!(took < LEASE + Duration::from_secs(1));

    // A lease without a call meanwhile is confirmed by the new primary, or reported as lost.
    match held.is_held() {
        true => {
            let found = topology.servers[new].leftovers().await;
            assert!(
                found.iter().any(|key| key.ends_with(":lock:held")),
                "{found:?}"
            );
        }
        false => assert!(idle.lock("held").await.unwrap().token() > held.token()),
    }
    drop(held);
    stop.store(true, SeqCst);
    for depositor in depositors {
        depositor.await.unwrap();
    }
    ledger.assert_exact("account").await;
    eventually("nothing is left", async || {
        topology.servers[new].leftovers().await.is_empty()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_outlives_a_planned_fail_over() {
    let topology = Sentinels::start().await;
    let locks = instance(&topology).await;
    let guard = locks.lock("k").await.unwrap();
    let old = topology.primary().await;
    for server in &topology.servers {
        eventually("the lease is replicated", async || {
            !server.leftovers().await.is_empty()
        })
        .await;
    }
    let _: redis::Value = topology.sentinels[0]
        .send(&["SENTINEL", "FAILOVER", SERVICE])
        .await
        .unwrap();
    let new = topology.failed_over(old).await;
    // The pause is longer than the lease, which only the new primary can have renewed.
    sleep(LEASE + LEASE / 2).await;
    assert!(guard.is_held(), "{:?}", guard.status());
    let token = guard.token();
    guard.release().await.unwrap();
    assert_eq!(topology.servers[new].leftovers().await, [""; 0]);
    assert!(locks.lock("k").await.unwrap().token() > token);
}

#[tokio::test]
async fn sentinels_that_hang_or_are_gone_delay_no_connect() {
    let mut topology = Sentinels::start().await;
    topology.sentinels[0].freeze();
    topology.sentinels[1].kill();
    let began = Instant::now();
    let store = RedisStore::sentinel(topology.urls(), SERVICE)
        .connect()
        .await
        .unwrap();
    println!("connected after {:?}", began.elapsed());
    drop(store);

    let nobody = RedisStore::sentinel(topology.urls(), "nobody")
        .connect()
        .await;
    let error = nobody.unwrap_err().to_string();
    assert!(error.contains("`nobody`"), "{error}");
}
