//! Handlers that run to their end after the client has gone away.

use std::time::Duration;

use axum::{Router, routing::post};
use http::StatusCode;
use tower::{ServiceBuilder, limit::GlobalConcurrencyLimitLayer};
use tower_distributed_lock::{
    DistributedLockLayer, LockGuard, Locks, OnLoss,
    store::{Fault, FaultyStore},
};

use crate::{
    gate::Gate,
    support::{
        ACCOUNT_7, PATIENCE, Server, eventually, lock, nothing_left, take_away, watchful, within,
    },
};

fn gated(lock: DistributedLockLayer, gate: &Gate) -> Router {
    let gate = gate.clone();
    let handler = post(async move || {
        gate.pass().await;
        "to its end"
    });
    Router::new().route("/accounts/{id}", handler.route_layer(lock.detached()))
}

/// Sends a post, and disconnects once the handler runs.
async fn post_and_leave(server: &Server, gate: &Gate) {
    let mut client = server.connect().await;
    let leaving = tokio::spawn(async move { client.post("/accounts/7").await });
    gate.arrival().await;
    leaving.abort();
    assert!(leaving.await.unwrap_err().is_cancelled());
}

#[tokio::test]
async fn a_client_that_goes_away_ends_neither_the_handler_nor_the_turn() {
    let (locks, gate) = (Locks::in_memory(), Gate::default());
    let server = Server::start(gated(lock(&locks), &gate)).await;
    post_and_leave(&server, &gate).await;

    let next = tokio::spawn(server.post("/accounts/7"));
    eventually("the next one waits", || locks.stats().waiting == 1).await;
    // Time for the server to notice. If the handler were dropped, the next request would begin.
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!((gate.inside(), gate.dropped()), (1, 0));
    gate.open();
    gate.arrival().await;
    assert_eq!((gate.inside(), gate.finished()), (1, 1));
    gate.open();
    assert_eq!(within("the next", next).await.unwrap().text(), "to its end");
    nothing_left(&locks).await;
}

#[tokio::test]
async fn a_waiting_request_is_not_detached_yet() {
    let (locks, gate) = (Locks::in_memory(), Gate::default());
    let server = Server::start(gated(lock(&locks), &gate)).await;
    let held = locks.lock(ACCOUNT_7).await.unwrap();
    let mut client = server.connect().await;
    let leaving = tokio::spawn(async move { client.post("/accounts/7").await });
    eventually("the request waits", || locks.stats().waiting == 1).await;
    leaving.abort();
    eventually("the request has left", || locks.stats().waiting == 0).await;
    drop(held);
    nothing_left(&locks).await;
    assert_eq!(gate.finished() + gate.dropped(), 0);
}

#[tokio::test]
async fn a_lost_lease_cancels_the_handler_of_a_client_that_has_gone() {
    let (store, gate) = (FaultyStore::new(), Gate::default());
    let locks = watchful(&store);
    let server = Server::start(gated(lock(&locks), &gate)).await;
    post_and_leave(&server, &gate).await;
    take_away(&store).await;
    eventually("the handler is dropped", || gate.dropped() == 1).await;
    nothing_left(&locks).await;
}

#[tokio::test]
async fn a_lost_lease_is_409_in_both_modes() {
    for loss in [OnLoss::Cancel, OnLoss::Finish] {
        let (store, gate) = (FaultyStore::new(), Gate::default());
        let locks = watchful(&store);
        let server = Server::start(gated(lock(&locks).on_lease_loss(loss), &gate)).await;
        let answer = tokio::spawn(server.post("/accounts/7"));
        gate.arrival().await;
        take_away(&store).await;
        eventually("the loss is told", || locks.stats().leases == 0).await;
        if loss == OnLoss::Finish {
            assert_eq!(gate.inside(), 1);
            gate.open();
        }
        let answer = within("the answer", answer).await.unwrap();
        assert_eq!(answer.status, StatusCode::CONFLICT);
        let finished = usize::from(loss == OnLoss::Finish);
        eventually("the handler has ended", || gate.inside() == 0).await;
        assert_eq!((gate.finished(), gate.dropped()), (finished, 1 - finished));
    }
}

/// Asserts that closing waits for the handler at the gate.
async fn assert_closing_waits(locks: &Locks, gate: &Gate) {
    let closing = tokio::spawn({
        let locks = locks.clone();
        async move { locks.close(PATIENCE).await }
    });
    eventually("closing has begun", || locks.is_closed()).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!closing.is_finished());
    gate.open();
    within("closing", closing).await.unwrap();
}

#[tokio::test]
async fn closing_waits_for_handlers_whose_clients_have_gone() {
    let (locks, gate) = (Locks::in_memory(), Gate::default());
    let server = Server::start(gated(lock(&locks), &gate)).await;
    post_and_leave(&server, &gate).await;
    assert_closing_waits(&locks, &gate).await;
    assert_eq!(gate.finished(), 1);
}

#[tokio::test]
async fn closing_waits_for_a_handler_that_failed_open() {
    let (store, gate) = (FaultyStore::new(), Gate::default());
    let locks = Locks::builder(store.clone()).build().unwrap();
    store.set_fault(Some(Fault::Unreachable));
    let server = Server::start(gated(lock(&locks).fail_open(), &gate)).await;
    post_and_leave(&server, &gate).await;
    assert_closing_waits(&locks, &gate).await;
    assert_eq!((gate.finished(), gate.dropped()), (1, 0));
}

#[tokio::test]
async fn a_panic_is_passed_on_and_frees_the_key() {
    let locks = Locks::in_memory();
    let handler = post(async |guard: LockGuard| {
        assert!(!guard.is_held(), "this panic is part of the test");
    });
    let app = Router::new().route(
        "/accounts/{id}",
        handler.route_layer(lock(&locks).detached()),
    );
    let server = Server::start(app).await;
    let mut client = server.connect().await;
    client.post("/accounts/7").await.unwrap_err();
    nothing_left(&locks).await;
}

#[tokio::test]
async fn a_request_that_is_not_locked_is_not_detached() {
    let (locks, gate) = (Locks::in_memory(), Gate::default());
    let handler = {
        let gate = gate.clone();
        post(async move || gate.pass().await)
    };
    let nothing = lock(&locks).methods([]).detached();
    let app = Router::new().route("/accounts/{id}", handler);
    // The layer stands alone, and then inside of a layer that has locked the request.
    for app in [
        app.clone().route_layer(nothing.clone()),
        app.route_layer(nothing).route_layer(lock(&locks)),
    ] {
        let server = Server::start(app).await;
        let before = gate.dropped();
        post_and_leave(&server, &gate).await;
        eventually("the handler is dropped", || gate.dropped() == before + 1).await;
        nothing_left(&locks).await;
    }
}

#[tokio::test]
async fn the_service_that_was_made_ready_is_called() {
    let (locks, gate) = (Locks::in_memory(), Gate::default());
    let handler = {
        let gate = gate.clone();
        post(async move || gate.pass().await)
    };
    // A concurrency limit panics on a call without readiness.
    let layers = ServiceBuilder::new()
        .layer(lock(&locks).detached())
        .layer(GlobalConcurrencyLimitLayer::new(1));
    let app = Router::new().route("/accounts/{id}", handler.route_layer(layers));
    let server = Server::start(app).await;
    for path in ["/accounts/7", "/accounts/8"] {
        let answer = tokio::spawn(server.post(path));
        gate.arrival().await;
        gate.open();
        assert_eq!(
            within("the answer", answer).await.unwrap().status,
            StatusCode::OK
        );
    }
}
