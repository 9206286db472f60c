//! Leases that are lost while a handler runs, or before its response is out.

use std::time::Duration;

use axum::{Extension, Router, routing::post};
use http::StatusCode;
use tower_distributed_lock::{
    DistributedLockLayer, LeaseLoss, LockGuard, Locks, Loss,
    middleware::Fenced,
    store::{Fault, MemoryStore},
};

use crate::support::{
    Answer, Gate, Server, account, nothing_left, short_leases, take_away, within,
};

fn assert_lost(answer: &Answer) {
    assert_eq!(answer.status, StatusCode::CONFLICT, "{answer:?}");
    assert_eq!(answer.reason(), "lease-lost");
    assert_eq!(answer.json()["retryable"], false);
    assert_eq!(answer.header("retry-after"), None);
}

fn gated(locks: &Locks, gate: &Gate, loss: LeaseLoss) -> Router {
    let gate = gate.clone();
    let lock = DistributedLockLayer::new(locks.clone(), account()).on_lease_loss(loss);
    Router::new().route(
        "/accounts/{id}",
        post(async move || gate.pass().await).route_layer(lock),
    )
}

#[tokio::test]
async fn a_lost_lease_drops_the_handler_and_is_409() {
    let (store, gate) = (MemoryStore::new(), Gate::default());
    let locks = short_leases(&store);
    let server = Server::start(gated(&locks, &gate, LeaseLoss::Cancel)).await;
    let answer = tokio::spawn(server.post("/accounts/7"));
    gate.arrival().await;
    take_away(&store).await;
    assert_lost(&within("the answer", answer).await.unwrap());
    assert_eq!((gate.dropped(), gate.finished()), (1, 0));
    nothing_left(&locks).await;
}

#[tokio::test]
async fn a_store_that_hangs_past_the_lease_is_409_too() {
    let (store, gate) = (MemoryStore::new(), Gate::default());
    let locks = short_leases(&store);
    let server = Server::start(gated(&locks, &gate, LeaseLoss::Cancel)).await;
    let answer = tokio::spawn(server.post("/accounts/7"));
    gate.arrival().await;
    store.set_fault(Some(Fault::Hang));
    assert_lost(&within("the answer", answer).await.unwrap());
    assert_eq!((gate.dropped(), gate.finished()), (1, 0));
}

#[tokio::test]
async fn a_handler_that_may_finish_does_and_the_client_gets_409() {
    let (store, gate) = (MemoryStore::new(), Gate::default());
    let locks = short_leases(&store);
    let (told, loss) = tokio::sync::oneshot::channel();
    let told = std::sync::Mutex::new(Some(told));
    let handler = {
        let gate = gate.clone();
        let told = std::sync::Arc::new(told);
        post(async move |guard: LockGuard| {
            let watching = async { guard.lost().await };
            let (loss, ()) = tokio::join!(watching, gate.pass());
            told.lock().unwrap().take().unwrap().send(loss).unwrap();
        })
    };
    let lock = DistributedLockLayer::new(locks.clone(), account());
    let app = Router::new().route(
        "/accounts/{id}",
        handler.route_layer(lock.on_lease_loss(LeaseLoss::Finish)),
    );
    let server = Server::start(app).await;
    let answer = tokio::spawn(server.post("/accounts/7"));
    gate.arrival().await;
    take_away(&store).await;
    // The key is free for others, the handler still runs, and can know.
    let next = within("the key", locks.lock(crate::support::ACCOUNT_7))
        .await
        .unwrap();
    assert_eq!(gate.inside(), 1);
    gate.open();
    assert_lost(&within("the answer", answer).await.unwrap());
    assert_eq!((gate.dropped(), gate.finished()), (0, 1));
    assert_eq!(loss.await.unwrap(), Loss::NotOurs);
    assert!(next.is_held());
}

