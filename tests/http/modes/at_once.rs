//! Requests that arrive while the store is asked on behalf of another one.

use std::{pin::Pin, sync::Arc, time::Duration};

use axum::{Router, body::Body, routing::any};
use futures_util::future::join_all;
use http::{Request, StatusCode};
use tokio::{
    sync::Barrier,
    time::{Instant, sleep, timeout},
};
use tower::ServiceExt;
use tower_distributed_lock::{
    DistributedLockLayer, Locks,
    store::{Fault, FaultyStore},
};

use super::gated;
use crate::{
    gate::Gate,
    support::{ACCOUNT_7, PATIENCE, lock},
};

type Asking = Pin<Box<dyn Future<Output = StatusCode>>>;

fn read(app: &Router) -> Asking {
    let request = Request::get("/accounts/7").body(Body::empty()).unwrap();
    let answer = app.clone().oneshot(request);
    Box::pin(async move { answer.await.unwrap().status() })
}

/// Sends four requests at once, whose handlers wait for each other. Returns their answers.
async fn four_at_once(store: &FaultyStore, layer: DistributedLockLayer) -> Vec<StatusCode> {
    let inside = Arc::new(Barrier::new(4));
    let handler = async move || {
        inside.wait().await;
    };
    let app = Router::new()
        .route("/accounts/{id}", any(handler))
        .route_layer(layer);
    store.set_fault(Some(Fault::Mute));
    let mut asking = join_all((0..4).map(|_| read(&app)));
    let none_yet = timeout(Duration::from_millis(1), &mut asking).await;
    store.set_fault(None);
    assert!(
        none_yet.is_err(),
        "the store has not answered: {none_yet:?}"
    );
    let answers = timeout(PATIENCE, asking).await;
    answers.expect("a handler waits for one that was refused")
}

/// Fault: 200, 423, 423, 423.
#[tokio::test(start_paused = true)]
async fn a_rejecting_layer_lets_in_as_many_as_there_are_free_permits() {
    let store = FaultyStore::new();
    let locks = Locks::builder(store.clone()).build().unwrap();
    let layer = lock(&locks).permits(4).reject_if_held();
    assert_eq!(four_at_once(&store, layer).await, [StatusCode::OK; 4]);
}

/// Fault: 200, 423, 423, 423.
#[tokio::test(start_paused = true)]
async fn a_rejecting_layer_lets_in_all_reads_of_a_free_key() {
    let store = FaultyStore::new();
    let locks = Locks::builder(store.clone()).build().unwrap();
    let layer = lock(&locks).shared_when_safe().reject_if_held();
    assert_eq!(four_at_once(&store, layer).await, [StatusCode::OK; 4]);
}

/// Fault: the read waited for its limit, and was answered with 423.
#[tokio::test(start_paused = true)]
async fn a_read_beside_others_fails_open_at_once() {
    let (store, gate) = (FaultyStore::new(), Gate::default());
    let locks = Locks::builder(store.clone()).build().unwrap();
    let app = gated(lock(&locks).shared_when_safe().fail_open(), &gate);
    let reading = locks.lock(ACCOUNT_7).shared().await.unwrap();
    store.set_fault(Some(Fault::Unreachable));
    // A renewal has failed by now.
    sleep(Duration::from_secs(11)).await;
    gate.open();
    let began = Instant::now();
    assert_eq!(read(&app).await, StatusCode::OK);
    assert_eq!(began.elapsed(), Duration::ZERO);
    assert!(reading.is_held());
}
