//! The answers to the page, as JSON.
//!
//! A key of the fleet, as `api/fleet` answers:
//!
//! ```json
//! {
//!   "key": "orders/42",
//!   "holders": [{
//!     "instance": "0c6f5e1e-6a1d-4f3b-9d0e-2f8b7c9a4d11", "attempt": "7", "here": true,
//!     "mode": {"name": "exclusive"}, "held_ms": 1785.880, "remaining_ms": 28214.120, "fingerprint": null,
//!     "abandoned": false, "label": "web-3"
//!   }],
//!   "record": null,
//!   "token": "1731756000000003",
//!   "queue": 2
//! }
//! ```
//!
//! `abandoned`: the process of a request that runs at most once has died. `held_ms` is known for
//! the leases of this instance only: the store keeps no time of the grant.

use std::{sync::Arc, time::Duration};

use axum::response::{IntoResponse, Response};
use http::{StatusCode, header};
use serde_json::{Value, json};

use crate::{
    Error, ErrorKind, HeldKey, LeaseView, LockKey, Stats, Totals,
    http::idempotency::{Outcome, abandoned},
    store::{Holder, Inspection, Instance, Mode, Owner},
};

/// An answer with a document.
pub(super) struct Answer(pub(super) Value);

impl IntoResponse for Answer {
    fn into_response(self) -> Response {
        let kind = [(header::CONTENT_TYPE, "application/json")];
        (kind, self.0.to_string()).into_response()
    }
}

/// An answer that says why there is no other.
#[derive(Debug)]
pub(super) struct Refusal {
    status: StatusCode,
    why: String,
}

impl Refusal {
    /// A refusal with this status and reason.
    pub(super) fn new(status: StatusCode, why: impl Into<String>) -> Self {
        let why = why.into();
        Self { status, why }
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        let status = match error.kind() {
            // The only setting that a request can choose is the cursor.
            ErrorKind::InvalidKey | ErrorKind::InvalidConfig => StatusCode::BAD_REQUEST,
            ErrorKind::Foreign => StatusCode::CONFLICT,
            _ => StatusCode::SERVICE_UNAVAILABLE,
        };
        Self::new(status, error.to_string())
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let answer = Answer(json!({ "error": self.why }));
        (self.status, answer).into_response()
    }
}

/// The present load, and what the instance has done so far.
pub(super) fn stats(stats: &Stats, totals: &Totals) -> Value {
    json!({
        "keys": stats.keys,
        "waiting": stats.waiting,
        "leases": stats.leases,
        "calls": stats.calls,
        "running": stats.running,
        "releases": stats.releases,
        "turns": totals.turns,
        "passed_on": totals.passed_on,
        "refused": totals.refused,
        "losses": totals.losses,
        "unanswered_renewals": totals.unanswered_renewals,
        "waited_ms": millis(totals.waited),
    })
}

/// The longest time that a request in any line has waited.
pub(super) fn longest_wait(held: &[HeldKey]) -> Duration {
    let waits = held.iter().filter_map(|held| held.longest_wait);
    waits.max().unwrap_or_default()
}

/// How long the longest turn under way at a key has lasted.
pub(super) fn held_for(held: &HeldKey) -> Option<Duration> {
    let leases = held.leases.iter().filter(|lease| lease.turns > 0);
    leases.map(|lease| lease.held_for).max()
}

/// A key that this instance holds or waits for.
pub(super) fn held_key(held: &HeldKey) -> Value {
    json!({
        "key": held.key.as_str(),
        "leases": held.leases.iter().map(lease).collect::<Value>(),
        "waiting": held.waiting,
        "longest_wait_ms": held.longest_wait.map(millis),
    })
}

/// A lease of this instance.
fn lease(lease: &LeaseView) -> Value {
    json!({
        "attempt": lease.owner.attempt.to_string(),
        "mode": mode(lease.mode),
        "token": lease.token.map(|token| token.to_string()),
        "turns": lease.turns,
        "held_ms": millis(lease.held_for),
        "remaining_ms": millis(lease.remaining),
        "loss": lease.loss.map(|loss| loss.to_string()),
    })
}

/// What this instance knows itself, besides what it finds in the store.
pub(super) struct Here<'a> {
    pub(super) instance: Instance,
    /// The key in this instance, if it holds the key or waits for it.
    pub(super) local: Option<&'a HeldKey>,
}

/// A key of the fleet, with the length of its queue.
pub(super) fn fleet_key(key: &LockKey, seen: &Inspection, here: &Here<'_>) -> Value {
    let record = seen.record.as_ref().map(|record| {
        json!({
            "kind": Outcome::kind(record),
            "bytes": record.len(),
            "remaining_ms": seen.record_remaining.map(millis),
        })
    });
    let holders = seen.holders.iter().map(|found| holder(found, here));
    json!({
        "key": key.as_str(),
        "holders": holders.collect::<Value>(),
        "record": record,
        "token": seen.fence.to_string(),
        "queue": seen.queue.len(),
    })
}

/// A key of the fleet, with everything that is known of it. `label` knows the labels of instances.
pub(super) fn key(
    key: &LockKey,
    seen: &Inspection,
    here: &Here<'_>,
    label: impl Fn(Instance) -> Option<Arc<str>>,
) -> Value {
    let waiting = |attempt: &Owner| {
        let mut waiting = owner(*attempt, here.instance);
        waiting["label"] = label(attempt.instance).as_deref().into();
        waiting
    };
    let mut answer = fleet_key(key, seen, here);
    answer["queue"] = seen.queue.iter().map(waiting).collect();
    answer["local"] = here.local.map(held_key).into();
    answer
}

/// A holder of a key, with its lease.
fn holder(holder: &Holder, here: &Here<'_>) -> Value {
    let mut leases = here.local.iter().flat_map(|local| &local.leases);
    let lease = leases.find(|lease| lease.owner == holder.owner);
    let mut answer = owner(holder.owner, here.instance);
    answer["mode"] = mode(holder.mode);
    answer["held_ms"] = lease.map(|lease| millis(lease.held_for)).into();
    answer["remaining_ms"] = millis(holder.remaining).into();
    answer["fingerprint"] = holder.fingerprint.as_deref().map(hex).into();
    answer["abandoned"] = abandoned(holder).is_some().into();
    answer["label"] = holder.label.as_deref().into();
    answer
}

/// Numbers of acquisitions and tokens are texts, because a script's numbers have only 53 bits.
fn owner(owner: Owner, here: Instance) -> Value {
    json!({
        "instance": owner.instance.to_string(),
        "attempt": owner.attempt.to_string(),
        "here": owner.instance == here,
    })
}

/// A mode by its name; a permit also has the number of permits.
fn mode(mode: Mode) -> Value {
    match mode {
        Mode::Permit { of } => json!({ "name": "permit", "of": of }),
        Mode::Exclusive | Mode::Shared => json!({ "name": mode.to_string() }),
    }
}

/// A duration as a number of milliseconds, with at most three decimals.
pub(super) fn millis(duration: Duration) -> f64 {
    duration.as_micros() as f64 / 1000.0
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
