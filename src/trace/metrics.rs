//! Every metric of this crate: names, kinds, units, labels and descriptions.
//! [`guide::metrics`](crate::guide::metrics) has the same table for users, and a test compares the
//! two.
//!
//! 1. No label has a key, or any other text of a request. All values of each label are listed here.
//! 2. Counters and histograms are recorded where things happen. Gauges are set from a count of the
//!    present state, when the user asks for that ([`Locks::record_gauges`](crate::Locks)), and so
//!    cannot drift.
//!
//! To add a metric: a row here, one in the guide, a panel in `docs/grafana.json`, and a function in
//! `events` or `turn` that records it.

use super::metric::{Kind, Metric, Values};

/// Makes a `static` of each counter and histogram, [`Gauges`] of the gauges, and [`ALL`] of both.
macro_rules! metrics {
    (
        $($metric:ident = $kind:ident $name:literal [$($label:expr),*] $help:literal;)+
        [gauges] $($gauge:ident $gauge_help:literal;)+
    ) => {
        $(
            pub(crate) static $metric: Metric =
                Metric::new(concat!("distributed_lock_", $name), Kind::$kind, &[$($label),*], $help);
        )+

        static GAUGES: [Metric; [$($gauge_help),+].len()] = [$(Metric::new(
            concat!("distributed_lock_", stringify!($gauge)), Kind::Gauge, &[], $gauge_help,
        )),+];

        /// The present state of a process, for the gauges.
        #[derive(Debug, Clone, Copy, Default)]
        pub(crate) struct Gauges {
            $(pub(crate) $gauge: usize,)+
        }

        impl Gauges {
            /// The gauges with their values.
            pub(super) fn values(&self) -> impl Iterator<Item = (&'static Metric, usize)> {
                GAUGES.iter().zip([$(self.$gauge),+])
            }
        }

        /// All metrics, in the order of the table in the guide.
        pub(crate) fn all() -> impl Iterator<Item = &'static Metric> {
            [$(&$metric),+].into_iter().chain(&GAUGES)
        }
    };
}

metrics! {
    TURNS = Counter "turns_total" [TurnOutcome::LABEL] "Requests for a turn, by outcome";
    WAIT = Seconds "wait_seconds" [TurnOutcome::LABEL] "How long requests waited for a turn, by outcome";
    HOLD = Seconds "hold_seconds" [HoldEnd::LABEL] "How long turns lasted";
    LOSSES = Counter "losses_total" [LOSS] "Lost leases";
    RENEWALS = Counter "renewals_total" [RenewalResult::LABEL] "Renewals of leases";
    REFUSALS = Counter "refusals_total" [REFUSAL] "Refused HTTP and gRPC requests";
    UNLOCKED = Counter "failed_open_total" [] "Requests that ran without their lock, because the store was away";
    IDEMPOTENCY = Counter "idempotency_total" [Idempotent::LABEL] "Requests with an Idempotency-Key, and calls of run_once";
    RECORDS = Counter "records_total" [KeepResult::LABEL] "Answers and results to be kept";
    SINGLE_FLIGHT = Counter "single_flight_total" [Role::LABEL] "Requests of the single-flight layer";
    HINTS = Counter "hints_total" [HINT] "Hints of the store";
    STORE_CALLS = Seconds "store_call_seconds" [StoreOperation::LABEL, StoreResult::LABEL] "How long calls to a server took";
    CONNECTS = Counter "connects_total" [Connection::LABEL, ConnectResult::LABEL] "Connects and reconnects to servers";
    [gauges]
    keys "Keys that are held or waited for";
    leases "Leases that are held";
    waiting "Requests that wait for a turn";
    longest_line "Requests that wait for the most wanted key";
    background_calls "Renewals, and questions for keys that are held elsewhere, under way";
    owed_releases "Releases that the store has not answered";
}

/// Makes an enum of each label, whose variants are the label's values.
macro_rules! labels {
    ($($(#[$doc:meta])* $name:ident, $label:literal: $($variant:ident = $text:literal),+;)+) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Clone, Copy, PartialEq, Eq)]
            pub(crate) enum $name {
                $($variant,)+
            }

            impl $name {
                const LABEL: Values = Values { name: $label, texts: &[$($text,)+] };

                #[allow(dead_code)] // only some labels are fields of spans, too
                pub(super) fn text(self) -> &'static str {
                    Self::LABEL.texts[self as usize]
                }
            }
        )+
    };
}

labels! {
    /// How a request for a turn ended.
    TurnOutcome, "outcome": Granted = "granted", PassedOn = "passed_on", Held = "held", LineFull = "line_full",
        TooManyKeys = "too_many_keys", Unreachable = "unreachable", Closed = "closed", Recorded = "recorded",
        OtherRequest = "other_request", Failed = "failed", Cancelled = "cancelled";
    /// How a turn ended.
    HoldEnd, "outcome": Released = "released", Lost = "lost";
    /// The store's answer to a renewal.
    RenewalResult, "result": Renewed = "renewed", NotOurs = "not_ours", Unknown = "unknown";
    /// How a request with an `Idempotency-Key` went on, or a call of `run_once`.
    Idempotent, "outcome": First = "first", Replayed = "replayed", Conflict = "conflict",
        InProgress = "in_progress", Unknown = "unknown", Failed = "failed";
    /// Whether a record was kept.
    KeepResult, "result": Kept = "kept", Superseded = "superseded", Refused = "refused", Unknown = "unknown";
    /// The role of a request in a single flight.
    Role, "role": Lead = "lead", Follow = "follow", Alone = "alone";
    /// The operation of a call to a server.
    StoreOperation, "operation": Acquire = "acquire", Renew = "renew", Release = "release", Other = "other";
    /// How a call to a server ended.
    StoreResult, "result": Answered = "answered", Redirected = "redirected", Failed = "failed";
    /// The purpose of a connection to a server.
    Connection, "connection": Calls = "calls", Hints = "hints";
    /// Whether a connect has succeeded.
    ConnectResult, "result": Connected = "connected", Failed = "failed";
}

impl ConnectResult {
    pub(crate) fn of<T, E>(outcome: &Result<T, E>) -> Self {
        match outcome {
            Ok(_) => Self::Connected,
            Err(_) => Self::Failed,
        }
    }
}

/// The codes of [`Loss`](crate::Loss).
pub(crate) const LOSS: Values = Values {
    name: "reason",
    texts: &["not_ours", "expired", "gave_up", "max_hold", "closed"],
};

/// The codes of [`Reason`](crate::rejection::Reason).
pub(crate) const REFUSAL: Values = Values {
    name: "reason",
    texts: crate::rejection::Reason::CODES,
};

/// The kinds of [`Hint`](crate::store::Hint).
pub(crate) const HINT: Values = Values {
    name: "kind",
    texts: &[
        "free",
        "next",
        "wanted",
        "listening",
        "reconnected",
        "moved",
    ],
};
