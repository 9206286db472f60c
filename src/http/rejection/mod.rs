//! Refusals, as `application/problem+json` (RFC 9457) or as gRPC statuses.
//!
//! Each such response has the [`Rejection`] as an extension. A [`RejectionLayer`] further out
//! renders the refusals of all layers, extractors and handlers with one closure.
//!
//! With the feature `axum`, `?` works in handlers: an [`Error`] becomes the response that a layer
//! would send, but not a retryable one, because the handler may have acted before. A handler that
//! has not says so, with [`Rejection::nothing_done`].
//!
//! gRPC requests, recognized by their content type, get a gRPC status instead
//! ([`Reason::grpc_status`]), with `grpc-retry-pushback-ms` for clients that retry, and the
//! reason's code as `refusal-code`.
//!
//! The members of the problem document:
//!
//! | member | content |
//! |---|---|
//! | `type` | a stable URI for each reason below, which ends with [`Reason::code`] |
//! | `title`, `status` | the same for all refusals of one reason |
//! | `detail` | a sentence for a person |
//! | `instance` | a `urn:uuid:` that is also in the log |
//! | `retryable` | whether the same request may be sent again; `false` where the handler may have acted |
//! | `idempotency_key` | the request's key, in refusals of the idempotency layer, if the key was readable |
#![doc = reason_docs!()]
#![deny(clippy::wildcard_enum_match_arm)]

mod asked;
mod encode;
pub(crate) mod grpc;
mod layer;
mod problem;

use std::{borrow::Cow, error::Error as StdError, fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Response, StatusCode};
use uuid::Uuid;

pub(crate) use self::asked::{Asked, RequestId};
pub(crate) use self::layer::Rendering;
pub use self::layer::{RejectionLayer, RenderRejections};
pub use super::reasons::Reason;
use crate::{Error, ErrorKind, defaults::lock::RETRY_AFTER, error::HeldBy, key::KeyError, trace};

/// A refusal: its reason, and its details for the client and the log.
///
/// ```
/// use std::time::Duration;
/// use tower_distributed_lock::{LockKey, rejection::{Reason, Rejection}};
///
/// // An error of the locks becomes the refusal that a layer would send.
/// let error = LockKey::new("").unwrap_err();
/// let rejection = Rejection::from(error);
/// assert_eq!(rejection.reason(), Reason::BadKey);
/// assert_eq!(rejection.status().as_u16(), 400);
/// assert!(rejection.retry_after().is_none());
///
/// let response = rejection.to_response();
/// assert_eq!(response.headers()["content-type"], "application/problem+json");
/// let body = String::from_utf8_lossy(response.body());
/// assert!(body.contains(&rejection.instance().to_string()), "the log has the same id");
/// ```
#[derive(Debug, Clone)]
pub struct Rejection {
    reason: Reason,
    detail: Cow<'static, str>,
    instance: Uuid,
    retry_after: Option<Duration>,
    idempotency_key: Option<Box<str>>,
    /// The cause, for the log only.
    source: Option<Arc<dyn StdError + Send + Sync>>,
    asked: Asked,
    by: By,
}

/// Who has refused the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    /// A layer or an extractor.
    Layer,
    /// The program, with an error of the locks, after which it may have acted.
    Program,
    /// The program, which says that it has not acted.
    ProgramBeforeItActed,
}

/// What a refusal says of the handler of an idempotent request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Handler {
    /// A layer between the idempotency layer and the handler has refused the request.
    NotBegun,
    /// Such a layer has cancelled the handler, or has withheld its answer.
    CutOff,
    /// The handler says that nothing was done.
    HasNotActed,
    /// The refusal came out of the handler: an error of the locks, or the refusal of a service that
    /// the handler has called.
    MayHaveActed(Reason),
}

