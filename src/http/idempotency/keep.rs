//! Storing the outcome of a request, even after its lease was lost or while the store is away.
//!
//! ```text
//! record in the lease's place ──▶ freed ──────────────────────────────────▶ Kept::Yes
//!    ├─ no answer ──▶ again after 100 ms, until `within` has passed ───────▶ Kept::Unknown
//!    ├─ refused (the store is full, say) ──────────────────────────────────▶ Kept::No
//!    └─ not ours: the lease was lost
//!          └─ claim the key again ──▶ granted ──▶ record ──────────────────▶ Kept::Yes
//!                               └──▶ held, or another record ──────────────▶ Kept::Superseded
//! ```

use std::time::Duration;

use bytes::Bytes;

use super::{fingerprint::Fingerprint, record::Outcome};
use crate::{
    Error, ErrorKind, LockGuard,
    store::Released,
    time::{Instant, later, now, sleep_until},
    trace::{self, KeepResult},
};

/// How soon to try again when the store does not answer.
const PAUSE: Duration = Duration::from_millis(100);

/// Whether a record was kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kept {
    Yes,
    /// Another request has claimed the key since, or has stored another record.
    Superseded,
    /// The store refuses the record.
    No,
    /// The store does not answer.
    Unknown,
}

/// The guard of a request until the store has confirmed the record of its outcome.
///
/// After the request was begun, a drop before that does not free the key: the request must not be
/// begun again, and a record on its way to the store may still arrive.
pub(crate) struct Claimed {
    guard: Option<LockGuard>,
    state: State,
}

/// How far the request has come; after a drop, the local requests with the same key are told.
enum State {
    NotBegun,
    Begun(Fingerprint),
    Ended(Bytes),
}

impl Claimed {
    pub(crate) fn new(guard: LockGuard) -> Self {
        let (guard, state) = (Some(guard), State::NotBegun);
        Self { guard, state }
    }

    /// Marks the request as begun.
    pub(crate) fn begin(&mut self, fingerprint: Fingerprint) {
        self.state = State::Begun(fingerprint);
    }

    /// The guard, whose drop frees the key.
    pub(crate) fn take(&mut self) -> LockGuard {
        self.guard.take().expect("the guard is taken once")
    }

    pub(crate) fn guard(&self) -> &LockGuard {
        self.guard.as_ref().expect("the guard is taken at the end")
    }
}

impl Drop for Claimed {
    fn drop(&mut self) {
        let Some(guard) = self.guard.take() else {
            return;
        };
        match &self.state {
            State::NotBegun => {}
            State::Begun(fingerprint) => guard.abandon(&Outcome::Unknown.encode(*fingerprint)),
            State::Ended(record) => guard.abandon(record),
        }
    }
}

/// Ends a turn with a record: its bytes, and how long they are retained. If the turn was lost, claims
/// the key again for the record. Tries again for `within` while the store does not answer.
pub(crate) async fn keep(guard: LockGuard, record: (&Bytes, Duration), within: Duration) -> Kept {
    let kept = store(guard, record, later(now(), within)).await;
    trace::kept(match kept {
        Kept::Yes => KeepResult::Kept,
        Kept::Superseded => KeepResult::Superseded,
        Kept::No => KeepResult::Refused,
        Kept::Unknown => KeepResult::Unknown,
    });
    kept
}

async fn store(guard: LockGuard, record: (&Bytes, Duration), until: Instant) -> Kept {
    let mut claimed = Claimed {
        guard: Some(guard),
        state: State::Ended(record.0.clone()),
    };
    loop {
        let error = match claimed.guard().record(record, until).await {
            Ok(Released::Freed) => {
                drop(claimed.take());
                return Kept::Yes;
            }
            Ok(Released::NotOurs | Released::NotYet) => break,
            Err(error) => error,
        };
        if let Some(kept) = given_up(&error, until).await {
            return kept;
        }
    }
    // Local requests with the same key wait on until the record is there.
    let lost = claimed.take();
    // In a box: few requests come here, and all would carry the room for it.
    Box::pin(store_late(lost, record, until)).await
}

async fn store_late(lost: LockGuard, record: (&Bytes, Duration), until: Instant) -> Kept {
    let mut late = lost.late_record(record);
    loop {
        let error = match late.write(until).await {
            Ok(true) => return Kept::Yes,
            Ok(false) => return Kept::Superseded,
            Err(error) => error,
        };
        if let Some(kept) = given_up(&error, until).await {
            return kept;
        }
    }
}

/// What is known of a record that is given up after this error; `None` after a pause, if it is worth
/// another try.
async fn given_up(error: &Error, until: Instant) -> Option<Kept> {
    let kept = match error.kind() {
        ErrorKind::Unreachable if now() < until => {
            sleep_until(later(now(), PAUSE)).await;
            return None;
        }
        ErrorKind::Unreachable => Kept::Unknown,
        ErrorKind::InvalidKey
        | ErrorKind::InvalidConfig
        | ErrorKind::Held
        | ErrorKind::LineFull
        | ErrorKind::TooManyKeys
        | ErrorKind::Lost
        | ErrorKind::Closed
        | ErrorKind::Foreign => Kept::No,
    };
    trace::not_kept(error);
    Some(kept)
}
