//! Idempotent endpoints: the handler of a request runs once, and duplicates of the request get the
//! same answer.
//!
//! See [`IdempotencyLayer`].
//!
//! The way of a request with a key, and of a duplicate that comes while the request runs:
//!
//! ```text
//!             first request                                     duplicate
//! settings    key: idempotency,tenant=7,key=8e03…               the same key
//! begin       reads the body, makes the fingerprint             the same
//!             claims the key: a lease with the fingerprint      waits in the line of the key
//! run         runs the handler as a task
//! keep        puts the record into the lease's place            is given the record
//!             response                                          response, with `Idempotent-Replayed: true`
//! ```
//!
//! | file | task |
//! |---|---|
//! | `layer.rs`, `settings.rs`, `header.rs`, `scope.rs` | the options, and the claim of a request |
//! | `begin.rs`, `read.rs`, `fingerprint.rs`, `multipart.rs` | from the request to the claimed key |
//! | `claim.rs`, `recall.rs` | the claim as the program sees it, and what the program has kept itself |
//! | `run.rs`, `policy.rs` | the handler, and the decision about its answer |
//! | `keep.rs`, `record.rs`, `replayed.rs` | the record in the store |
//! | `settle.rs` | operators: requests whose process has died |
//! | `once.rs` | the same outside of HTTP |

#![deny(clippy::wildcard_enum_match_arm)]

mod begin;
mod claim;
mod fingerprint;
mod header;
mod keep;
mod layer;
mod multipart;
mod once;
mod policy;
mod read;
mod recall;
mod record;
mod replayed;
mod run;
mod scope;
mod service;
mod settings;
mod settle;

#[cfg(feature = "axum")]
mod extract;

#[cfg(feature = "admin")]
pub(crate) use settle::abandoned;

// The machinery of records, which single flights share.
pub(crate) use {
    fingerprint::Fingerprint,
    keep::keep,
    read::read_response,
    record::{Answer, Outcome},
    run::is_endless,
};

pub use claim::Claim;
pub use layer::IdempotencyLayer;
#[cfg(feature = "json")]
pub use once::Json;
pub use once::{Once, Recordable, RunOnceError};
pub use policy::{Answered, Keep};
pub use recall::Recalled;
pub use service::Idempotency;
