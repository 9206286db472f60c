//! A span of `tracing`, or nothing.
//!
//! Spans are at info level and have no key. They are children of the span in which the lock is
//! requested, such as that of tower-http's `TraceLayer`.

use std::{fmt::Display, time::Duration};

/// A span. Empty without the feature `tracing`, and where no subscriber wants the span: entering a
/// disabled span, and recording its fields, is not free.
#[derive(Debug, Clone, Default)]
pub(super) struct Span {
    #[cfg(feature = "tracing")]
    span: Option<tracing::Span>,
}

/// `info_span!(…)`, or nothing.
macro_rules! span {
    ($($arg:tt)+) => {
        Span {
            #[cfg(feature = "tracing")]
            span: Some(tracing::info_span!(target: "tower_distributed_lock", $($arg)+))
                .filter(|span| !span.is_disabled()),
        }
    };
}

impl Span {
    /// A request for a turn, until the turn begins or the request ends without one.
    pub(super) fn acquire() -> Self {
        span!(
            "lock.acquire",
            waited_ms = tracing::field::Empty,
            outcome = tracing::field::Empty,
            token = tracing::field::Empty,
        )
    }

    /// A turn.
    pub(super) fn hold(token: u64, owner: &dyn Display) -> Self {
        span!("lock.hold", token, %owner, outcome = tracing::field::Empty)
    }

    /// A release whose answer is awaited.
    pub(super) fn release(token: u64) -> Self {
        span!("lock.release", token)
    }

    /// Whether the subscriber wants the span.
    pub(super) fn is_enabled(&self) -> bool {
        #[cfg(feature = "tracing")]
        return self.span.is_some();
        #[cfg(not(feature = "tracing"))]
        return false;
    }

    pub(super) fn token(&self, token: u64) {
        #[cfg(feature = "tracing")]
        if let Some(span) = &self.span {
            span.record("token", token);
        }
    }

    pub(super) fn outcome(&self, outcome: &str) {
        #[cfg(feature = "tracing")]
        if let Some(span) = &self.span {
            span.record("outcome", outcome);
        }
    }

    pub(super) fn waited(&self, waited: Duration) {
        #[cfg(feature = "tracing")]
        if let Some(span) = &self.span {
            span.record("waited_ms", waited.as_secs_f64() * 1000.0);
        }
    }

    /// Runs a closure within the span.
    pub(super) fn scope<T>(&self, run: impl FnOnce() -> T) -> T {
        #[cfg(feature = "tracing")]
        let _entered = self.span.as_ref().map(tracing::Span::enter);
        run()
    }

    /// Polls a future within the span.
    pub(super) fn within<F: Future>(&self, future: F) -> impl Future<Output = F::Output> + use<F> {
        #[cfg(feature = "tracing")]
        let future = {
            let span = self.span.clone().unwrap_or_else(tracing::Span::none);
            tracing::Instrument::instrument(future, span)
        };
        future
    }
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
