//! Which answers are kept.
//!
//! | the answer | the key is free for the next duplicate if |
//! |---|---|
//! | is the refusal of a layer further in, before the handler | nobody asks for a tombstone |
//! | is that of a layer that had called the handler | never |
//! | is an error of the locks that the handler returns | the handler says so |
//! | is the refusal of another request, from a service that the handler called | the handler says so |
//! | is any other | the handler says so, or the policy of the layer |

use std::{any::Any, error::Error as StdError, sync::Arc};

use http::{HeaderMap, StatusCode, response};

use crate::{
    http::opaque::Opaque,
    rejection::{Asked, Handler, Reason, Rejection, grpc},
};

/// Whether an answer is kept.
///
/// The policy of a layer ([`keep`](super::IdempotencyLayer::keep)) decides for all answers of the
/// handler. A handler decides for its own answer, with a response extension, and the handler's
/// decision counts before the policy's. The refusals of layers and extractors are never kept: of
/// all extensions, only a tombstone counts for them.
///
/// An error of the locks that a handler returns, and the refusal of a service that the handler has
/// called, are answers of the handler, which may have acted before. The policy cannot free the key
/// after them; the handler can, with [`No`](Self::No) or with
/// [`Rejection::nothing_done`](crate::rejection::Rejection::nothing_done).
///
/// ```
/// # use http::Response;
/// use tower_distributed_lock::idempotency::Keep;
///
/// let mut response = Response::new("declined, and nothing was charged");
/// response.extensions_mut().insert(Keep::No);
/// ```
///
/// With axum, after the status: `(StatusCode::BAD_REQUEST, Extension(Keep::No), "declined")`.
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
    /// A gRPC response, whose HTTP status is always 200, goes by its `grpc-status`: CANCELLED and
    /// DEADLINE_EXCEEDED are a tombstone; OK, UNKNOWN, INTERNAL and DATA_LOSS are kept; all
    /// others, UNAVAILABLE included, say that nothing was done.
    pub fn by_status(answer: &Answered<'_>) -> Self {
        if let Some(status) = answer.grpc_status() {
            return match status {
                0 | 2 | 13 | 15 => Self::Yes,
                1 | 4 => Self::Tombstone,
                3 | 5..=12 | 14 | 16.. => Self::No,
            };
        }
        match answer.status().as_u16() {
            200..400 | 402 => Self::Yes,
            ..200 | 408 => Self::Tombstone,
            400..500 | 503 => Self::No,
            500.. => Self::Yes,
        }
    }

    /// A policy for handlers that are one transaction: nothing frees the key but the handler's own
    /// word that the transaction was rolled back, which is [`Keep::No`] as a response
    /// extension.
    ///
    /// | status | without an extension |
    /// |---|---|
    /// | 2xx, 3xx, 4xx but 408 | kept |
    /// | 1xx, 408, 5xx, and a panic | tombstone |
    ///
    /// A gRPC response, by its `grpc-status`: a tombstone for CANCELLED, UNKNOWN,
    /// DEADLINE_EXCEEDED, INTERNAL, UNAVAILABLE and DATA_LOSS; all others are kept.
    ///
    /// A COMMIT that fails may have committed: only its answer was lost. Such an error has no
    /// extension, whatever its status is, and so the retry does not pay a second time.
    ///
    /// ```
    /// use axum::{Extension, http::StatusCode, response::{IntoResponse, Response}};
    /// use tower_distributed_lock::{IdempotencyLayer, Locks, idempotency::Keep, key};
    ///
    /// let layer = IdempotencyLayer::new(Locks::in_memory(), key::request().header("x-tenant-id"))
    ///     .keep(Keep::unless_rolled_back);
    ///
    /// # struct Transaction;
    /// # impl Transaction {
    /// #     async fn insert(&mut self) -> Result<(), StatusCode> { Ok(()) }
    /// #     async fn rollback(self) -> Result<(), StatusCode> { Ok(()) }
    /// #     async fn commit(self) -> Result<(), StatusCode> { Ok(()) }
    /// # }
    /// async fn pay(mut transaction: Transaction) -> Result<&'static str, Response> {
    ///     if let Err(error) = transaction.insert().await {
    ///         transaction.rollback().await.map_err(IntoResponse::into_response)?;
    ///         return Err((Extension(Keep::No), error).into_response()); // nothing was done: a retry may run
    ///     }
    ///     transaction.commit().await.map_err(IntoResponse::into_response)?;
    ///     Ok("paid")
    /// }
    /// ```
    pub fn unless_rolled_back(answer: &Answered<'_>) -> Self {
        if let Some(status) = answer.grpc_status() {
            return match status {
                1 | 2 | 4 | 13 | 14 | 15 => Self::Tombstone,
                0 | 3 | 5..=12 | 16.. => Self::Yes,
            };
        }
        match answer.status().as_u16() {
            ..200 | 408 | 500.. => Self::Tombstone,
            200..500 => Self::Yes,
        }
    }

    /// A policy for handlers whose errors say for certain that nothing was done: 2xx and 3xx are
    /// kept, and nothing else. A gRPC response is kept if its `grpc-status` is OK. A handler
    /// that panicked counts as one that answered 500.
    ///
    /// Not for handlers that write to a database or call other services, unless the layer
    /// [recalls](super::IdempotencyLayer::recall) what was written. A COMMIT whose answer is lost
    /// looks like one that has failed, and the retry would pay again: see
    /// [`unless_rolled_back`](Self::unless_rolled_back). A payment provider that was called before
    /// the error has charged.
    ///
    /// ```
    /// use tower_distributed_lock::{IdempotencyLayer, Locks, idempotency::Keep, key};
    ///
    /// // A report that is only computed.
    /// let layer = IdempotencyLayer::new(Locks::in_memory(), key::request().header("x-tenant-id"))
    ///     .keep(Keep::when_errors_do_nothing); // a retry after a 500 runs the handler again
    /// ```
    pub fn when_errors_do_nothing(answer: &Answered<'_>) -> Self {
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

    /// The `grpc-status` of a gRPC response, from its trailers or its headers; 2 (UNKNOWN) where
    /// there is none, or one that gRPC does not have. `None` for any other response.
    pub fn grpc_status(&self) -> Option<u32> {
        if !grpc::is_grpc(&self.parts.headers) {
            return None;
        }
        let trailer = self.trailers.and_then(|trailers| trailers.get(GRPC_STATUS));
        let status = trailer.or_else(|| self.parts.headers.get(GRPC_STATUS));
        let code = status.and_then(|status| status.to_str().ok()?.parse().ok());
        Some(code.filter(|code| *code <= 16).unwrap_or(2))
    }

    /// The decision about the answer to a request. See the table at the head of this file.
    pub(super) fn decide(&self, asked: Asked, policy: impl Fn(&Self) -> Keep) -> Keep {
        let said = self.parts.extensions.get::<Keep>().copied();
        let rejection = self.parts.extensions.get::<Rejection>();
        let keep = match rejection.map(|rejection| rejection.says_of(asked)) {
            Some(Handler::CutOff) => Keep::Tombstone,
            Some(Handler::NotBegun) => match said {
                Some(Keep::Tombstone) => Keep::Tombstone,
                Some(Keep::Yes | Keep::No) | None => Keep::No,
            },
            Some(Handler::HasNotActed) => said.unwrap_or(Keep::No),
            Some(Handler::MayHaveActed(reason)) => {
                said.unwrap_or_else(|| self.of_error(reason, policy))
            }
            None => said.unwrap_or_else(|| policy(self)),
        };
        match keep {
            // A switch of protocols cannot be replayed.
            Keep::Yes if self.status().is_informational() => Keep::Tombstone,
            Keep::Yes | Keep::No | Keep::Tombstone => keep,
        }
    }

    /// The decision about an error that came out of a handler, which may have acted before. The
    /// policy may keep the error as an answer, unless it looks like a success or a lease was
    /// lost, and cannot free the key.
    fn of_error(&self, reason: Reason, policy: impl Fn(&Self) -> Keep) -> Keep {
        if self.is_success() || reason.had_begun() {
            return Keep::Tombstone;
        }
        match policy(self) {
            Keep::Yes => Keep::Yes,
            Keep::No | Keep::Tombstone => Keep::Tombstone,
        }
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

/// The decision about an error that the inner service's `call` returns; `None` if the policy is for
/// errors of another type.
pub(super) type DecideOnError = Opaque<dyn Fn(&dyn Any) -> Option<Keep> + Send + Sync>;

/// A policy over the errors of one type. The causes of an error do not count: a handler that has
/// acted returns errors, too, and they may have any cause.
pub(super) fn on_error<E: StdError + 'static>(
    policy: impl Fn(&E) -> Keep + Send + Sync + 'static,
) -> DecideOnError {
    Opaque(Arc::new(move |error| {
        let boxed = error.downcast_ref::<Box<dyn StdError + Send + Sync>>();
        let error = error.downcast_ref().or_else(|| boxed?.downcast_ref());
        error.map(&policy)
    }))
}
