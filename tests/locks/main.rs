//! The core, over the memory store, on paused time.

mod smoke;
