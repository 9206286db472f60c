//! The guide: one chapter for each question.
//!
//! The reference documentation describes each type and setting. These chapters describe how the
//! parts work together.
//!
//! | question | chapter |
//! |---|---|
//! | Which lock do I need, and when none? | [Which lock](which_lock) |
//! | What can I rely on, and what not? | [Guarantees](guarantees) |
//! | How does a retried request have one effect, even after a crash? | [Exactly once](exactly_once) |
//! | How do I build it into a service: axum, tonic, hyper? | [Services](services) |
//! | How do I use it in jobs, consumers and leaders, and how do I fence? | [Work](work) |
//! | How do I test my handlers through the layer? | [Testing](testing) |
//! | How do I move from a hand-written `SET NX` without downtime? | [From `SET NX`](from_set_nx) |
//! | How do I set Redis up, and connect to it? | [Redis](mod@redis) |
//! | How do I lock in PostgreSQL, and have transactions enforce it? | [PostgreSQL](mod@postgres) |
//! | How do I deploy it, and what do I do on call? | [Operating](operating) |
//! | What can I measure? | [Metrics](metrics) |
//! | How does it compare with other libraries? | [Comparison](comparison) |
//!
//! The words that all chapters use:
//!
//! | word | meaning |
//! |---|---|
//! | key | the name of the locked resource, such as `account,tenant=acme,id=7` |
//! | store | the place where leases are kept: memory, Redis, a quorum of Redis servers, or PostgreSQL |
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
#[doc(alias("transaction", "postgres", "exactly-once"))]
pub mod exactly_once;
#[doc(alias = "setnx")]
#[doc(alias = "migration")]
pub mod from_set_nx;
#[doc(alias = "fencing")]
#[doc(alias = "exactly-once")]
pub mod guarantees;
pub mod metrics;
pub mod operating;
pub mod postgres;
pub mod redis;
#[doc(alias = "tonic")]
#[doc(alias = "hyper")]
pub mod services;
#[doc(alias = "mock")]
pub mod testing;
#[doc(alias = "mutex")]
#[doc(alias = "semaphore")]
#[doc(alias = "rwlock")]
pub mod which_lock;
#[doc(alias = "leader")]
#[doc(alias = "postgres")]
#[doc(alias = "transaction")]
#[doc(alias = "webhook")]
pub mod work;

#[cfg(test)]
mod tests;
