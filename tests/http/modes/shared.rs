//! `shared_when_safe`: GET and HEAD share the key, all other methods have it alone.

use std::{convert::Infallible, time::Duration};

use axum::{
    Router,
    body::Body,
    routing::{any, get},
};
use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::Full;
use tokio::task::JoinHandle;
use tower_distributed_lock::{
    DistributedLockLayer, LockGuard, Locks, Loss, Status,
    store::{FaultyStore, Mode},
};

use super::gated;
use crate::{
    gate::Gate,
    support::{
        ACCOUNT_7, Answer, Server, eventually, lock, nothing_left, take_away, watchful, within,
    },
};

fn shared(locks: &Locks) -> DistributedLockLayer {
    lock(locks).shared_when_safe()
}

fn send(server: &Server, method: Method) -> JoinHandle<Answer> {
    tokio::spawn(server.send(method, "/accounts/7"))
}

async fn text(answer: JoinHandle<Answer>) -> String {
    let answer = within("an answer", answer).await.unwrap();
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    answer.text().to_owned()
}

#[tokio::test]
async fn reads_run_side_by_side_and_a_waiting_write_is_not_overtaken() {
    let (locks, gate) = (Locks::in_memory(), Gate::default());
    let server = Server::start(gated(shared(&locks), &gate)).await;
    let reads: Vec<_> = (0..3).map(|_| send(&server, Method::GET)).collect();
    for _ in 0..3 {
        gate.arrival().await;
    }
    assert_eq!(gate.inside(), 3);
    assert_eq!(locks.stats().leases, 1);
    let write = send(&server, Method::PUT);
    eventually("the write waits", || locks.stats().waiting == 1).await;
    let late = send(&server, Method::GET);
    eventually("the late read waits", || locks.stats().waiting == 2).await;
    for read in reads {
        assert_eq!(gate.finished() + gate.inside(), 3, "the write has begun");
        gate.open();
        assert_eq!(text(read).await, "shared");
    }
    gate.arrival().await;
    assert_eq!((gate.inside(), locks.stats().waiting), (1, 1));
    gate.open();
    assert_eq!(text(write).await, "exclusive");
    gate.arrival().await;
    gate.open();
    assert_eq!(text(late).await, "shared");
    nothing_left(&locks).await;
}

#[tokio::test]
async fn a_write_excludes_reads_and_other_writes() {
    let (locks, gate) = (Locks::in_memory(), Gate::default());
    let server = Server::start(gated(shared(&locks), &gate)).await;
    let write = send(&server, Method::DELETE);
    gate.arrival().await;
    let others = [Method::GET, Method::POST, Method::HEAD].map(|method| send(&server, method));
    eventually("all others wait", || locks.stats().waiting == 3).await;
    assert_eq!(gate.inside(), 1);
    for _ in 0..4 {
        gate.open();
    }
    assert_eq!(text(write).await, "exclusive");
    for other in others {
        assert_eq!(within("an answer", other).await.unwrap().status, 200);
    }
    nothing_left(&locks).await;
}

#[tokio::test]
async fn head_shares_the_key_and_options_is_not_locked() {
    let (locks, gate) = (Locks::in_memory(), Gate::default());
    let server = Server::start(gated(shared(&locks), &gate)).await;
    let read = send(&server, Method::GET);
    gate.arrival().await;
    let head = send(&server, Method::HEAD);
    gate.arrival().await;
    assert_eq!((gate.inside(), locks.stats().leases), (2, 1));
    gate.open();
    gate.open();
    assert_eq!(text(read).await, "shared");
    assert_eq!(within("an answer", head).await.unwrap().status, 200);
    nothing_left(&locks).await;

    let held = locks.lock(ACCOUNT_7).await.unwrap();
    for method in [Method::OPTIONS, Method::TRACE] {
        let answer = send(&server, method);
        gate.arrival().await;
        gate.open();
        assert_eq!(text(answer).await, "not locked");
    }
    assert!(held.is_held());
}

#[tokio::test]
async fn the_loss_of_the_shared_lease_cancels_all_reads_with_409() {
    let (store, gate) = (FaultyStore::new(), Gate::default());
    let locks = watchful(&store);
    let server = Server::start(gated(shared(&locks), &gate)).await;
    let reads: Vec<_> = (0..5).map(|_| send(&server, Method::GET)).collect();
    for _ in 0..5 {
        gate.arrival().await;
    }
    take_away(&store).await;
    for read in reads {
        let answer = within("an answer", read).await.unwrap();
        assert_eq!(answer.status, StatusCode::CONFLICT);
        assert_eq!(answer.reason(), "lease-lost");
    }
    assert_eq!((gate.dropped(), gate.finished()), (5, 0));
    nothing_left(&locks).await;
}

#[tokio::test]
async fn max_hold_of_one_read_ends_that_read_only() {
    let (locks, gate) = (Locks::in_memory(), Gate::default());
    let short = shared(&locks).max_hold(Duration::from_millis(50));
    let patient = Server::start(gated(shared(&locks), &gate)).await;
    let hasty = Server::start(gated(short, &gate)).await;
    let first = send(&patient, Method::GET);
    gate.arrival().await;
    let second = send(&hasty, Method::GET);
    gate.arrival().await;
    let answer = within("the read that took too long", second).await.unwrap();
    assert_eq!(answer.status, StatusCode::CONFLICT);
    assert_eq!((gate.dropped(), gate.inside()), (1, 1));
    assert!(locks.lock(ACCOUNT_7).now().await.unwrap().is_none());
    gate.open();
    assert_eq!(text(first).await, "shared");
    nothing_left(&locks).await;
}

