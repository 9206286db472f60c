//! Renewals on their way, and what their answers mean.

use std::sync::Arc;

use futures_util::StreamExt;

use super::{inner::Inner, line::Answer};
use crate::{
    Error, ErrorKind, Loss,
    lease::Lease,
    store::{Renew, Renewed},
    time::{Instant, now},
    trace,
};

/// A renewal of several leases on its way. However it ends, each of its leases gets an answer.
pub(super) struct Renewing {
    inner: Arc<Inner>,
    sent: Instant,
    /// Each lease, until its answer has come, and how often it had been doubted before the renewal was begun.
    leases: Vec<Option<(Arc<Lease>, u64)>>,
}

impl Renewing {
    pub(super) fn new(inner: Arc<Inner>, leases: Vec<Arc<Lease>>) -> Self {
        let with_doubts = |lease: Arc<Lease>| {
            let doubts = lease.doubts();
            Some((lease, doubts))
        };
        Self {
            inner,
            sent: now(),
            leases: leases.into_iter().map(with_doubts).collect(),
        }
    }

    pub(super) async fn run(mut self) {
        let requests = self.leases.iter().flatten().map(|(lease, _)| Renew {
            key: lease.key.clone(),
            owner: lease.owner,
            lease: lease.length,
            refill: self.inner.needs(lease),
        });
        let mut answers = self.inner.store.renew(requests.collect());
        while let Some((index, answer)) = answers.next().await {
            if let Some((lease, doubts)) = self.leases.get_mut(index).and_then(Option::take) {
                self.inner.answered(&lease, (self.sent, doubts), answer);
            }
        }
    }
}

impl Drop for Renewing {
    fn drop(&mut self) {
        for (lease, doubts) in std::mem::take(&mut self.leases).into_iter().flatten() {
            let unknown = Renewed::Unknown(Error::new(
                ErrorKind::Unreachable,
                "the renewal was not answered: the runtime that sent it has shut down, or the store forgot to answer",
            ));
            self.inner.answered(&lease, (self.sent, doubts), unknown);
        }
    }
}

impl Inner {
    fn needs(self: &Arc<Self>, lease: &Lease) -> u32 {
        self.with_line(&lease.key, |line, _| line.needs(lease))
            .unwrap_or(0)
    }

    fn answered(
        self: &Arc<Self>,
        lease: &Arc<Lease>,
        (sent, doubts): (Instant, u64),
        answer: Renewed,
    ) {
        if !self.scheduler.tracks(lease) {
            return; // released or lost meanwhile
        }
        match answer {
            Renewed::Renewed {
                tokens,
                others_wait,
            } => {
                let answer = Answer {
                    sent,
                    doubts,
                    tokens,
                    others_wait,
                };
                self.with_line(&lease.key, |line, t| line.renewed(lease, answer, t));
            }
            Renewed::NotOurs if !lease.is_recording() => drop(self.lose(lease, Loss::NotOurs)),
            Renewed::NotOurs => self.unanswered(lease, recorded_or_lost()),
            Renewed::Unknown(error) => self.unanswered(lease, error),
        }
    }

    fn unanswered(self: &Arc<Self>, lease: &Arc<Lease>, error: Error) {
        trace::renewal_unknown(lease.owner, &error);
        lease.doubt();
        let gives_up = self.scheduler.unknown(lease);
        self.with_line(&lease.key, |line, t| line.renewal_unknown(lease, &error, t));
        if gives_up {
            self.lose(lease, Loss::GaveUp);
        }
    }
}

fn recorded_or_lost() -> Error {
    Error::new(
        ErrorKind::Unreachable,
        "the lease is not there any more: the record that is on its way has taken its place, or it was lost",
    )
}
