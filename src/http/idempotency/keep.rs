//! Storing the outcome of a request, even after its lease was lost or while the store is away.
//!
//! ```text
//! record in the lease's place ──▶ freed ──────────────────────────────────▶ Kept
//!    ├─ no answer ──▶ again after 100 ms, until `within` has passed ───────▶ Unknown
//!    ├─ refused (the store is full, say) ──────────────────────────────────▶ Refused
//!    └─ not ours: the lease was lost
//!          └─ claim the key again ──▶ granted ──▶ record ──────────────────▶ Kept
//!                               └──▶ held, or another record ──────────────▶ Superseded
//! ```

use std::time::Duration;

use bytes::Bytes;

use super::{fingerprint::Fingerprint, record::Outcome};
use crate::{
    Error, ErrorKind, LockGuard,
    locks::LateRecord,
    store::Released,
    time::{Instant, later, now, sleep_until},
    trace::{self, KeepResult},
};

/// How soon to try again when the store does not answer.
const PAUSE: Duration = Duration::from_millis(100);

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

/// Ends a turn with a record: its bytes, and how long they are retained. If the turn was lost,
/// claims the key again for the record. Tries again for `within` while the store does not answer.
pub(crate) async fn keep(
    guard: LockGuard,
    record: (&Bytes, Duration),
    within: Duration,
) -> KeepResult {
    let until = later(now(), within);
    let mut claimed = Claimed {
        guard: Some(guard),
        state: State::Ended(record.0.clone()),
    };
    let mut late: Option<(Box<LateRecord>, LockGuard)> = None;
    let kept = loop {
        let is_written = match &mut late {
            None => {
                let recorded = claimed.guard().record(record, until).await;
                recorded.map(|released| released == Released::Freed)
            }
            // In boxes: few requests come here, and all would carry the room for it.
            Some((late, _)) => Box::pin(late.write(until)).await,
        };
        let error = match is_written {
            Ok(true) => {
                drop(claimed.guard.take());
                break KeepResult::Kept;
            }
            Ok(false) if late.is_some() => break KeepResult::Superseded,
            Ok(false) => {
                // Local requests with the same key wait on until the record is there.
                let lost = claimed.take();
                late = Some((Box::new(lost.late_record(record)), lost));
                continue;
            }
            Err(error) => error,
        };
        if let Some(kept) = given_up(&error, until).await {
            break kept;
        }
    };
    trace::kept(kept);
    kept
}

/// What is known of a record that is given up after this error; `None` after a pause, if it is
/// worth another try.
async fn given_up(error: &Error, until: Instant) -> Option<KeepResult> {
    let kept = match error.kind() {
        ErrorKind::Unreachable if now() < until => {
            sleep_until(later(now(), PAUSE)).await;
            return None;
        }
        ErrorKind::Unreachable => KeepResult::Unknown,
        ErrorKind::InvalidKey
        | ErrorKind::InvalidConfig
        | ErrorKind::Held
        | ErrorKind::LineFull
        | ErrorKind::TooManyKeys
        | ErrorKind::Lost
        | ErrorKind::Closed
        | ErrorKind::Foreign => KeepResult::Refused,
    };
    trace::not_kept(error);
    Some(kept)
}
