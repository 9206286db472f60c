//! The metrics of turns, leases and lines, on a memory store and paused time.

use std::time::Duration;

use tokio::time::{advance, sleep};
use tower_distributed_lock::{
    ErrorKind, LockKey, Locks, Loss,
    store::{Fault, FaultyStore, Store},
};

use crate::{scrape::Scrape, support::eventually};

const KEY: &str = "secret/7";

#[tokio::test(start_paused = true)]
async fn turns_are_counted_by_outcome_with_their_times() {
    let scrape = Scrape::new();
    let _recording = scrape.start();
    let locks = Locks::in_memory();
    let first = locks.lock(KEY).await.unwrap();
    let waiting = tokio::spawn({
        let locks = locks.clone();
        async move { locks.lock(KEY).await }
    });
    assert!(locks.lock(KEY).now().await.unwrap().is_none());
    let limit = Duration::from_secs(2);
    assert!(locks.lock(KEY).within(limit).await.is_err());
    let cancelled = tokio::spawn({
        let locks = locks.clone();
        async move { locks.lock(KEY).await }
    });
    sleep(Duration::from_secs(1)).await;
    cancelled.abort();
    assert!(cancelled.await.unwrap_err().is_cancelled());
    drop(first);
    waiting.await.unwrap().unwrap().release().await.unwrap();
    locks.close(Duration::ZERO).await;
    let closed = locks.lock(KEY).await.unwrap_err();
    assert_eq!(closed.kind(), ErrorKind::Closed);

    scrape.expect(&[
        (r#"turns_total{outcome="granted"}"#, 1.0),
        (r#"turns_total{outcome="passed_on"}"#, 1.0),
        (r#"turns_total{outcome="held"}"#, 2.0),
        (r#"turns_total{outcome="cancelled"}"#, 1.0),
        (r#"turns_total{outcome="closed"}"#, 1.0),
        // The second turn began after the three seconds of the first one.
        (r#"wait_seconds_count{outcome="passed_on"}"#, 1.0),
        (r#"wait_seconds_bucket{outcome="passed_on",le="1"}"#, 0.0),
        (r#"wait_seconds_bucket{outcome="passed_on",le="100"}"#, 1.0),
        (r#"wait_seconds_bucket{outcome="granted",le="0.01"}"#, 1.0),
        (r#"hold_seconds_count{outcome="released"}"#, 2.0),
        (r#"hold_seconds_bucket{outcome="released",le="0.01"}"#, 1.0),
        (r#"hold_seconds_bucket{outcome="released",le="100"}"#, 2.0),
    ]);
    assert!(scrape.value(r#"hold_seconds_sum{outcome="released"}"#) >= 3.0);
}

#[tokio::test(start_paused = true)]
async fn a_turn_with_several_guards_is_one_turn() {
    let scrape = Scrape::new();
    let _recording = scrape.start();
    let locks = Locks::in_memory();
    let guard = locks.lock(KEY).await.unwrap();
    let clone = guard.clone();
    drop(guard);
    scrape.expect(&[(r#"hold_seconds_count{outcome="released"}"#, 0.0)]);
    clone.clone().release().await.unwrap();
    drop(clone);
    scrape.expect(&[
        (r#"turns_total{outcome="granted"}"#, 1.0),
        (r#"hold_seconds_count{outcome="released"}"#, 1.0),
    ]);
}

#[tokio::test(start_paused = true)]
async fn losses_are_counted_by_reason_and_renewals_by_result() {
    let scrape = Scrape::new();
    let _recording = scrape.start();
    let store = FaultyStore::new();
    let locks = Locks::builder(store.clone()).build().unwrap();

    let taken = locks.lock(KEY).await.unwrap();
    store
        .force_release(LockKey::new(KEY).unwrap())
        .await
        .unwrap();
    assert_eq!(taken.lost().await, Loss::NotOurs);
    drop(taken);
    let expired = locks.lock(KEY).await.unwrap();
    sleep(Duration::from_secs(15)).await;
    store.set_fault(Some(Fault::Hang));
    assert_eq!(expired.lost().await, Loss::Expired);
    drop(expired);
    store.set_fault(None);
    let closed = locks.lock(KEY).await.unwrap();
    locks.close(Duration::ZERO).await;
    assert_eq!(closed.lost().await, Loss::Closed);
    drop(closed);

    scrape.expect(&[
        (r#"losses_total{reason="not_ours"}"#, 1.0),
        (r#"losses_total{reason="expired"}"#, 1.0),
        (r#"losses_total{reason="closed"}"#, 1.0),
        (r#"renewals_total{result="not_ours"}"#, 1.0),
        // One in time, and one that was answered at the end of the fault.
        (r#"renewals_total{result="renewed"}"#, 2.0),
        (r#"hold_seconds_count{outcome="lost"}"#, 3.0),
        (r#"hold_seconds_count{outcome="released"}"#, 0.0),
    ]);
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_max_hold_has_ended_counts_as_lost() {
    let scrape = Scrape::new();
    let _recording = scrape.start();
    let builder = Locks::builder(FaultyStore::new());
    let locks = builder.max_hold(Duration::from_secs(5)).build().unwrap();
    let first = locks.lock(KEY).shared().await.unwrap();
    sleep(Duration::from_secs(3)).await;
    let second = locks.lock(KEY).shared().await.unwrap();
    assert_eq!(first.lost().await, Loss::MaxHold);
    drop(first);
    drop(second);
    scrape.expect(&[
        (r#"hold_seconds_count{outcome="lost"}"#, 1.0),
        (r#"hold_seconds_count{outcome="released"}"#, 1.0),
    ]);
}

#[tokio::test(start_paused = true)]
async fn gauges_are_the_sums_over_all_locks_and_end_at_zero() {
    let scrape = Scrape::new();
    let (one, other) = (Locks::in_memory(), Locks::in_memory());
    // Before the recorder is installed: a sum of increments and decrements would end below zero.
    let early = one.lock(KEY).await.unwrap();
    let _recording = scrape.start();
    let late = other.lock(KEY).await.unwrap();
    let wait = |locks: &Locks| {
        let locks = locks.clone();
        tokio::spawn(async move { locks.lock(KEY).within(Duration::from_secs(60)).await })
    };
    let waiting = [wait(&one), wait(&one), wait(&other)];
    eventually("three requests wait", async || {
        Locks::record_gauges([&one, &other]);
        scrape.value("waiting") == 3.0
    })
    .await;
    scrape.expect(&[("keys", 2.0), ("leases", 2.0), ("longest_line", 2.0)]);
    drop((early, late));
    for waiting in waiting {
        drop(waiting.await.unwrap().unwrap());
    }
    advance(Duration::from_millis(1)).await;
    Locks::record_gauges([&one, &other]);
    scrape.expect(&[
        ("keys", 0.0),
        ("leases", 0.0),
        ("waiting", 0.0),
        ("longest_line", 0.0),
        ("background_calls", 0.0),
        ("owed_releases", 0.0),
    ]);
    // The descriptions are there although the recorder came late.
    let described = "# HELP distributed_lock_turns_total Requests for a turn, by outcome";
    assert!(scrape.text().contains(described), "{}", scrape.text());
}

#[tokio::test(start_paused = true)]
async fn no_metric_has_a_key() {
    let scrape = Scrape::new();
    let _recording = scrape.start();
    let store = FaultyStore::new();
    let locks = Locks::builder(store.clone()).build().unwrap();
    let guard = locks.lock(KEY).await.unwrap();
    assert!(locks.lock(KEY).now().await.unwrap().is_none());
    store.restart();
    guard.lost().await;
    Locks::record_gauges([&locks]);
    assert!(scrape.text().contains("losses_total"));
    assert!(!scrape.text().contains("secret"), "{}", scrape.text());
}
