//! Every refusal, and how it is told: as `application/problem+json` (RFC 9457).
//!
//! Each response also has the [`Rejection`] itself among its extensions. So a [`RejectionLayer`] further out can render the
//! refusals of all layers, of extractors and of handlers in one's own way, in one place; a layer's own
//! [`on_rejection`](crate::DistributedLockLayer::on_rejection) does so for that layer.
//!
//! With the feature `axum`, `?` works in handlers: an [`Error`] becomes the response that a layer would give.
//!
//! gRPC requests, told by their content type, get a gRPC status instead ([`Reason::grpc_status`]), with `grpc-retry-pushback-ms` for
//! clients that retry, and the reason's code as `refusal-code`.
//!
//! `type` is a URI that does not change, one for each of the reasons below, whose last part is [`Reason::code`]; `title` and `status` go with it. `detail`
//! says what happened, `instance` is a `urn:uuid:` that also stands in the log, and `retryable` says whether the same
//! request may simply be sent again: it is `false` where the handler may have acted. Refusals of the idempotency layer have
//! the request's key as `idempotency_key`, where it was readable.
//!
//! # bad-key
//! **400**. No lock key can be derived from the request.
//!
//! # missing-idempotency-key
//! **400**. The request has no `Idempotency-Key`, and needs one.
//!
//! # bad-idempotency-key
//! **400**. The request's `Idempotency-Key` is doubled or malformed.
//!
//! # body-broken
//! **400**. The request's body ended before its time.
//!
//! # lease-lost
//! **409**. The lease was lost while the handler ran, or could not be confirmed. The handler may have acted.
//!
//! # in-progress
//! **409**, with `Retry-After`. A request with the same `Idempotency-Key` is under way.
//!
//! # answer-not-kept
//! **409**. A request with the same `Idempotency-Key` was completed, and its answer could not be kept: it was too large, or
//! streamed.
//!
//! # outcome-unknown
//! **409**. A request with the same `Idempotency-Key` was begun, and nobody knows how it ended: its handler was cancelled, its lock was
//! lost, or it gave no answer. The handler does not run a second time.
//!
//! # body-too-large
//! **413**. The request's body is larger than what is read before locking.
//!
//! # key-reused
//! **422**. The `Idempotency-Key` was used for another request.
//!
//! # held
//! **423**, with `Retry-After`. Somebody else holds the key.
//!
//! # too-many-running
//! **429**, with `Retry-After`. The client has too many requests under way.
//!
//! # handler-panicked
//! **500**. The handler of a request with this `Idempotency-Key` panicked. It may have acted, and does not run a second time.
//!
//! # record-unreadable
//! **500**. The kept answer cannot be read. The handler does not run a second time.
//!
//! # misconfigured
//! **500**. The layer is where its key cannot be derived, or an extractor where no layer is.
//!
//! # line-full
//! **503**, with `Retry-After`. Too many requests wait for the key already.
//!
//! # too-many-keys
//! **503**, with `Retry-After`. This process has as many keys in use as it may.
//!
//! # store-unreachable
//! **503**, with `Retry-After`. The store that holds the locks does not answer.
//!
//! # closed
//! **503**, with `Retry-After`. This process is about to end.

pub(crate) mod body_error;
pub(crate) mod grpc;
mod layer;
mod problem;
mod render;

