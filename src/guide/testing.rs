//! How do I test my handlers through the layer?
//!
//! With [`Locks::in_memory`](crate::Locks::in_memory), or with a
//! [`FaultyStore`](crate::store::FaultyStore) (feature `test-util`), which plays a server that
//! fails, hangs or forgets. Let a function build the routes of the service from a
//! [`Locks`](crate::Locks), as all examples here do: the tests call it with a store of their own.
//!
//! ```toml
//! [dev-dependencies]
//! tower-distributed-lock = { version = "0.1", features = ["test-util"] }
//! tokio = { version = "1", features = ["full", "test-util"] } # for `start_paused`
//! tower = { version = "0.5", features = ["util"] } # for `oneshot`
//! ```
//!
//! # Requests that wait, are repeated, or find no store
//!
//! Send requests by `oneshot`, and pause tokio's clock (`#[tokio::test(start_paused = true)]`): a
//! wait of five seconds is over at once, and nothing depends on a fast machine. (Paused time does
//! not go together with real sockets, nor with Redis.)
#![cfg_attr(all(feature = "axum", feature = "test-util"), doc = "```")]
#![cfg_attr(not(all(feature = "axum", feature = "test-util")), doc = "```ignore")]
//! use axum::{Router, body::Body, extract::Path, http::{Request, StatusCode}, response::Response, routing::post};
//! use tower::ServiceExt;
//! use tower_distributed_lock::{
//!     DistributedLockLayer, IdempotencyLayer, LockGuard, Locks, key,
//!     rejection::{Reason, Rejection},
//!     store::{Fault, FaultyStore},
//! };
//!
//! async fn pay(Path(id): Path<u64>, guard: LockGuard) -> String {
//!     format!("account {id}, token {}", guard.token())
//! }
//!
//! fn account() -> key::RequestKey {
//!     key::name("account").param_as::<u64>("id")
//! }
//!
//! fn app(locks: Locks) -> Router {
//!     let scope = key::name("shop"); // one tenant
//!     Router::new().route(
//!         "/accounts/{id}/payments",
//!         post(pay)
//!             .route_layer(DistributedLockLayer::new(locks.clone(), account()))
//!             .route_layer(IdempotencyLayer::new(locks, scope)), // the last one is outside
//!     )
//! }
//!
//! async fn send(app: &Router, idempotency_key: &str, body: &'static str) -> Response {
//!     let request = Request::post("/accounts/7/payments").header("idempotency-key",
//!     idempotency_key);
//!     app.clone().oneshot(request.body(Body::from(body)).unwrap()).await.unwrap()
//! }
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() {
//! // In a test: `#[tokio::test(start_paused = true)]`.
//! let store = FaultyStore::new();
//! let locks = Locks::builder(store.clone()).build().unwrap();
//! let app = app(locks.clone());
//!
//! // A repetition gets the first answer, and another body is refused.
//! assert_eq!(send(&app, "a", "5").await.status(), StatusCode::OK);
//! assert_eq!(send(&app, "a", "5").await.headers()["idempotent-replayed"], "true");
//! assert_eq!(send(&app, "a", "6").await.status(), StatusCode::UNPROCESSABLE_ENTITY);
//!
//! // While somebody else holds the key, a request waits, and is refused in the end.
//! let held = locks.lock(account().with("id", 7)).await.unwrap();
//! let refused = send(&app, "b", "5").await;
//! assert_eq!(refused.status(), StatusCode::LOCKED);
//! assert_eq!(refused.extensions().get::<Rejection>().unwrap().reason(), Reason::Held);
//! drop(held);
//!
//! // The store is down.
//! store.set_fault(Some(Fault::Unreachable));
//! assert_eq!(send(&app, "c", "5").await.status(), StatusCode::SERVICE_UNAVAILABLE);
//! store.set_fault(None);
//! assert_eq!(send(&app, "c", "5").await.status(), StatusCode::OK);
//! # }
//! ```
//!
//! The key of the layer is defined once, and [`with`](crate::key::RequestKey::with) fills its parts
//! where there is no request. [`Locks::held`](crate::Locks::held) lists the keys in use, if a
//! request locks another key than you think.
//!
//! # A lease that is lost while the handler runs
//!
//! The handler below waits for a signal, so the test decides what happens meanwhile:
#![cfg_attr(all(feature = "axum", feature = "test-util"), doc = "```")]
#![cfg_attr(not(all(feature = "axum", feature = "test-util")), doc = "```ignore")]
//! # use std::sync::Arc;
//! # use axum::{Router, body::Body, http::{Request, StatusCode}, routing::post};
//! # use tokio::sync::Notify;
//! # use tower::ServiceExt;
//! # use tower_distributed_lock::{DistributedLockLayer, Locks, Loss, key, store::{Fault, FaultyStore}};
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() {
//! let (store, begun) = (FaultyStore::new(), Arc::new(Notify::new()));
//! let locks = Locks::builder(store.clone()).build().unwrap();
//! let signal = begun.clone();
//! let slow = async move || {
//!     signal.notify_one();
//!     std::future::pending::<()>().await
//! };
//! let layer = DistributedLockLayer::new(locks.clone(), key::name("report"));
//! let app = Router::new().route("/report", post(slow).route_layer(layer));
//!
//! let request = Request::post("/report").body(Body::empty()).unwrap();
//! let answer = tokio::spawn(app.oneshot(request));
//! begun.notified().await;
//! store.restart(); // the server has lost its data
//! assert_eq!(answer.await.unwrap().unwrap().status(), StatusCode::CONFLICT); // `lease-lost`
//!
//! // Without HTTP: the store is away until the lease has expired.
//! let guard = locks.lock("orders/42").await.unwrap();
//! store.set_fault(Some(Fault::Unreachable));
//! assert_eq!(guard.lost().await, Loss::Expired);
//! # }
//! ```
//!
//! # More
//!
//! - Two [`Locks`](crate::Locks) on clones of one store behave like two processes.
//! - A handler as a plain function needs no layer: call it with a guard of `locks.lock(..)`.
//! - After a test, [`FaultyStore::is_empty`](crate::store::FaultyStore::is_empty) tells whether
//!   anything was left behind, once the releases in the background are through:
//!   `locks.close(Duration::ZERO).await`. The kept answers of an idempotency layer count.
//! - Give each test its own store. Against a real Redis, give each test its own
//!   [prefix](crate::store::RedisStoreBuilder::prefix).
