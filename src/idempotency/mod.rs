//! Idempotent endpoints: a request that is sent again gets the first answer again, and its handler has run once.
//!
//! See [`IdempotencyLayer`].

mod begin;
mod body;
mod fingerprint;
mod future;
mod header;
mod keep;
mod layer;
mod once;
mod policy;
mod read;
mod record;
mod run;
mod scope;
mod service;
mod settings;

#[cfg(feature = "axum")]
mod extract;

pub use body::IdempotentBody;
pub use future::ResponseFuture;
pub use layer::IdempotencyLayer;
#[cfg(feature = "json")]
pub use once::Json;
pub use once::{Once, Recordable, RunOnceError};
pub use policy::{Answered, Keep};
pub use service::Idempotency;
pub use settings::IdempotencyKey;
