//! Ending a turn with a record in the lease's place.
//!
//! The store ends a lease and writes the record in one step, so no other instance can begin the same work in between:
//!
//! | the store answers | the turn | the record |
//! |---|---|---|
//! | freed | ends, and waiting duplicates get the record | is in the store |
//! | not ours | is lost | is not written; `record_late` claims the key anew for the record |
//! | nothing in time | goes on, and is renewed | may be in the store; the caller tries again |

use std::{sync::Arc, time::Duration};

use bytes::Bytes;

use super::{Locks, inner::Inner, line::Granted};
use crate::{
    Error, ErrorKind, LockKey, Loss,
    store::{Acquire, Acquired, Ending, Mode, Owner, Queueing, Release, Released},
    time::{Instant, timeout_at},
};

/// The result of a record that was written after its lease was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Late {
    /// The record is in the store.
    Recorded,
    /// The store has another record at the key.
    Superseded,
    /// Another request holds the key.
    Held,
}

impl Locks {
    /// Tells the store that records of these locks must not be lost.
    pub(crate) fn expect_records(&self) {
        self.0.store.expect_records();
    }
}

impl Inner {
    /// Puts a record into the lease's place. The lease is renewed until the store has confirmed the record.
    pub(crate) async fn record(
        self: &Arc<Self>,
        granted: &Granted,
        (content, retain): (&Bytes, Duration),
        until: Instant,
    ) -> Result<Released, Error> {
        let lease = &granted.lease;
        lease.set_recording();
        let recording = self.store.start_release(Release {
            key: lease.key.clone(),
            owner: lease.owner,
            ending: Ending::Record {
                content: content.clone(),
                retain,
            },
            owed_for: lease.length,
            mode: Mode::Exclusive,
        });
        // The release continues in the store when the answer takes too long.
        let outcome = timeout_at(until, recording).await;
        let outcome = outcome.unwrap_or_else(|| Err(not_in_time()));
        match outcome {
            Ok(Released::Freed) => self.finish(granted, content),
            Ok(Released::NotOurs) => drop(self.lose(lease, Loss::NotOurs)),
            Err(_) => {}
        }
        outcome
    }

    /// Ends the turn in its line, and shares the record with the requests that wait.
    pub(crate) fn finish(self: &Arc<Self>, granted: &Granted, content: &Bytes) {
        self.with_line(&granted.lease.key, |line, t| {
            line.finished(granted, content, t);
        });
    }

    /// Puts a record into the place of another process's lease, if that process still has the lease.
    pub(crate) async fn record_for(
        self: &Arc<Self>,
        key: &LockKey,
        owner: Owner,
        (content, retain): (Bytes, Duration),
    ) -> Result<Released, Error> {
        let recording = self.store.start_release(Release {
            key: key.clone(),
            owner,
            ending: Ending::Record { content, retain },
            owed_for: self.config.lease,
            mode: Mode::Exclusive,
        });
        recording.await
    }

    /// Records the result of work whose lease was lost, if no other request has claimed the key since.
    pub(crate) async fn record_late(
        self: &Arc<Self>,
        key: &LockKey,
        fingerprint: Bytes,
        (content, retain): (&Bytes, Duration),
        until: Instant,
    ) -> Result<Late, Error> {
        let owner = self.lines.fresh_owner(key);
        let claiming = self.store.acquire(Acquire {
            key: key.clone(),
            owner,
            lease: self.config.lease,
            block: 1,
            queueing: Queueing::Skip,
            mode: Mode::Exclusive,
            fingerprint: Some(fingerprint),
            more: Vec::new(),
        });
        let recording = async {
            match claiming.await? {
                // The record is already there: an earlier try took effect, and its answer was lost.
                Acquired::Recorded(found) if found == *content => return Ok(Late::Recorded),
                Acquired::Recorded(_) => return Ok(Late::Superseded),
                Acquired::Held(_) => return Ok(Late::Held),
                Acquired::Granted(_) => {}
            }
            let recorded = self.store.start_release(Release {
                key: key.clone(),
                owner,
                ending: Ending::Record {
                    content: content.clone(),
                    retain,
                },
                owed_for: self.config.lease,
                mode: Mode::Exclusive,
            });
            Ok(match recorded.await? {
                Released::Freed => Late::Recorded,
                Released::NotOurs => Late::Held,
            })
        };
        let outcome = timeout_at(until, recording).await;
        outcome.unwrap_or_else(|| Err(not_in_time()))
    }
}

/// The error for a record that was not confirmed in time.
fn not_in_time() -> Error {
    Error::new(ErrorKind::Unreachable, "the store has not answered in time")
}
