//! The core, over the memory store: on paused time, but for what needs several threads or several runtimes.

mod cancellation;
mod close;
mod errors;
mod exclusion;
mod leftovers;
mod line;
mod loss;
mod passing;
mod renewal;
mod runtimes;
mod support;
