//! Reads a request's body before the request goes on.
//!
//! See [`ReadBodyLayer`].
//!
//! ```text
//! read ──▶ the body has ended ──▶ the inner service, with the body as one frame and as `WholeBody`
//!    ├─▶ over the limit: 413
//!    └─▶ broken off: 400
//! ```

mod layer;
mod read;
mod rebuild;
mod service;

pub use layer::ReadBodyLayer;
pub(crate) use read::{Joined, read};
pub use rebuild::{AnyBody, Rebuild, SameBody};
pub use service::ReadBody;

pub use crate::key::body::WholeBody;
