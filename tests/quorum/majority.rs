//! Without a majority no key is granted and leases are lost in time. With the majority back, both
//! work again.

use std::time::Duration;

use axum::{Router, body::Body, routing::post};
use http::{Request, StatusCode};
use tokio::time::Instant;
use tower::ServiceExt;
use tower_distributed_lock::{DistributedLockLayer, ErrorKind, LockGuard, Loss, key};

use crate::{
    Fleet, LEASE, NODE_TIMEOUT,
    support::{eventually, words::*},
};

async fn post_to(app: &Router) -> StatusCode {
    let request = Request::post("/orders/42").body(Body::empty()).unwrap();
    app.clone().oneshot(request).await.unwrap().status()
}

#[tokio::test]
async fn without_a_majority_nothing_is_granted_until_the_nodes_are_back() {
    let mut fleet = Fleet::start_not_young(3).await;
    let locks = fleet.locks();
    let lock = DistributedLockLayer::new(locks.clone(), key::name("order").param("id"))
        .wait(Duration::from_secs(2));
    let app = Router::new()
        .route("/orders/{id}", post(async |_: LockGuard| "done"))
        .route_layer(lock);
    assert_eq!(post_to(&app).await, StatusCode::OK);

    let guard = locks.lock("k").await.unwrap();
    fleet.servers[0].kill();
    fleet.servers[2].kill();
    let killed = Instant::now();
    let loss = guard.lost().await;
    assert_eq!(loss, Loss::Expired);
    // The rest is for a machine that is busy.
    assert!(killed.elapsed() < LEASE + Duration::from_secs(3));
    assert!(!guard.is_held());

    // A machine that is busy slows down some of the requests.
    let mut fastest = Duration::MAX;
    for _ in 0..3 {
        let asked = Instant::now();
        assert_eq!(post_to(&app).await, StatusCode::SERVICE_UNAVAILABLE);
        fastest = fastest.min(asked.elapsed());
    }
    assert!(fastest < 2 * NODE_TIMEOUT, "{fastest:?}");
    let error = locks.lock("k/2").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    let words = "no quorum: 2 of 3 nodes unreachable";
    assert!(error.to_string().starts_with(words), "{error}");

    fleet.servers[0].restart().await;
    fleet.servers[2].restart().await;
    eventually("it works again", async || {
        post_to(&app).await == StatusCode::OK
    })
    .await;
    drop(guard);
    locks.lock("k").await.unwrap().release().await.unwrap();
    eventually("nothing is left", async || fleet.is_empty().await).await;
    fleet
        .store
        .take(&crate::support::words::key("k"), owner())
        .await;
}
