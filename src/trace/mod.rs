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
    allow(unused_variables, dead_code, clippy::if_same_then_else)
)]

mod events;
mod metric;
mod metrics;
mod span;
#[cfg(any(feature = "postgres", feature = "redis"))]
mod store_call;
#[cfg(all(test, feature = "metrics"))]
mod tests;
mod turn;

pub(crate) use self::{
    events::*,
    metrics::{Gauges, Idempotent, KeepResult, RenewalResult, Role, TurnOutcome},
    span::spawn,
    turn::{Acquired, Acquiring, Hold, releasing},
};
#[cfg(any(feature = "postgres", feature = "redis"))]
pub(crate) use self::{
    metrics::{ConnectResult, Connection, StoreOperation, StoreResult},
    store_call::StoreCall,
};

/// `debug!(…)`, or nothing.
macro_rules! event {
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
