//! The core, over the memory store: on paused time, but for what needs several threads or several runtimes.

mod away;
mod cancellation;
mod close;
mod errors;
mod exclusion;
mod leftovers;
mod line;
mod lock_all;
mod loss;
mod once;
mod passing;
mod renewal;
mod run;
mod runtimes;
mod support;
