//! The lock around a service.
//!
//! See [`DistributedLockLayer`].
//!
//! A request goes through these stages:
//!
//! ```text
//! plan ──▶ Pass ──▶ the inner service
//!      ├─▶ a rejection
//!      └─▶ Run ──▶ handle: acquire ──▶ ready ──▶ the handler ──▶ End ──▶ the response
//!                  (not if a layer        │          │         the release is awaited, if
//!                  further out has        │          │         the options say so
//!                  locked the same key)   │          │
//!                             │           │          │
//!                             └───────────┴──────────┴──▶ the lease is lost, or the lock fails: a rejection
//! ```
//!
//! Handlers find their turn with [`LockGuard::from_extensions`](crate::LockGuard::from_extensions)
//! or [`AllGuards`], and with axum as arguments:
//!
//! ```
//! use tower_distributed_lock::{LockGuard, lock::AllGuards};
//!
//! async fn transfer(guard: LockGuard) -> String {
//!     format!("done, with token {}", guard.token())
//! }
//!
//! async fn between_two_accounts(guards: AllGuards) -> String {
//!     format!("{} keys are locked", guards.all().len())
//! }
//!
//! /// A handler that also serves requests which the layer does not lock, such as GET.
//! async fn read_or_write(guard: Option<LockGuard>) -> &'static str {
//!     if guard.is_some() { "locked" } else { "not locked" }
//! }
//! ```

mod end;
mod layer;
mod outage;
mod request_guards;
mod service;
mod settings;

pub use layer::DistributedLockLayer;
pub use request_guards::{AllGuards, NoGuard, NotLocked};
pub(crate) use request_guards::{Layer, RequestGuards};
pub use service::DistributedLock;
pub use settings::{Fenced, OnLoss};
