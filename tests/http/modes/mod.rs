//! Layers whose requests share a key, or hold one of several permits.

mod at_once;
mod nested;
mod permits;
mod shared;

use axum::{Router, routing::any};
use tower_distributed_lock::{DistributedLockLayer, LockGuard, store::Mode};

use crate::{gate::Gate, support::Answer};

/// A route for all methods. Its handler waits at the gate, and returns the mode of its guard.
fn gated(layer: DistributedLockLayer, gate: &Gate) -> Router {
    let gate = gate.clone();
    let handler = async move |guard: Option<LockGuard>| {
        gate.pass().await;
        mode(guard)
    };
    Router::new()
        .route("/accounts/{id}", any(handler))
        .route_layer(layer)
}

fn mode(guard: Option<LockGuard>) -> String {
    let mode = guard.as_ref().map(LockGuard::mode);
    mode.map_or("not locked".into(), |mode: Mode| mode.to_string())
}

/// A mistake of the program, which a client cannot avoid by trying again.
fn assert_misconfigured(answer: &Answer, says: &str) {
    assert_eq!(answer.status, 500, "{answer:?}");
    assert_eq!(answer.reason(), "misconfigured");
    assert_eq!(answer.json()["retryable"], false);
    assert_eq!(answer.header("retry-after"), None);
    let detail = answer.json()["detail"].as_str().unwrap().to_owned();
    assert!(detail.contains(says), "{detail}");
}
