//! What the log tells of an outage: one event at its begin and one at its end, however many leases
//! there are.

use std::time::Duration;

use axum::{Router, body::Body, routing::post};
use futures_util::{StreamExt, stream};
use http::{Request, StatusCode};
use tokio::time::sleep;
use tower::ServiceExt;
use tower_distributed_lock::{
    DistributedLockLayer, ErrorKind, LockGuard, LockKey, Locks, key,
    store::{Fault, FaultyStore, RedisStore, Store},
};
use tracing::Level;

use crate::{
    spans::{Log, Seen},
    support::{eventually, redis_server::RedisServer},
};

/// Longer than the quiet time after which an outage counts as over.
const CALM: Duration = Duration::from_secs(6);

fn names(events: &[Seen]) -> Vec<&str> {
    events.iter().map(|seen| &*seen.name).collect()
}

async fn lock_many(locks: &Locks, count: usize) -> Vec<LockGuard> {
    let keys = stream::iter(0..count).map(|number| locks.lock(format!("k/{number}")));
    keys.buffer_unordered(64)
        .map(Result::unwrap)
        .collect()
        .await
}

/// An HTTP service behind a lock, and the status of its answer for one account.
async fn status(app: &Router, account: usize) -> StatusCode {
    let request = Request::post(format!("/accounts/{account}"));
    let request = request.body(Body::empty()).unwrap();
    app.clone().oneshot(request).await.unwrap().status()
}

#[tokio::test]
async fn a_redis_that_dies_under_many_leases_is_told_in_a_few_lines() {
    const LEASES: usize = 2_000;
    let (log, _guard) = Log::start();
    let mut server = RedisServer::start().await;
    let store = RedisStore::builder(server.url());
    let locks = Locks::builder(store.build().unwrap())
        .lease(Duration::from_secs(3))
        .build()
        .unwrap();
    let account = key::name("account").param("id");
    let app = Router::new()
        .route("/accounts/{id}", post(async || {}))
        .route_layer(DistributedLockLayer::new(locks.clone(), account));
    let guards = lock_many(&locks, LEASES).await;

    server.kill();
    for number in 0..50 {
        assert_eq!(status(&app, number).await, StatusCode::SERVICE_UNAVAILABLE);
    }
    for guard in &guards {
        guard.lost().await;
    }
    drop(guards);
    let failed = locks.lock("another").await.unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::Unreachable);
    server.restart().await;
    eventually("the store answers", async || {
        status(&app, 1).await == StatusCode::OK
    })
    .await;
    eventually("the end is told", async || {
        !log.events("lock.store_back").is_empty()
    })
    .await;

    let warnings = log.warnings();
    assert!(warnings.len() <= 5, "{:?}", names(&warnings));
    let away = log.events("lock.store_away");
    assert_eq!(away.len(), 1, "{away:?}");
    assert!(away[0].fields["error"].len() > 20, "{away:?}");
    let back = log.events("lock.store_back");
    assert_eq!(back.len(), 1, "{back:?}");
    assert_eq!(back[0].level, Level::WARN);
    let count = |name: &str| back[0].fields[name].parse::<usize>().unwrap();
    assert_eq!(count("losses"), LEASES);
    assert!(count("unanswered_renewals") >= LEASES, "{back:?}");
    assert!(count("failed_questions") >= 51, "{back:?}");
    assert_eq!(locks.totals().losses, LEASES as u64);
    assert_eq!(
        locks.totals().unanswered_renewals,
        count("unanswered_renewals") as u64
    );
    // Whoever looks for one of the turns finds it.
    let lost = log.events("lock.lost");
    assert_eq!(lost.len(), LEASES);
    assert!(lost.iter().all(|seen| seen.level == Level::DEBUG));
}

#[tokio::test(start_paused = true)]
async fn a_single_failure_is_told_once_and_the_next_one_again() {
    let (log, _guard) = Log::start();
    let store = FaultyStore::new();
    let locks = Locks::builder(store.clone()).build().unwrap();
    for round in 1..=3 {
        store.set_fault(Some(Fault::Unreachable));
        assert!(locks.lock("k").now().await.is_err());
        store.set_fault(None);
        drop(locks.lock("k").await.unwrap());
        sleep(CALM).await;
        assert_eq!(log.events("lock.store_away").len(), round);
        let back = log.events("lock.store_back");
        assert_eq!(back.len(), round, "told without a further call");
        assert_eq!(back[0].level, Level::INFO, "nothing was lost");
        assert_eq!(back[0].fields["failed_questions"], "1");
    }
    assert_eq!(log.warnings().len(), 3, "{:?}", names(&log.warnings()));
}

