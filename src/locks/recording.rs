//! Records in the place of leases.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::time::{Instant, timeout_at};

use super::{inner::Inner, line::Granted};
use crate::{
    Error, ErrorKind, LockKey, Loss,
    store::{Acquire, Acquired, Ending, Mode, Queueing, Release, Released},
};

/// What became of a record that came after its lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Late {
    Recorded,
    /// Another record is there.
    Superseded,
    /// Somebody holds the key.
    Held,
}

impl Inner {
    /// Puts a record into the lease's place. The lease is renewed on until the store has said that it is there.
    pub(crate) async fn record(
        self: &Arc<Self>,
        granted: &Granted,
        (content, retain): (&Bytes, Duration),
        until: Instant,
    ) -> Result<Released, Error> {
        let lease = &granted.lease;
        lease.set_recording();
        let ending = Ending::Record {
            content: content.clone(),
            retain,
        };
        let (inner, of) = (self.clone(), lease.clone());
        let recording = async move { inner.release(&of, ending).await };
        let outcome = self.bounded(recording, until).await;
        match outcome {
            Ok(Released::Freed) => self.finish(granted, content),
            Ok(Released::NotOurs) => self.lose(lease, Loss::NotOurs),
            Err(_) => {}
        }
        outcome
    }

    /// The turn has ended with this record.
    pub(crate) fn finish(self: &Arc<Self>, granted: &Granted, content: &Bytes) {
        self.scheduler.untrack(&granted.lease);
        self.carry_out(self.lines.finished(granted, content));
    }

    /// Records what was done under a lease that was lost, if nobody else has claimed the key since.
    pub(crate) async fn record_late(
        self: &Arc<Self>,
        key: &LockKey,
        claim: Bytes,
        (content, retain): (&Bytes, Duration),
        until: Instant,
    ) -> Result<Late, Error> {
        let owner = self.fresh_owner();
        let claiming = self.store.acquire(Acquire {
            key: key.clone(),
            owner,
            lease: self.config.lease,
            block: 1,
            queueing: Queueing::Skip,
            mode: Mode::Exclusive,
            fingerprint: Some(claim),
        });
        let (inner, key, content) = (self.clone(), key.clone(), content.clone());
        let recording = async move {
            match claiming.await? {
                // It is ours: an earlier try had an effect, and its answer was lost.
                Acquired::Recorded(found) if found == content => return Ok(Late::Recorded),
                Acquired::Recorded(_) => return Ok(Late::Superseded),
                Acquired::Held(_) => return Ok(Late::Held),
                Acquired::Granted(_) => {}
            }
            let ending = Ending::Record { content, retain };
            let recorded = inner.store.start_release(Release {
                key,
                owner,
                ending,
                owed_for: inner.config.lease,
            });
            Ok(match recorded.await? {
                Released::Freed => Late::Recorded,
                Released::NotOurs => Late::Held,
            })
        };
        self.bounded(recording, until).await
    }

    /// Awaits a call for so long. If it takes longer, it goes on in the background: what was asked is heard to its end.
    async fn bounded<T: 'static>(
        self: &Arc<Self>,
        call: impl Future<Output = Result<T, Error>> + Send + 'static,
        until: Instant,
    ) -> Result<T, Error> {
        let mut call = Box::pin(call);
        match timeout_at(until, &mut call).await {
            Ok(outcome) => outcome,
            Err(_) => {
                self.adopt(Box::pin(async move { drop(call.await) }));
                Err(Error::new(
                    ErrorKind::Unreachable,
                    "the store has not answered in time",
                ))
            }
        }
    }
}
