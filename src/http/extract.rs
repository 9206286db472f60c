//! Guards as axum extractors.

use std::convert::Infallible;

use axum::extract::{FromRequestParts, OptionalFromRequestParts};
use http::request::Parts;

use crate::{
    LockGuard,
    lock::{AllGuards, NoGuard},
    rejection::{Asked, Rejection},
};

/// The guard of the innermost [`DistributedLockLayer`](crate::DistributedLockLayer) that the
/// request has passed.
///
/// Rejects with 500 where the request has no guard. That is a mistake in the routes, and the log
/// explains it. A handler that also serves requests without a lock takes an `Option<LockGuard>`.
impl<S: Sync> FromRequestParts<S> for LockGuard {
    type Rejection = Rejection;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Rejection> {
        Self::from_extensions(&parts.extensions).map_err(|mistake| reject(mistake, parts))
    }
}

/// `None` where the layer has let the request pass without a lock: the layer does not lock the
/// method, the key function returned no key, no route matches, or the layer failed open. A route
/// without a layer is still a mistake, and rejected with 500.
impl<S: Sync> OptionalFromRequestParts<S> for LockGuard {
    type Rejection = Rejection;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Option<Self>, Rejection> {
        match Self::from_extensions(&parts.extensions) {
            Ok(guard) => Ok(Some(guard)),
            Err(NoGuard::NotLocked(_)) => Ok(None),
            Err(mistake) => Err(reject(mistake, parts)),
        }
    }
}

impl<S: Sync> FromRequestParts<S> for AllGuards {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self::from_extensions(&parts.extensions))
    }
}

fn reject(mistake: NoGuard, parts: &Parts) -> Rejection {
    Rejection::misconfigured(mistake.to_string()).to(Asked::by(parts))
}
