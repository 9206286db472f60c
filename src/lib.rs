//! One request at a time per key, across a whole fleet.

pub mod key;
pub mod store;

mod error;
mod lease;
mod locks;
mod sync;
mod time;
mod trace;

pub use error::{Error, ErrorKind};
pub use key::LockKey;
pub use lease::Loss;
pub use locks::{LockGuard, Locks, LocksBuilder, Stats, Status};
