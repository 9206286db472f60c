//! Renewals under way, and the handling of their answers.
//!
//! One call to the store renews all leases that are due. The answers arrive one by one, and each is
//! applied to the line of its lease at once, so that a slow server of a Cluster does not delay the
//! leases on the others:
//!
//! ```text
//! Renewing { a, b, c } ──▶ Store::renew ──▶ (1, Renewed)  ──▶ the line of b
//!                                           (0, NotOurs)  ──▶ the line of a: lost
//!                      dropped, no answer for c ──────────▶ the line of c: unknown
//! ```

use std::sync::Arc;

use futures_util::StreamExt;

use super::{
    inner::Inner,
    line::{Answer, DueRenewal},
};
use crate::{
    Error, ErrorKind, Loss,
    lease::Lease,
    store::{Renew, Renewed},
    sync::consume_budget,
    time::Instant,
    trace::{self, RenewalResult},
};

/// A renewal of several leases that the store has not answered yet. Each lease gets an answer, even
/// if the renewal is dropped.
pub(super) struct Renewing {
    inner: Arc<Inner>,
    sent: Instant,
    /// The renewals that have not been answered, by their index in the request.
    renewals: Vec<Option<DueRenewal>>,
    /// The store gives no further answers.
    is_answered: bool,
}

impl Renewing {
    pub(super) fn new(inner: Arc<Inner>, renewals: Vec<DueRenewal>, sent: Instant) -> Self {
        Self {
            inner,
            sent,
            renewals: renewals.into_iter().map(Some).collect(),
            is_answered: false,
        }
    }

    /// Sends the renewals, and applies each answer to the line of its lease.
    pub(super) async fn run(mut self) {
        let requests = self.renewals.iter().flatten().map(|renewal| Renew {
            key: renewal.lease.key.clone(),
            owner: renewal.lease.owner,
            lease: renewal.lease.length,
            refill: renewal.refill,
            mode: renewal.lease.mode(),
        });
        let mut answers = self.inner.store.renew(requests.collect());
        while let Some((index, answer)) = answers.next().await {
            // The answers of the memory store are all ready.
            consume_budget().await;
            if let Some(renewal) = self.renewals.get_mut(index).and_then(Option::take) {
                self.inner.answered(&renewal, self.sent, answer);
            }
        }
        self.is_answered = true;
    }
}

impl Drop for Renewing {
    fn drop(&mut self) {
        for renewal in std::mem::take(&mut self.renewals).into_iter().flatten() {
            let answer = if std::thread::panicking() || self.is_answered {
                no_answer()
            } else {
                Renewed::Unknown(Error::interrupted(
                    "the renewal was not answered before its runtime has shut down",
                ))
            };
            self.inner.answered(&renewal, self.sent, answer);
        }
    }
}

impl Inner {
    /// Applies the answer to one lease. An answer of *not ours* is a loss, unless a record was sent
    /// that may have taken the lease's place.
    fn answered(self: &Arc<Self>, renewal: &DueRenewal, sent: Instant, answer: Renewed) {
        let lease = &renewal.lease;
        self.renewal_answered(&answer);
        match answer {
            Renewed::Renewed {
                tokens,
                others_wait,
            } => {
                let answer = Answer {
                    sent,
                    refill_asked: renewal.refill > 0,
                    tokens,
                    others_wait,
                };
                self.with_line(&lease.key, |line, t| line.renewed(lease, answer, t));
            }
            Renewed::NotOurs if !lease.is_recording() => self.lose(lease, Loss::NotOurs),
            Renewed::NotOurs => self.unanswered(lease, recorded_or_lost(), false),
            Renewed::Unknown(error) => self.unanswered(lease, error, true),
        }
    }

    /// Notes whether the store has answered a renewal, and what.
    fn renewal_answered(&self, answer: &Renewed) {
        trace::renewed(match answer {
            Renewed::Renewed { .. } => RenewalResult::Renewed,
            Renewed::NotOurs => RenewalResult::NotOurs,
            Renewed::Unknown(_) => RenewalResult::Unknown,
        });
        if !matches!(answer, Renewed::Unknown(_)) {
            self.store_answered();
        }
    }

    /// Applies a missing answer, and loses the lease if the line gives up. `is_outage`: the store
    /// has not answered at all.
    fn unanswered(self: &Arc<Self>, lease: &Arc<Lease>, error: Error, is_outage: bool) {
        let gives_up = self.with_line(&lease.key, |line, t| line.renewal_unknown(lease, &error, t));
        if let Some(gives_up) = gives_up.flatten() {
            if is_outage {
                self.troubles.renewal_unanswered(lease.owner, &error);
            }
            if gives_up {
                self.lose(lease, Loss::GaveUp);
            }
        }
    }
}

/// The answer that stands for a missing one.
fn no_answer() -> Renewed {
    Renewed::Unknown(Error::new(
        ErrorKind::Unreachable,
        "the renewal was not answered: the store gave no answer",
    ))
}

/// The reason of a missing answer for a lease whose record was sent before.
fn recorded_or_lost() -> Error {
    Error::new(
        ErrorKind::Unreachable,
        "the store does not have the lease any more: a record has taken its place, or the lease was lost",
    )
}