#[tokio::test]
async fn a_write_that_is_downgraded_in_its_handler_lets_reads_in_and_no_write() {
    let (locks, gate) = (Locks::in_memory(), Gate::default());
    let (written, read) = (Gate::default(), gate.clone());
    let handler = {
        let written = written.clone();
        async move |guard: LockGuard| {
            assert_eq!(guard.mode(), Mode::Exclusive);
            written.pass().await;
            guard.downgrade().await.unwrap();
            gate.pass().await;
            guard.mode().to_string()
        }
    };
    let reading = {
        let gate = read.clone();
        async move || gate.pass().await
    };
    let app = Router::new()
        .route("/accounts/{id}", get(reading).put(handler))
        .route_layer(shared(&locks));
    let server = Server::start(app).await;
    let write = send(&server, Method::PUT);
    written.arrival().await;
    let reads: Vec<_> = (0..2).map(|_| send(&server, Method::GET)).collect();
    eventually("the reads wait", || locks.stats().waiting == 2).await;
    let second = send(&server, Method::PUT);
    eventually("the second write waits", || locks.stats().waiting == 3).await;
    written.open();
    for _ in 0..3 {
        read.arrival().await;
    }
    assert_eq!((read.inside(), locks.stats().waiting), (3, 1));
    for _ in 0..3 {
        read.open();
    }
    assert_eq!(text(write).await, "shared");
    for answer in reads {
        assert_eq!(within("an answer", answer).await.unwrap().status, 200);
    }
    written.arrival().await;
    written.open();
    read.arrival().await;
    read.open();
    assert_eq!(text(second).await, "shared");
    nothing_left(&locks).await;
}

#[tokio::test]
async fn the_body_of_a_read_keeps_writes_out_and_lets_reads_in() {
    let locks = Locks::in_memory();
    let endless = || async {
        let first = futures_util::stream::iter([Ok::<_, Infallible>(Bytes::from("a piece"))]);
        Body::from_stream(futures_util::StreamExt::chain(
            first,
            futures_util::stream::pending(),
        ))
    };
    let app = Router::new()
        .route("/accounts/{id}", get(endless).put(async || "written"))
        .route_layer(shared(&locks).hold_until_body_ends());
    let server = Server::start(app).await;
    let read = || Request::get("/accounts/7").body(Full::default()).unwrap();
    let (mut one, mut other) = (server.connect().await, server.connect().await);
    let first = one.head(read()).await.unwrap();
    let second = other.head(read()).await.unwrap();
    assert_eq!(
        (first.status(), second.status()),
        (StatusCode::OK, StatusCode::OK)
    );
    let write = send(&server, Method::PUT);
    eventually("the write waits", || locks.stats().waiting == 1).await;
    drop((first, one));
    // The second body alone keeps the write out.
    let reading = locks.lock(ACCOUNT_7).shared().now().await.unwrap();
    assert!(reading.is_none(), "a write waits");
    assert_eq!(locks.stats().waiting, 1);
    drop((second, other));
    assert_eq!(text(write).await, "written");
    nothing_left(&locks).await;
}

#[tokio::test]
async fn a_rejecting_layer_refuses_reads_beside_a_write_only() {
    let (locks, gate) = (Locks::in_memory(), Gate::default());
    let server = Server::start(gated(shared(&locks).reject_if_held(), &gate)).await;
    let refused = async |method| {
        let answer = within("an answer", send(&server, method)).await.unwrap();
        assert_eq!(answer.status, StatusCode::LOCKED, "{answer:?}");
        assert_eq!(answer.reason(), "held");
    };
    let reads = [Method::GET, Method::GET].map(|method| send(&server, method));
    gate.arrival().await;
    gate.arrival().await;
    refused(Method::PUT).await;
    gate.open();
    gate.open();
    for read in reads {
        assert_eq!(text(read).await, "shared");
    }
    // The responses went out after the key was free.
    let write = send(&server, Method::PUT);
    gate.arrival().await;
    refused(Method::GET).await;
    refused(Method::PUT).await;
    gate.open();
    assert_eq!(text(write).await, "exclusive");
    nothing_left(&locks).await;
}

#[tokio::test]
async fn a_read_that_may_finish_is_told_of_the_loss() {
    let store = FaultyStore::new();
    let locks = watchful(&store);
    let (told, mut losses) = tokio::sync::mpsc::unbounded_channel();
    let handler = async move |guard: LockGuard| {
        let loss = guard.lost().await;
        assert_eq!(guard.status(), Status::Lost(loss));
        told.send(loss).unwrap();
    };
    let finish = tower_distributed_lock::OnLoss::Finish;
    let layer = shared(&locks).on_lease_loss(finish);
    let app = Router::new()
        .route("/accounts/{id}", any(handler))
        .route_layer(layer);
    let server = Server::start(app).await;
    let reads = [Method::GET, Method::GET].map(|method| send(&server, method));
    eventually("both read", || locks.totals().turns == 2).await;
    take_away(&store).await;
    for read in reads {
        let answer = within("an answer", read).await.unwrap();
        assert_eq!(answer.status, StatusCode::CONFLICT);
        assert_eq!(losses.recv().await, Some(Loss::NotOurs));
    }
}
