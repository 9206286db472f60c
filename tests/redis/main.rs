//! The Redis store on real servers that are stopped, cut off, filled and killed.

#[path = "../support/mod.rs"]
mod support;
