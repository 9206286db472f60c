//! A graceful end of the process, with requests in flight.

use std::time::Duration;

use axum::{Router, routing::post};
use http::StatusCode;
use http_body_util::Full;
use tokio::{net::TcpListener, sync::oneshot, time::Instant};
use tower::ServiceBuilder;
use tower_distributed_lock::{
    IdempotencyLayer, Locks, Loss, OnLoss, Stats, key,
    store::{Fault, FaultyStore, Store},
};

use crate::{
    gate::Gate,
    support::{Answer, PATIENCE, Server, eventually, lock, nothing_left, within},
};

/// The time that closing may take after the grace, on a slow machine.
const SOON: Duration = Duration::from_secs(8);

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
    let closed = within("closing", locks.close(Duration::from_millis(20))).await;
    assert!(closed.is_complete(), "{closed:?}");
    assert!(store.is_empty());
    let answer = within("the answer", answer).await.unwrap();
    assert_eq!(answer.status, StatusCode::CONFLICT);
    assert_eq!((gate.dropped(), gate.finished()), (1, 0));
}

/// A service whose handlers run to their end behind `layers`.
macro_rules! to_the_end {
    ($gate:expr, $layers:expr) => {{
        let gate = $gate.clone();
        let handler = post(async move || gate.pass().await);
        Router::new().route("/accounts/{id}", handler.route_layer($layers))
    }};
}

fn once(locks: &Locks) -> IdempotencyLayer {
    IdempotencyLayer::new(locks.clone(), key::name("all"))
}

/// Sends a post with an idempotency key.
async fn pay(server: Server, key: String) -> Answer {
    let mut client = server.connect().await;
    let request = http::Request::post("/accounts/7").header("idempotency-key", key);
    let answer = client.whole(request.body(Full::default()).unwrap()).await;
    answer.expect("a response")
}

#[tokio::test]
async fn each_handler_counts_once_while_it_runs() {
    let (locks, gate) = (Locks::in_memory(), Gate::default());
    let locked = || lock(&locks);
    let apps = [
        to_the_end!(gate, locked()),
        to_the_end!(gate, locked().detached()),
        to_the_end!(gate, once(&locks)),
        to_the_end!(
            gate,
            ServiceBuilder::new().layer(once(&locks)).layer(locked())
        ),
        to_the_end!(
            gate,
            ServiceBuilder::new()
                .layer(locked())
                .layer(locked().name("same"))
        ),
    ];
    for (index, app) in apps.into_iter().enumerate() {
        let server = Server::start(app).await;
        let answer = tokio::spawn(pay(server, format!("order-{index}")));
        gate.arrival().await;
        assert_eq!(locks.stats().running, 1, "app {index}");
        gate.open();
        within("the answer", answer).await.unwrap();
        nothing_left(&locks).await;
    }
    assert_eq!(locks.stats(), Stats::default());
}

#[tokio::test]
async fn a_handler_that_two_layers_have_failed_open_counts_once() {
    let (store, gate) = (FaultyStore::new(), Gate::default());
    let locks = Locks::builder(store.clone()).build().unwrap();
    store.set_fault(Some(Fault::Unreachable));
    let open = || lock(&locks).fail_open();
    let layers = ServiceBuilder::new()
        .layer(open())
        .layer(open().name("same"));
    let server = Server::start(to_the_end!(gate, layers)).await;
    let answer = tokio::spawn(pay(server, "order".into()));
    gate.arrival().await;
    assert_eq!(locks.stats().running, 1);
    gate.open();
    within("the answer", answer).await.unwrap();
}

#[tokio::test]
async fn a_detached_handler_that_does_not_end_is_reported_and_not_waited_for() {
    let (store, gate) = (FaultyStore::new(), Gate::default());
    let locks = Locks::builder(store.clone()).build().unwrap();
    let layer = lock(&locks).on_lease_loss(OnLoss::Finish).detached();
    let server = Server::start(to_the_end!(gate, layer)).await;
    let answer = tokio::spawn(server.post("/accounts/7"));
    gate.arrival().await;
    let began = Instant::now();
    let closed = locks.close(Duration::from_millis(20)).await;
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    assert_eq!((closed.stats.running, closed.stats.keys), (1, 0));
    assert!(!closed.is_complete() && closed.held.is_empty());
    assert!(store.is_empty(), "the key is released");
    gate.open();
    assert!(within("closing", locks.close(PATIENCE)).await.is_complete());
    within("the answer", answer).await.unwrap();
}

#[tokio::test]
async fn an_idempotent_handler_that_does_not_end_keeps_its_key_and_is_reported() {
    let (store, gate) = (FaultyStore::new(), Gate::default());
    let locks = Locks::builder(store.clone()).build().unwrap();
    let server = Server::start(to_the_end!(gate, once(&locks))).await;
    let answer = tokio::spawn(pay(server, "order-17".into()));
    gate.arrival().await;
    let began = Instant::now();
    let closed = locks.close(Duration::from_millis(20)).await;
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    assert_eq!((closed.stats.running, closed.stats.keys), (1, 1));
    let lease = &closed.held[0].leases[0];
    assert_eq!(lease.loss, Some(Loss::Closed));
    let seen = store.inspect(closed.held[0].key.clone()).await.unwrap();
    assert_eq!(seen.holder().unwrap().owner, lease.owner);
    gate.open();
    assert!(within("closing", locks.close(PATIENCE)).await.is_complete());
    let answer = within("the answer", answer).await.unwrap();
    assert_eq!(answer.status, StatusCode::OK);
}
