//! What a refusal takes from the request that it answers.

use std::sync::atomic::{AtomicU64, Ordering};

use http::{Extensions, HeaderMap, request::Parts};

use super::grpc::is_grpc;

/// The request that a refusal answers.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Asked {
    pub(super) is_grpc: bool,
    /// `None` for a request that is not idempotent.
    pub(super) request: Option<RequestId>,
}

impl Asked {
    pub(crate) fn by(parts: &Parts) -> Self {
        Self::of(&parts.headers, &parts.extensions)
    }

    /// The request with these headers and extensions.
    pub(crate) fn of(headers: &HeaderMap, extensions: &Extensions) -> Self {
        Self {
            is_grpc: is_grpc(headers),
            request: extensions.get().copied(),
        }
    }
}

/// The id of an idempotent request, in an extension of the request.
///
/// A service that the handler calls with another request refuses that one. Such a refusal says
/// nothing about the handler, which may have acted before the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RequestId(u64);

impl RequestId {
    /// Gives the request an id, unless a layer further out has given it one.
    pub(crate) fn give(extensions: &mut Extensions) {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        if extensions.get::<Self>().is_none() {
            extensions.insert(Self(NEXT.fetch_add(1, Ordering::Relaxed)));
        }
    }
}
