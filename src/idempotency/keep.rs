//! Storing what a request came to, whatever happened to its lease or the store in the meantime.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, sleep};

use super::{
    fingerprint::Fingerprint,
    settings::{Claim, Settings},
};
use crate::{Error, ErrorKind, LockGuard, LockKey, Locks, store::Released, time::later, trace};

/// How soon to try again when the store does not answer.
const PAUSE: Duration = Duration::from_millis(100);

/// Whether a record was kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kept {
    Yes,
    /// Somebody else has claimed the key since, or has recorded something else.
    Superseded,
    /// The store refuses it.
    No,
    /// The store does not say.
    Unknown,
}

/// What is to be kept, and where.
pub(crate) struct Keeping<'a> {
    pub(crate) locks: &'a Locks,
    pub(crate) key: &'a LockKey,
    pub(crate) claim: Bytes,
    pub(crate) record: Bytes,
    pub(crate) retain: Duration,
    /// How long to try.
    pub(crate) within: Duration,
}

pub(super) async fn keep(
    settings: &Settings,
    claim: &Claim,
    fingerprint: Fingerprint,
    guard: LockGuard,
    record: Bytes,
) -> Kept {
    let keeping = Keeping {
        locks: &settings.locks,
        key: &claim.key,
        claim: fingerprint.to_bytes(),
        record,
        retain: settings.retain,
        within: settings.store_within,
    };
    keeping.keep(guard).await
}

impl Keeping<'_> {
    /// Ends the turn with the record; if that was lost, claims the key anew for it.
    pub(crate) async fn keep(self, guard: LockGuard) -> Kept {
        let until = later(Instant::now(), self.within);
        loop {
            let error = match guard.record(&self.record, self.retain).await {
                Ok(Released::Freed) => return Kept::Yes,
                Ok(Released::NotOurs) => break,
                Err(error) => error,
            };
            if let Some(kept) = self.gives_up(&error, until) {
                // The key is not freed: what is on its way to the store may yet arrive there.
                guard.abandon(&self.record);
                return kept;
            }
            sleep(PAUSE).await;
        }
        self.keep_late(until).await
    }

    async fn keep_late(&self, until: Instant) -> Kept {
        loop {
            let error = match self
                .locks
                .record_late(self.key, self.claim.clone(), &self.record, self.retain)
                .await
            {
                Ok(true) => return Kept::Yes,
                Ok(false) => return Kept::Superseded,
                Err(error) => error,
            };
            if let Some(kept) = self.gives_up(&error, until) {
                return kept;
            }
            sleep(PAUSE).await;
        }
    }

    fn gives_up(&self, error: &Error, until: Instant) -> Option<Kept> {
        let kept = match error.kind() {
            ErrorKind::Unreachable if Instant::now() < until => return None,
            ErrorKind::Unreachable => Kept::Unknown,
            _ => Kept::No,
        };
        trace::not_kept(error);
        Some(kept)
    }
}