#[tokio::test(start_paused = true)]
async fn an_outage_in_which_some_calls_are_answered_is_one_outage() {
    let (log, _guard) = Log::start();
    let store = FaultyStore::new();
    let locks = Locks::builder(store.clone()).build().unwrap();
    for _ in 0..20 {
        store.set_fault(Some(Fault::Unreachable));
        assert!(locks.lock("k").now().await.is_err());
        store.set_fault(None);
        drop(locks.lock("k").await.unwrap());
        sleep(Duration::from_secs(2)).await;
    }
    sleep(CALM).await;
    assert_eq!(log.events("lock.store_away").len(), 1);
    let back = log.events("lock.store_back");
    assert_eq!(back.len(), 1);
    assert_eq!(back[0].fields["failed_questions"], "20");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_away_for_long_is_told_once() {
    let (log, _guard) = Log::start();
    let store = FaultyStore::new();
    let locks = Locks::builder(store.clone()).build().unwrap();
    let _guards = lock_many(&locks, 50).await;
    store.set_fault(Some(Fault::Unreachable));
    for _ in 0..100 {
        assert!(locks.lock("other").now().await.is_err());
        sleep(Duration::from_secs(30)).await;
    }
    assert_eq!(
        names(&log.warnings()),
        ["lock.store_away", "lock.release_failed"],
        "no end without an answer"
    );
}

#[tokio::test(start_paused = true)]
async fn many_losses_without_an_outage_are_told_with_their_number() {
    let (log, _guard) = Log::start();
    let store = FaultyStore::new();
    let locks = Locks::builder(store.clone()).build().unwrap();
    let guards = lock_many(&locks, 300).await;
    store.restart();
    for guard in &guards {
        guard.lost().await;
    }
    sleep(CALM).await;
    let warnings = log.warnings();
    assert_eq!(names(&warnings), ["lock.lost", "lock.losses"]);
    assert_eq!(warnings[1].fields["losses"], "300");
    assert_eq!(log.events("lock.lost").len(), 300);
}

#[tokio::test(start_paused = true)]
async fn one_loss_is_one_line_and_the_next_one_is_told_again() {
    let (log, _guard) = Log::start();
    let store = FaultyStore::new();
    let locks = Locks::builder(store.clone()).build().unwrap();
    for _ in 0..2 {
        let guard = locks.lock("k").await.unwrap();
        let key = LockKey::new("k").unwrap();
        store.force_release(key).await.unwrap();
        guard.lost().await;
        sleep(CALM).await;
    }
    assert_eq!(names(&log.warnings()), ["lock.lost", "lock.lost"]);
}

#[tokio::test(start_paused = true)]
async fn locks_that_close_during_an_outage_tell_its_counts() {
    let (log, _guard) = Log::start();
    let store = FaultyStore::new();
    let locks = Locks::builder(store.clone()).build().unwrap();
    let _guards = lock_many(&locks, 20).await;
    store.set_fault(Some(Fault::Unreachable));
    assert!(locks.lock("other").now().await.is_err());
    locks.close(Duration::ZERO).await;
    let over = log.events("lock.store_back");
    assert!(over.is_empty(), "the store is still away");
    let away = log.events("lock.closed_while_away");
    assert_eq!(away.len(), 1);
    assert_eq!(away[0].fields["losses"], "20");
}

#[tokio::test]
async fn a_layer_that_fails_open_tells_it_once() {
    let (log, _guard) = Log::start();
    let store = FaultyStore::new();
    let locks = Locks::builder(store.clone()).build().unwrap();
    let account = key::name("account").param("id");
    let app = Router::new()
        .route("/accounts/{id}", post(async || {}))
        .route_layer(DistributedLockLayer::new(locks, account).fail_open());
    for round in 1..=2 {
        store.set_fault(Some(Fault::Unreachable));
        // The layer asks the store again after a second.
        for _ in 0..3 {
            assert_eq!(status(&app, 7).await, StatusCode::OK);
            sleep(Duration::from_millis(1100)).await;
        }
        assert_eq!(log.events("lock.failed_open").len(), round);
        store.set_fault(None);
        assert_eq!(status(&app, 7).await, StatusCode::OK);
    }
}
