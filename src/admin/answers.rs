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
//! `abandoned`: the process of a request that runs at most once has died. `held_ms` is known for the leases of this instance only: the store keeps no time of the grant.

use std::{sync::Arc, time::Duration};

use axum::response::{IntoResponse, Response};
use http::{StatusCode, header};

use super::json::Object;
use crate::{
    Error, ErrorKind, HeldKey, LeaseView, LockKey, Stats, Totals,
    http::idempotency::{Record, is_abandoned},
    store::{Holder, Inspection, Instance, Mode, Owner},
};

/// An answer with a document.
pub(super) struct Answer(pub(super) Object);

impl IntoResponse for Answer {
    fn into_response(self) -> Response {
        let kind = [(header::CONTENT_TYPE, "application/json")];
        (kind, self.0.finish()).into_response()
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
        let answer = Answer(Object::new().text("error", self.why));
        (self.status, answer).into_response()
    }
}

/// The present load, and what the instance has done so far.
pub(super) fn stats(stats: &Stats, totals: &Totals) -> Object {
    Object::new()
        .number("keys", stats.keys)
        .number("waiting", stats.waiting)
        .number("leases", stats.leases)
        .number("calls", stats.calls)
        .number("running", stats.running)
        .number("releases", stats.releases)
        .number("turns", totals.turns)
        .number("passed_on", totals.passed_on)
        .number("refused", totals.refused)
        .number("losses", totals.losses)
        .number("unanswered_renewals", totals.unanswered_renewals)
        .millis("waited_ms", totals.waited)
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
pub(super) fn held_key(held: &HeldKey) -> Object {
    Object::new()
        .text("key", &held.key)
        .array("leases", held.leases.iter().map(lease))
        .number("waiting", held.waiting)
        .maybe_millis("longest_wait_ms", held.longest_wait)
}

/// A lease of this instance.
fn lease(lease: &LeaseView) -> Object {
    Object::new()
        .text("attempt", lease.owner.attempt)
        .object("mode", mode(lease.mode))
        .maybe_text("token", lease.token)
        .number("turns", lease.turns)
        .millis("held_ms", lease.held_for)
        .millis("remaining_ms", lease.remaining)
        .maybe_text("loss", lease.loss)
}

/// What this instance knows itself, besides what it finds in the store.
pub(super) struct Here<'a> {
    pub(super) instance: Instance,
    /// The key in this instance, if it holds the key or waits for it.
    pub(super) local: Option<&'a HeldKey>,
}

/// A key of the fleet, with the length of its queue.
pub(super) fn fleet_key(key: &LockKey, seen: &Inspection, here: &Here<'_>) -> Object {
    found(key, seen, here).number("queue", seen.queue.len())
}

/// A key of the fleet, with everything that is known of it. `label` knows the labels of instances.
pub(super) fn key(
    key: &LockKey,
    seen: &Inspection,
    here: &Here<'_>,
    label: impl Fn(Instance) -> Option<Arc<str>>,
) -> Object {
    let waiting = |attempt: &Owner| {
        let label = label(attempt.instance);
        owner(*attempt, here.instance).maybe_text("label", label)
    };
    found(key, seen, here)
        .array("queue", seen.queue.iter().map(waiting))
        .maybe_object("local", here.local.map(held_key))
}

/// The members that all answers about a key of the fleet have.
fn found(key: &LockKey, seen: &Inspection, here: &Here<'_>) -> Object {
    let record = seen.record.as_ref().map(|record| {
        Object::new()
            .text("kind", Record::kind(record))
            .number("bytes", record.len())
            .maybe_millis("remaining_ms", seen.record_remaining)
    });
    Object::new()
        .text("key", key)
        .array(
            "holders",
            seen.holders.iter().map(|found| holder(found, here)),
        )
        .maybe_object("record", record)
        .text("token", seen.fence)
}

/// A holder of a key, with its lease.
fn holder(holder: &Holder, here: &Here<'_>) -> Object {
    let fingerprint = holder.fingerprint.as_deref().map(hex);
    let mut leases = here.local.iter().flat_map(|local| &local.leases);
    let lease = leases.find(|lease| lease.owner == holder.owner);
    owner(holder.owner, here.instance)
        .object("mode", mode(holder.mode))
        .maybe_millis("held_ms", lease.map(|lease| lease.held_for))
        .millis("remaining_ms", holder.remaining)
        .maybe_text("fingerprint", fingerprint)
        .bool("abandoned", is_abandoned(holder))
        .maybe_text("label", holder.label.as_deref())
}

/// Numbers of acquisitions and tokens are texts, because a script's numbers have only 53 bits.
fn owner(owner: Owner, here: Instance) -> Object {
    Object::new()
        .text("instance", owner.instance)
        .text("attempt", owner.attempt)
        .bool("here", owner.instance == here)
}

/// A mode by its name; a permit also has the number of permits.
fn mode(mode: Mode) -> Object {
    match mode {
        Mode::Permit { of } => Object::new().text("name", "permit").number("of", of),
        mode => Object::new().text("name", mode),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
