//! Things that happen at one moment: log events, and what is counted.

use std::{
    fmt::{Debug, Display},
    time::Duration,
};

#[cfg(feature = "metrics")]
use super::metrics;
#[cfg(any(feature = "postgres", feature = "redis"))]
use super::{ConnectResult, Connection};
use super::{Gauges, Idempotent, KeepResult, RenewalResult, Role, event, record};

/// The counts of an outage, or of losses without one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Toll {
    pub(crate) lasted: Duration,
    pub(crate) failed_questions: u64,
    pub(crate) unanswered_renewals: u64,
    pub(crate) losses: u64,
}

/// Makes a function of each event. The columns: the level, or two levels and the condition for the
/// first one; the name; the function with its parameters; the fields; what is counted besides.
macro_rules! events {
    ($(
        $(#[$meta:meta])*
        $level:ident $(if $is:ident else $other:ident)? $text:literal:
        $name:ident($($param:ident: $type:ty),*) [$($fields:tt)*] $(=> $record:expr)?;
    )+) => {
        $(
            $(#[$meta])*
            pub(crate) fn $name($($param: $type,)* $($is: bool)?) {
                $(record!($record);)?
                events!(@tell $level $(if $is else $other)?, $($fields)* $text);
            }
        )+
    };
    (@tell $level:ident, $($event:tt)+) => {
        event!($level, $($event)+)
    };
    (@tell $level:ident if $is:ident else $other:ident, $($event:tt)+) => {
        if $is {
            event!($level, $($event)+);
        } else {
            event!($other, $($event)+);
        }
    };
}

events! {
    debug "lock.granted": granted(key: &str, owner: impl Display, others_wait: bool) [key, %owner, others_wait,];
    debug "lock.turn": turn_began(key: &str, owner: impl Display, token: u64, passed_on: bool)
        [key, %owner, token, passed_on,];
    debug "lock.held": held_elsewhere(key: &str) [key,];
    /// A question has failed. In an outage, [`store_away`] tells that for all questions.
    debug if is_outage else warn "lock.store_failed": store_failed(owner: impl Display, error: &impl Display)
        [%owner, %error,];
    /// An outage begins.
    warn "lock.store_away": store_away(instance: impl Display, error: &impl Display) [%instance, %error,];
    /// An outage is over. See [`store_back`].
    warn if has_losses else info "lock.store_back": outage_over(instance: impl Display, toll: &Toll)
        [%instance, lasted = ?toll.lasted, failed_questions = toll.failed_questions,
         unanswered_renewals = toll.unanswered_renewals, losses = toll.losses,];
    /// The instance is closed during an outage.
    warn "lock.closed_while_away": closed_while_away(instance: impl Display, toll: &Toll)
        [%instance, lasted = ?toll.lasted, failed_questions = toll.failed_questions,
         unanswered_renewals = toll.unanswered_renewals, losses = toll.losses,];
    /// A lease was lost. `reason` is a value of [`LOSS`](metrics::LOSS). The key is in the events
    /// of the same owner at debug level. A loss during an outage, or soon after another one, is
    /// counted in the event at the end.
    warn if is_first else debug "lock.lost": lost(owner: impl Display, loss: impl Display, reason: &str)
        [%owner, %loss,] => metrics::LOSSES.count_named(reason);
    /// Several leases were lost one soon after another, although the store answered.
    warn "lock.losses": losses(instance: impl Display, toll: &Toll)
        [%instance, lasted = ?toll.lasted, losses = toll.losses,];
    debug "lock.renew": renewing(leases: usize) [leases,];
    debug "lock.renewal_unknown": renewal_unknown(owner: impl Display, error: &impl Display) [%owner, %error,];
    debug "lock.release": released(key: &str, owner: impl Display) [key, %owner,];
    /// A release has failed, and is repeated. `is_first`: no other one has failed since the last
    /// answer.
    warn if is_first else debug "lock.release_failed": release_failed(owner: impl Display, error: &impl Display)
        [%owner, %error,];
    /// An operator takes a key away.
    debug "lock.force_release": force_releasing(key: &str) [key,];
    /// An operator has taken a key away, or has removed a record, by this instance.
    warn "lock.force_released": force_released(instance: impl Display) [%instance,];
    /// An instance begins to close. `keys` is how many keys are held or waited for.
    info "lock.closing": closing(keys: usize) [keys,];
    /// A request was refused. `code` is a value of [`REFUSAL`](metrics::REFUSAL). `is_mistake`: the
    /// layers are put together wrongly. An outage and a loss are told by the instance, once for all
    /// requests.
    error if is_mistake else debug "lock.refused":
        refused(instance: impl Display, reason: impl Debug, code: &str, why: impl Display)
        [%instance, ?reason, %why,] => metrics::REFUSALS.count_named(code);
    /// The store is away, and requests run without their lock from now on.
    warn "lock.failed_open": failed_open(error: &impl Display) [%error,];
    /// A record is in the store. The scope may be personal data, and so the level is debug.
    debug "idempotency.stored": stored(scope: &str, bytes: usize, retain: Duration) [scope, bytes, ?retain,];
    /// An answer was not recorded, so a repeated request will not get it. `why` names the fix.
    warn "idempotency.answer_not_kept": answer_not_kept(why: &str) [why,];
    error "idempotency.not_kept": not_kept(error: &impl Display) [%error,];
    #[cfg(feature = "redis")]
    warn "redis.evicts: the server may evict leases when memory is short; set `maxmemory-policy noeviction`":
        redis_evicts(policy: &str) [policy,];
    #[cfg(feature = "redis")]
    warn "redis.forgets: the server has no append-only file, so a restart loses records of idempotent requests, \
          and their retries run again; set `appendonly yes`": redis_forgets(server: &str) [server,];
    #[cfg(feature = "postgres")]
    warn "postgres.forgets: fsync or synchronous_commit is off, so a crash of the server loses records of idempotent \
          requests, and their retries run again": postgres_forgets(server: &str) [server,];
    #[cfg(feature = "postgres")]
    warn "postgres.listener_lost": listener_lost(error: &dyn Display) [%error,];
    #[cfg(feature = "postgres")]
    info "postgres.listening_again": listening_again() [];
    #[cfg(feature = "postgres")]
    warn "postgres.no_hints: notifications do not arrive, as behind a pooler, so waiting requests \
          ask again and again; set `listen_url` to the server's own address": no_hints() [];
    #[cfg(feature = "redis")]
    warn "redis.subscription_lost": subscription_lost(error: &dyn Display) [%error,];
    #[cfg(feature = "redis")]
    info "redis.resubscribed": resubscribed() [];
}

/// An outage is over.
pub(crate) fn store_back(instance: impl Display, toll: &Toll) {
    outage_over(instance, toll, toll.losses > 0);
}

/// An operator has written the answer of a request whose process has died.
pub(crate) fn settled(key: &str) {
    event!(debug, key, "idempotency.settle");
    event!(warn, "idempotency.settled");
}

/// Makes a function of each thing that is only counted.
macro_rules! counts {
    ($($(#[$meta:meta])* $name:ident($($param:ident: $type:ty),*) => $record:expr;)+) => {
        $(
            $(#[$meta])*
            pub(crate) fn $name($($param: $type),*) {
                record!($record);
            }
        )+
    };
}

counts! {
    /// The store has answered a renewal, or has not.
    renewed(result: RenewalResult) => metrics::RENEWALS.count(&[result as usize]);
    /// The store has sent a hint. `kind` is a value of [`HINT`](metrics::HINT).
    hint(kind: &str) => metrics::HINTS.count_named(kind);
    /// A request runs without its lock.
    unlocked() => metrics::UNLOCKED.count(&[]);
    /// An idempotent request runs, or is answered without its handler.
    idempotent(outcome: Idempotent) => metrics::IDEMPOTENCY.count(&[outcome as usize]);
    /// A request of the single-flight layer has found its role.
    flight(role: Role) => metrics::SINGLE_FLIGHT.count(&[role as usize]);
    /// A record was kept, or was not.
    kept(result: KeepResult) => metrics::RECORDS.count(&[result as usize]);
    /// A connect to a server has ended.
    #[cfg(any(feature = "postgres", feature = "redis"))]
    connected(connection: Connection, result: ConnectResult) =>
        metrics::CONNECTS.count(&[connection as usize, result as usize]);
    /// Gives the descriptions and units of all metrics to the recorder, if one is installed.
    describe() => metrics::all().for_each(super::metric::Metric::describe);
    /// Sets the gauges, and describes all metrics: whoever calls this has installed a recorder.
    record_gauges(gauges: &Gauges) => {
        describe();
        gauges.values().for_each(|(gauge, value)| gauge.set(value));
    };
}
