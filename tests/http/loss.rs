//! Leases that are lost while a handler runs, or before the response is sent.

use std::time::Duration;

use axum::{Extension, Router, extract::Request, routing::post};
use http::StatusCode;
use tokio::sync::mpsc;
use tower_distributed_lock::{
    DistributedLockLayer, LockGuard, LockKey, Locks, Loss, OnLoss,
    lock::Fenced,
    store::{Fault, FaultyStore, Store},
};

use crate::{
    gate::Gate,
    support::{
        ACCOUNT_7, Answer, Server, eventually, lock, nothing_left, take_away, watchful, within,
    },
};

fn assert_lost(answer: &Answer) {
    assert_eq!(answer.status, StatusCode::CONFLICT, "{answer:?}");
    assert_eq!(answer.reason(), "lease-lost");
    assert_eq!(answer.json()["retryable"], false);
    assert_eq!(answer.header("retry-after"), None);
}

fn gated(locks: &Locks, gate: &Gate, loss: OnLoss) -> Router {
    let gate = gate.clone();
    let lock = lock(locks).on_lease_loss(loss);
    Router::new().route(
        "/accounts/{id}",
        post(async move || gate.pass().await).route_layer(lock),
    )
}

#[tokio::test]
async fn a_lost_lease_drops_the_handler_and_is_409() {
    let (store, gate) = (FaultyStore::new(), Gate::default());
    let locks = watchful(&store);
    let server = Server::start(gated(&locks, &gate, OnLoss::Cancel)).await;
    let answer = tokio::spawn(server.post("/accounts/7"));
    gate.arrival().await;
    take_away(&store).await;
    assert_lost(&within("the answer", answer).await.unwrap());
    assert_eq!((gate.dropped(), gate.finished()), (1, 0));
    nothing_left(&locks).await;
}

#[tokio::test]
async fn a_store_that_hangs_past_the_lease_causes_a_409() {
    let (store, gate) = (FaultyStore::new(), Gate::default());
    let builder = Locks::builder(store.clone()).lease(Duration::from_millis(900));
    let locks = builder.build().unwrap();
    let server = Server::start(gated(&locks, &gate, OnLoss::Cancel)).await;
    let answer = tokio::spawn(server.post("/accounts/7"));
    gate.arrival().await;
    store.set_fault(Some(Fault::Hang));
    assert_lost(&within("the answer", answer).await.unwrap());
    assert_eq!((gate.dropped(), gate.finished()), (1, 0));
}

#[tokio::test]
async fn a_handler_that_may_finish_runs_to_its_end_and_the_client_gets_409() {
    let (store, gate) = (FaultyStore::new(), Gate::default());
    let locks = watchful(&store);
    let (told, mut loss) = mpsc::unbounded_channel();
    let handler = {
        let gate = gate.clone();
        post(async move |guard: LockGuard| {
            let watching = async { guard.lost().await };
            let (loss, ()) = tokio::join!(watching, gate.pass());
            told.send(loss).unwrap();
        })
    };
    let lock = lock(&locks);
    let app = Router::new().route(
        "/accounts/{id}",
        handler.route_layer(lock.on_lease_loss(OnLoss::Finish)),
    );
    let server = Server::start(app).await;
    let answer = tokio::spawn(server.post("/accounts/7"));
    gate.arrival().await;
    take_away(&store).await;
    // The key is free for others, and the handler still runs and is notified of the loss.
    let next = within("the key", locks.lock(ACCOUNT_7)).await.unwrap();
    assert_eq!(gate.inside(), 1);
    gate.open();
    assert_lost(&within("the answer", answer).await.unwrap());
    assert_eq!((gate.dropped(), gate.finished()), (0, 1));
    assert_eq!(loss.recv().await, Some(Loss::NotOurs));
    assert!(next.is_held());
}

#[tokio::test]
async fn a_fenced_response_is_sent_although_the_lease_was_lost() {
    let store = FaultyStore::new();
    let locks = watchful(&store);
    let handler = post(async |guard: LockGuard| {
        guard.lost().await;
        (Extension(Fenced), "written with its token")
    });
    for hold in [false, true] {
        let mut lock = lock(&locks)
            .on_lease_loss(OnLoss::Finish)
            .confirm_before_response();
        if hold {
            lock = lock.hold_until_body_ends();
        }
        let app = Router::new().route("/accounts/{id}", handler.clone().route_layer(lock));
        let server = Server::start(app).await;
        let answer = tokio::spawn(server.post("/accounts/7"));
        eventually("the key is held", || locks.stats().leases == 1).await;
        take_away(&store).await;
        let answer = within("the answer", answer).await.unwrap();
        assert_eq!(
            (answer.status, answer.text()),
            (StatusCode::OK, "written with its token")
        );
    }
}

/// Runs a handler whose key is deleted, and which ends before any renewal.
async fn deleted_under_a_short_handler(
    set: impl FnOnce(DistributedLockLayer) -> DistributedLockLayer,
) -> Answer {
    let store = FaultyStore::new();
    let locks = Locks::builder(store.clone()).build().unwrap();
    let deleting = store.clone();
    let handler = post(async move || take_away(&deleting).await);
    let lock = set(lock(&locks));
    let app = Router::new().route("/accounts/{id}", handler.route_layer(lock));
    let answer = Server::start(app).await.post("/accounts/7").await;
    nothing_left(&locks).await;
    answer
}

