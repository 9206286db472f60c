//! The reasons of refusals, each with its status, its code and its title.

use http::StatusCode;

/// Why a request was refused.
///
/// ```
/// use tower_distributed_lock::rejection::Reason;
///
/// let held = Reason::Held;
/// assert_eq!(held.status().as_u16(), 423);
/// assert_eq!(held.code(), "held");
/// assert_eq!(held.grpc_status(), 14); // UNAVAILABLE
/// assert!(held.is_retryable());
/// assert!(!Reason::LeaseLost.is_retryable()); // the handler may have acted
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// No lock key can be derived from the request: 400.
    BadKey,
    /// The request has no `Idempotency-Key`, and needs one: 400.
    MissingIdempotencyKey,
    /// The `Idempotency-Key` is doubled or malformed: 400.
    BadIdempotencyKey,
    /// The request's body broke off: 400.
    BodyBroken,
    /// The lease was lost while the handler ran: 409.
    LeaseLost,
    /// A request with the same `Idempotency-Key` is under way: 409.
    InProgress,
    /// A request with the same `Idempotency-Key` was completed, and its answer not kept: 409.
    AnswerNotKept,
    /// A request with the same `Idempotency-Key` was begun, and its outcome is not known: 409.
    OutcomeUnknown,
    /// The request's body is larger than the limit of a layer that reads it: 413.
    BodyTooLarge,
    /// The `Idempotency-Key` was used for another request: 422.
    KeyReused,
    /// Another request holds the key: 423.
    Held,
    /// The client has too many requests under way: 429.
    TooManyRunning,
    /// All permits of the key are in use: 429.
    NoPermit,
    /// The handler panicked: 500. Only the duplicates of the request get this answer.
    Panicked,
    /// The kept answer cannot be read: 500.
    RecordUnreadable,
    /// A layer is missing, is in a place where its key cannot be derived, or asks for a lock that cannot work: 500.
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
    /// All reasons.
    pub(super) const ALL: [Self; 20] = [
        Self::BadKey,
        Self::MissingIdempotencyKey,
        Self::BadIdempotencyKey,
        Self::BodyBroken,
        Self::LeaseLost,
        Self::InProgress,
        Self::AnswerNotKept,
        Self::OutcomeUnknown,
        Self::BodyTooLarge,
        Self::KeyReused,
        Self::Held,
        Self::TooManyRunning,
        Self::NoPermit,
        Self::Panicked,
        Self::RecordUnreadable,
        Self::Misconfigured,
        Self::LineFull,
        Self::TooManyKeys,
        Self::StoreUnreachable,
        Self::Closed,
    ];

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
            Self::TooManyRunning | Self::NoPermit => StatusCode::TOO_MANY_REQUESTS,
            Self::Panicked | Self::RecordUnreadable | Self::Misconfigured => {
                StatusCode::INTERNAL_SERVER_ERROR
            }
            Self::LineFull | Self::TooManyKeys | Self::StoreUnreachable | Self::Closed => {
                StatusCode::SERVICE_UNAVAILABLE
            }
        }
    }

    /// A stable word for programs: the heading in [this module](super) that explains the reason.
    pub fn code(self) -> &'static str {
        self.words().0
    }

    /// Whether the layers are put together wrongly.
    pub(super) fn is_mistake(self) -> bool {
        self == Self::Misconfigured
    }

    /// Whether the same request may be sent again: the handler has not acted, and a later try may succeed.
    pub fn is_retryable(self) -> bool {
        match self {
            Self::InProgress
            | Self::Held
            | Self::TooManyRunning
            | Self::NoPermit
            | Self::LineFull
            | Self::TooManyKeys
            | Self::StoreUnreachable
            | Self::Closed => true,
            Self::BadKey
            | Self::MissingIdempotencyKey
            | Self::BadIdempotencyKey
            | Self::BodyBroken
            | Self::LeaseLost
            | Self::AnswerNotKept
            | Self::OutcomeUnknown
            | Self::BodyTooLarge
            | Self::KeyReused
            | Self::Panicked
            | Self::RecordUnreadable
            | Self::Misconfigured => false,
        }
    }

    /// Whether a layer that refuses a request for this reason had called the inner service before.
    pub(crate) fn had_begun(self) -> bool {
        match self {
            Self::LeaseLost => true,
            Self::BadKey
            | Self::MissingIdempotencyKey
            | Self::BadIdempotencyKey
            | Self::BodyBroken
            | Self::InProgress
            | Self::AnswerNotKept
            | Self::OutcomeUnknown
            | Self::BodyTooLarge
            | Self::KeyReused
            | Self::Held
            | Self::TooManyRunning
            | Self::NoPermit
            | Self::Panicked
            | Self::RecordUnreadable
            | Self::Misconfigured
            | Self::LineFull
            | Self::TooManyKeys
            | Self::StoreUnreachable
            | Self::Closed => false,
        }
    }

    /// The status of a gRPC response, by its number.
    ///
    /// | status | reasons |
    /// |---|---|
    /// | INVALID_ARGUMENT (3) | bad-key, missing-idempotency-key, bad-idempotency-key, body-broken |
    /// | RESOURCE_EXHAUSTED (8) | body-too-large, too-many-running, no-permit |
    /// | FAILED_PRECONDITION (9) | key-reused, answer-not-kept, outcome-unknown |
    /// | ABORTED (10) | lease-lost |
    /// | INTERNAL (13) | handler-panicked, record-unreadable, misconfigured |
    /// | UNAVAILABLE (14) | held, in-progress, line-full, too-many-keys, store-unreachable, closed |
    pub fn grpc_status(self) -> u16 {
        match self {
            Self::BadKey
            | Self::MissingIdempotencyKey
            | Self::BadIdempotencyKey
            | Self::BodyBroken => 3,
            Self::BodyTooLarge | Self::TooManyRunning | Self::NoPermit => 8,
            Self::KeyReused | Self::AnswerNotKept | Self::OutcomeUnknown => 9,
            Self::LeaseLost => 10,
            Self::Panicked | Self::RecordUnreadable | Self::Misconfigured => 13,
            Self::Held
            | Self::InProgress
            | Self::LineFull
            | Self::TooManyKeys
            | Self::StoreUnreachable
            | Self::Closed => 14,
        }
    }

    /// The title of the problem document.
    pub(super) fn title(self) -> &'static str {
        self.words().1
    }

    /// The code and the title.
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::BadKey => ("bad-key", "No lock key in the request"),
            Self::BadIdempotencyKey => ("bad-idempotency-key", "No valid Idempotency-Key"),
            Self::MissingIdempotencyKey => ("missing-idempotency-key", "No Idempotency-Key"),
            Self::OutcomeUnknown => ("outcome-unknown", "Begun, outcome unknown"),
            Self::Panicked => ("handler-panicked", "Handler panicked"),
            Self::InProgress => (
                "in-progress",
                "A request with this Idempotency-Key is under way",
            ),
            Self::AnswerNotKept => ("answer-not-kept", "Completed, answer not kept"),
            Self::KeyReused => ("key-reused", "Idempotency-Key used for another request"),
            Self::TooManyRunning => ("too-many-running", "Too many requests under way"),
            Self::NoPermit => ("no-permit", "All permits in use"),
            Self::RecordUnreadable => ("record-unreadable", "Kept answer unreadable"),
            Self::BodyBroken => ("body-broken", "Request body broke off"),
            Self::LeaseLost => ("lease-lost", "Lock lost"),
            Self::BodyTooLarge => ("body-too-large", "Request body too large"),
            Self::Held => ("held", "Locked"),
            Self::Misconfigured => ("misconfigured", "Server misconfigured"),
            Self::LineFull => ("line-full", "Too many requests wait"),
            Self::TooManyKeys => ("too-many-keys", "Too many keys in use"),
            Self::StoreUnreachable => ("store-unreachable", "Lock store unreachable"),
            Self::Closed => ("closed", "Shutting down"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Reason;

    /// Problem documents link to these headings.
    #[test]
    fn every_code_is_a_heading_of_the_module() {
        let docs = include_str!("mod.rs");
        for reason in Reason::ALL {
            let heading = format!(
                "//! # {}\n//! **{}**",
                reason.code(),
                reason.status().as_u16()
            );
            assert!(docs.contains(&heading), "no heading {heading:?}");
            // Each refusal is counted by its code.
            assert!(crate::trace::REFUSAL.texts.contains(&reason.code()));
        }
    }
}
