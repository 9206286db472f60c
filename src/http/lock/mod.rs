//! The lock around a service.
//!
//! See [`DistributedLockLayer`].
//!
//! A request goes through these stages:
//!
//! ```text
//! plan ──▶ Pass ──────────────────────────────┐
//!      ├─▶ Enter (a layer further out has     │
//!      │          locked the same key) ───────┤
//!      ├─▶ Refuse ──▶ a rejection             ▼
//!      └─▶ Lock ──▶ Acquiring ──▶ Readying ──▶ Handling ──▶ Ending ──▶ the response
//!                      │             │            │           the release is awaited, if the options say so
//!                      └─────────────┴────────────┴──▶ the lease is lost, or the lock fails: a rejection
//! ```
//!
//! Handlers find their turn with [`LockGuard::from_extensions`](crate::LockGuard::from_extensions) or
//! [`LockGuards`], and with axum as arguments:
//!
//! ```
//! use tower_distributed_lock::{LockGuard, lock::LockGuards};
//!
//! async fn transfer(guard: LockGuard) -> String {
//!     format!("done, with token {}", guard.token())
//! }
//!
//! async fn between_two_accounts(guards: LockGuards) -> String {
//!     format!("{} keys are locked", guards.all().len())
//! }
//!
//! /// A handler that also serves requests which the layer does not lock, such as GET.
//! async fn read_or_write(guard: Option<LockGuard>) -> &'static str {
//!     if guard.is_some() { "locked" } else { "not locked" }
//! }
//! ```

mod detach;
mod future;
mod held;
mod layer;
mod outage;
mod request_guards;
mod response;
mod service;
mod settings;

pub use detach::{Detach, DetachedFuture, DetachedLockLayer};
pub use future::ResponseFuture;
pub(crate) use held::TaskTurns;
pub use layer::DistributedLockLayer;
pub(crate) use request_guards::RequestGuards;
pub use request_guards::{LockGuards, NoGuard, NotLocked};
pub use response::LockBody;
pub use service::DistributedLock;
pub use settings::{Fenced, LeaseLoss};
