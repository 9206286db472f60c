//! Ending a turn with a record in the lease's place.
//!
//! The store ends a lease and writes the record in one step, so no other instance can begin the
//! same work in between:
//!
//! | the store answers | the turn | the record |
//! |---|---|---|
//! | freed | ends, and waiting duplicates get the record | is in the store, or one of the program |
//! | not ours | is lost | is not written; `record_late` claims the key anew for the record |
//! | nothing in time | goes on, and is renewed | may be in the store; the caller tries again |
//!
//! A transaction of the program may have written another record for the same claim
//! ([`Lease::may_be_kept_by_program`]). Waiting duplicates then ask the store for it.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use smallvec::SmallVec;

use super::{Locks, inner::Inner, line::Granted};
use crate::{
    Error, ErrorKind, LockKey, Loss,
    lease::Lease,
    store::{
        Acquire, Acquired, Answer, End, Ending, Mode, Outcome, Owner, Queueing, Release, Released,
    },
    time::{Instant, timeout_at},
};

impl Locks {
    /// Tells the store that records of these locks must not be lost.
    pub(crate) fn expect_records(&self) {
        self.0.store.expect_records();
    }
}

impl Inner {
    /// Puts a record into the lease's place. The lease is renewed until the store has confirmed the
    /// record.
    pub(crate) async fn record(
        self: &Arc<Self>,
        granted: &Granted,
        (content, retain): (&Bytes, Duration),
        until: Instant,
    ) -> Result<Released, Error> {
        let lease = &granted.lease;
        lease.set_recording(content, retain);
        let recording = self.send_record(&lease.key, lease.owner, (content.clone(), retain));
        // The turn goes on when the answer takes too long, and the caller repeats the record.
        let outcome = timeout_at(until, recording).await;
        let outcome = outcome.unwrap_or_else(|| Err(not_in_time()));
        match outcome {
            Ok(Released::Freed) => self.finish(granted, content, true),
            Ok(Released::NotOurs | Released::NotYet) => self.lose(lease, Loss::NotOurs),
            Err(_) => {}
        }
        outcome
    }

    /// Ends the turn in its line, and shares the record with the requests that wait.
    pub(crate) fn finish(self: &Arc<Self>, granted: &Granted, content: &Bytes, is_confirmed: bool) {
        self.with_line(&granted.lease.key, |line, t| {
            line.finished(granted, content, is_confirmed, t);
        });
    }

    /// Puts a record into the place of an owner's lease, if the store still has that lease.
    pub(crate) fn send_record(
        &self,
        key: &LockKey,
        owner: Owner,
        record: (Bytes, Duration),
    ) -> impl Future<Output = Result<Released, Error>> + use<> {
        let (answer, outcome) = Answer::channel();
        let release = self.ending(key, owner, Some(record), false);
        self.store.release(release, answer);
        async { outcome.await.into_result() }
    }

    /// Ends a claim, with a record in its place or without.
    fn ending(
        &self,
        key: &LockKey,
        owner: Owner,
        record: Option<(Bytes, Duration)>,
        in_doubt: bool,
    ) -> Release {
        let ending = record.map(|(content, retain)| Ending::Record { content, retain });
        Release {
            ending: ending.unwrap_or(Ending::Free),
            in_doubt,
            ..Release::free(key.clone(), owner, Mode::Exclusive, self.config.lease)
        }
    }
}

/// Records the result of work whose lease was lost, if no other request has claimed the key since.
///
/// The key is claimed anew for the record. A claim whose outcome is not known is kept, because it
/// may be all that keeps another request from doing the work again: the next claim ends it in the
/// same step. The drop ends whatever is left.
pub(crate) struct LateRecord {
    inner: Arc<Inner>,
    key: LockKey,
    fingerprint: Option<Bytes>,
    content: Bytes,
    retain: Duration,
    /// Owners whose claims may have taken effect.
    in_doubt: SmallVec<[Owner; 1]>,
    /// The owner whose claim was granted, and whose record may have been written.
    granted: Option<Owner>,
}