impl Rejection {
    pub(crate) fn new(reason: Reason, detail: impl Into<Cow<'static, str>>) -> Self {
        Self {
            reason,
            detail: detail.into(),
            instance: Uuid::new_v4(),
            retry_after: reason.is_retryable().then_some(RETRY_AFTER),
            idempotency_key: None,
            source: None,
            asked: Asked::default(),
            by: By::Layer,
        }
    }

    pub(crate) fn with_idempotency_key(mut self, key: impl fmt::Display) -> Self {
        self.idempotency_key = Some(key.to_string().into());
        self
    }

    /// Sets the request that is refused.
    pub(crate) fn to(mut self, asked: Asked) -> Self {
        self.asked = asked;
        self
    }

    /// Adds the cause, for the log.
    pub(crate) fn with_cause(mut self, cause: Box<dyn StdError + Send + Sync>) -> Self {
        self.source = Some(cause.into());
        self
    }

    /// Sets the time after which a client may try again, if it may.
    pub(crate) fn with_retry_after(mut self, after: Duration) -> Self {
        self.retry_after = self.is_retryable().then_some(after);
        self
    }

    /// A misconfiguration. The log has the details; the client gets them from a debug build only.
    pub(crate) fn misconfigured(detail: String) -> Self {
        let told = if cfg!(debug_assertions) {
            detail.clone().into()
        } else {
            Cow::Borrowed("the server is misconfigured; its log says how")
        };
        Self::new(Reason::Misconfigured, told).with_cause(detail.into())
    }

    pub(crate) fn from_key_error(error: KeyError) -> Self {
        if error.is_misconfigured() {
            return Self::misconfigured(error.to_string());
        }
        Self::new(Reason::BadKey, error.to_string())
    }

    /// The refusal for an error of the locks. `retry_after`: the time after which a client may try
    /// again.
    pub(crate) fn from_error(error: Error, retry_after: Duration) -> Self {
        let rejection = match error.kind() {
            ErrorKind::InvalidConfig | ErrorKind::Foreign => Self::misconfigured(error.to_string()),
            ErrorKind::Held => match error.held_by() {
                HeldBy::Another => Self::new(Reason::Held, "another request holds the lock"),
                HeldBy::Itself => Self::misconfigured(error.to_string()),
                HeldBy::Permits(of) => {
                    Self::new(Reason::NoPermit, format!("all {of} permits are in use"))
                }
            },
            ErrorKind::LineFull => Self::new(
                Reason::LineFull,
                "too many requests wait for the same already",
            ),
            ErrorKind::TooManyKeys => Self::new(
                Reason::TooManyKeys,
                "too many requests for different things are under way",
            ),
            ErrorKind::Lost => Self::new(
                Reason::LeaseLost,
                "the lock was lost before the request was done",
            ),
            ErrorKind::Closed => Self::new(Reason::Closed, "this process is about to end"),
            ErrorKind::InvalidKey => {
                Self::new(Reason::BadKey, "the request gives no valid lock key")
            }
            ErrorKind::Unreachable => Self::new(
                Reason::StoreUnreachable,
                "the locks cannot be reached at the moment",
            ),
        };
        rejection
            .with_retry_after(retry_after)
            .with_cause(error.into())
    }

    /// The refusal of a handler that has done nothing before this error: that of a layer, which
    /// says that the request may be sent again. The key of an idempotent request is free after
    /// it.
    ///
    /// Without this, by `?` alone, the refusal says that the handler may have acted.
    ///
    /// ```
    /// use tower_distributed_lock::{Error, Locks, rejection::Rejection};
    ///
    /// // With axum.
    /// async fn order(locks: Locks) -> Result<&'static str, Rejection> {
    ///     let stock = locks.lock("stock/7").await.map_err(Rejection::nothing_done)?; // may be sent again
    ///     // Charge the card, then:
    ///     stock.confirm().await?; // must not be sent again
    ///     Ok("ordered")
    /// }
    /// ```
    pub fn nothing_done(error: Error) -> Self {
        Self {
            by: By::ProgramBeforeItActed,
            ..Self::from_error(error, RETRY_AFTER)
        }
    }

