//! Things that happen at one moment: log events, and what is counted.

use std::{
    fmt::{Debug, Display},
    time::Duration,
};

#[cfg(feature = "metrics")]
use super::metrics;
#[cfg(feature = "redis")]
use super::{ConnectResult, Connection};
use super::{Idempotent, KeepResult, RenewalResult, Role, event, record};

/// The counts of an outage, or of losses without one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Toll {
    pub(crate) lasted: Duration,
    pub(crate) failed_questions: u64,
    pub(crate) unanswered_renewals: u64,
    pub(crate) losses: u64,
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

/// A question has failed. In an outage, [`store_away`] tells that for all questions.
pub(crate) fn store_failed(owner: impl Display, error: &impl Display, is_outage: bool) {
    event!(if is_outage, debug, else warn, %owner, %error, "lock.store_failed");
}

/// An outage begins.
pub(crate) fn store_away(instance: impl Display, error: &impl Display) {
    event!(warn, %instance, %error, "lock.store_away");
}

/// An event with all counts of an outage. Its level and its name must be known to the compiler.
macro_rules! outage {
    ($level:ident, $instance:ident, $toll:ident, $name:literal) => {
        event!(
            $level,
            %$instance,
            lasted = ?$toll.lasted,
            failed_questions = $toll.failed_questions,
            unanswered_renewals = $toll.unanswered_renewals,
            losses = $toll.losses,
            $name
        )
    };
}

/// An outage is over.
#[cfg_attr(not(feature = "tracing"), allow(clippy::if_same_then_else))] // both are empty then
pub(crate) fn store_back(instance: impl Display, toll: &Toll) {
    if toll.losses > 0 {
        outage!(warn, instance, toll, "lock.store_back");
    } else {
        outage!(info, instance, toll, "lock.store_back");
    }
}

/// The instance is closed during an outage.
pub(crate) fn closed_while_away(instance: impl Display, toll: &Toll) {
    outage!(warn, instance, toll, "lock.closed_while_away");
}

/// Several leases were lost one soon after another, although the store answered.
pub(crate) fn losses(instance: impl Display, toll: &Toll) {
    let Toll { lasted, losses, .. } = *toll;
    event!(warn, %instance, ?lasted, losses, "lock.losses");
}

pub(crate) fn renewing(leases: usize) {
    event!(debug, leases, "lock.renew");
}

/// The store has answered a renewal, or has not.
pub(crate) fn renewed(result: RenewalResult) {
    record!(metrics::RENEWALS.count(&[result as usize]));
}

pub(crate) fn renewal_unknown(owner: impl Display, error: &impl Display) {
    event!(debug, %owner, %error, "lock.renewal_unknown");
}

/// A lease was lost. `reason` is a value of [`LOSS`](metrics::LOSS). The key is in the events of
/// the same owner at debug level. A loss during an outage, or soon after another one, is counted in
/// the event at the end.
pub(crate) fn lost(owner: impl Display, loss: impl Display, reason: &str, is_first: bool) {
    event!(if is_first, warn, else debug, %owner, %loss, "lock.lost");
    record!(metrics::LOSSES.count_named(reason));
}

pub(crate) fn released(key: &str, owner: impl Display) {
    event!(debug, key, %owner, "lock.release");
}

/// A release has failed, and is repeated. `is_first`: no other one has failed since the last
/// answer.
pub(crate) fn release_failed(owner: impl Display, error: &impl Display, is_first: bool) {
    event!(if is_first, warn, else debug, %owner, %error, "lock.release_failed");
}

/// An operator takes a key away.
pub(crate) fn force_releasing(key: &str) {
    event!(debug, key, "lock.force_release");
}

/// An operator has taken a key away, or has removed a record, by this instance.
pub(crate) fn force_released(instance: impl Display) {
    event!(warn, %instance, "lock.force_released");
}

/// An operator has written the answer of a request whose process has died.
pub(crate) fn settled(key: &str) {
    event!(debug, key, "idempotency.settle");
    event!(warn, "idempotency.settled");
}

/// An instance begins to close. `keys` is how many keys are held or waited for.
pub(crate) fn closing(keys: usize) {
    event!(info, keys, "lock.closing");
}

/// The store has sent a hint. `kind` is a value of [`HINT`](metrics::HINT).
pub(crate) fn hint(kind: &str) {
    record!(metrics::HINTS.count_named(kind));
}

/// A request was refused. `code` is a value of [`REFUSAL`](metrics::REFUSAL). `is_mistake`: the
/// layers are put together wrongly. An outage and a loss are told by the instance, once for all
/// requests.
pub(crate) fn refused(
    instance: impl Display,
    reason: impl Debug,
    code: &str,
    why: impl Display,
    is_mistake: bool,
) {
    record!(metrics::REFUSALS.count_named(code));
    event!(if is_mistake, error, else debug, %instance, ?reason, %why, "lock.refused");
}

/// The store is away, and requests run without their lock from now on.
pub(crate) fn failed_open(error: &impl Display) {
    event!(warn, %error, "lock.failed_open");
}

/// A request runs without its lock.
pub(crate) fn unlocked() {
    record!(metrics::UNLOCKED.count(&[]));
}

/// An idempotent request runs, or is answered without its handler.
pub(crate) fn idempotent(outcome: Idempotent) {
    record!(metrics::IDEMPOTENCY.count(&[outcome as usize]));
}

/// A request of the single-flight layer has found its role.
pub(crate) fn flight(role: Role) {
    record!(metrics::SINGLE_FLIGHT.count(&[role as usize]));
}

/// A record was kept, or was not.
pub(crate) fn kept(result: KeepResult) {
    record!(metrics::RECORDS.count(&[result as usize]));
}

/// A record is in the store. The scope may be personal data, and so the level is debug.
pub(crate) fn stored(scope: &str, bytes: usize, retain: Duration) {
    event!(debug, scope, bytes, ?retain, "idempotency.stored");
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
pub(crate) fn redis_forgets(server: &str) {
    event!(
        warn,
        server,
        "redis.forgets: the server has no append-only file, so a restart loses records of idempotent requests, \
         and their retries run again; set `appendonly yes`"
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

/// A connect to Redis has ended.
#[cfg(feature = "redis")]
pub(crate) fn connected(connection: Connection, result: ConnectResult) {
    record!(metrics::CONNECTS.count(&[connection as usize, result as usize]));
}

/// The present state of a process, for the gauges.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Gauges {
    pub(crate) keys: usize,
    pub(crate) leases: usize,
    pub(crate) waiting: usize,
    pub(crate) longest_line: usize,
    pub(crate) background_calls: usize,
    pub(crate) owed_releases: usize,
}

/// Sets the gauges, and describes all metrics: whoever calls this has installed a recorder.
pub(crate) fn record_gauges(gauges: &Gauges) {
    describe();
    record!(metrics::KEYS.set(gauges.keys));
    record!(metrics::LEASES.set(gauges.leases));
    record!(metrics::WAITING.set(gauges.waiting));
    record!(metrics::LONGEST_LINE.set(gauges.longest_line));
    record!(metrics::BACKGROUND_CALLS.set(gauges.background_calls));
    record!(metrics::OWED_RELEASES.set(gauges.owed_releases));
}

/// Gives the descriptions and units of all metrics to the recorder, if one is installed.
pub(crate) fn describe() {
    record!(super::metric::describe(&metrics::ALL));
}
