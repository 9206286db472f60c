//! The lock around a service.
//!
//! See [`DistributedLockLayer`].

mod body;
mod detach;
mod ending;
mod future;
mod held;
mod layer;
mod outage;
mod request_guards;
mod service;
mod settings;

pub use body::LockBody;
pub use detach::{Detach, DetachedFuture, DetachedLockLayer};
pub use future::ResponseFuture;
pub use layer::DistributedLockLayer;
pub(crate) use request_guards::RequestGuards;
pub use request_guards::{LockGuards, NoGuard, NotLocked};
pub use service::DistributedLock;
pub use settings::{Fenced, LeaseLoss};
