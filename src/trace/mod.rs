//! Every event, span and metric of this crate. No other module knows whether `tracing` or `metrics`
//! is enabled.
//!
//! Keys may be personal data. They appear in events at debug level only, and neither in spans nor
//! in labels of metrics. Events that an operator must see at a higher level, such as a loss or an
//! unreachable store, carry the owner instead, which identifies the key in the store and in debug
//! logs.
//!
//! The functions are given plain values, and are empty if the features are off.

#![cfg_attr(
    not(all(feature = "tracing", feature = "metrics")),
    allow(unused_variables, dead_code)
)]

mod events;
mod metric;
mod metrics;
mod span;
#[cfg(feature = "redis")]
mod store_call;
#[cfg(all(test, feature = "metrics"))]
mod tests;
mod turn;

#[cfg(test)]
pub(crate) use self::metrics::REFUSAL;
pub(crate) use self::{
    events::*,
    metrics::{Idempotent, KeepResult, RenewalResult, Role, TurnOutcome},
    span::spawn,
    turn::{Acquired, Acquiring, Hold, releasing},
};
#[cfg(feature = "redis")]
pub(crate) use self::{
    metrics::{ConnectResult, Connection, StoreOperation, StoreResult},
    store_call::StoreCall,
};

/// `debug!(…)`, or nothing. With `if`, the level depends on a condition.
macro_rules! event {
    (if $is:expr, $level:ident, else $other:ident, $($arg:tt)+) => {{
        #[cfg(feature = "tracing")]
        if $is {
            tracing::$level!(target: "tower_distributed_lock", $($arg)+);
        } else {
            tracing::$other!(target: "tower_distributed_lock", $($arg)+);
        }
    }};
    ($level:ident, $($arg:tt)+) => {{
        #[cfg(feature = "tracing")]
        tracing::$level!(target: "tower_distributed_lock", $($arg)+);
    }};
}

/// Records a metric, or nothing.
macro_rules! record {
    ($record:expr) => {{
        #[cfg(feature = "metrics")]
        $record;
    }};
}

use {event, record};
