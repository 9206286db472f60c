//! Deposits over several replicas, some of which are stopped or killed in the middle of their turn.

use std::sync::{
    Arc,
    atomic::{AtomicI64, Ordering::SeqCst},
};

use tokio::time::{Instant, sleep};

use crate::{
    processes::{Client, LEASE},
    support::{eventually, redis_server::RedisServer, replica::Replica},
};

fn replica(server: &RedisServer, more: &[(&str, &str)]) -> Replica {
    let (url, lease) = (server.url(), LEASE.as_millis().to_string());
    let mut settings = vec![
        ("STORE", &*url),
        ("LEASE_MS", &*lease),
        ("WAIT_MS", "20000"),
    ];
    settings.extend(more);
    Replica::start(&settings)
}

/// Waits until a token was shown for the account: a deposit has begun there.
async fn until_begun(replica: &Replica, account: &str, after: i64) {
    eventually("a deposit has begun", async || {
        replica.account(account).await.number("token") > after
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_deposit_counts_once_over_two_replicas() {
    let server = RedisServer::start().await;
    let replicas = Arc::new([replica(&server, &[]), replica(&server, &[])]);
    let deposits: Vec<_> = (0..60)
        .map(|at| {
            let replicas = replicas.clone();
            tokio::spawn(async move { replicas[at % 2].deposit("a", 1).await.unwrap().status })
        })
        .collect();
    for deposit in deposits {
        assert_eq!(deposit.await.unwrap(), 200);
    }
    let account = replicas[0].account("a").await;
    assert_eq!(
        (account.number("balance"), account.number("deposits")),
        (60, 60)
    );
    eventually("no lock is left", async || {
        server
            .leftovers()
            .await
            .iter()
            .all(|key| key.starts_with("ledger:"))
    })
    .await;
    let replicas = Arc::into_inner(replicas).unwrap();
    assert!(replicas.map(Replica::terminate).iter().all(|well| *well));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_replica_frees_its_key_after_the_lease_and_loses_no_other_deposit() {
    let server = RedisServer::start().await;
    let (mut doomed, other) = (replica(&server, &[]), replica(&server, &[]));
    let began = Instant::now();
    // Its client waits on: one that goes away would free the key at once.
    let first = tokio::spawn(doomed.deposit("a", 60_000));
    until_begun(&other, "a", 0).await;
    doomed.kill();
    assert!(first.await.unwrap().is_none(), "it works for a minute");
    let deposit = other.deposit("a", 0).await.unwrap();
    assert_eq!(deposit.status, 200);
    assert!(began.elapsed() >= LEASE, "not before the lease was over");
    assert_eq!(other.account("a").await.number("balance"), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_was_stopped_past_its_lease_is_refused_by_its_token() {
    let server = RedisServer::start().await;
    for loss in ["finish", "cancel"] {
        let (paused, other) = (replica(&server, &[("LOSS", loss)]), replica(&server, &[]));
        let stale = async {
            let begun = until_begun(&other, loss, 0);
            let stale = paused.deposit(loss, 1_000);
            let stop = async {
                begun.await;
                paused.freeze();
                let deposit = other.deposit(loss, 0).await.unwrap();
                assert_eq!(deposit.status, 200, "the other goes on after the lease");
                paused.thaw();
            };
            tokio::join!(stale, stop).0
        };
        let stale = stale.await.expect("it goes on where it was stopped");
        assert_eq!(stale.status, 409, "{loss}: {}", stale.body);
        let account = other.account(loss).await;
        assert_eq!(
            (account.number("balance"), account.number("deposits")),
            (1, 1),
            "{loss}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_that_was_acknowledged_is_lost_while_replicas_are_stopped_and_killed() {
    let server = RedisServer::start().await;
    let mut doomed = replica(&server, &[]);
    let stopped = Arc::new(replica(&server, &[]));
    let steady = Arc::new(replica(&server, &[("LOSS", "finish")]));
    let (acknowledged, in_doubt) = (Arc::new(AtomicI64::new(0)), Arc::new(AtomicI64::new(0)));
    let deposit = |replica: Arc<Replica>| {
        let (acknowledged, in_doubt) = (acknowledged.clone(), in_doubt.clone());
        tokio::spawn(async move {
            for _ in 0..20 {
                match replica
                    .deposit("a", 20)
                    .await
                    .map(|response| response.status)
                {
                    Some(200) => acknowledged.fetch_add(1, SeqCst),
                    // Refused before the handler began.
                    Some(423 | 503) => 0,
                    Some(_) | None => in_doubt.fetch_add(1, SeqCst),
                };
            }
        })
    };
    // One is killed in the middle of its turn, while the others wait.
    let killed = tokio::spawn(doomed.deposit("a", 60_000));
    until_begun(&steady, "a", 0).await;
    let clients: Vec<_> = (0..4)
        .flat_map(|_| [deposit(steady.clone()), deposit(stopped.clone())])
        .collect();
    doomed.kill();
    assert!(killed.await.unwrap().is_none(), "it works for a minute");
    in_doubt.fetch_add(1, SeqCst);
    // Another is stopped for longer than its lease, twice; most likely in the middle of a turn.
    for _ in 0..2 {
        sleep(LEASE / 2).await;
        stopped.freeze();
        sleep(LEASE * 2).await;
        stopped.thaw();
    }
    for client in clients {
        client.await.unwrap();
    }
    let balance = steady.account("a").await.number("balance");
    let (acknowledged, in_doubt) = (acknowledged.load(SeqCst), in_doubt.load(SeqCst));
    println!("{acknowledged} acknowledged ≤ {balance} ≤ {acknowledged} + {in_doubt} in doubt");
    assert!(acknowledged <= balance && balance <= acknowledged + in_doubt);
    assert!(acknowledged > 0);
}
