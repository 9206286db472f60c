//! Equal safe requests at once: one runs, the others get a copy of its answer.
//!
//! See [`SingleFlightLayer`].
//!
//! ```text
//! GET /reports/7 ──▶ lead:   runs the handler ──▶ the answer is stored ──▶ response
//! GET /reports/7 ──▶ follow: waits ─────────────────────────┴────────────▶ a copy
//! GET /reports/7 ──▶ alone:  the flight takes too long, or its answer is not shared ──▶ runs the handler, shares nothing
//! ```

mod flight;
mod flights;
mod layer;
mod service;

pub use layer::SingleFlightLayer;
pub use service::SingleFlight;