#[tokio::test]
async fn a_fenced_response_is_true_although_the_lease_was_lost() {
    let store = MemoryStore::new();
    let locks = short_leases(&store);
    let handler = post(async |guard: LockGuard| {
        guard.lost().await;
        (Extension(Fenced), "written with its token")
    });
    for hold in [false, true] {
        let mut lock = DistributedLockLayer::new(locks.clone(), account())
            .on_lease_loss(LeaseLoss::Finish)
            .confirm_before_response();
        if hold {
            lock = lock.hold_until_body_ends();
        }
        let app = Router::new().route("/accounts/{id}", handler.clone().route_layer(lock));
        let server = Server::start(app).await;
        let answer = tokio::spawn(server.post("/accounts/7"));
        crate::support::eventually("the key is held", || locks.stats().leases == 1).await;
        take_away(&store).await;
        let answer = within("the answer", answer).await.unwrap();
        assert_eq!(
            (answer.status, answer.text()),
            (StatusCode::OK, "written with its token")
        );
    }
}

/// A handler that ends before any renewal, with its key deleted meanwhile.
async fn deleted_under_a_short_handler(
    set: impl FnOnce(DistributedLockLayer) -> DistributedLockLayer,
) -> Answer {
    let store = MemoryStore::new();
    let locks = Locks::builder(store.clone()).build().unwrap();
    let deleting = store.clone();
    let handler = post(async move || take_away(&deleting).await);
    let lock = set(DistributedLockLayer::new(locks.clone(), account()));
    let app = Router::new().route("/accounts/{id}", handler.route_layer(lock));
    let answer = Server::start(app).await.post("/accounts/7").await;
    nothing_left(&locks).await;
    answer
}

#[tokio::test]
async fn a_key_deleted_under_a_short_handler_is_noticed_when_asked_for() {
    let unnoticed = deleted_under_a_short_handler(|lock| lock).await;
    assert_eq!(unnoticed.status, StatusCode::OK);

    let confirm = DistributedLockLayer::confirm_before_response;
    assert_lost(&deleted_under_a_short_handler(confirm).await);
    assert_lost(&deleted_under_a_short_handler(|lock| confirm(lock).hold_until_body_ends()).await);
    // Where the release is awaited anyway, it comes for free.
    assert_lost(&deleted_under_a_short_handler(|lock| lock.reject_if_held()).await);
}

#[tokio::test]
async fn a_lease_that_is_confirmed_or_cannot_be() {
    let store = MemoryStore::new();
    let locks = Locks::builder(store.clone()).build().unwrap();
    let (faulty, times) = (store.clone(), std::sync::atomic::AtomicBool::new(false));
    let times = std::sync::Arc::new(times);
    let handler = post(async move || {
        if times.swap(true, std::sync::atomic::Ordering::SeqCst) {
            faulty.set_fault(Some(Fault::Unreachable));
        }
    });
    let lock = DistributedLockLayer::new(locks, account()).confirm_before_response();
    let app = Router::new().route("/accounts/{id}", handler.route_layer(lock));
    let server = Server::start(app).await;
    assert_eq!(server.post("/accounts/7").await.status, StatusCode::OK);
    assert_lost(&server.post("/accounts/7").await);
}

#[tokio::test]
async fn a_turn_that_the_handler_released_itself_is_not_lost() {
    let store = MemoryStore::new();
    let locks = short_leases(&store);
    let handler = post(async |guard: LockGuard| {
        guard.release().await.unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
        "done without it"
    });
    let layer = DistributedLockLayer::new(locks.clone(), account());
    let confirmed = layer.clone().confirm_before_response();
    for lock in [
        layer.clone(),
        layer.on_lease_loss(LeaseLoss::Finish),
        confirmed.clone(),
        confirmed.clone().reject_if_held(),
        confirmed.hold_until_body_ends(),
    ] {
        let app = Router::new().route("/accounts/{id}", handler.clone().route_layer(lock));
        let server = Server::start(app).await;
        // Passed on, the lease lives on: another turn's loss is none of this one's.
        let (first, second) = tokio::join!(server.post("/accounts/7"), server.post("/accounts/7"));
        assert_eq!(
            (first.status, second.status),
            (StatusCode::OK, StatusCode::OK)
        );
        nothing_left(&locks).await;
    }
}
