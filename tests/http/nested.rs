//! Several locks around one handler.

use axum::{
    Router,
    body::Body,
    extract::Request,
    middleware::{Next, from_fn},
    response::Response,
    routing::post,
};
use http::StatusCode;
use tower::ServiceExt;
use tower_distributed_lock::{
    DistributedLockLayer, LockGuard, Locks, OnLoss,
    key::{self, RequestKey},
    lock::AllGuards,
    store::FaultyStore,
};

use crate::{
    gate::Gate,
    support::{ACCOUNT_7, Server, account, eventually, nothing_left, take_away, watchful, within},
};

fn lock(locks: &Locks, key: RequestKey) -> DistributedLockLayer {
    DistributedLockLayer::new(locks.clone(), key)
}

#[tokio::test]
async fn two_layers_of_one_key_share_one_turn() {
    let store = FaultyStore::new();
    let locks = Locks::builder(store.clone()).build().unwrap();
    // Without a shared turn, the second instance of the fleet would wait for the request that it
    // serves.
    let other = Locks::builder(store.clone()).build().unwrap();
    let inner = lock(&other, account()).name("inner");
    let outer = lock(&locks, account()).name("outer");
    let set: [fn(DistributedLockLayer) -> DistributedLockLayer; 5] = [
        |layer| layer,
        DistributedLockLayer::reject_if_held,
        DistributedLockLayer::confirm_before_response,
        DistributedLockLayer::hold_until_body_ends,
        |layer| layer.on_lease_loss(OnLoss::Finish),
    ];
    for (set_inner, set_outer) in set
        .iter()
        .flat_map(|one| set.iter().map(move |other| (one, other)))
    {
        let handler = async |guards: AllGuards| {
            let token = |name| guards.named(name).unwrap().token();
            assert_eq!(token("inner"), token("outer"));
            "one turn"
        };
        let app = Router::new()
            .route("/accounts/{id}", post(handler))
            .route_layer(set_inner(inner.clone()))
            .route_layer(set_outer(outer.clone()));
        let before = store.calls().acquires;
        let answer = Server::start(app).await.post("/accounts/7").await;
        assert_eq!((answer.status, answer.text()), (StatusCode::OK, "one turn"));
        assert_eq!(store.calls().acquires, before + 1);
        nothing_left(&locks).await;
    }
    assert!(store.is_empty());
}

#[tokio::test]
async fn two_layers_of_different_keys_hold_both() {
    let (locks, gate) = (Locks::in_memory(), Gate::default());
    let handler = {
        let gate = gate.clone();
        post(async move || gate.pass().await)
    };
    let app = Router::new()
        .route("/tenants/{tenant}/accounts/{id}", handler)
        .route_layer(lock(&locks, account()))
        .route_layer(lock(&locks, key::name("tenant").param("tenant")));
    let server = Server::start(app).await;
    let answer = tokio::spawn(server.post("/tenants/a/accounts/7"));
    gate.arrival().await;
    for held in [ACCOUNT_7, "tenant,tenant=a"] {
        assert!(locks.lock(held).now().await.unwrap().is_none());
    }
    gate.open();
    assert_eq!(
        within("the answer", answer).await.unwrap().status,
        StatusCode::OK
    );
    nothing_left(&locks).await;
}

#[tokio::test]
async fn the_inner_layers_body_keeps_the_turn_that_both_layers_share() {
    let locks = Locks::in_memory();
    let app = Router::new()
        .route("/accounts/{id}", post(|| async { "a body" }))
        .route_layer(lock(&locks, account()).hold_until_body_ends())
        .route_layer(
            lock(&locks, account())
                .reject_if_held()
                .confirm_before_response(),
        );
    let request = Request::post("/accounts/7").body(Body::empty()).unwrap();
    let response = app.oneshot(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    assert!(locks.lock(ACCOUNT_7).now().await.unwrap().is_none());
    drop(response);
    nothing_left(&locks).await;
}

#[tokio::test]
async fn a_lost_lease_is_409_through_both_layers() {
    for (inside, outside) in [
        (OnLoss::Cancel, OnLoss::Finish),
        (OnLoss::Finish, OnLoss::Cancel),
    ] {
        let (store, gate) = (FaultyStore::new(), Gate::default());
        let locks = watchful(&store);
        let handler = {
            let gate = gate.clone();
            post(async move || gate.pass().await)
        };
        let app = Router::new()
            .route("/accounts/{id}", handler)
            .route_layer(lock(&locks, account()).on_lease_loss(inside))
            .route_layer(lock(&locks, account()).on_lease_loss(outside));
        let server = Server::start(app).await;
        let answer = tokio::spawn(server.post("/accounts/7"));
        gate.arrival().await;
        take_away(&store).await;
        let answer = within("the answer", answer).await.unwrap();
        assert_eq!(answer.status, StatusCode::CONFLICT);
        // A single layer that cancels is enough.
        assert_eq!((gate.dropped(), gate.finished()), (1, 0));
    }
}

#[tokio::test]
async fn a_turn_that_has_ended_is_not_entered_again() {
    async fn release(guard: LockGuard, request: Request, next: Next) -> Response {
        guard.release().await.unwrap();
        next.run(request).await
    }
    let (locks, gate) = (Locks::in_memory(), Gate::default());
    let handler = {
        let gate = gate.clone();
        post(async move |guard: LockGuard| {
            assert!(guard.is_held());
            gate.pass().await;
        })
    };
    let app = Router::new()
        .route("/accounts/{id}", handler)
        .route_layer(lock(&locks, account()))
        .route_layer(from_fn(release))
        .route_layer(lock(&locks, account()));
    let server = Server::start(app).await;
    let answer = tokio::spawn(server.post("/accounts/7"));
    gate.arrival().await;
    assert!(locks.lock(ACCOUNT_7).now().await.unwrap().is_none());
    gate.open();
    assert_eq!(
        within("the answer", answer).await.unwrap().status,
        StatusCode::OK
    );
    eventually("nothing left", || locks.stats().keys == 0).await;
}
