//! Releases on their way.

use std::sync::Arc;

use super::{
    inner::Inner,
    line::{Confirmation, lost},
};
use crate::{
    Error, Loss,
    lease::Lease,
    store::{Ending, Release, Released},
    trace,
};

/// The release of a line's lease. However it ends, the line goes on.
struct Releasing {
    inner: Arc<Inner>,
    lease: Arc<Lease>,
    ask: Option<Confirmation>,
    /// The lease is not taken out of its line yet; somebody may want it before.
    parked: bool,
}

impl Releasing {
    async fn run(mut self) {
        if !self.take_lease() {
            return;
        }
        let outcome = self.inner.release(&self.lease, Ending::Free).await;
        if let Some(ask) = self.ask.take() {
            let _ = ask.send(match outcome {
                Ok(Released::Freed) => Ok(()),
                Ok(Released::NotOurs) => Err(lost(Some(Loss::NotOurs))),
                Err(error) => Err(error),
            });
        }
    }

    /// Says whether the lease is ours to release.
    fn take_lease(&mut self) -> bool {
        if self.parked {
            self.parked = !self.inner.lines.unpark(&self.lease);
        }
        if !self.parked {
            // From here on no answer to a renewal means anything.
            self.inner.scheduler.untrack(&self.lease);
        }
        !self.parked
    }
}

impl Drop for Releasing {
    fn drop(&mut self) {
        if self.take_lease() {
            self.inner.carry_out(self.inner.lines.released(&self.lease));
        }
    }
}

impl Inner {
    pub(super) fn releasing(
        self: &Arc<Self>,
        lease: Arc<Lease>,
        ask: Option<Confirmation>,
        parked: bool,
    ) {
        let releasing = Releasing {
            inner: self.clone(),
            lease,
            ask,
            parked,
        };
        self.adopt(Box::pin(releasing.run()));
    }

    /// Releases a lease that no line has any more.
    pub(crate) fn release_in_background(self: &Arc<Self>, lease: &Arc<Lease>) {
        let (inner, lease) = (self.clone(), lease.clone());
        self.adopt(Box::pin(async move {
            let _ = inner.release(&lease, Ending::Free).await;
        }));
    }

    pub(super) async fn release(&self, lease: &Lease, ending: Ending) -> Result<Released, Error> {
        let (key, owner) = (lease.key.clone(), lease.owner);
        let release = self.store.start_release(Release {
            key,
            owner,
            ending,
            owed_for: self.config.lease,
        });
        let outcome = release.await;
        trace::released(lease.key.as_str(), owner, &outcome);
        outcome
    }
}
