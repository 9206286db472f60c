//! One suite for every store: each test is a sentence of the contract in the docs of `Store`.
//!
//! A store joins with one line here and a [`Subject`](subject::Subject) that says how to start it.
//! Tests of a property that time could spoil use leases of a minute or longer, and those that wait
//! for an expiry wait for as long as it takes: none is right only on a fast machine.

mod memory;
#[cfg(feature = "postgres")]
mod postgres;
mod quorum;
#[cfg(feature = "redis")]
mod redis;
mod subject;
mod suite;

use test_support as support;

suite::conformance!(memory_store, crate::memory::Memory, (start_paused = true));

#[cfg(feature = "test-util")]
suite::conformance!(faulty_store, crate::memory::Faulty, (start_paused = true));

#[cfg(feature = "redis")]
suite::conformance!(redis_store, crate::redis::Redis, ());

#[cfg(feature = "postgres")]
suite::conformance!(postgres_store, crate::postgres::Postgres, ());

suite::conformance!(
    quorum_of_memory,
    crate::quorum::OfMemory,
    (start_paused = true),
    without permits
);

#[cfg(feature = "redis")]
suite::conformance!(
    quorum_of_three,
    crate::quorum::OfRedis<3>,
    (),
    without permits
);

#[cfg(feature = "redis")]
suite::conformance!(
    quorum_of_five,
    crate::quorum::OfRedis<5>,
    (),
    without permits
);
