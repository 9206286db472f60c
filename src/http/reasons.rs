//! The table of all refusals: everything that is known of a reason is in its row.

#![deny(clippy::wildcard_enum_match_arm)]

use http::StatusCode;

/// What a refusal means for a second run of the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Then {
    /// The handler has not acted, and a later try may succeed.
    Retry,
    /// A later try would be refused, too.
    GiveUp,
    /// A later try would be refused, too, until the program is changed: the layers are put together
    /// wrongly.
    Mistake,
    /// An earlier request with the same key was begun, and has no answer to give. The program may
    /// know the answer.
    BegunBefore,
    /// The layer that refuses the request had called the inner service, and the handler may have
    /// acted.
    HadBegun,
}

/// The statuses of gRPC, by their numbers.
mod grpc {
    pub(super) const INVALID_ARGUMENT: u16 = 3;
    pub(super) const RESOURCE_EXHAUSTED: u16 = 8;
    pub(super) const FAILED_PRECONDITION: u16 = 9;
    pub(super) const ABORTED: u16 = 10;
    pub(super) const INTERNAL: u16 = 13;
    pub(super) const UNAVAILABLE: u16 = 14;
}

/// The sentence of the documentation about each value of [`Then`].
macro_rules! then_docs {
    (Retry) => {
        ", with `Retry-After`: the request may be sent again"
    };
    (GiveUp) => {
        ""
    };
    (Mistake) => {
        ""
    };
    (BegunBefore) => {
        ": the handler of an earlier request had begun"
    };
    (HadBegun) => {
        ": the handler had begun"
    };
}

/// Makes [`Reason`] from the table, and `reason_docs!`, which is a chapter of the documentation for
/// each row.
macro_rules! reasons {
    ($(
        $(#[doc = $docs:literal])+
        $name:ident = $code:literal, $title:literal, $status:literal, $grpc:ident, $then:ident;
    )+) => {
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
            $(
                #[doc = concat!("**", $status, "** [", $code, "](crate::rejection#", $code, ").")]
                $(#[doc = $docs])+
                $name,
            )+
        }

        impl Reason {
            /// All reasons.
            pub(super) const ALL: &[Self] = &[$(Self::$name),+];

            /// The [codes](Self::code) of all reasons, by which refusals are counted.
            pub(crate) const CODES: &[&'static str] = &[$($code),+];

            /// A stable word for programs: the heading in [this module](crate::rejection) that
            /// explains the reason.
            pub fn code(self) -> &'static str {
                match self {
                    $(Self::$name => $code,)+
                }
            }

            /// The title of the problem document.
            pub(super) fn title(self) -> &'static str {
                match self {
                    $(Self::$name => $title,)+
                }
            }

            /// The status of the response.
            pub fn status(self) -> StatusCode {
                let status: u16 = match self {
                    $(Self::$name => $status,)+
                };
                StatusCode::from_u16(status).expect("the table has statuses of HTTP")
            }

            /// The status of a gRPC response, by its number. Each chapter of [this
            /// module](crate::rejection) names it.
            pub fn grpc_status(self) -> u16 {
                match self {
                    $(Self::$name => grpc::$grpc,)+
                }
            }

            fn then(self) -> Then {
                match self {
                    $(Self::$name => Then::$then,)+
                }
            }
        }

        macro_rules! reason_docs {
            () => {
                concat!($(
                    "# ", $code, "\n**", $status, "**", then_docs!($then),
                    ". gRPC: ", stringify!($grpc), ".\n\n", $($docs, "\n",)+ "\n",
                )+)
            };
        }
    };
}

