//! Renewals on their way, and what their answers mean.

use std::sync::Arc;

use tokio::time::Instant;

use super::inner::Inner;
use crate::{
    Error, ErrorKind, Loss,
    lease::Lease,
    store::{Renew, Renewed},
    trace,
};

/// A renewal on its way. However it ends, each of its leases gets an answer.
pub(super) struct Renewing {
    pub(super) inner: Arc<Inner>,
    pub(super) leases: std::vec::IntoIter<Arc<Lease>>,
    pub(super) sent: Instant,
}

impl Renewing {
    pub(super) async fn run(mut self) {
        let requests = self.leases.as_slice().iter().map(|lease| Renew {
            key: lease.key.clone(),
            owner: lease.owner,
            lease: self.inner.config.lease,
            refill: self.inner.lines.needs(lease),
        });
        let answers = self.inner.store.renew(requests.collect());
        let mut answers: Vec<_> = futures_util::StreamExt::collect(answers).await;
        answers.sort_unstable_by_key(|(index, _)| *index);
        for ((_, answer), lease) in answers.into_iter().zip(self.leases.by_ref()) {
            self.inner.answered(&lease, self.sent, answer);
        }
    }
}

impl Drop for Renewing {
    fn drop(&mut self) {
        for lease in self.leases.by_ref() {
            let unknown = Renewed::Unknown(Error::new(
                ErrorKind::Unreachable,
                "the answer to the renewal was not awaited: the runtime that sent it has shut down",
            ));
            self.inner.answered(&lease, self.sent, unknown);
        }
    }
}

impl Inner {
    fn answered(self: &Arc<Self>, lease: &Arc<Lease>, sent: Instant, answer: Renewed) {
        if !self.scheduler.tracks(lease) {
            return; // released or lost meanwhile
        }
        let now = Instant::now();
        match answer {
            // Too late: a guard that looked at the clock knows of the loss already, and a loss is final.
            Renewed::Renewed { .. } if !lease.is_valid(now) => self.lose(lease, Loss::Expired),
            Renewed::Renewed {
                tokens,
                others_wait,
            } => {
                lease.set_confirmed(true);
                self.scheduler.renewed(lease);
                let news = (sent, tokens, others_wait);
                self.carry_out(self.lines.renewed(lease, news, now));
            }
            Renewed::NotOurs if !lease.is_recording() => self.lose(lease, Loss::NotOurs),
            answer => {
                let error = match answer {
                    Renewed::Unknown(error) => error,
                    _ => recorded_or_lost(),
                };
                trace::renewal_unknown(lease.owner, &error);
                lease.set_confirmed(false);
                let gives_up = self.scheduler.unknown(lease);
                self.carry_out(self.lines.renewal_unknown(lease, &error));
                if let Some(loss) = gives_up {
                    self.lose(lease, loss);
                }
            }
        }
    }
}

fn recorded_or_lost() -> Error {
    Error::new(
        ErrorKind::Unreachable,
        "the lease is not there any more: the record that is on its way has taken its place, or it was lost",
    )
}
