//! How do I move from a hand-written `SET NX` without downtime?
//!
//! The hand-written lock is `SET lock:account:7 <value> NX PX 30000`, and a script that compares
//! and deletes. This crate locks keys of other names, so while a deployment rolls out, an old and a
//! new process would not exclude each other. Two deployments close that gap:
//!
//! | deployment | locks | excludes |
//! |---|---|---|
//! | before | the old key | |
//! | first | the new key, and the old key inside it | the old version, by the old key |
//! | second | the new key | the first version, by the new key |
//!
//! Deploy the second when no process of the old version is left. To go back, take the same steps in
//! the other direction.
//!
//! # The first deployment
//!
//! A middleware takes the old lock inside of the new one. Only one request at a time gets that far,
//! so it competes with old processes alone:
//!
#![cfg_attr(all(feature = "axum", feature = "redis"), doc = "```no_run")]
#![cfg_attr(not(all(feature = "axum", feature = "redis")), doc = "```ignore")]
#![doc = include_str!("../../tests/fleet/from_set_nx/bridge.rs")]
//! # fn main() {}
//! ```
//!
//! The layer ends a turn after the time to live of the old lock, which therefore needs no renewal:
#![cfg_attr(feature = "axum", doc = "```")]
#![cfg_attr(not(feature = "axum"), doc = "```ignore")]
//! # use std::time::Duration;
//! # use axum::{Router, extract::Request, middleware::{Next, from_fn_with_state}, response::Response, routing::post};
//! # use tower_distributed_lock::{DistributedLockLayer, Locks, key};
//! # const OLD_TTL: Duration = Duration::from_secs(30);
//! # #[derive(Clone)] struct ConnectionManager;
//! # async fn with_old_lock(request: Request, next: Next) -> Response { next.run(request).await }
//! # async fn transfer() {}
//! fn routes(locks: Locks, redis: ConnectionManager) -> Router {
//!     let account = key::name("account").param_as::<u64>("id");
//!     let transfers = post(transfer)
//!         .route_layer(from_fn_with_state(redis, with_old_lock)) // goes with the second deployment
//!         .route_layer(DistributedLockLayer::new(locks, account).max_hold(OLD_TTL));
//!     Router::new().route("/accounts/{id}/transfers", transfers)
//! }
//! # let _ = routes(Locks::in_memory(), ConnectionManager);
//! ```
//!
//! - Both layers are on one route, the new lock outside. In the other order, a request would poll
//!   for the old lock without a place in the queue, and hold it while it waits.
//! - A request that is cut off leaves its old lock behind for up to its time to live, as the old
//!   version does. The new lock is free at once.
//! - The old lock may be on the same Redis server: the names of this crate begin with `tdl:`.
//!
//! # The second deployment
//!
//! Remove the middleware and `max_hold`. Now leases are renewed while handlers run, requests wait in
//! a fair queue, and [`guard.token()`](crate::LockGuard::token) can [fence](super::work#fencing-in-postgresql-and-sqlite)
//! what they write.
//!
//! # A hand-written idempotency key
//!
//! If the old version keeps answers under `idempotency:<key>` or in a table, put the
//! [`IdempotencyLayer`](crate::IdempotencyLayer) around the route and **leave the old check inside
//! the handler**: a key that the old version has answered is found there, and its answer is then
//! kept by the layer, too. Remove the old check once the last answer of the old version has expired.
//! While both versions run, the old check is what they have in common, so the new version must go on
//! writing it.
