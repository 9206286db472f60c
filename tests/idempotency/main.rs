//! Idempotent endpoints, over the memory store.

mod smoke;
