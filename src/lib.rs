//! One request at a time per key, across a whole fleet.

pub mod key;
pub mod store;

mod error;
mod time;

pub use error::{Error, ErrorKind};
pub use key::LockKey;