impl LateRecord {
    /// For the work of this lease.
    pub(super) fn new(
        inner: &Arc<Inner>,
        lost: &Lease,
        (content, retain): (&Bytes, Duration),
    ) -> Self {
        Self {
            inner: inner.clone(),
            key: lost.key.clone(),
            fingerprint: lost.fingerprint.clone(),
            content: content.clone(),
            retain,
            in_doubt: SmallVec::new(),
            granted: None,
        }
    }

    /// Tries to write the record. Returns `false` if another request holds the key, or has left
    /// another record there. May be called again after an error.
    pub(crate) async fn write(&mut self, until: Instant) -> Result<bool, Error> {
        let writing = timeout_at(until, self.claim_and_record()).await;
        writing.unwrap_or_else(|| Err(not_in_time()))
    }

    async fn claim_and_record(&mut self) -> Result<bool, Error> {
        // The lease of an earlier claim may be over by now: the next claim tells who has the key.
        if let Some(owner) = self.granted
            && self.record(owner).await?
        {
            return Ok(true);
        }
        match self.claim().await? {
            // The record may be there already: an earlier try took effect, and its answer was lost.
            Acquired::Recorded(found) => return Ok(found == self.content),
            Acquired::Held(_) => return Ok(false),
            Acquired::Granted(_) => {}
        }
        match self.granted {
            Some(owner) => self.record(owner).await,
            None => Ok(false),
        }
    }

    /// Puts the record into the place of a claim. Returns whether the claim was still there.
    async fn record(&mut self, owner: Owner) -> Result<bool, Error> {
        let record = (self.content.clone(), self.retain);
        let recorded = self.inner.send_record(&self.key, owner, record).await?;
        self.granted = None;
        Ok(recorded == Released::Freed)
    }

    /// Claims the key. The claims that are in doubt are ended by an answer, as far as they have
    /// come.
    async fn claim(&mut self) -> Result<Acquired, Error> {
        let (owner, mut ends) = self.inner.lines.fresh_owner(&self.key);
        ends.extend(self.in_doubt.iter().map(|owner| End {
            owner: *owner,
            mode: Mode::Exclusive,
        }));
        self.in_doubt.push(owner);
        let claiming = self.inner.store.acquire(Acquire {
            key: self.key.clone(),
            owner,
            lease: self.inner.config.lease,
            block: 1,
            queueing: Queueing::Skip,
            mode: Mode::Exclusive,
            fingerprint: self.fingerprint.clone(),
            more: Vec::new(),
            ends,
        });
        let answer = match claiming.await {
            Outcome::Answered(answer) => answer,
            Outcome::Refused(error) => {
                self.in_doubt.pop();
                return Err(error);
            }
            Outcome::Unknown(error) => return Err(error),
        };
        self.in_doubt.pop();
        if matches!(answer, Acquired::Granted(_)) {
            self.granted = Some(owner);
        }
        for owner in std::mem::take(&mut self.in_doubt) {
            self.end(owner, None, true);
        }
        Ok(answer)
    }

    fn end(&self, owner: Owner, record: Option<(Bytes, Duration)>, in_doubt: bool) {
        let end = self.inner.ending(&self.key, owner, record, in_doubt);
        if let Some(release) = self.inner.lines.end(end) {
            self.inner.send_release(release);
        }
    }
}

impl Drop for LateRecord {
    fn drop(&mut self) {
        let record = || Some((self.content.clone(), self.retain));
        for owner in self.in_doubt.iter().copied() {
            self.end(owner, record(), true);
        }
        if let Some(owner) = self.granted {
            self.end(owner, record(), false);
        }
    }
}

/// The error for a record that was not confirmed in time.
fn not_in_time() -> Error {
    Error::new(ErrorKind::Unreachable, "the store has not answered in time")
}
