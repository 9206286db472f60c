//! Everything that knows of HTTP: the layers, the extractors, and how a refusal looks.

// First, because the documentation of `rejection` is made by one of its macros.
#[macro_use]
mod reasons;

pub mod gate;
pub mod idempotency;
pub mod lock;
pub mod read_body;
pub mod rejection;
pub mod single_flight;

pub(crate) mod json;
mod opaque;

#[cfg(feature = "axum")]
mod extract;