    /// Why the request was refused.
    pub fn reason(&self) -> Reason {
        self.reason
    }

    /// The status of the response.
    pub fn status(&self) -> StatusCode {
        self.reason.status()
    }

    /// A sentence for a person.
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// The id of this refusal, which is also in the log: a UUID, to be displayed.
    pub fn instance(&self) -> impl fmt::Display + fmt::Debug + Copy + Send + Sync + use<> {
        self.instance
    }

    /// The time after which a client may try again, for refusals that a later try may avoid.
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// Whether the same request may be sent again: the handler has not acted, and a later try may
    /// succeed.
    pub fn is_retryable(&self) -> bool {
        self.by != By::Program && self.reason.is_retryable()
    }

    /// The refusal as a response, as layers and extractors send it. Logs nothing.
    ///
    /// The response to a gRPC request, recognized by its content type, has a gRPC status: see
    /// [`Reason::grpc_status`].
    ///
    /// The body of a refusal for a held key:
    ///
    /// ```json
    /// {
    ///   "type": "https://docs.rs/tower-distributed-lock/latest/tower_distributed_lock/rejection/index.html#held",
    ///   "title": "Locked",
    ///   "status": 423,
    ///   "detail": "another request holds the lock",
    ///   "instance": "urn:uuid:3f0c8a52-5b7e-4d5e-9a61-0f4c7f1f0a11",
    ///   "retryable": true
    /// }
    /// ```
    pub fn to_response(&self) -> Response<Bytes> {
        let mut response = if self.asked.is_grpc {
            grpc::response(self)
        } else {
            problem::response(self)
        };
        response.extensions_mut().insert(self.clone());
        response
    }

    /// Refuses the request: logs the refusal, once, and returns the response.
    pub(crate) fn refuse(&self) -> Response<Bytes> {
        let reason = self.reason;
        let cause: &dyn fmt::Display = match &self.source {
            Some(cause) => cause,
            None => &self.detail,
        };
        let is_mistake = reason.is_mistake();
        trace::refused(self.instance, reason, reason.code(), cause, is_mistake);
        self.to_response()
    }

    /// What the refusal says of the handler of an idempotent request.
    pub(crate) fn says_of(&self, asked: Asked) -> Handler {
        match self.by {
            // Of another request, which the handler has sent to a service of its own.
            By::Layer if self.asked.request != asked.request => Handler::MayHaveActed(self.reason),
            By::Layer if self.reason.had_begun() => Handler::CutOff,
            By::Layer => Handler::NotBegun,
            By::Program => Handler::MayHaveActed(self.reason),
            By::ProgramBeforeItActed => Handler::HasNotActed,
        }
    }

    /// The request's `Idempotency-Key`, if there was a readable one.
    pub fn idempotency_key(&self) -> Option<&str> {
        self.idempotency_key.as_deref()
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.detail)
    }
}

impl StdError for Rejection {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_ref().map(|cause| &**cause as _)
    }
}

/// The refusal of a layer, but not a retryable one: the program may have acted before the error.
/// See [`nothing_done`](Rejection::nothing_done).
impl From<Error> for Rejection {
    fn from(error: Error) -> Self {
        Self {
            by: By::Program,
            retry_after: None,
            ..Self::from_error(error, RETRY_AFTER)
        }
    }
}

#[cfg(feature = "axum")]
impl axum::response::IntoResponse for Rejection {
    fn into_response(self) -> axum::response::Response {
        self.refuse().map(axum::body::Body::from)
    }
}

/// Lets `?` work in handlers: the response is that of a layer, but not a retryable one, see
/// [`rejection`](self).
#[cfg(feature = "axum")]
impl axum::response::IntoResponse for Error {
    fn into_response(self) -> axum::response::Response {
        Rejection::from(self).into_response()
    }
}