use std::{borrow::Cow, error::Error as StdError, fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use uuid::Uuid;

pub use self::layer::{RejectionLayer, RenderRejections, RenderedBody, ResponseFuture};
pub(crate) use self::{grpc::Wire, render::Renderer};
use crate::{Error, ErrorKind, key::KeyError};

/// A refusal: why, and what the client is told.
#[derive(Debug, Clone)]
pub struct Rejection {
    reason: Reason,
    detail: Cow<'static, str>,
    instance: Uuid,
    retry_after: Option<Duration>,
    idempotency_key: Option<String>,
    source: Option<Source>,
    wire: Wire,
}

/// What only the log is told.
#[derive(Debug, Clone)]
enum Source {
    Error(Error),
    Cause(Arc<dyn StdError + Send + Sync>),
    Misconfigured(String),
}

/// Why a request was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// No lock key can be derived from the request: 400.
    BadKey,
    /// The request has no `Idempotency-Key`, and needs one: 400.
    MissingIdempotencyKey,
    /// The `Idempotency-Key` is doubled or malformed: 400.
    BadIdempotencyKey,
    /// The request's body ended before its time: 400.
    BodyBroken,
    /// The lease was lost while the handler ran: 409.
    LeaseLost,
    /// A request with the same `Idempotency-Key` is under way: 409.
    InProgress,
    /// A request with the same `Idempotency-Key` was completed, and its answer not kept: 409.
    AnswerNotKept,
    /// A request with the same `Idempotency-Key` was begun, and nobody knows how it ended: 409.
    OutcomeUnknown,
    /// The request's body is larger than what is read before locking: 413.
    BodyTooLarge,
    /// The `Idempotency-Key` was used for another request: 422.
    KeyReused,
    /// Somebody else holds the key: 423.
    Held,
    /// The client has too many requests under way: 429.
    TooManyRunning,
    /// The handler panicked: 500. Only kept answers have this reason: it is for the duplicates of the request.
    Panicked,
    /// The kept answer cannot be read: 500.
    RecordUnreadable,
    /// The layer is where its key cannot be, or is not there at all: 500.
    Misconfigured,
    /// Too many requests wait for the key already: 503.
    LineFull,
    /// Too many keys are in use already: 503.
    TooManyKeys,
    /// The store does not answer: 503.
    StoreUnreachable,
    /// This process is about to end: 503.
    Closed,
}

impl Reason {
    /// The status of the response.
    pub fn status(self) -> StatusCode {
        match self {
            Self::BadKey
            | Self::MissingIdempotencyKey
            | Self::BadIdempotencyKey
            | Self::BodyBroken => StatusCode::BAD_REQUEST,
            Self::LeaseLost | Self::InProgress | Self::AnswerNotKept | Self::OutcomeUnknown => {
                StatusCode::CONFLICT
            }
            Self::BodyTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::KeyReused => StatusCode::UNPROCESSABLE_ENTITY,
            Self::Held => StatusCode::LOCKED,
            Self::TooManyRunning => StatusCode::TOO_MANY_REQUESTS,
            Self::Panicked | Self::RecordUnreadable | Self::Misconfigured => {
                StatusCode::INTERNAL_SERVER_ERROR
            }
            Self::LineFull | Self::TooManyKeys | Self::StoreUnreachable | Self::Closed => {
                StatusCode::SERVICE_UNAVAILABLE
            }
        }
    }

    /// A word for programs, which does not change: the heading in [this module](self) that explains the reason.
    pub fn code(self) -> &'static str {
        problem::name(self).0
    }

    /// Whether the same request may simply be sent again: later it may succeed, and the handler has not acted.
    pub fn is_retryable(self) -> bool {
        matches!(
            self,
            Self::InProgress
                | Self::Held
                | Self::TooManyRunning
                | Self::LineFull
                | Self::TooManyKeys
                | Self::StoreUnreachable
                | Self::Closed
        )
    }
}

impl Rejection {
    pub(crate) fn new(reason: Reason, detail: impl Into<Cow<'static, str>>) -> Self {
        Self {
            reason,
            detail: detail.into(),
            instance: Uuid::new_v4(),
            retry_after: None,
            idempotency_key: None,
            source: None,
            wire: Wire::default(),
        }
    }

    pub(crate) fn with_idempotency_key(mut self, key: impl fmt::Display) -> Self {
        self.idempotency_key = Some(key.to_string());
        self
    }

    /// Told as the request wants it.
    pub(crate) fn told_on(mut self, wire: Wire) -> Self {
        self.wire = wire;
        self
    }

    /// Why it happened, for the log.
    pub(crate) fn with_cause(mut self, cause: Box<dyn StdError + Send + Sync>) -> Self {
        self.source = Some(Source::Cause(cause.into()));
        self
    }

    pub(crate) fn with_retry_after(mut self, after: Duration) -> Self {
        self.retry_after = self.is_retryable().then_some(after);
        self
    }

    /// A misconfiguration. What it is stands in the log; only a debug build tells a client.
    pub(crate) fn misconfigured(detail: String) -> Self {
        let told = match cfg!(debug_assertions) {
            true => detail.clone().into(),
            false => Cow::Borrowed("the server is misconfigured; its log says how"),
        };
        let mut rejection = Self::new(Reason::Misconfigured, told);
        rejection.source = Some(Source::Misconfigured(detail));
        rejection
    }

