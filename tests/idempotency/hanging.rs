//! A store that hangs, or whose answers are lost: faults that only the memory store can have at the
//! right moment.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use axum::{Router, routing::get};
use futures_util::FutureExt;
use http::Request;
use tokio::{
    sync::oneshot,
    time::{Instant, sleep, timeout},
};
use tower_distributed_lock::{
    LockGuard, Locks, SingleFlightLayer, Stats,
    idempotency::Recalled,
    key,
    store::{Fault, FaultyStore, Store},
};

use crate::{
    support::eventually,
    web::{KEY, Runs, app, layer, lock_key, pay, send, sending},
};

const WITHIN: Duration = Duration::from_secs(2);

/// A store, its locks, and a first request whose handler is about to end.
macro_rules! a_handler_about_to_end {
    ($store:ident, $locks:ident, $runs:ident, $app:ident, $first:ident) => {
        let ($store, $runs) = (FaultyStore::new(), Runs::gated());
        let builder = tower_distributed_lock::Locks::builder($store.clone());
        let $locks = builder.build().unwrap();
        let $app = app(layer(&$locks).store_within(WITHIN), $runs.handler());
        let $first = sending(&$app, pay());
        $runs.arrival().await;
    };
}

#[tokio::test(start_paused = true)]
async fn a_store_that_hangs_delays_the_answer_by_the_store_limit_only() {
    a_handler_about_to_end!(store, locks, runs, app, first);
    store.set_fault(Some(Fault::Hang));
    let began = Instant::now();
    runs.open();
    let answer = first.await.unwrap();
    assert_eq!(began.elapsed().as_secs(), WITHIN.as_secs());
    assert_eq!(
        (answer.text(), answer.header("idempotency-stored")),
        ("run 1", Some("unknown"))
    );
    // The record was on its way, and arrives in the end.
    store.set_fault(None);
    eventually("nothing is under way", async || {
        locks.stats() == Stats::default()
    })
    .await;
    assert!(send(&app, pay()).await.is_replayed());
}

