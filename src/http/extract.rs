//! Guards as axum extractors.

use std::convert::Infallible;

use axum::extract::{FromRequestParts, OptionalFromRequestParts};
use http::request::Parts;

use crate::{
    LockGuard,
    lock::{LockGuards, NoGuard},
    rejection::Rejection,
};

/// The guard of the innermost [`DistributedLockLayer`](crate::DistributedLockLayer) that has locked the request.
///
/// Rejects with 500 where there is none: that is a mistake in the routes, which the log explains. A handler that also
/// serves requests that are not locked takes an `Option<LockGuard>`.
impl<S: Sync> FromRequestParts<S> for LockGuard {
    type Rejection = Rejection;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Rejection> {
        Self::from_extensions(&parts.extensions).map_err(reject)
    }
}

/// `None` where the request was not locked on purpose (its method is safe, its key said so, the layer failed open). That there
/// is no layer at all is still a mistake, and rejected with 500.
impl<S: Sync> OptionalFromRequestParts<S> for LockGuard {
    type Rejection = Rejection;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Option<Self>, Rejection> {
        match Self::from_extensions(&parts.extensions) {
            Ok(guard) => Ok(Some(guard)),
            Err(NoGuard::NotLocked(_)) => Ok(None),
            Err(mistake) => Err(reject(mistake)),
        }
    }
}

impl<S: Sync> FromRequestParts<S> for LockGuards {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self::from_extensions(&parts.extensions))
    }
}

fn reject(mistake: NoGuard) -> Rejection {
    Rejection::misconfigured(mistake.to_string())
}
