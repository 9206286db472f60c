//! `permits(n)`: at most n requests of one key at a time, in all instances together.

use std::time::Duration;

use axum::{Router, routing::get};
use http::{Method, StatusCode};
use tokio::task::JoinHandle;
use tower_distributed_lock::{
    DistributedLockLayer, Error, LockKey, Locks,
    store::{FaultyStore, MemoryStore, QuorumStore, Store},
};

use super::{assert_misconfigured, gated};
use crate::{
    gate::Gate,
    support::{ACCOUNT_7, Answer, Server, eventually, lock, nothing_left, watchful, within},
};

fn permits(locks: &Locks, of: u32) -> DistributedLockLayer {
    lock(locks).permits(of)
}

fn send(server: &Server, method: Method) -> JoinHandle<Answer> {
    tokio::spawn(server.send(method, "/accounts/7"))
}

#[tokio::test]
async fn at_most_so_many_run_at_a_time_whatever_their_method() {
    let (store, gate) = (FaultyStore::new(), Gate::default());
    let fleet = [(); 2].map(|()| Locks::builder(store.clone()).build().unwrap());
    let mut servers = Vec::new();
    for locks in &fleet {
        servers.push(Server::start(gated(permits(locks, 2), &gate)).await);
    }
    let methods = [Method::GET, Method::POST, Method::DELETE, Method::OPTIONS];
    let answers: Vec<_> = (0..8)
        .map(|at| send(&servers[at % 2], methods[at % 4].clone()))
        .collect();
    gate.arrival().await;
    gate.arrival().await;
    for left in (0..=6).rev() {
        let waiting = || {
            fleet
                .iter()
                .map(|locks| locks.stats().waiting)
                .sum::<usize>()
        };
        eventually("all others wait", || waiting() == left).await;
        assert!(gate.inside() <= 2, "{} are inside", gate.inside());
        gate.open();
        if left > 0 {
            gate.arrival().await;
        }
    }
    gate.open();
    for answer in answers {
        let answer = within("an answer", answer).await.unwrap();
        assert_eq!(
            (answer.status, answer.text()),
            (StatusCode::OK, "one of 2 permits")
        );
    }
    for locks in &fleet {
        nothing_left(locks).await;
    }
    assert!(store.is_empty());
}

#[tokio::test]
async fn methods_that_are_chosen_afterwards_are_the_only_ones_that_count() {
    let (locks, gate) = (Locks::in_memory(), Gate::default());
    let layer = permits(&locks, 1).methods([Method::POST]);
    let server = Server::start(gated(layer, &gate)).await;
    let counted = send(&server, Method::POST);
    gate.arrival().await;
    let second = send(&server, Method::POST);
    eventually("the second waits", || locks.stats().waiting == 1).await;
    let free = send(&server, Method::GET);
    gate.arrival().await;
    for _ in 0..3 {
        gate.open();
    }
    let text = async |answer: JoinHandle<Answer>| {
        within("an answer", answer).await.unwrap().text().to_owned()
    };
    assert_eq!(text(counted).await, "one of 1 permits");
    assert_eq!(text(free).await, "not locked");
    assert_eq!(text(second).await, "one of 1 permits");
    nothing_left(&locks).await;
}

#[tokio::test]
async fn a_rejecting_layer_refuses_when_all_permits_are_taken() {
    let (locks, gate) = (Locks::in_memory(), Gate::default());
    let layer = permits(&locks, 2).reject_if_held();
    let server = Server::start(gated(layer, &gate)).await;
    for _ in 0..20 {
        let inside = [send(&server, Method::GET), send(&server, Method::GET)];
        gate.arrival().await;
        gate.arrival().await;
        let refused = within("an answer", send(&server, Method::GET))
            .await
            .unwrap();
        assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
        gate.open();
        gate.open();
        // The responses go out after the permits are free, so that the next requests are not
        // refused.
        for answer in inside {
            assert_eq!(within("an answer", answer).await.unwrap().status, 200);
        }
    }
    nothing_left(&locks).await;
}

