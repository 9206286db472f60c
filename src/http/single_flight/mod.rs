//! Equal safe requests at once: one runs, the others get a copy of its answer.
//!
//! See [`SingleFlightLayer`].

mod flight;
mod flights;
mod layer;
mod service;

pub use layer::SingleFlightLayer;
pub use service::SingleFlight;
