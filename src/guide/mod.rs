//! A guide: guarantees, recipes, operation, and a comparison with other libraries.
//!
//! The reference documentation describes each type and setting. These chapters describe how the
//! parts work together.
//!
//! | chapter | read it |
//! |---|---|
//! | [Guarantees](guarantees) | before you rely on a lock: which properties hold, under which assumptions, and which do not |
//! | [Cookbook](cookbook) | while you build: complete snippets for services, jobs, consumers and tests |
//! | [Modes](modes) | when several may hold a key at a time: readers and writers, permits |
//! | [Operating](operating) | before you deploy, and when you are on call |
//! | [Metrics](metrics) | when you set up monitoring: metrics, spans, events, and a dashboard |
//! | [Comparison](comparison) | while you choose: other libraries, and when not to use this crate |
//!
//! The words that all chapters use:
//!
//! | word | meaning |
//! |---|---|
//! | key | the name of the locked resource, such as `account,tenant=acme,id=7` |
//! | store | the place where leases are kept: memory, Redis, or a quorum of Redis servers |
//! | instance | one [`Locks`](crate::Locks), usually one per process |
//! | lease | an instance's time-limited hold of a key in the store |
//! | mode | how many hold a key at a time: one (exclusive), any number (shared), or at most *n* (permits) |
//! | turn | one request's use of a key under a lease. An exclusive lease serves several turns, one after another; a shared one, side by side |
//! | token | the fencing token of a turn: a number that rises with every exclusive turn at a key |
//! | line | the requests of one process that wait for a key |
//! | record | the kept answer of a finished request, in the place of its lease |
//!
//! Every Rust snippet of the guide is compiled by `cargo test`, most of them are run.

pub mod comparison;
pub mod cookbook;
pub mod guarantees;
pub mod metrics;
pub mod modes;
pub mod operating;

#[cfg(test)]
mod tests;
