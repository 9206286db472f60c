//! Measures locks of `tower-distributed-lock` beside those of its peers, on a Redis and a PostgreSQL server of the run's own.
//!
//! | module | task |
//! |---|---|
//! | [`peers`] | one trait, [`peers::Client`], and an implementation for each peer |
//! | [`workloads`] | what the clients do: spread keys, one hot key, hand-overs, held leases, HTTP, PostgreSQL |
//! | [`closed_loop`] | runs the actors of a workload for one slice of time |
//! | [`contest`] | interleaves the slices of all contestants, round by round |
//! | [`meter`], [`cpu`], [`allocations`], [`redis_server`], [`postgres_server`] | what a slice has used |
//! | [`instructions`] | client instructions per lock, by callgrind |
//! | [`report`], [`plot`] | `RESULTS.md` and `docs/results.svg` |

pub mod allocations;
pub mod bars;
pub mod bench;
pub mod closed_loop;
pub mod contest;
pub mod cpu;
pub mod instructions;
pub mod machine;
pub mod meter;
pub mod peers;
pub mod plot;
pub mod postgres_server;
pub mod redis_server;
pub mod report;
pub mod workloads;