#[tokio::test(start_paused = true)]
async fn a_record_whose_answer_is_lost_is_there_all_the_same() {
    a_handler_about_to_end!(store, locks, runs, app, first);
    store.set_fault(Some(Fault::Mute));
    runs.open();
    let answer = first.await.unwrap();
    assert_eq!(answer.header("idempotency-stored"), Some("unknown"));
    store.set_fault(None);
    assert!(send(&app, pay()).await.is_replayed());
    eventually("nothing is under way", async || {
        locks.stats() == Stats::default()
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_crosses_the_record_is_no_loss() {
    let (store, runs) = (FaultyStore::new(), Runs::gated());
    let builder = tower_distributed_lock::Locks::builder(store.clone());
    let lease = Duration::from_secs(3);
    let locks = builder.lease(lease).build().unwrap();
    let app = app(layer(&locks).store_within(10 * lease), runs.handler());
    let first = sending(&app, pay());
    runs.arrival().await;
    let duplicate = sending(&app, pay());
    eventually("it waits", async || locks.stats().waiting == 1).await;
    // The record is stored, and the answer takes a while. Renewals become due meanwhile, and find
    // no lease.
    store.set_fault(Some(Fault::Mute));
    runs.open();
    sleep(lease / 2).await;
    let acquires = store.calls().acquires;
    store.set_fault(None);
    assert_eq!(first.await.unwrap().header("idempotency-stored"), None);
    assert!(duplicate.await.unwrap().is_replayed());
    // A loss would have sent the duplicate to the store.
    assert_eq!(store.calls().acquires, acquires);
    assert!(store.calls().renewals > 0);
}

/// Fault: the lease counted as lost, and work under a clone of the guard was cancelled.
#[tokio::test(start_paused = true)]
async fn a_confirmation_that_crosses_the_record_is_no_loss() {
    let store = FaultyStore::new();
    let locks = Locks::builder(store.clone()).build().unwrap();
    let (clone, cloned) = oneshot::channel();
    let running = tokio::spawn({
        let (store, locks) = (store.clone(), locks.clone());
        async move {
            let work = async |guard: LockGuard| {
                clone.send(guard).unwrap();
                store.set_fault(Some(Fault::Mute));
                Ok::<_, Infallible>(())
            };
            locks.run_once("webhook/1", WITHIN * 100, work).await
        }
    });
    let guard = cloned.await.unwrap();
    eventually("the record is stored", async || store.calls().releases == 1).await;
    let mut confirming = Box::pin(guard.confirm());
    assert!((&mut confirming).now_or_never().is_none());
    store.set_fault(None);
    // The answer to the record settles the question, too: the lease was held until then.
    confirming.await.unwrap();
    assert!(running.await.unwrap().unwrap().stored);
    guard.confirm().await.unwrap();
    assert!(guard.lost().now_or_never().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_goes_away_while_its_result_is_stored_does_not_repeat_the_work() {
    for fault in [Fault::Mute, Fault::Hang] {
        let store = FaultyStore::new();
        let locks = Locks::builder(store.clone()).build().unwrap();
        let runs = AtomicU64::new(0);
        let work = async |_| {
            sleep(Duration::from_millis(10)).await;
            store.set_fault(Some(fault));
            Ok::<_, Infallible>(runs.fetch_add(1, SeqCst).to_string())
        };
        let leader = locks.run_once("webhook/1", WITHIN * 100, work);
        let follower = locks.run_once("webhook/1", WITHIN * 100, work);
        let goes_away = async {
            assert!(timeout(WITHIN / 2, leader).await.is_err(), "{fault:?}");
            store.set_fault(None);
        };
        let ((), followed) = tokio::join!(goes_away, follower);
        let followed = followed.unwrap();
        assert_eq!(
            (&*followed.value, followed.replayed),
            ("0", true),
            "{fault:?}"
        );
        assert_eq!(runs.load(SeqCst), 1, "{fault:?}");
        eventually("nothing is under way", async || {
            locks.stats() == Stats::default()
        })
        .await;
    }
}

/// A process that ends without waiting for its handlers.
#[test]
fn a_runtime_that_ends_does_not_free_the_key_of_a_begun_request() {
    let (store, runs) = (FaultyStore::new(), Runs::gated());
    let locks = Locks::builder(store.clone()).build().unwrap();
    let app = app(layer(&locks), runs.handler());
    let runtime = || tokio::runtime::Runtime::new().unwrap();
    let ending = runtime();
    ending.block_on(async {
        drop(sending(&app, pay()));
        runs.arrival().await;
    });
    drop(ending);
    // The handler was cut off at an unknown point.
    runtime().block_on(async {
        let seen = Store::inspect(&store, lock_key()).await.unwrap();
        assert!(seen.holder().is_some(), "{seen:?}");
    });
    assert_eq!((runs.begun(), runs.ended()), (1, 0));
}

/// A process that dies has claimed its request for a day, and duplicates were told for all of it
/// that it was under way.
#[test]
fn a_request_that_runs_at_most_once_is_unknown_once_its_process_is_dead() {
    const LEASE: Duration = Duration::from_millis(600);
    const DAY: Duration = Duration::from_secs(24 * 3600);
    let (store, runs) = (FaultyStore::new(), Runs::gated());
    let replica = || Locks::builder(store.clone()).lease(LEASE).build().unwrap();
    let claiming = |locks: &Locks| layer(locks).at_most_once().reject_if_running();
    let runtime = || tokio::runtime::Runtime::new().unwrap();
    let settled = || http::Response::builder().status(201).body("paid").unwrap();

    let dying = runtime();
    dying.block_on(async {
        let app = app(claiming(&replica()), runs.handler());
        drop(sending(&app, pay()));
        runs.arrival().await;
        // Longer than a lease: its process is alive, and extends the claim.
        let elsewhere = replica();
        sleep(2 * LEASE).await;
        let app = crate::web::app(claiming(&elsewhere), runs.handler());
        let busy = send(&app, pay()).await;
        busy.assert_refused(409, "in-progress");
        assert!(busy.header("retry-after").is_some());
        assert!(!elsewhere.settle(KEY, settled(), DAY).await.unwrap());
    });
    drop(dying);
    runtime().block_on(async {
        let locks = replica();
        let app = app(claiming(&locks), runs.handler());
        eventually("the claim counts as abandoned", async || {
            let answer = send(&app, pay()).await;
            answer.problem()["retryable"] == false
        })
        .await;
        let unknown = send(&app, pay()).await;
        unknown.assert_refused(409, "outcome-unknown");
        assert_eq!(unknown.header("retry-after"), None);
        // So it is for a layer whose settings have changed since.
        for changed in [claiming(&locks).retain(2 * DAY), layer(&locks)] {
            let app = crate::web::app(changed, runs.handler());
            let unknown = send(&app, pay()).await;
            unknown.assert_refused(409, "outcome-unknown");
        }
        // Another request is still another request.
        send(&app, pay().uri("/other"))
            .await
            .assert_refused(422, "key-reused");

        // A person finds out that it was paid.
        assert!(locks.settle(KEY, settled(), DAY).await.unwrap());
        let again = send(&app, pay()).await;
        assert_eq!((again.status.as_u16(), again.text()), (201, "paid"));
        assert!(again.is_replayed());
        assert!(!locks.settle(KEY, settled(), DAY).await.unwrap());
        send(&app, pay().uri("/other"))
            .await
            .assert_refused(422, "key-reused");
    });
    assert_eq!((runs.begun(), runs.ended()), (1, 0));
}

/// The program is asked, and its answer takes the place of the claim.
#[test]
fn a_request_whose_process_is_dead_is_answered_by_the_program_if_it_knows() {
    const LEASE: Duration = Duration::from_millis(600);
    let (store, runs) = (FaultyStore::new(), Runs::gated());
    let replica = || Locks::builder(store.clone()).lease(LEASE).build().unwrap();
    let claiming = |locks: &Locks| layer(locks).at_most_once().reject_if_running();
    let runtime = || tokio::runtime::Runtime::new().unwrap();
    let dying = runtime();
    dying.block_on(async {
        let app = app(claiming(&replica()), runs.handler());
        drop(sending(&app, pay()));
        runs.arrival().await;
    });
    drop(dying);
    let asked = Arc::new(AtomicU64::new(0));
    runtime().block_on(async {
        let counted = asked.clone();
        let recalling = claiming(&replica()).recall(move |claim| {
            counted.fetch_add(1, SeqCst);
            assert_eq!(claim.token(), 0, "the claim is that of the dead process");
            let answer = http::Response::builder().status(201).body("paid").unwrap();
            async move { Ok::<_, Infallible>(Some(Recalled::new(claim.fingerprint(), answer))) }
        });
        let app = app(recalling, runs.handler());
        eventually("the claim counts as abandoned", async || {
            let answer = send(&app, pay()).await;
            (answer.status.as_u16(), answer.text()) == (201, "paid") && answer.is_replayed()
        })
        .await;
        // A record by now, which nobody needs to be asked about.
        assert!(send(&app, pay()).await.is_replayed());
    });
    assert_eq!(asked.load(SeqCst), 1);
    assert_eq!((runs.begun(), runs.ended()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_store_that_fails_is_asked_once_for_all_equal_requests() {
    let (store, runs) = (FaultyStore::new(), Runs::free());
    let locks = Locks::builder(store.clone()).build().unwrap();
    let flight = SingleFlightLayer::new(locks, key::name("report").path());
    let app = Router::new()
        .route("/report", get(runs.handler()))
        .route_layer(flight);
    store.set_fault(Some(Fault::Hang));
    let requests: Vec<_> = (0..10)
        .map(|_| sending(&app, Request::get("/report")))
        .collect();
    eventually("the store was asked", async || store.calls().acquires == 1).await;
    store.set_fault(Some(Fault::Unreachable));
    for request in requests {
        assert!(request.await.unwrap().status.is_success());
    }
    assert_eq!((runs.begun(), store.calls().acquires), (10, 1));
}
