//! What the program itself has kept of a request, in the database of its data.
//!
//! The program is asked under the claim's lease before the handler runs, and without a lease before
//! a request is told that the outcome of an earlier one is not known. It decides only whether there
//! is an answer. That two requests never both commit is up to its database, which has each key
//! once.
//!
//! | the program says | a key that was free | a tombstone, a dead process or an unreadable record |
//! |---|---|---|
//! | this answer | is recorded, and replayed | is replayed; recorded in the claim of a dead process |
//! | the answer of another request | 422 | 422 |
//! | nothing | the handler runs | as without `recall`: the handler may have acted elsewhere |
//! | an error | 503, and the key is free | 503 |
//!
//! A panic is the server's, as that of a handler, and frees the key. So does a client that goes
//! away meanwhile.

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::Response;

use super::{
    begin::key_reused, claim::Claim, fingerprint::Fingerprint, record::Answer, settings::Settings,
};
use crate::{
    http::gate::BoxError,
    rejection::{Reason, Rejection},
};

pub(super) type Recall =
    dyn Fn(Claim) -> BoxFuture<'static, Result<Option<Recalled>, BoxError>> + Send + Sync;

/// An answer that a program has kept by itself. See
/// [`IdempotencyLayer::recall`](super::IdempotencyLayer::recall).
#[derive(Debug, Clone)]
pub struct Recalled {
    fingerprint: Option<Fingerprint>,
    response: Response<Bytes>,
}

impl Recalled {
    /// The answer to the request with this [fingerprint](Claim::fingerprint), which the handler has
    /// stored with it. A request with another one gets 422.
    pub fn new(fingerprint: impl AsRef<[u8]>, response: Response<impl Into<Bytes>>) -> Self {
        Self {
            fingerprint: Fingerprint::from_bytes(fingerprint.as_ref()),
            response: response.map(Into::into),
        }
    }
}

/// Asks the program for its answer to a request.
pub(super) async fn recall(
    settings: &Settings,
    claim: Claim,
) -> Result<Option<Box<Answer>>, Rejection> {
    let Some(recall) = &settings.recall else {
        return Ok(None);
    };
    let failed = |cause: BoxError| {
        let detail = "it is not known at the moment whether this request was done before";
        Rejection::new(Reason::RecallFailed, detail)
            .with_retry_after(settings.retry_after)
            .with_cause(cause)
    };
    let ours = claim.fingerprint;
    let Some(Recalled {
        fingerprint,
        response,
    }) = recall(claim).await.map_err(failed)?
    else {
        return Ok(None);
    };
    if fingerprint != Some(ours) {
        return Err(key_reused(fingerprint.unwrap_or(ours), ours));
    }
    let (parts, body) = response.into_parts();
    if parts.status.is_informational() {
        return Err(failed("an informational status is no answer".into()));
    }
    let answer = Answer::of(&parts, &settings.never_replayed, None, body);
    Ok(Some(Box::new(answer)))
}
