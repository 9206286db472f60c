//! The metrics of the layers.

use std::time::Duration;

use axum::{Router, body::Body, routing::post};
use http::{Request, StatusCode};
use tower::ServiceExt;
use tower_distributed_lock::{
    DistributedLockLayer, IdempotencyLayer, Locks, SingleFlightLayer, key,
    store::{Fault, FaultyStore},
};

use crate::scrape::Scrape;

async fn send(app: &Router, path: &str, key: &str, body: &'static str) -> StatusCode {
    let request = Request::post(path).header("idempotency-key", key);
    let request = request.body(Body::from(body)).unwrap();
    app.clone().oneshot(request).await.unwrap().status()
}

#[tokio::test(start_paused = true)]
async fn refusals_are_counted_by_reason_and_requests_without_their_lock() {
    let scrape = Scrape::new();
    let _recording = scrape.start();
    let store = FaultyStore::new();
    let locks = Locks::builder(store.clone()).build().unwrap();
    let lock = DistributedLockLayer::new(locks.clone(), key::name("account").param("id"));
    let app = |lock: DistributedLockLayer| {
        let routes = Router::new().route("/accounts/{id}", post(|| async {}));
        routes.route_layer(lock)
    };
    let (strict, open) = (app(lock.clone().reject_if_held()), app(lock.fail_open()));
    let held = locks.lock("account,id=7").await.unwrap();
    assert_eq!(send(&strict, "/accounts/7", "k", "").await, 423);
    drop(held);
    store.set_fault(Some(Fault::Unreachable));
    assert_eq!(send(&strict, "/accounts/8", "k", "").await, 503);
    assert_eq!(send(&open, "/accounts/8", "k", "").await, 200);
    assert_eq!(send(&open, "/accounts/8", "k", "").await, 200);
    scrape.expect(&[
        (r#"refusals_total{reason="held"}"#, 1.0),
        (r#"refusals_total{reason="store-unreachable"}"#, 1.0),
        ("failed_open_total", 2.0),
    ]);
}

#[tokio::test(start_paused = true)]
async fn replays_conflicts_and_records_are_counted() {
    let scrape = Scrape::new();
    let _recording = scrape.start();
    let store = FaultyStore::new();
    let locks = Locks::builder(store.clone()).build().unwrap();
    let once =
        IdempotencyLayer::new(locks.clone(), key::name("all")).store_within(Duration::from_secs(1));
    let once = once.max_request(40);
    let failing = store.clone();
    let handler = move |body: String| {
        let failing = failing.clone();
        async move {
            if body == "the store fails meanwhile" {
                failing.set_fault(Some(Fault::Unreachable));
            }
            match &*body {
                "is cut off" => StatusCode::REQUEST_TIMEOUT,
                _ => StatusCode::OK,
            }
        }
    };
    let app = Router::new().route("/", post(handler)).route_layer(once);
    assert_eq!(send(&app, "/", "a", "one").await, 200);
    assert_eq!(send(&app, "/", "a", "one").await, 200);
    assert_eq!(send(&app, "/", "a", "two").await, 422);
    assert_eq!(
        send(
            &app,
            "/",
            "c",
            "longer than the limit is, because of its many words"
        )
        .await,
        413
    );
    assert_eq!(send(&app, "/", "d", "is cut off").await, 408);
    assert_eq!(send(&app, "/", "d", "is cut off").await, 409);
    let retain = Duration::from_secs(60);
    for replayed in [false, true] {
        let once = locks
            .run_once("job", retain, async |_| Ok::<(), ()>(()))
            .await;
        assert_eq!(once.unwrap().replayed, replayed);
    }
    assert_eq!(send(&app, "/", "b", "the store fails meanwhile").await, 200);
    scrape.expect(&[
        (r#"idempotency_total{outcome="first"}"#, 4.0),
        (r#"idempotency_total{outcome="replayed"}"#, 2.0),
        (r#"idempotency_total{outcome="conflict"}"#, 1.0),
        (r#"idempotency_total{outcome="unknown"}"#, 1.0),
        (r#"idempotency_total{outcome="failed"}"#, 1.0),
        (r#"records_total{result="kept"}"#, 3.0),
        (r#"records_total{result="unknown"}"#, 1.0),
        (r#"refusals_total{reason="key-reused"}"#, 1.0),
    ]);
}

#[tokio::test(start_paused = true)]
async fn single_flights_are_counted_by_role() {
    let scrape = Scrape::new();
    let _recording = scrape.start();
    let flight = SingleFlightLayer::new(Locks::in_memory(), key::request().path());
    let slow = axum::routing::get(|| tokio::time::sleep(Duration::from_millis(100)));
    let app = Router::new().route("/report", slow).route_layer(flight);
    let get = || {
        let request = Request::get("/report").body(Body::empty()).unwrap();
        app.clone().oneshot(request)
    };
    let (one, other) = tokio::join!(get(), get());
    assert_eq!(
        (one.unwrap().status(), other.unwrap().status()),
        (StatusCode::OK, StatusCode::OK)
    );
    scrape.expect(&[
        (r#"single_flight_total{role="lead"}"#, 1.0),
        (r#"single_flight_total{role="follow"}"#, 1.0),
    ]);
}
