//! Reads a request's body before the request goes on.
//!
//! See [`ReadBodyLayer`].

mod future;
mod layer;
mod service;

pub use future::ResponseFuture;
pub use layer::ReadBodyLayer;
pub use service::ReadBody;
