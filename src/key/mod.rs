//! Lock keys.

mod lock_key;

pub use lock_key::LockKey;
