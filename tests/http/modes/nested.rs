//! Several layers around one handler, in different modes.

use axum::{Router, routing::any};
use http::Method;
use tower_distributed_lock::{
    DistributedLockLayer, Locks,
    key::{self, RequestKey},
    lock::AllGuards,
    store::FaultyStore,
};

use super::assert_misconfigured;
use crate::support::{Answer, Server, account, nothing_left};

type Set = fn(DistributedLockLayer) -> DistributedLockLayer;

const SHARED: Set = DistributedLockLayer::shared_when_safe;
const EXCLUSIVE: Set = DistributedLockLayer::all_methods;
const ONE_OF_2: Set = |layer| layer.permits(2);
const ONE_OF_4: Set = |layer| layer.permits(4);

/// The second key of a request.
fn tenant() -> RequestKey {
    key::name("tenant").param("tenant")
}

/// Sends a GET through an outer and an inner layer. The handler returns the modes of all guards,
/// from the outermost on.
async fn get(outer: DistributedLockLayer, inner: DistributedLockLayer) -> Answer {
    let handler = async |guards: AllGuards| {
        let guards = guards.all();
        let modes = guards.iter().map(|guard| guard.mode().to_string());
        modes.collect::<Vec<_>>().join(", ")
    };
    let app = Router::new()
        .route("/tenants/{tenant}/accounts/{id}", any(handler))
        .route_layer(inner)
        .route_layer(outer);
    let server = Server::start(app).await;
    server.send(Method::GET, "/tenants/a/accounts/7").await
}

#[tokio::test]
async fn layers_of_one_key_are_one_turn_if_the_outer_mode_is_enough() {
    for (outer, inner, modes) in [
        (EXCLUSIVE, SHARED, "exclusive, exclusive"),
        (SHARED, SHARED, "shared, shared"),
        (ONE_OF_2, ONE_OF_2, "one of 2 permits, one of 2 permits"),
        (ONE_OF_2, ONE_OF_4, "one of 2 permits, one of 2 permits"),
    ] {
        let store = FaultyStore::new();
        let locks = Locks::builder(store.clone()).build().unwrap();
        let layer = || DistributedLockLayer::new(locks.clone(), account());
        let answer = get(outer(layer()), inner(layer())).await;
        assert_eq!((answer.status.as_u16(), answer.text()), (200, modes));
        assert_eq!(store.calls().acquires, 1);
        nothing_left(&locks).await;
    }
}

#[tokio::test]
async fn layers_of_one_key_are_500_if_the_outer_mode_is_not_enough() {
    for (outer, inner) in [
        (SHARED, EXCLUSIVE),
        (SHARED, ONE_OF_4),
        (EXCLUSIVE, ONE_OF_4),
        (ONE_OF_4, EXCLUSIVE),
        (ONE_OF_4, SHARED),
        (ONE_OF_4, ONE_OF_2),
    ] {
        let locks = Locks::in_memory();
        let layer = || DistributedLockLayer::new(locks.clone(), account());
        let answer = get(outer(layer()), inner(layer())).await;
        assert_misconfigured(&answer, "a layer further out has locked the same key");
        nothing_left(&locks).await;
    }
}

#[tokio::test]
async fn one_of_several_keys_that_the_outer_layer_only_shares_is_500() {
    let locks = Locks::in_memory();
    let outer = DistributedLockLayer::new(locks.clone(), account()).shared_when_safe();
    let both = key::all_of([account(), tenant()]);
    let inner = DistributedLockLayer::new(locks.clone(), both).all_methods();
    let answer = get(outer, inner).await;
    assert_misconfigured(&answer, "a layer further out has locked the same key");
    nothing_left(&locks).await;
}

#[tokio::test]
async fn one_of_several_keys_that_the_outer_layer_has_alone_is_not_locked_again() {
    let store = FaultyStore::new();
    let locks = Locks::builder(store.clone()).build().unwrap();
    let outer = DistributedLockLayer::new(locks.clone(), account()).all_methods();
    let both = key::all_of([account(), tenant()]);
    let inner = DistributedLockLayer::new(locks.clone(), both).shared_when_safe();
    let answer = get(outer, inner).await;
    assert_eq!(answer.text(), "exclusive, exclusive, shared");
    assert_eq!(store.calls().acquires, 2);
    nothing_left(&locks).await;
}

#[tokio::test]
async fn layers_of_different_keys_have_modes_of_their_own() {
    let locks = Locks::in_memory();
    let outer = DistributedLockLayer::new(locks.clone(), tenant()).permits(4);
    let inner = DistributedLockLayer::new(locks.clone(), account()).shared_when_safe();
    let answer = get(outer, inner).await;
    assert_eq!(answer.text(), "one of 4 permits, shared");
    nothing_left(&locks).await;
}
