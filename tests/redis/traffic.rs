//! The commands that Redis receives.

use std::collections::BTreeMap;

use tower_distributed_lock::{
    Locks, Stats,
    store::{Acquired, Instance, Queueing},
};

use crate::{
    server_and_store,
    support::{eventually, words::*},
};

/// The expected counts of commands: `calls` times the command `name`, and nothing else.
fn only(name: &str, calls: u64) -> BTreeMap<String, u64> {
    BTreeMap::from([(name.to_owned(), calls)])
}

#[tokio::test]
async fn a_free_key_costs_one_command_to_take_and_one_to_release() {
    let (server, store) = server_and_store().await;
    let mut a = owner();
    let _hints = store.watch_for_sure(a.instance).await;
    server.reset_stats().await;
    for n in 0..100 {
        let key = key(&format!("k/{}", n % 10));
        a.attempt += 1;
        store.take(&key, a).await;
        store.free(&key, a).await;
    }
    assert_eq!(server.commands().await, only("evalsha", 200));
}

#[tokio::test]
async fn a_waiter_costs_one_command_for_each_question() {
    let (server, store) = server_and_store().await;
    let (key, a, b) = (key("k"), owner(), owner());
    store.take(&key, a).await;
    held(store.queue(&key, b).await);
    server.reset_stats().await;
    for _ in 0..10 {
        held(store.queue(&key, b).await);
    }
    assert_eq!(
        server.commands().await,
        only("evalsha", 10),
        "the holder is told only once"
    );
}

#[tokio::test]
async fn only_a_release_with_a_waiter_is_published() {
    let (server, store) = server_and_store().await;
    let (key, a, b) = (key("k"), owner(), owner());
    store.take(&key, a).await;
    held(store.queue(&key, b).await);
    server.reset_stats().await;
    store.free(&key, a).await;
    granted(store.queue(&key, b).await);
    store.free(&key, b).await;
    let seen = server.commands().await;
    assert_eq!(seen.get("evalsha"), Some(&3));
    assert_eq!(seen.get("publish"), Some(&1));
}

#[tokio::test]
async fn ten_thousand_leases_are_renewed_in_a_few_pipelines() {
    let (server, store) = server_and_store().await;
    let instance = Instance::new();
    let requests: Vec<_> = (0..10_000)
        .map(|n| attempt(&key(&format!("k/{n}")), attempt_of(instance, n)))
        .collect();
    for batch in requests.chunks(500) {
        let taking = batch.iter().map(|request| store.ask_for(request.clone()));
        for answer in futures_util::future::join_all(taking).await {
            granted(answer.unwrap());
        }
    }
    server.reset_stats().await;
    let before = reads(&server).await;
    let renewals = requests
        .iter()
        .map(|request| renewal(&request.key, request.owner, 0));
    let answers = store.renew_all(renewals.collect()).await;
    assert!(answers.iter().all(is_renewed));
    let scripts = server.commands().await["evalsha"];
    assert!(scripts < 5_000, "{scripts} scripts for 10,000 renewals");
    // The server reads at most once for each packet. The test itself causes some of the reads.
    let reads = reads(&server).await - before;
    assert!(
        reads < 500,
        "{reads} reads of the server for 10,000 renewals"
    );
}

#[tokio::test]
async fn several_free_keys_are_taken_in_one_round_trip() {
    let (server, store) = server_and_store().await;
    let locks = Locks::builder(store).build().unwrap();
    drop(locks.lock("first").await.unwrap()); // everything is connected
    eventually("all is released", async || {
        locks.stats() == Stats::default()
    })
    .await;
    server.reset_stats().await;
    let first = server.reads().await;
    let before = server.reads().await;
    let keys = (0..8).map(|n| format!("k/{n}"));
    let guards = locks.lock_all(keys).await.unwrap();
    let of_the_question = before - first;
    let reads = server.reads().await - before - of_the_question;
    let scripts = server.commands().await["evalsha"];
    assert!(scripts <= 8, "{scripts} scripts for 8 keys");
    assert!(reads <= 2, "the server has read {reads} messages");
    drop(guards);
}

async fn reads(server: &crate::support::redis_server::RedisServer) -> u64 {
    let info: String = server.send(&["INFO", "stats"]).await;
    let line = info
        .lines()
        .find_map(|line| line.strip_prefix("total_reads_processed:"));
    line.unwrap().trim().parse().unwrap()
}

#[tokio::test]
async fn an_attempt_that_does_not_queue_leaves_nothing() {
    let (server, store) = server_and_store().await;
    let (key, a) = (key("k"), owner());
    store.take(&key, a).await;
    server.reset_stats().await;
    let request = attempt(&key, owner());
    assert_eq!(request.queueing, Queueing::No);
    assert!(matches!(
        store.ask_for(request).await.unwrap(),
        Acquired::Held(_)
    ));
    assert_eq!(server.commands().await, only("evalsha", 1));
    assert_eq!(server.leftovers().await.len(), 1, "the lock alone");
}
