//! The layer, its extractor and its refusals, over real HTTP.

mod body;
mod guards;
mod leaving;
mod loss;
mod nested;
mod order;
mod refusals;
mod support;
