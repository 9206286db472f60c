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
mod service;
mod settings;
mod turns;

pub use body::LockBody;
pub use detach::{Detach, DetachedFuture, DetachedLockLayer};
pub use future::ResponseFuture;
pub use layer::DistributedLockLayer;
pub use service::DistributedLock;
pub use settings::{Fenced, LeaseLoss};
pub(crate) use turns::Turns;
pub use turns::{LockGuards, NoGuard, NotLocked};
