//! Clients that go away, and handlers that panic.

use std::time::Duration;

use axum::{Router, extract::Request, routing::post};
use bytes::Bytes;
use http::StatusCode;
use tokio::{io::AsyncWriteExt, task::JoinSet, time::sleep};
use tower_distributed_lock::{LockGuard, Locks, ReadBodyLayer};

use crate::{
    gate::Gate,
    support::{ACCOUNT_7, Server, eventually, lock, nothing_left, within},
};

/// The length of a body that is longer than a server reads ahead, and still fast to send.
const LARGE: usize = 4 << 20;

fn gated(locks: &Locks, gate: &Gate) -> Router {
    let gate = gate.clone();
    Router::new()
        .route("/accounts/{id}", post(async move || gate.pass().await))
        .route_layer(lock(locks))
}

/// Sends a post to account 7, with the body as far as the server reads. Dropping the set closes the
/// connection.
async fn post_body(server: &Server, length: usize) -> JoinSet<()> {
    let head = format!("POST /accounts/7 HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n");
    let mut client = server.raw(head).await;
    let mut sending = JoinSet::new();
    sending.spawn(async move {
        client.write_all(&vec![b'x'; length]).await.unwrap();
        std::future::pending().await
    });
    sending
}

#[tokio::test]
async fn a_client_that_disconnects_in_mid_handler_frees_the_key_at_once() {
    let (locks, gate) = (Locks::in_memory(), Gate::default());
    let server = Server::start(gated(&locks, &gate)).await;

    let mut client = server.connect().await;
    let leaving = tokio::spawn(async move { client.post("/accounts/7").await });
    gate.arrival().await;
    let next = tokio::spawn(server.post("/accounts/7"));
    eventually("the next one waits", || locks.stats().waiting == 1).await;

    leaving.abort();
    gate.arrival().await;
    assert_eq!((gate.dropped(), gate.inside()), (1, 1));
    gate.open();
    assert_eq!(
        within("the next", next).await.unwrap().status,
        StatusCode::OK
    );
    nothing_left(&locks).await;
}

#[tokio::test]
async fn a_waiting_client_that_disconnects_leaves_the_line() {
    let (locks, gate) = (Locks::in_memory(), Gate::default());
    let server = Server::start(gated(&locks, &gate)).await;
    let held = locks.lock(ACCOUNT_7).await.unwrap();
    let waiting = post_body(&server, 100).await;
    eventually("the request waits", || locks.stats().waiting == 1).await;
    drop(waiting);
    eventually("the request has left", || locks.stats().waiting == 0).await;
    drop(held);
    nothing_left(&locks).await;
    assert_eq!(gate.finished() + gate.dropped(), 0);
}

#[tokio::test]
async fn over_http1_a_large_unread_body_hides_that_the_client_has_gone() {
    for keeps_it in [false, true] {
        let (locks, gate) = (Locks::in_memory(), Gate::default());
        let handler = {
            let gate = gate.clone();
            post(async move |_: LockGuard, request: Request| {
                let kept = keeps_it.then_some(request);
                gate.pass().await;
                drop(kept);
            })
        };
        let app = Router::new()
            .route("/accounts/{id}", handler)
            .route_layer(lock(&locks));
        let server = Server::start(app).await;
        let client = post_body(&server, LARGE).await;
        gate.arrival().await;
        drop(client);

        // A slow machine cannot fail this check, only a server that notices after all.
        sleep(Duration::from_millis(300)).await;
        assert_eq!((gate.inside(), gate.dropped()), (1, 0));
        assert!(locks.lock(ACCOUNT_7).now().await.unwrap().is_none());
        // The handler runs to the end, and then the key is free.
        gate.open();
        nothing_left(&locks).await;
        assert_eq!(gate.finished(), 1);
    }
}

#[tokio::test]
async fn over_http1_the_end_of_a_client_is_noticed_once_a_large_body_is_read() {
    let (locks, gate) = (Locks::in_memory(), Gate::default());
    let handler = {
        let gate = gate.clone();
        post(async move |body: Bytes| {
            assert_eq!(body.len(), LARGE);
            gate.pass().await;
        })
    };
    let lock = lock(&locks);
    let limit = axum::extract::DefaultBodyLimit::max(LARGE);
    let itself = Router::new().route("/accounts/{id}", handler.clone());
    let apps = [
        itself.clone().route_layer(lock.clone()).layer(limit),
        // A layer reads the body before the request contends, whether or not the handler reads it.
        itself
            .layer(limit)
            .route_layer(lock)
            .route_layer(ReadBodyLayer::new(LARGE)),
    ];
    for (at, app) in apps.into_iter().enumerate() {
        let server = Server::start(app).await;
        let client = post_body(&server, LARGE).await;
        gate.arrival().await;
        drop(client);
        eventually("the handler is dropped", || gate.dropped() == at + 1).await;
        nothing_left(&locks).await;
    }
}

#[tokio::test]
async fn a_handler_that_panics_frees_its_key() {
    let locks = Locks::in_memory();
    let handler = post(async |guard: LockGuard| {
        assert!(!guard.is_held(), "this panic is part of the test");
    });
    let app = Router::new()
        .route("/accounts/{id}", handler)
        .route_layer(lock(&locks));
    let server = Server::start(app).await;
    for _ in 0..3 {
        // The server has no response to send, and closes the connection.
        let mut client = server.connect().await;
        client.post("/accounts/7").await.unwrap_err();
        nothing_left(&locks).await;
    }
}
