//! The core, over the memory store: on paused time, unless a test needs several threads or
//! runtimes.

mod at_once;
mod away;
mod cancellation;
mod close;
mod contending;
mod errors;
mod exclusion;
mod fairness;
mod leftovers;
mod line;
mod lock_all;
mod loss;
mod once;
mod operators;
mod options;
mod passing;
mod permits;
mod renewal;
mod run;
mod runtimes;
mod shared;
mod support;
mod wakers;
