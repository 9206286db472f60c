//! Layers that reject requests for held keys do not refuse the next request of the same client.

use std::time::Duration;

use axum::{Router, body::Body, error_handling::HandleErrorLayer, routing::post};
use http::{Request, StatusCode};
use tokio::time::Instant;
use tower::{ServiceBuilder, ServiceExt};
use tower_distributed_lock::{
    DistributedLockLayer, LockKey, Locks,
    store::{Fault, FaultyStore, Store},
};

use crate::support::{ACCOUNT_7, Server, lock};

fn two_instances(store: &FaultyStore) -> [Locks; 2] {
    [(); 2].map(|()| Locks::builder(store.clone()).build().unwrap())
}

async fn is_free(store: &FaultyStore) -> bool {
    let key = LockKey::new(ACCOUNT_7).unwrap();
    store.inspect(key).await.unwrap().holder().is_none()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_response_goes_out_after_the_key_is_free_in_the_store() {
    let store = FaultyStore::new();
    let mut clients = Vec::new();
    let mut servers = Vec::new();
    for locks in two_instances(&store) {
        let lock = lock(&locks).reject_if_held();
        let app = Router::new().route("/accounts/{id}", post(|| async {}).route_layer(lock));
        servers.push(Server::start(app).await);
        clients.push(servers.last().unwrap().connect().await);
    }
    // The requests alternate between two instances, which share nothing but the store.
    for at in 0..400 {
        let answer = clients[at % 2].post("/accounts/7").await.unwrap();
        assert_eq!(answer.status, StatusCode::OK, "request {at}");
        assert!(is_free(&store).await, "request {at}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_inner_error_waits_for_the_release_too() {
    let store = FaultyStore::new();
    let [locks, _] = two_instances(&store);
    let layers = ServiceBuilder::new()
        .layer(HandleErrorLayer::new(async |_: tower::BoxError| {
            StatusCode::GATEWAY_TIMEOUT
        }))
        .layer(lock(&locks).reject_if_held())
        .filter(|_: Request<Body>| Err::<Request<Body>, _>("always fails"));
    let app = Router::new().route("/accounts/{id}", post(|| async {}).route_layer(layers));
    let server = Server::start(app).await;
    let mut client = server.connect().await;
    for at in 0..200 {
        let answer = client.post("/accounts/7").await.unwrap();
        assert_eq!(answer.status, StatusCode::GATEWAY_TIMEOUT);
        assert!(is_free(&store).await, "request {at}");
    }
}

/// Measures the time of a response if the store hangs as soon as the handler runs.
async fn with_a_store_that_hangs(
    set: impl FnOnce(DistributedLockLayer) -> DistributedLockLayer,
) -> Duration {
    let store = FaultyStore::new();
    let [locks, _] = two_instances(&store);
    let handler = post(async move || store.set_fault(Some(Fault::Hang)));
    let lock = set(lock(&locks));
    let app = Router::new().route("/accounts/{id}", handler.route_layer(lock));
    let request = Request::post("/accounts/7").body(Body::empty()).unwrap();
    let began = Instant::now();
    let response = app.oneshot(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    began.elapsed()
}

#[tokio::test(start_paused = true)]
async fn the_response_waits_for_the_release_but_not_for_ever() {
    let waited = with_a_store_that_hangs(DistributedLockLayer::reject_if_held).await;
    assert!(waited >= Duration::from_secs(1), "{waited:?}");
    assert!(waited <= Duration::from_secs(3), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn a_layer_that_waits_does_not_delay_the_response_by_the_release() {
    let waited = with_a_store_that_hangs(|lock| lock).await;
    assert_eq!(waited, Duration::ZERO);
}