    pub(crate) fn from_key_error(error: KeyError) -> Self {
        match error.is_misconfigured() {
            true => Self::misconfigured(error.to_string()),
            false => Self::new(Reason::BadKey, error.to_string()),
        }
    }

    /// A turn that was not to be had, with the time after which a client may try again.
    pub(crate) fn from_error(error: Error, retry_after: Duration) -> Self {
        let (reason, detail) = match error.kind() {
            ErrorKind::Held => (Reason::Held, "somebody else holds what this request needs"),
            ErrorKind::LineFull => (
                Reason::LineFull,
                "too many requests wait for the same already",
            ),
            ErrorKind::TooManyKeys => (
                Reason::TooManyKeys,
                "too many requests for different things are under way",
            ),
            ErrorKind::Lost => (
                Reason::LeaseLost,
                "the lock was lost before the request was done",
            ),
            ErrorKind::Closed => (Reason::Closed, "this process is about to end"),
            ErrorKind::InvalidKey => (Reason::BadKey, "the request gives no valid lock key"),
            _ => (
                Reason::StoreUnreachable,
                "the locks cannot be reached at the moment",
            ),
        };
        let mut rejection = Self::new(reason, detail).with_retry_after(retry_after);
        rejection.source = Some(Source::Error(error));
        rejection
    }

    /// Why the request was refused.
    pub fn reason(&self) -> Reason {
        self.reason
    }

    /// The status of the response.
    pub fn status(&self) -> StatusCode {
        self.reason.status()
    }

    /// What happened, for a person.
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// What tells this refusal from every other; it stands in the log too.
    pub fn instance(&self) -> Uuid {
        self.instance
    }

    /// After what time a client may try again, where that makes sense.
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// Whether the same request may simply be sent again.
    pub fn is_retryable(&self) -> bool {
        self.reason.is_retryable()
    }

    /// The refusal as a response, the way it is told unless one's own
    /// [`on_rejection`](crate::DistributedLockLayer::on_rejection) tells it otherwise. Writes nothing to the log.
    ///
    /// A gRPC request (by its content type) gets a gRPC status, see [`Reason::grpc_status`].
    pub fn to_response(&self) -> Response<Bytes> {
        if self.wire == Wire::Grpc {
            let mut response = grpc::response(self);
            response.extensions_mut().insert(self.clone());
            return response;
        }
        let mut response = Response::new(Bytes::from(problem::json(self)));
        *response.status_mut() = self.status();
        let headers = response.headers_mut();
        let json = HeaderValue::from_static("application/problem+json");
        headers.insert(header::CONTENT_TYPE, json);
        if let Some(after) = self.retry_after {
            // Whole seconds, and none too early.
            let seconds = after
                .as_secs()
                .saturating_add(u64::from(after.subsec_nanos() > 0));
            headers.insert(header::RETRY_AFTER, seconds.into());
        }
        response.extensions_mut().insert(self.clone());
        response
    }

    /// The request's `Idempotency-Key`, where there was one to read.
    pub fn idempotency_key(&self) -> Option<&str> {
        self.idempotency_key.as_deref()
    }

    /// What the log is told beyond the detail.
    pub(crate) fn background(&self) -> &dyn fmt::Display {
        match &self.source {
            Some(Source::Error(error)) => error,
            Some(Source::Cause(cause)) => cause,
            Some(Source::Misconfigured(detail)) => detail,
            None => &self.detail,
        }
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.detail)
    }
}

impl StdError for Rejection {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match &self.source {
            Some(Source::Error(error)) => Some(error),
            Some(Source::Cause(cause)) => Some(&**cause),
            _ => None,
        }
    }
}

/// As a layer would refuse, with a `Retry-After` of 1 s where a later try makes sense.
impl From<Error> for Rejection {
    fn from(error: Error) -> Self {
        Self::from_error(error, Duration::from_secs(1))
    }
}

#[cfg(feature = "axum")]
impl axum::response::IntoResponse for Rejection {
    fn into_response(self) -> axum::response::Response {
        crate::trace::refused(&self);
        self.to_response().map(axum::body::Body::from)
    }
}

/// So that `?` works in handlers: the response is the one that a layer would give, see [`rejection`](self).
#[cfg(feature = "axum")]
impl axum::response::IntoResponse for Error {
    fn into_response(self) -> axum::response::Response {
        Rejection::from(self).into_response()
    }
}
