//! Idempotent endpoints: the handler of a request runs once, and duplicates of the request get the same answer.
//!
//! See [`IdempotencyLayer`].

mod begin;
mod body;
mod fingerprint;
mod future;
mod header;
#[cfg(feature = "json")]
mod json;
mod keep;
mod kept;
mod layer;
mod multipart;
mod once;
mod policy;
mod read;
mod record;
mod replayed;
mod run;
mod scope;
mod service;
mod settings;

#[cfg(feature = "axum")]
mod extract;

// The machinery of records, which single flights share.
pub(crate) use {
    fingerprint::Fingerprint,
    keep::Keeping,
    read::{Response as ReadResponse, response as read_response},
    record::{Answer, Outcome, Record, Tombstone},
    replayed::replayed,
    run::run_to_end,
};

pub use body::IdempotentBody;
pub use future::ResponseFuture;
pub use kept::KeptAnswers;
pub use layer::IdempotencyLayer;
#[cfg(feature = "json")]
pub use once::{Json, JsonError};
pub use once::{Once, Recordable, RunOnceError};
pub use policy::{Answered, Keep};
pub use service::Idempotency;
pub use settings::IdempotencyKey;
