//! The layer, its extractor and its refusals, over real HTTP.

mod body;
mod detached;
mod gate;
mod guards;
mod http2;
mod leaving;
#[cfg(feature = "tracing")]
mod log;
mod loss;
mod modes;
mod nested;
mod order;
mod outer;
mod own_words;
mod placement;
mod read_body;
mod refusals;
mod reject;
mod several;
mod shutdown;
mod stages;
mod support;
