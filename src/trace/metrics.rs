//! Every metric of this crate: names, kinds, units, labels and descriptions.
//! [`guide::metrics`](crate::guide::metrics) has the same table for users, and a test compares the
//! two.
//!
//! 1. No label has a key, or any other text of a request. All values of each label are listed here.
//! 2. Counters and histograms are recorded where things happen. Gauges are set from a count of the
//!    present state, when the user asks for that ([`Locks::record_gauges`](crate::Locks)), and so
//!    cannot drift.
//!
//! To add a metric: a `static` here and in [`ALL`], a row in the guide, a panel in
//! `docs/grafana.json`, and a function in `events` or `turn` that records it.

use super::metric::{Metric, Values, label};

pub(crate) static TURNS: Metric = Metric::counter(
    "distributed_lock_turns_total",
    &[TurnOutcome::LABEL],
    "Requests for a turn, by outcome",
);
pub(crate) static WAIT: Metric = Metric::seconds(
    "distributed_lock_wait_seconds",
    &[TurnOutcome::LABEL],
    "How long requests waited for a turn, by outcome",
);
pub(crate) static HOLD: Metric = Metric::seconds(
    "distributed_lock_hold_seconds",
    &[HoldEnd::LABEL],
    "How long turns lasted",
);
pub(crate) static LOSSES: Metric =
    Metric::counter("distributed_lock_losses_total", &[LOSS], "Lost leases");
pub(crate) static RENEWALS: Metric = Metric::counter(
    "distributed_lock_renewals_total",
    &[RenewalResult::LABEL],
    "Renewals of leases",
);
pub(crate) static REFUSALS: Metric = Metric::counter(
    "distributed_lock_refusals_total",
    &[REFUSAL],
    "Refused HTTP and gRPC requests",
);
pub(crate) static UNLOCKED: Metric = Metric::counter(
    "distributed_lock_failed_open_total",
    &[],
    "Requests that ran without their lock, because the store was away",
);
pub(crate) static IDEMPOTENCY: Metric = Metric::counter(
    "distributed_lock_idempotency_total",
    &[Idempotent::LABEL],
    "Requests with an Idempotency-Key, and calls of run_once",
);
pub(crate) static RECORDS: Metric = Metric::counter(
    "distributed_lock_records_total",
    &[KeepResult::LABEL],
    "Answers and results to be kept",
);
pub(crate) static SINGLE_FLIGHT: Metric = Metric::counter(
    "distributed_lock_single_flight_total",
    &[Role::LABEL],
    "Requests of the single-flight layer",
);
pub(crate) static HINTS: Metric = Metric::counter(
    "distributed_lock_hints_total",
    &[HINT],
    "Hints of the store",
);
pub(crate) static STORE_CALLS: Metric = Metric::seconds(
    "distributed_lock_store_call_seconds",
    &[StoreOperation::LABEL, StoreResult::LABEL],
    "How long calls to a Redis server took",
);
pub(crate) static CONNECTS: Metric = Metric::counter(
    "distributed_lock_connects_total",
    &[Connection::LABEL, ConnectResult::LABEL],
    "Connects and reconnects to Redis",
);
pub(crate) static KEYS: Metric =
    Metric::gauge("distributed_lock_keys", "Keys that are held or waited for");
pub(crate) static LEASES: Metric = Metric::gauge("distributed_lock_leases", "Leases that are held");
pub(crate) static WAITING: Metric =
    Metric::gauge("distributed_lock_waiting", "Requests that wait for a turn");
pub(crate) static LONGEST_LINE: Metric = Metric::gauge(
    "distributed_lock_longest_line",
    "Requests that wait for the most wanted key",
);
pub(crate) static BACKGROUND_CALLS: Metric = Metric::gauge(
    "distributed_lock_background_calls",
    "Renewals, and questions for keys that are held elsewhere, under way",
);
pub(crate) static OWED_RELEASES: Metric = Metric::gauge(
    "distributed_lock_owed_releases",
    "Releases that the store has not answered",
);

/// All metrics, in the order of the table in the guide.
pub(crate) static ALL: [&Metric; 19] = [
    &TURNS,
    &WAIT,
    &HOLD,
    &LOSSES,
    &RENEWALS,
    &REFUSALS,
    &UNLOCKED,
    &IDEMPOTENCY,
    &RECORDS,
    &SINGLE_FLIGHT,
    &HINTS,
    &STORE_CALLS,
    &CONNECTS,
    &KEYS,
    &LEASES,
    &WAITING,
    &LONGEST_LINE,
    &BACKGROUND_CALLS,
    &OWED_RELEASES,
];

label! {
    /// How a request for a turn ended.
    TurnOutcome, "outcome":
    Granted = "granted",
    PassedOn = "passed_on",
    Held = "held",
    LineFull = "line_full",
    TooManyKeys = "too_many_keys",
    Unreachable = "unreachable",
    Closed = "closed",
    Recorded = "recorded",
    OtherRequest = "other_request",
    Failed = "failed",
    Cancelled = "cancelled",
}

label! {
    /// How a turn ended.
    HoldEnd, "outcome":
    Released = "released",
    Lost = "lost",
}

label! {
    /// The store's answer to a renewal.
    RenewalResult, "result":
    Renewed = "renewed",
    NotOurs = "not_ours",
    Unknown = "unknown",
}

label! {
    /// How a request with an `Idempotency-Key` went on, or a call of `run_once`.
    Idempotent, "outcome":
    First = "first",
    Replayed = "replayed",
    Conflict = "conflict",
    InProgress = "in_progress",
    Unknown = "unknown",
    Failed = "failed",
}

label! {
    /// Whether a record was kept.
    KeepResult, "result":
    Kept = "kept",
    Superseded = "superseded",
    Refused = "refused",
    Unknown = "unknown",
}

label! {
    /// The role of a request in a single flight.
    Role, "role":
    Lead = "lead",
    Follow = "follow",
    Alone = "alone",
}

label! {
    /// The operation of a call to a Redis server.
    StoreOperation, "operation":
    Acquire = "acquire",
    Renew = "renew",
    Release = "release",
    Other = "other",
}

label! {
    /// How a call to a Redis server ended.
    StoreResult, "result":
    Answered = "answered",
    Redirected = "redirected",
    Failed = "failed",
}

label! {
    /// The purpose of a connection to Redis.
    Connection, "connection":
    Calls = "calls",
    Hints = "hints",
}

label! {
    /// Whether a connect has succeeded.
    ConnectResult, "result":
    Connected = "connected",
    Failed = "failed",
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
    texts: &[
        "bad-key",
        "missing-idempotency-key",
        "bad-idempotency-key",
        "body-broken",
        "lease-lost",
        "in-progress",
        "answer-not-kept",
        "outcome-unknown",
        "body-too-large",
        "key-reused",
        "held",
        "too-many-running",
        "no-permit",
        "handler-panicked",
        "record-unreadable",
        "misconfigured",
        "line-full",
        "too-many-keys",
        "store-unreachable",
        "closed",
    ],
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
