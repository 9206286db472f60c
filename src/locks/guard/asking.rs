//! The methods of a guard that ask the store: to end the turn, to change its mode, to confirm its
//! lease.
//!
//! | method | the turn | the store |
//! |---|---|---|
//! | drop of the last guard | ends | releases the lease in the background, unless the lease is passed on |
//! | [`release`](LockGuard::release) | ends | answers: released, or the lease that is passed on is confirmed |
//! | [`downgrade`](LockGuard::downgrade) | becomes shared | answers: the lease is confirmed in its new mode |
//! | [`confirm`](LockGuard::confirm) | goes on | answers: the lease is confirmed |
//! | `record` | ends | answers: the record is in the lease's place |

use std::time::Duration;

use bytes::Bytes;

use super::{LockGuard, Status};
use crate::{
    Error, ErrorKind,
    locks::{line::lost_error, recording::LateRecord},
    store::Released,
    time::Instant,
    trace,
};

impl LockGuard {
    /// Ends the turn now, for all clones of this guard, and checks that the lease was held until
    /// then.
    ///
    /// The status of the other clones becomes [`Status::Released`]. Unlike a drop, `release` asks
    /// the store, which costs a round trip even where the lease is passed on to another local
    /// request. The turn of that request does not wait for the answer.
    ///
    /// Prefer `release` to a drop where the result matters: a job that reports success, or a test
    /// that checks that no lease was lost.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_distributed_lock::Error> {
    /// # let locks = tower_distributed_lock::Locks::in_memory();
    /// let guard = locks.lock("orders/42").await?;
    /// // Do the work, then:
    /// guard.release().await?; // an error means that another holder may have worked at the same time
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::Lost`]: the lease was lost, so another request may have had the key at the
    ///   same time.
    /// - [`ErrorKind::Unreachable`]: the store did not answer. The turn has ended nevertheless.
    /// - [`ErrorKind::InvalidConfig`]: the guard holds the claim of an idempotent request, or of
    ///   [`run_once`](crate::Locks::run_once). The claim ends with the outcome of the work, and the
    ///   turn goes on.
    ///
    /// Releasing a turn that a clone has already released returns `Ok`, because the clone got the
    /// result.
    ///
    /// # Cancel safety
    ///
    /// The turn ends at the first poll. When the future is dropped, the release continues in the
    /// background.
    pub async fn release(self) -> Result<(), Error> {
        if self.granted().lease.fingerprint.is_some() {
            return Err(Error::new(
                ErrorKind::InvalidConfig,
                "the claim of an idempotent request ends with the outcome of its work, and cannot be released \
                 by the work: another request would do the same once more",
            ));
        }
        if let Some(loss) = self.loss() {
            // Nothing is left to be released, and the clones must continue to see the loss rather
            // than a release.
            self.inner().end_turn(self.granted());
            return Err(lost_error(Some(loss)));
        }
        if self.0.set_released() {
            return Ok(());
        }
        let granted = self.granted();
        let confirmed = self.inner().confirm(&granted.lease, |line, caller, t| {
            line.end(granted, Some(caller), t);
        });
        trace::releasing(self.token(), confirmed).await
    }

    /// Makes the turn of an exclusive guard a shared one, without a gap in between: no other
    /// request has the key exclusively before this turn has ended. Requests that share the key,
    /// and wait ahead of the first request that wants the key for itself, get their turns now.
    ///
    /// The token of this guard does not change. Guards that share the key from now on have higher
    /// tokens.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_distributed_lock::Error> {
    /// # let locks = tower_distributed_lock::Locks::in_memory();
    /// let guard = locks.lock("reports/7").await?;
    /// // Write the report, then let others read it as well.
    /// guard.downgrade().await?;
    /// let reading = locks.lock("reports/7").shared().await?;
    /// assert!(locks.lock("reports/7").now().await?.is_none());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A guard that already shares the key is not changed.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::Lost`]: the lease was lost, or the turn has ended.
    /// - [`ErrorKind::Unreachable`]: the store did not answer. The guard is shared from now on in
    ///   this process, and the store is told as soon as it answers.
    /// - [`ErrorKind::InvalidConfig`]: the guard holds a permit, or the claim of an idempotent
    ///   request.
    ///
    /// # Cancel safety
    ///
    /// The guard is shared as soon as the future was polled. If the future is dropped, the store is
    /// told all the same.
    pub async fn downgrade(&self) -> Result<(), Error> {
        let granted = self.granted();
        if self.mode().is_permit() || granted.lease.fingerprint.is_some() {
            return Err(Error::new(
                ErrorKind::InvalidConfig,
                "only the guard of an exclusive lock can be downgraded, not that of a permit or of an idempotent request",
            ));
        }
        let confirmed = self.inner().confirm(&granted.lease, |line, caller, t| {
            line.downgrade(&self.0, granted, caller, t);
        });
        self.unless_over(confirmed).await
    }

    /// Asks the store whether the lease is held, and extends the lease. The turn goes on.
    ///
    /// Call `confirm` before an effect that nothing else protects, such as an e-mail or a call of
    /// another service. A lease that was deleted, or lost in a fail-over, is then noticed
    /// before the next renewal.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_distributed_lock::Error> {
    /// # let locks = tower_distributed_lock::Locks::in_memory();
    /// let guard = locks.lock("orders/42").await?;
    /// guard.confirm().await?;
    /// // Send the e-mail now.
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`] when the lease was lost, or when the turn of this guard was lost and the
    /// lease goes on for other readers; [`ErrorKind::Unreachable`] when the store does not
    /// answer. Like [`release`](Self::release), `confirm` returns `Ok` for a turn that a clone
    /// has released.
    ///
    /// # Cancel safety
    ///
    /// The lease may or may not have been extended when the future is dropped. The turn goes on in
    /// both cases.
    pub async fn confirm(&self) -> Result<(), Error> {
        let granted = self.granted();
        let confirmed = self.inner().confirm(&granted.lease, |line, caller, t| {
            line.confirm(granted, caller, t);
        });
        self.unless_over(confirmed).await
    }

    /// The store's answer, unless the turn is over: a turn can be lost before the store has
    /// answered, and a shared lease goes on for other readers.
    async fn unless_over(
        &self,
        answer: impl Future<Output = Result<(), Error>>,
    ) -> Result<(), Error> {
        let answer = tokio::select! {
            biased;
            answer = answer => answer,
            _ = self.watch() => Ok(()),
        };
        match self.status() {
            Status::Held => answer,
            Status::Released => Ok(()),
            Status::Lost(loss) => Err(lost_error(Some(loss))),
        }
    }

    /// Ends the turn with a record in the lease's place, and shares the record with all requests
    /// that wait with the same fingerprint. The turn goes on if the store does not answer by
    /// `until`, and the caller may try again.
    pub(crate) async fn record(
        &self,
        record: (&Bytes, Duration),
        until: Instant,
    ) -> Result<Released, Error> {
        if self.0.is_released() {
            // A clone has ended the turn, and the lease may already serve another.
            return Ok(Released::NotOurs);
        }
        let outcome = self.inner().record(self.granted(), record, until).await;
        if let Ok(Released::Freed) = outcome {
            self.0.set_released();
        }
        outcome
    }

    /// The same record for a turn that was lost: see [`LateRecord`].
    pub(crate) fn late_record(&self, record: (&Bytes, Duration)) -> LateRecord {
        LateRecord::new(self.inner(), &self.granted().lease, record)
    }

    /// Ends the turn as [`record`](Self::record) does, without freeing the key. A record that was
    /// sent before is repeated until it has taken the lease's place; without one, the lease
    /// expires.
    pub(crate) fn abandon(self, content: &Bytes) {
        self.0.set_released();
        self.inner().finish(self.granted(), content, false);
    }
}
