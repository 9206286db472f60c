//! Every span and event of this crate, by name. No other module knows whether `tracing` is enabled.
//!
//! Keys may be personal data, and appear at debug level only. Events that an operator must see at a higher level,
//! such as a loss or an unreachable store, carry the owner instead, which identifies the key in the store and in
//! debug logs.

#![cfg_attr(not(feature = "tracing"), allow(unused_variables))]

use std::{
    fmt::{Debug, Display},
    time::Duration,
};

/// Who has to act on a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Concerns {
    /// The programmer: the layers are put together wrongly.
    Program,
    /// The operator: the store cannot be reached, or a lease was lost.
    Operation,
    /// The client only.
    Client,
}

/// `debug!(…)`, or nothing.
macro_rules! event {
    ($level:ident, $($arg:tt)+) => {{
        #[cfg(feature = "tracing")]
        tracing::$level!(target: "tower_distributed_lock", $($arg)+);
    }};
}

/// Wraps a request for a key, until the key is held, in a span.
pub(crate) fn acquiring<F: Future>(key: &str, waiting: F) -> impl Future<Output = F::Output> {
    #[cfg(feature = "tracing")]
    let waiting = tracing::Instrument::instrument(
        waiting,
        tracing::debug_span!(target: "tower_distributed_lock", "lock.acquire", key),
    );
    waiting
}

pub(crate) fn granted(key: &str, owner: impl Display, others_wait: bool) {
    event!(debug, key, %owner, others_wait, "lock.granted");
}

pub(crate) fn turn_began(key: &str, owner: impl Display, token: u64, passed_on: bool) {
    event!(debug, key, %owner, token, passed_on, "lock.turn");
}

pub(crate) fn held_elsewhere(key: &str) {
    event!(debug, key, "lock.held");
}

pub(crate) fn store_failed(owner: impl Display, error: &impl Display) {
    event!(warn, %owner, %error, "lock.store_failed");
}

pub(crate) fn renewing(leases: usize) {
    event!(debug, leases, "lock.renew");
}

pub(crate) fn renewal_unknown(owner: impl Display, error: &impl Display) {
    event!(warn, %owner, %error, "lock.renewal_unknown");
}

pub(crate) fn lost(key: &str, owner: impl Display, loss: impl Display) {
    event!(warn, %owner, %loss, "lock.lost");
    event!(debug, key, %owner, %loss, "lock.lost");
}

pub(crate) fn releasing(key: &str, owner: impl Display) {
    event!(debug, key, %owner, "lock.release");
}

/// A store reports a release that it owes and keeps.
#[cfg(any(test, feature = "redis", feature = "test-util"))]
pub(crate) fn release_failed(owner: impl Display, error: &impl Display) {
    event!(warn, %owner, %error, "lock.release_failed");
}

/// An operator takes a key away.
pub(crate) fn force_releasing(key: &str) {
    event!(debug, key, "lock.force_release");
}

/// An operator has taken a key away, or has removed a record, by this instance.
pub(crate) fn force_released(instance: impl Display) {
    event!(warn, %instance, "lock.force_released");
}

pub(crate) fn closing(leases: usize) {
    event!(info, leases, "lock.closing");
}

/// A request was refused. The level follows from who has to act on the refusal.
pub(crate) fn refused(
    instance: impl Display,
    reason: impl Debug,
    why: impl Display,
    concerns: Concerns,
) {
    match concerns {
        Concerns::Program => event!(error, %instance, ?reason, %why, "lock.refused"),
        Concerns::Operation => event!(warn, %instance, ?reason, %why, "lock.refused"),
        Concerns::Client => event!(debug, %instance, ?reason, %why, "lock.refused"),
    }
}

pub(crate) fn failed_open(error: &impl Display) {
    event!(warn, %error, "lock.failed_open");
}

/// Spawns a task that stays in the current span.
pub(crate) fn spawn<F>(task: F) -> crate::sync::JoinHandle<F::Output>
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    #[cfg(feature = "tracing")]
    let task = tracing::Instrument::in_current_span(task);
    crate::sync::spawn(task)
}

/// A record is in the store. `scope_records` and `scope_bytes` are the sums for its scope. The scope may be personal data, and so
/// the level is debug.
pub(crate) fn stored(
    scope: &str,
    bytes: usize,
    retain: Duration,
    scope_records: u64,
    scope_bytes: u64,
) {
    event!(
        debug,
        scope,
        bytes,
        ?retain,
        scope_records,
        scope_bytes,
        "idempotency.stored"
    );
}

/// An answer was not recorded, so a repeated request will not get it. `why` names the fix.
pub(crate) fn answer_not_kept(why: &str) {
    event!(warn, why, "idempotency.answer_not_kept");
}

pub(crate) fn not_kept(error: &impl Display) {
    event!(error, %error, "idempotency.not_kept");
}

#[cfg(feature = "redis")]
pub(crate) fn redis_evicts(policy: &str) {
    event!(
        warn,
        policy,
        "redis.evicts: the server may evict leases when memory is short; set `maxmemory-policy noeviction`"
    );
}

#[cfg(feature = "redis")]
pub(crate) fn subscription_lost(error: &dyn std::fmt::Display) {
    event!(warn, %error, "redis.subscription_lost");
}

#[cfg(feature = "redis")]
pub(crate) fn resubscribed() {
    event!(info, "redis.resubscribed");
}
