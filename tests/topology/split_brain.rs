//! A primary that was frozen past its fail-over still acts as the primary for some seconds.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use tokio::time::sleep;
use tower_distributed_lock::store::{RedisStore, Renewed};

use crate::{
    fail_over::{LEASE, back_in_service, depositor, instance},
    support::{
        eventually,
        fake_sentinel::{FakeSentinel, Says},
        ledger::Ledger,
        redis_server::{RedisServer, Stat},
        sentinels::{SERVICE, Sentinels},
        words::*,
    },
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_primaries_at_once_cost_no_deposit() {
    let topology = Sentinels::start().await;
    let ledger = Arc::new(Ledger::start().await);
    let stop = Arc::new(AtomicBool::new(false));
    let idle = instance(&topology).await;
    drop(idle.lock("account").await.unwrap());
    let mut depositors = Vec::new();
    for _ in 0..2 {
        let locks = instance(&topology).await;
        depositors.extend([0; 2].map(|_| depositor(&locks, &ledger, &stop)));
    }
    back_in_service(&ledger).await;

    let old = topology.primary().await;
    topology.servers[old].freeze();
    topology.failed_over(old).await;
    let took = back_in_service(&ledger).await;
    println!("back {took:?} after the fail-over");
    assert!(took < LEASE + Duration::from_secs(1));

    // An instance that made no call meanwhile still knows the old primary only.
    topology.servers[old].thaw();
    assert!(topology.servers[old].is_primary().await);
    let late = [0; 2].map(|_| depositor(&idle, &ledger, &stop));
    let old_ones =
        |stats: BTreeMap<String, Stat>| stats.get("evalsha").map_or(0, |stat| stat.calls);
    let calls = old_ones(topology.servers[old].stats().await);
    eventually("two primaries are at work", async || {
        old_ones(topology.servers[old].stats().await) > calls + 20
    })
    .await;
    eventually("one primary is left", async || {
        !topology.servers[old].is_primary().await
    })
    .await;
    // The instance of the old primary follows.
    for _ in 0..3 {
        back_in_service(&ledger).await;
    }
    drop(idle.lock("account").within(LEASE * 2).await.unwrap());
    stop.store(true, SeqCst);
    for depositor in depositors.into_iter().chain(late) {
        depositor.await.unwrap();
    }
    ledger.assert_exact("account").await;
}

/// A store that was connected to a server before its fail-over has raised no floor by connecting.
#[tokio::test]
async fn tokens_catch_up_with_those_of_another_primary_within_a_second() {
    let servers = [RedisServer::start().await, RedisServer::start().await];
    let mut stores = Vec::new();
    for server in &servers {
        let port = server.port();
        let sentinel = FakeSentinel::start(Says::Primary { port, epoch: 1 }).await;
        let store = RedisStore::sentinel([sentinel.url()], SERVICE).connect();
        stores.push((store.await.unwrap(), sentinel));
    }
    let next = async |at: usize| {
        let (key, a) = (key("catching up"), owner());
        let store = &stores[at].0;
        let token = store.take(&key, a).await.tokens.first().unwrap();
        let refill = store.renew_one(renewal(&key, a, 1)).await;
        let Renewed::Renewed { tokens, .. } = refill else {
            panic!("the lease is a's");
        };
        store.free(&key, a).await;
        (token, tokens.unwrap().first().unwrap())
    };
    next(0).await;
    for turn in 1..6 {
        let (_, before) = next(turn % 2).await;
        sleep(Duration::from_millis(1000)).await;
        let (token, refill) = next(1 - turn % 2).await;
        assert!(token > before && refill > token);
    }
}
