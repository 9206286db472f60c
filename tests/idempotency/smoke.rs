use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::{Router, body::Body, http::Request, routing::post};
use tower::ServiceExt;
use tower_distributed_lock::{IdempotencyLayer, Locks, key, store::MemoryStore};

#[tokio::test(start_paused = true)]
async fn fifty_duplicates_run_once_over_two_replicas() {
    let store = MemoryStore::new();
    let runs = Arc::new(AtomicU64::new(0));
    let app = || {
        let locks = Locks::builder(store.clone()).build().unwrap();
        let runs = runs.clone();
        Router::new()
            .route(
                "/pay",
                post(move |body: String| async move {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    let run = runs.fetch_add(1, Ordering::SeqCst);
                    (axum::http::StatusCode::CREATED, format!("{body} {run}"))
                }),
            )
            .route_layer(IdempotencyLayer::new(locks, key::name("everybody")))
    };
    let replicas = [app(), app()];
    let request = |body: &'static str| {
        Request::post("/pay")
            .header("idempotency-key", "k")
            .body(Body::from(body))
            .unwrap()
    };
    let answers = (0..50).map(|at| replicas[at % 2].clone().oneshot(request("five")));
    let answers = futures_util::future::join_all(answers).await;
    let mut replayed = 0;
    for answer in answers {
        let answer = answer.unwrap();
        assert_eq!(answer.status(), 201);
        replayed += u64::from(answer.headers().contains_key("idempotent-replayed"));
        let body = axum::body::to_bytes(answer.into_body(), 100).await.unwrap();
        assert_eq!(body, "five 0");
    }
    assert_eq!((runs.load(Ordering::SeqCst), replayed), (1, 49));
    let other = replicas[0].clone().oneshot(request("six")).await.unwrap();
    assert_eq!(other.status(), 422);
    let calls = store.calls();
    assert_eq!((calls.renewals, calls.releases), (0, 1));
}
