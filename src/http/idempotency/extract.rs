//! The claim as an axum extractor.

use axum::extract::{FromRequestParts, OptionalFromRequestParts};
use http::request::Parts;

use super::Claim;
use crate::rejection::{Asked, Rejection};

/// Rejects with 500 where the request was not claimed by an
/// [`IdempotencyLayer`](super::IdempotencyLayer): no layer is there, or the request has no key,
/// which [`required`](super::IdempotencyLayer::required) would refuse.
impl<S: Sync> FromRequestParts<S> for Claim {
    type Rejection = Rejection;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Rejection> {
        parts.extensions.get().cloned().ok_or_else(|| {
            Rejection::misconfigured(
                "the request has no Idempotency-Key that a layer has claimed: add an `IdempotencyLayer` with \
                 `.required()`, or take an `Option<Claim>`"
                    .into(),
            )
            .to(Asked::by(parts))
        })
    }
}

/// `None` where the request was not claimed.
impl<S: Sync> OptionalFromRequestParts<S> for Claim {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Option<Self>, Self::Rejection> {
        Ok(parts.extensions.get().cloned())
    }
}
