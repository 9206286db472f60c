//! A graceful end of the process, with requests in flight.

use std::time::Duration;

use axum::{Router, routing::post};
use http::StatusCode;
use tokio::{net::TcpListener, sync::oneshot};
use tower_distributed_lock::{Locks, store::FaultyStore};

use crate::{
    gate::Gate,
    support::{PATIENCE, Server, eventually, lock, within},
};

fn gated(locks: &Locks, gate: &Gate) -> Router {
    let gate = gate.clone();
    let lock = lock(locks);
    Router::new().route(
        "/accounts/{id}",
        post(async move || gate.pass().await).route_layer(lock),
    )
}

#[tokio::test]
async fn closing_lets_running_requests_finish_and_refuses_waiting_ones() {
    let (store, gate) = (FaultyStore::new(), Gate::default());
    let locks = Locks::builder(store.clone()).build().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let serving = axum::serve(listener, gated(&locks, &gate))
        .with_graceful_shutdown(async { stopped.await.unwrap() });
    let serving = tokio::spawn(serving.into_future());
    let server = Server::at(addr);

    let inside = tokio::spawn(server.post("/accounts/7"));
    gate.arrival().await;
    let waiting = tokio::spawn(server.post("/accounts/7"));
    eventually("one waits", || locks.stats().waiting == 1).await;

    stop.send(()).unwrap();
    let closing = tokio::spawn({
        let locks = locks.clone();
        async move { locks.close(PATIENCE).await }
    });
    // A process that closes begins no new turn, whose client could not be answered any more.
    let refused = within("the one that waits", waiting).await.unwrap();
    assert_eq!(refused.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(refused.reason(), "closed");
    assert_eq!(gate.inside(), 1);
    assert!(!closing.is_finished() && !serving.is_finished());

    gate.open();
    assert_eq!(
        within("the one inside", inside).await.unwrap().status,
        StatusCode::OK
    );
    within("closing", closing).await.unwrap();
    within("serving", serving).await.unwrap().unwrap();
    assert!(store.is_empty());
}

#[tokio::test]
async fn a_handler_that_outlasts_the_grace_is_cancelled() {
    let (store, gate) = (FaultyStore::new(), Gate::default());
    let locks = Locks::builder(store.clone()).build().unwrap();
    let server = Server::start(gated(&locks, &gate)).await;
    let answer = tokio::spawn(server.post("/accounts/7"));
    gate.arrival().await;
    within("closing", locks.close(Duration::from_millis(20))).await;
    assert!(store.is_empty());
    let answer = within("the answer", answer).await.unwrap();
    assert_eq!(answer.status, StatusCode::CONFLICT);
    assert_eq!((gate.dropped(), gate.finished()), (1, 0));
}
