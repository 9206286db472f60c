//! The wait for a turn, the turn, and a release that is awaited. Each has a span; the first two
//! also have a histogram of their time.

use std::fmt::Display;

#[cfg(feature = "metrics")]
use super::metrics;
use super::{
    metrics::{HoldEnd, TurnOutcome},
    record,
    span::Span,
};
use crate::time::{Instant, now};

/// How a request for a turn ended.
pub(crate) enum Acquired<'a> {
    /// The request has its turn.
    Turn {
        owner: &'a dyn Display,
        token: u64,
        /// The lease was passed on by an earlier turn, without a new grant.
        passed_on: bool,
        hold: &'a Hold,
    },
    No(TurnOutcome),
}

/// A request for a turn. A request that is dropped before its end was cancelled.
pub(crate) struct Acquiring {
    span: Span,
    /// `None` once the request has ended, and if neither the span nor a metric needs the time.
    began: Option<Instant>,
}

impl Acquiring {
    pub(crate) fn begin() -> Self {
        let span = Span::acquire();
        let began = needs_time(&span).then(now);
        Self { span, began }
    }

    /// Runs a step of the wait within the span `lock.acquire`.
    pub(crate) fn scope<T>(&self, step: impl FnOnce() -> T) -> T {
        self.span.scope(step)
    }

    pub(crate) fn end(&mut self, acquired: Acquired<'_>) {
        match acquired {
            Acquired::No(outcome) => self.finish(outcome),
            Acquired::Turn {
                owner,
                token,
                passed_on,
                hold,
            } => {
                self.span.token(token);
                self.finish(if passed_on {
                    TurnOutcome::PassedOn
                } else {
                    TurnOutcome::Granted
                });
                hold.begin(token, owner);
            }
        }
    }

    fn finish(&mut self, outcome: TurnOutcome) {
        let Some(began) = self.began.take() else {
            return;
        };
        let waited = now().saturating_duration_since(began);
        self.span.waited(waited);
        self.span.outcome(outcome.text());
        record!(metrics::TURNS.count(&[outcome as usize]));
        record!(metrics::WAIT.record(waited, &[outcome as usize]));
    }
}

impl Drop for Acquiring {
    fn drop(&mut self) {
        self.finish(TurnOutcome::Cancelled);
    }
}

/// The time for which a turn lasts. Ends once.
#[derive(Debug, Default)]
pub(crate) struct Hold {
    #[cfg(any(feature = "tracing", feature = "metrics"))]
    holding: crate::sync::Mutex<Option<Holding>>,
}

#[derive(Debug)]
struct Holding {
    span: Span,
    began: Instant,
}

impl Hold {
    fn begin(&self, token: u64, owner: &dyn Display) {
        let span = Span::hold(token, owner);
        if needs_time(&span) {
            let began = now();
            self.with(|holding| *holding = Some(Holding { span, began }));
        }
    }

    /// Ends the time, unless the time has ended before.
    pub(crate) fn end(&self, is_lost: impl FnOnce() -> bool) {
        let Some(Holding { span, began }) = self.with(Option::take).flatten() else {
            return;
        };
        let outcome = if is_lost() {
            HoldEnd::Lost
        } else {
            HoldEnd::Released
        };
        span.outcome(outcome.text());
        let held = now().saturating_duration_since(began);
        record!(metrics::HOLD.record(held, &[outcome as usize]));
    }

    /// Runs a step of the turn's work within the span `lock.hold`.
    pub(crate) fn scope<T>(&self, step: impl FnOnce() -> T) -> T {
        self.span().scope(step)
    }

    /// Polls the turn's work within the span `lock.hold`.
    pub(crate) fn within<F: Future>(&self, work: F) -> impl Future<Output = F::Output> + use<F> {
        self.span().within(work)
    }

    /// The span `lock.hold`, or an empty one once the turn has ended.
    fn span(&self) -> Span {
        let span = |holding: &mut Option<Holding>| Some(holding.as_ref()?.span.clone());
        self.with(span).flatten().unwrap_or_default()
    }

    fn with<T>(&self, work: impl FnOnce(&mut Option<Holding>) -> T) -> Option<T> {
        #[cfg(any(feature = "tracing", feature = "metrics"))]
        return Some(work(&mut self.holding.lock()));
        #[cfg(not(any(feature = "tracing", feature = "metrics")))]
        return None;
    }
}

/// Wraps a release whose answer is awaited.
pub(crate) fn releasing<F: Future>(
    token: u64,
    release: F,
) -> impl Future<Output = F::Output> + use<F> {
    Span::release(token).within(release)
}

fn needs_time(span: &Span) -> bool {
    cfg!(feature = "metrics") || span.is_enabled()
}
