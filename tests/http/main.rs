//! The layer, its extractor and its refusals, over real HTTP.

mod leaving;
mod loss;
mod order;
mod support;
