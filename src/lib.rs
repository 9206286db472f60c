#![doc = include_str!("../README.md")]

pub mod idempotency;
pub mod key;
pub mod middleware;
pub mod read_body;
pub mod rejection;
pub mod single_flight;
pub mod store;

#[cfg(all(test, shuttle))]
mod checker;
mod error;
#[cfg(feature = "axum")]
mod extract;
mod lease;
mod locks;
mod sync;
mod time;
mod trace;

pub use error::{Error, ErrorKind};
pub use idempotency::IdempotencyLayer;
pub use key::LockKey;
pub use lease::Loss;
pub use locks::{LockGuard, Locks, LocksBuilder, Stats, Status};
pub use middleware::{DistributedLockLayer, LeaseLoss};
pub use read_body::ReadBodyLayer;
pub use single_flight::SingleFlightLayer;
