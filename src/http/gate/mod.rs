//! What all layers have in common: the future of a response, its body, and the turns of a request.
//!
//! ```text
//! call ──▶ refused ──────────────────────────────────▶ the refusal
//!      ├─▶ passing ──▶ the inner service, unboxed ───▶ its response
//!      └─▶ running ──▶ the layer's `handle`, boxed ──▶ a response, whose body may hold a turn
//! ```
//!
//! A layer decides in `call`, which cannot wait. Everything that can is an `async fn handle` in the
//! file of the layer's service. A request that is refused or passes allocates nothing here, and
//! one that runs allocates one box.

mod body;
mod future;
mod held;
mod task;

use std::error::Error as StdError;

pub use body::Body;
pub use future::ResponseFuture;
pub(crate) use {
    body::Rest,
    future::call,
    held::{Guards, HeldTurn, TaskTurns},
    task::run_to_end,
};

/// The error of a body, whatever its type.
pub(crate) type BoxError = Box<dyn StdError + Send + Sync>;
