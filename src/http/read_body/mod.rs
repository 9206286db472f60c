//! Reads a request's body before the request goes on.
//!
//! See [`ReadBodyLayer`].
//!
//! ```text
//! Reading ──▶ the body has ended ──▶ Readying ──▶ Handling, with the body as one frame and as `WholeBody`
//!    ├─▶ over the limit: 413
//!    └─▶ broken off: 400
//! ```

mod future;
mod joined;
mod layer;
mod rebuild;
mod service;

pub use future::ResponseFuture;
pub(crate) use joined::Joined;
pub use layer::ReadBodyLayer;
pub use rebuild::{AnyBody, Rebuild, RequestBody, SameBody};
pub use service::ReadBody;

pub use crate::key::body::WholeBody;
