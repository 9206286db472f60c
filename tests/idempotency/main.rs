//! Idempotent endpoints: each test is a promise of `IdempotencyLayer`.
//!
//! The whole table runs over the memory store and a quorum, on a paused clock, and over a real
//! Redis and a real PostgreSQL. Tests wait for events without a limit that a slow machine could exceed.

mod choices;
#[cfg(feature = "redis")]
mod cost;
#[cfg(all(feature = "redis", unix))]
mod fleet;
mod hanging;
mod log;
#[cfg(feature = "redis")]
mod refused;
mod subject;
mod suite;
mod web;

use test_support as support;

suite::idempotency!(memory_store, crate::subject::Memory, (start_paused = true));

suite::idempotency!(quorum_store, crate::subject::Quorum, (start_paused = true));

#[cfg(feature = "redis")]
suite::idempotency!(redis_store, crate::subject::Redis, ());

#[cfg(feature = "postgres")]
suite::idempotency!(postgres_store, crate::subject::Postgres, ());
