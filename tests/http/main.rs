//! The layer, its extractor and its refusals, over real HTTP.

mod body;
mod detached;
mod guards;
mod leaving;
#[cfg(feature = "tracing")]
mod log;
mod loss;
mod nested;
mod order;
mod placement;
mod read_body;
mod refusals;
mod reject;
mod shutdown;
mod stages;
mod support;