reasons! {
    /// No lock key can be derived from the request.
    BadKey = "bad-key", "No lock key in the request",
        400, INVALID_ARGUMENT, GiveUp;

    /// The request has no `Idempotency-Key`, and needs one.
    MissingIdempotencyKey = "missing-idempotency-key", "No Idempotency-Key",
        400, INVALID_ARGUMENT, GiveUp;

    /// The request's `Idempotency-Key` is doubled or malformed.
    BadIdempotencyKey = "bad-idempotency-key", "No valid Idempotency-Key",
        400, INVALID_ARGUMENT, GiveUp;

    /// The request's body broke off.
    BodyBroken = "body-broken", "Request body broke off",
        400, INVALID_ARGUMENT, GiveUp;

    /// The lease was lost while the handler ran, or could not be confirmed. The handler may have
    /// acted.
    LeaseLost = "lease-lost", "Lock lost",
        409, ABORTED, HadBegun;

    /// A request with the same `Idempotency-Key` is under way.
    InProgress = "in-progress", "A request with this Idempotency-Key is under way",
        409, UNAVAILABLE, Retry;

    /// A request with the same `Idempotency-Key` was completed, and its answer could not be kept:
    /// the answer was too large, or a stream.
    AnswerNotKept = "answer-not-kept", "Completed, answer not kept",
        409, FAILED_PRECONDITION, BegunBefore;

    /// A request with the same `Idempotency-Key` was begun, and its outcome is not known: the
    /// handler was cancelled, its lock was lost, the inner service failed, or the process of a
    /// request that runs at most once has died. The handler does not run a second time.
    OutcomeUnknown = "outcome-unknown", "Begun, outcome unknown",
        409, FAILED_PRECONDITION, BegunBefore;

    /// The request's body is larger than the limit of a layer that reads it.
    BodyTooLarge = "body-too-large", "Request body too large",
        413, RESOURCE_EXHAUSTED, GiveUp;

    /// The `Idempotency-Key` was used for another request. The detail names the parts that differ.
    KeyReused = "key-reused", "Idempotency-Key used for another request",
        422, FAILED_PRECONDITION, GiveUp;

    /// Another request holds the key, or the key was lost before the handler could begin.
    Held = "held", "Locked",
        423, UNAVAILABLE, Retry;

    /// The client has too many requests under way.
    TooManyRunning = "too-many-running", "Too many requests under way",
        429, RESOURCE_EXHAUSTED, Retry;

    /// All permits of the key are in use. Not 503: load balancers take that status for an instance
    /// that is unwell, and send the request to another one, where the same permits are in use.
    NoPermit = "no-permit", "All permits in use",
        429, RESOURCE_EXHAUSTED, Retry;

    /// The handler of a request with this `Idempotency-Key` panicked. The handler may have acted,
    /// and does not run a second time. Only the duplicates of the request get this answer.
    Panicked = "handler-panicked", "Handler panicked",
        500, INTERNAL, GiveUp;

    /// The kept answer cannot be read. The handler does not run a second time.
    RecordUnreadable = "record-unreadable", "Kept answer unreadable",
        500, INTERNAL, BegunBefore;

    /// A layer is in a place where its key cannot be derived, or an extractor is used without its
    /// layer. Or a handler has locked the key of its own request, for which it would wait for ever.
    /// Or a layer asks for what cannot work: a key is used both for locks and for permits, or has
    /// data of another program; the layers of one key want different modes; the store has no
    /// permits. A later try does not help, and the log says what to change.
    Misconfigured = "misconfigured", "Server misconfigured",
        500, INTERNAL, Mistake;

    /// Too many requests wait for the key already.
    LineFull = "line-full", "Too many requests wait",
        503, UNAVAILABLE, Retry;

    /// Too many keys are in use in this process.
    TooManyKeys = "too-many-keys", "Too many keys in use",
        503, UNAVAILABLE, Retry;

    /// The store that holds the locks does not answer.
    StoreUnreachable = "store-unreachable", "Lock store unreachable",
        503, UNAVAILABLE, Retry;

    /// The program's own database was asked whether an earlier request with this `Idempotency-Key`
    /// was done, and the question failed. The handler does not run.
    RecallFailed = "recall-failed", "Not known whether the request was done",
        503, UNAVAILABLE, Retry;

    /// This process is about to end.
    Closed = "closed", "Shutting down",
        503, UNAVAILABLE, Retry;
}

impl Reason {
    /// Whether the same request may be sent again: the handler has not acted, and a later try may
    /// succeed.
    pub fn is_retryable(self) -> bool {
        self.then() == Then::Retry
    }

    /// Whether a layer that refuses a request for this reason had called the inner service before.
    pub(crate) fn had_begun(self) -> bool {
        self.then() == Then::HadBegun
    }

    /// Whether an earlier request with the same key was begun, and the program may know its answer.
    pub(crate) fn was_begun_before(self) -> bool {
        self.then() == Then::BegunBefore
    }

    /// Whether the layers are put together wrongly.
    pub(super) fn is_mistake(self) -> bool {
        self.then() == Then::Mistake
    }
}

#[cfg(test)]
mod tests {
    use super::Reason;

    #[test]
    fn every_refusal_is_a_status_of_an_error() {
        assert!(
            Reason::ALL.iter().all(
                |reason| reason.status().is_client_error() || reason.status().is_server_error()
            )
        );
    }
}