#[tokio::test]
async fn a_permit_that_is_lost_cancels_its_handler_with_409() {
    let (store, gate) = (FaultyStore::new(), Gate::default());
    let locks = watchful(&store);
    let server = Server::start(gated(permits(&locks, 2), &gate)).await;
    let inside = [send(&server, Method::GET), send(&server, Method::GET)];
    gate.arrival().await;
    gate.arrival().await;
    let key = LockKey::new(ACCOUNT_7).unwrap();
    assert!(store.force_release(key).await.unwrap());
    for answer in inside {
        let answer = within("an answer", answer).await.unwrap();
        assert_eq!(answer.status, StatusCode::CONFLICT);
    }
    assert_eq!((gate.dropped(), gate.finished()), (2, 0));
    nothing_left(&locks).await;
}

#[tokio::test]
async fn a_limit_of_zero_is_500() {
    let (locks, gate) = (Locks::in_memory(), Gate::default());
    let server = Server::start(gated(permits(&locks, 0), &gate)).await;
    let answer = within("an answer", send(&server, Method::GET))
        .await
        .unwrap();
    assert_misconfigured(&answer, "name at least 1");
    assert_eq!(gate.finished() + gate.inside(), 0);
}

#[tokio::test]
async fn a_quorum_without_permits_is_500_even_for_a_layer_that_fails_open() {
    let nodes = [(); 3].map(|()| MemoryStore::new());
    let store = QuorumStore::new(nodes).unwrap();
    let (locks, gate) = (Locks::builder(store).build().unwrap(), Gate::default());
    for layer in [permits(&locks, 2), permits(&locks, 2).fail_open()] {
        let server = Server::start(gated(layer, &gate)).await;
        let answer = within("an answer", send(&server, Method::GET))
            .await
            .unwrap();
        assert_misconfigured(&answer, "a quorum has no permits");
    }
    assert_eq!(gate.finished() + gate.inside(), 0);
    nothing_left(&locks).await;
}

#[tokio::test]
async fn a_key_that_is_also_used_for_locks_is_500_while_it_is_locked() {
    let (store, gate) = (FaultyStore::new(), Gate::default());
    let [locks, other] = [(); 2].map(|()| Locks::builder(store.clone()).build().unwrap());
    let counting = Server::start(gated(permits(&locks, 2), &gate)).await;
    let locking = Server::start(gated(lock(&locks), &gate)).await;
    // The lock is held in the same process, then in another one.
    for holder in [&locks, &other] {
        let held = holder.lock(ACCOUNT_7).await.unwrap();
        let answer = within("an answer", send(&counting, Method::GET))
            .await
            .unwrap();
        assert_misconfigured(&answer, "permits");
        held.release().await.unwrap();
        let held = holder.permit(ACCOUNT_7, 2).await.unwrap();
        let answer = within("an answer", send(&locking, Method::POST))
            .await
            .unwrap();
        assert_misconfigured(&answer, "locks");
        held.release().await.unwrap();
    }
    gate.open();
    let answer = within("an answer", send(&counting, Method::GET))
        .await
        .unwrap();
    assert_eq!(answer.status, StatusCode::OK);
}

#[tokio::test]
async fn the_refusal_names_the_permits_that_are_in_use() {
    let (locks, gate) = (Locks::in_memory(), Gate::default());
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(locks.permit(ACCOUNT_7, 4).await.unwrap());
    }
    let handler = {
        let locks = locks.clone();
        async move || {
            let permit = locks.permit(ACCOUNT_7, 4).within(Duration::ZERO).await?;
            Ok::<_, Error>(permit.token().to_string())
        }
    };
    let by_handler = Router::new().route("/accounts/{id}", get(handler));
    for app in [
        gated(permits(&locks, 4).reject_if_held(), &gate),
        gated(permits(&locks, 4).wait(Duration::from_millis(10)), &gate),
        by_handler,
    ] {
        let server = Server::start(app).await;
        let refused = within("an answer", send(&server, Method::GET))
            .await
            .unwrap();
        assert_eq!(
            (refused.status.as_u16(), &*refused.reason()),
            (429, "no-permit")
        );
        assert_eq!(refused.json()["detail"], "all 4 permits are in use");
    }
    let answer = Server::start(gated(permits(&locks, 4).reject_if_held(), &gate)).await;
    let answer = within("an answer", send(&answer, Method::GET))
        .await
        .unwrap();
    assert_eq!(answer.json()["retryable"], true);
    assert_eq!(answer.header("retry-after"), Some("1"));
}
