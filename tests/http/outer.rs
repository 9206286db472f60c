//! Locks around handlers that are tasks, which go on after their client has gone away.

use std::time::Duration;

use axum::{
    Router,
    routing::{MethodRouter, get},
};
use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::Full;
use tokio::task::JoinHandle;
use tower_distributed_lock::{
    DistributedLockLayer, IdempotencyLayer, Locks, OnLoss, SingleFlightLayer, key,
    store::FaultyStore,
};

use crate::{
    gate::Gate,
    support::{Answer, Server, eventually, lock, nothing_left, take_away, watchful, within},
};

/// The layers whose handlers are tasks.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Inner {
    Idempotency,
    SingleFlight,
    Detached,
}

const ALL: [Inner; 3] = [Inner::Idempotency, Inner::SingleFlight, Inner::Detached];

impl Inner {
    /// The layer, with a key of its own for each number of a request.
    fn around(self, locks: &Locks, handler: MethodRouter) -> MethodRouter {
        let (locks, number) = (locks.clone(), key::name("inner").query("number"));
        match self {
            Self::Idempotency => handler.route_layer(IdempotencyLayer::new(locks, number)),
            Self::SingleFlight => handler.route_layer(SingleFlightLayer::new(locks, number)),
            Self::Detached => {
                handler.route_layer(DistributedLockLayer::new(locks, number).detached())
            }
        }
    }

    fn request(self, number: u32) -> Request<Full<Bytes>> {
        let method = match self {
            Self::SingleFlight => Method::GET,
            Self::Idempotency | Self::Detached => Method::POST,
        };
        Request::builder()
            .method(method)
            .uri(format!("/accounts/7?number={number}"))
            .header("idempotency-key", "k")
            .body(Full::default())
            .unwrap()
    }
}

/// A gate within `inner`, within the lock of the account.
async fn serve(inner: Inner, outer: DistributedLockLayer, locks: &Locks, gate: &Gate) -> Server {
    let gate = gate.clone();
    let handler = async move || gate.pass().await;
    let handler = get(handler.clone()).post(handler);
    let handler = inner.around(locks, handler);
    let app = Router::new().route("/accounts/{id}", handler);
    Server::start(app.route_layer(outer.all_methods())).await
}

async fn sending(server: &Server, request: Request<Full<Bytes>>) -> JoinHandle<Answer> {
    let mut client = server.connect().await;
    tokio::spawn(async move { client.whole(request).await.unwrap() })
}

/// Sends a request, and disconnects once the handler runs.
async fn send_and_leave(server: &Server, request: Request<Full<Bytes>>, gate: &Gate) {
    let leaving = sending(server, request).await;
    gate.arrival().await;
    leaving.abort();
    assert!(leaving.await.unwrap_err().is_cancelled());
}

#[tokio::test]
async fn the_next_request_does_not_run_beside_a_handler_whose_client_has_gone() {
    for inner in ALL {
        for loss in [OnLoss::Cancel, OnLoss::Finish] {
            let (locks, gate) = (Locks::in_memory(), Gate::default());
            let outer = lock(&locks).on_lease_loss(loss);
            let server = serve(inner, outer, &locks, &gate).await;
            send_and_leave(&server, inner.request(1), &gate).await;

            let next = sending(&server, inner.request(2)).await;
            eventually("the next one waits", || locks.stats().waiting == 1).await;
            // Time for the server to notice. If the key were freed, the next request would begin.
            tokio::time::sleep(Duration::from_millis(100)).await;
            assert_eq!((gate.inside(), gate.dropped()), (1, 0), "{inner:?}");
            gate.open();
            gate.arrival().await;
            assert_eq!((gate.inside(), gate.finished()), (1, 1), "{inner:?}");
            gate.open();
            let next = within("the next", next).await.unwrap();
            assert_eq!(next.status, StatusCode::OK, "{inner:?}");
            nothing_left(&locks).await;
        }
    }
}

/// The outer layer cancels its handler on a loss, whoever runs it.
#[tokio::test]
async fn the_loss_of_an_outer_lock_cancels_a_handler_whose_client_has_gone() {
    for inner in ALL {
        let (store, gate) = (FaultyStore::new(), Gate::default());
        let locks = watchful(&store);
        let server = serve(inner, lock(&locks), &locks, &gate).await;
        send_and_leave(&server, inner.request(1), &gate).await;
        take_away(&store).await;
        eventually("the handler is dropped", || gate.dropped() == 1).await;
        nothing_left(&locks).await;

        let again = sending(&server, inner.request(1)).await;
        if inner == Inner::Idempotency {
            // The handler may have acted before it was cancelled.
            let again = within("the answer", again).await.unwrap();
            assert_eq!(again.reason(), "outcome-unknown");
        } else {
            gate.arrival().await;
            gate.open();
            let again = within("the answer", again).await.unwrap();
            assert_eq!(again.status, StatusCode::OK, "{inner:?}");
        }
    }
}

#[tokio::test]
async fn the_loss_of_an_outer_lock_is_answered_once_by_that_layer() {
    for inner in ALL {
        for loss in [OnLoss::Cancel, OnLoss::Finish] {
            let (store, gate) = (FaultyStore::new(), Gate::default());
            let locks = watchful(&store);
            let outer = lock(&locks).on_lease_loss(loss);
            let server = serve(inner, outer, &locks, &gate).await;
            let answer = sending(&server, inner.request(1)).await;
            gate.arrival().await;
            take_away(&store).await;
            if loss == OnLoss::Finish {
                eventually("the loss is told", || locks.stats().leases <= 1).await;
                gate.open();
            }
            let answer = within("the answer", answer).await.unwrap();
            assert_eq!(answer.reason(), "lease-lost", "{inner:?}");
            let finished = usize::from(loss == OnLoss::Finish);
            eventually("the handler has ended", || gate.inside() == 0).await;
            assert_eq!((gate.finished(), gate.dropped()), (finished, 1 - finished));
            nothing_left(&locks).await;
        }
    }
}
