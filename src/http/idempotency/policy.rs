//! Which answers are kept.

use http::{HeaderMap, StatusCode, response};

use crate::rejection::{Reason, Rejection, grpc};

/// Whether an answer is kept.
///
/// The policy of a layer ([`keep`](super::IdempotencyLayer::keep)) decides for all answers of the handler. A handler decides for its own
/// answer, with a response extension, and the handler's decision counts before the policy's. The refusals of layers and extractors are
/// never kept, whatever a response extension says.
///
/// ```
/// # use http::Response;
/// use tower_distributed_lock::idempotency::Keep;
///
/// let mut response = Response::new("declined, and nothing was charged");
/// response.extensions_mut().insert(Keep::No);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Keep {
    /// The work was done: duplicates get this answer.
    Yes,
    /// Nothing was done: the next duplicate runs the handler.
    No,
    /// The outcome is not known: duplicates get 409, and do not run the handler.
    Tombstone,
}

impl Keep {
    /// The default policy: the answers of all handlers that may have acted are kept.
    ///
    /// | status | kept | reason |
    /// |---|---|---|
    /// | 2xx, 3xx, 402 | yes | the work was done, or declined for good |
    /// | 408 | tombstone | a timeout layer has cancelled the handler, at an unknown `.await` |
    /// | other 4xx, 503 | no | these statuses say that nothing was done |
    /// | other 5xx | yes | the handler may have acted before it failed |
    /// | 1xx | tombstone | a switch of protocols cannot be given again |
    ///
    /// A gRPC response, whose HTTP status is always 200, goes by its `grpc-status`: CANCELLED and DEADLINE_EXCEEDED are a
    /// tombstone; OK, UNKNOWN, INTERNAL and DATA_LOSS are kept; all others, UNAVAILABLE included, say that nothing was done.
    pub fn by_status(answer: &Answered<'_>) -> Self {
        if let Some(status) = answer.grpc_status() {
            return match status {
                0 | 2 | 13 | 15 => Self::Yes,
                1 | 4 => Self::Tombstone,
                _ => Self::No,
            };
        }
        match answer.status().as_u16() {
            200..400 | 402 => Self::Yes,
            ..200 | 408 => Self::Tombstone,
            503 => Self::No,
            500.. => Self::Yes,
            _ => Self::No,
        }
    }

    /// A policy for handlers that are one transaction, which an error rolls back: 2xx and 3xx are kept, and nothing else. A gRPC
    /// response is kept if its `grpc-status` is OK. A handler that panicked counts as one that answered 500.
    ///
    /// Not for handlers that call other services: a payment provider that was called before the transaction failed has charged.
    ///
    /// ```
    /// use tower_distributed_lock::{IdempotencyLayer, Locks, idempotency::Keep, key};
    ///
    /// let layer = IdempotencyLayer::new(Locks::in_memory(), key::header("x-tenant-id"))
    ///     .keep(Keep::only_success); // a retry after a 500 runs the handler again
    /// ```
    pub fn only_success(answer: &Answered<'_>) -> Self {
        if answer.is_success() {
            Self::Yes
        } else {
            Self::No
        }
    }
}

/// An answer, as a policy sees it.
///
/// ```
/// use tower_distributed_lock::idempotency::{Answered, Keep};
///
/// /// Keeps answers that the handler has marked as final, and goes by the status otherwise.
/// fn policy(answer: &Answered<'_>) -> Keep {
///     match answer.parts().headers.get("x-final") {
///         Some(_) => Keep::Yes,
///         None => Keep::by_status(answer),
///     }
/// }
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Answered<'a> {
    pub(super) parts: &'a response::Parts,
    pub(super) trailers: Option<&'a HeaderMap>,
}

impl Answered<'_> {
    /// The status of the response.
    pub fn status(&self) -> StatusCode {
        self.parts.status
    }

    /// The head of the response: headers and extensions.
    pub fn parts(&self) -> &response::Parts {
        self.parts
    }

    /// The `grpc-status` of a gRPC response, from its trailers or its headers; 2 (UNKNOWN) where there is none. `None` for
    /// any other response.
    pub fn grpc_status(&self) -> Option<u32> {
        if !grpc::is_grpc(&self.parts.headers) {
            return None;
        }
        let trailer = self.trailers.and_then(|trailers| trailers.get(GRPC_STATUS));
        let status = trailer.or_else(|| self.parts.headers.get(GRPC_STATUS));
        let code = status.and_then(|status| status.to_str().ok()?.parse().ok());
        Some(code.unwrap_or(2))
    }

    /// The decision for the refusal of a layer or of an extractor, by its reason: never kept, even with the status 200. `None` for any other
    /// answer.
    pub(super) fn of_refusal_by_layer(&self) -> Option<Keep> {
        let rejection = self.rejection().filter(|it| !it.is_of_program())?;
        Some(match rejection.reason() {
            // The handler had begun.
            Reason::LeaseLost => Keep::Tombstone,
            _ => Keep::No,
        })
    }

    /// The decision for an error of the locks that a handler has returned. The handler may have acted before, so the policy decides, by the
    /// status (`None`), unless the lease was lost, or the program renders the error as a success.
    pub(super) fn of_error(&self) -> Option<Keep> {
        let rejection = self.rejection()?;
        match rejection.reason() {
            Reason::LeaseLost => Some(Keep::Tombstone),
            _ if !self.is_success() => None,
            _ if rejection.status() == StatusCode::INTERNAL_SERVER_ERROR => Some(Keep::Tombstone),
            _ => Some(Keep::No),
        }
    }

    fn rejection(&self) -> Option<&Rejection> {
        self.parts.extensions.get()
    }

    /// Whether the response says that the work was done.
    fn is_success(&self) -> bool {
        match self.grpc_status() {
            Some(status) => status == 0,
            None => self.status().is_success() || self.status().is_redirection(),
        }
    }
}

const GRPC_STATUS: &str = "grpc-status";