#[tokio::test]
async fn a_key_deleted_during_a_short_handler_is_noticed_if_the_layer_confirms() {
    let unnoticed = deleted_under_a_short_handler(|lock| lock).await;
    assert_eq!(unnoticed.status, StatusCode::OK);

    let confirm = DistributedLockLayer::confirm_before_response;
    assert_lost(&deleted_under_a_short_handler(confirm).await);
    assert_lost(&deleted_under_a_short_handler(|lock| confirm(lock).hold_until_body_ends()).await);
    // A layer that awaits the release anyway confirms at no extra cost.
    assert_lost(&deleted_under_a_short_handler(|lock| lock.reject_if_held()).await);
}

#[tokio::test]
async fn a_response_waits_for_the_confirmation_of_the_lease() {
    let store = FaultyStore::new();
    let locks = Locks::builder(store.clone()).build().unwrap();
    let faulty = store.clone();
    let handler = post(async move |request: Request| {
        if request.uri().query() == Some("fault") {
            faulty.set_fault(Some(Fault::Unreachable));
        }
    });
    let lock = lock(&locks).confirm_before_response();
    let app = Router::new().route("/accounts/{id}", handler.route_layer(lock));
    let server = Server::start(app).await;
    assert_eq!(server.post("/accounts/7").await.status, StatusCode::OK);
    assert_lost(&server.post("/accounts/7?fault").await);
}

#[tokio::test]
async fn a_turn_that_the_handler_released_itself_is_not_lost() {
    let store = FaultyStore::new();
    let locks = watchful(&store);
    let handler = post(async |guard: LockGuard| {
        guard.release().await.unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
        "done without it"
    });
    let layer = lock(&locks);
    let confirmed = layer.clone().confirm_before_response();
    for lock in [
        layer.clone(),
        layer.on_lease_loss(OnLoss::Finish),
        confirmed.clone(),
        confirmed.clone().reject_if_held(),
        confirmed.hold_until_body_ends(),
    ] {
        let app = Router::new().route("/accounts/{id}", handler.clone().route_layer(lock));
        let server = Server::start(app).await;
        let (first, second) = tokio::join!(server.post("/accounts/7"), server.post("/accounts/7"));
        assert_eq!(
            (first.status, second.status),
            (StatusCode::OK, StatusCode::OK)
        );
        nothing_left(&locks).await;
    }
}

#[tokio::test]
async fn a_lease_lost_after_a_turn_was_released_is_lost_for_the_next_turn() {
    let (store, gate) = (FaultyStore::new(), Gate::default());
    let locks = watchful(&store);
    let handler = {
        let gate = gate.clone();
        post(async move |guard: LockGuard, request: Request| {
            gate.pass().await;
            if request.uri().query() == Some("release") {
                guard.release().await.unwrap();
            }
            gate.pass().await;
        })
    };
    let app = Router::new().route("/accounts/{id}", handler.route_layer(lock(&locks)));
    let server = Server::start(app).await;
    let releases = tokio::spawn(server.post("/accounts/7?release"));
    gate.arrival().await;
    let next = tokio::spawn(server.post("/accounts/7"));
    eventually("the next one waits", || locks.stats().waiting == 1).await;
    // The first request has ended its turn, and the second has its turn under the same lease.
    gate.open();
    gate.arrival().await;
    gate.arrival().await;
    take_away(&store).await;
    assert_lost(&within("the next one", next).await.unwrap());
    gate.open();
    let released = within("the first one", releases).await.unwrap();
    assert_eq!(released.status, StatusCode::OK);
}

#[tokio::test]
async fn each_layer_has_its_own_max_hold() {
    let (store, gate) = (FaultyStore::new(), Gate::default());
    let locks = watchful(&store);
    let brief = lock(&locks).max_hold(Duration::from_millis(200));
    let router = Router::new().route(
        "/accounts/{id}",
        post({
            let gate = gate.clone();
            async move || gate.pass().await
        })
        .route_layer(brief),
    );
    let server = Server::start(router).await;
    assert_lost(&within("the answer", server.post("/accounts/7")).await);
    assert_eq!((gate.dropped(), gate.finished()), (1, 0));
    nothing_left(&locks).await;
}

#[tokio::test]
async fn each_layer_has_its_own_lease() {
    let (store, gate) = (FaultyStore::new(), Gate::default());
    let locks = Locks::builder(store.clone()).build().unwrap();
    let long = lock(&locks).lease(Duration::from_secs(3600));
    let router = Router::new().route(
        "/accounts/{id}",
        post({
            let gate = gate.clone();
            async move || gate.pass().await
        })
        .route_layer(long),
    );
    let server = Server::start(router).await;
    let answer = tokio::spawn(server.post("/accounts/7"));
    gate.arrival().await;
    let key = LockKey::new(ACCOUNT_7).unwrap();
    let holder = store.inspect(key).await.unwrap().holder().cloned().unwrap();
    assert!(holder.remaining > Duration::from_secs(3000), "{holder:?}");
    gate.open();
    within("the answer", answer).await.unwrap();

    let router = Router::new().route(
        "/accounts/{id}",
        post(async || ()).route_layer(lock(&locks).lease(Duration::ZERO)),
    );
    let server = Server::start(router).await;
    let answer = within("the answer", server.post("/accounts/7")).await;
    assert_eq!(answer.status, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(answer.reason(), "misconfigured");
}
