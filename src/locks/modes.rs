//! Keys that several requests hold at the same time: shared locks and permits.

use std::time::Duration;

use super::{LockGuard, Locks, Wait, none_if_held};
use crate::{Error, ErrorKind, LockKey, store::Mode};

/// # Shared locks
///
/// Any number of requests can share a key, and no request has the key exclusively meanwhile: the readers and writers of
/// a reader-writer lock. All requests wait in one fair queue. Requests that share the key and are next to each other in
/// the queue get their turns together; later ones do not overtake a request that wants the key for itself.
///
/// The readers of one process share one lease, so a key that is only read costs no call to the store for most reads.
impl Locks {
    /// Locks a key together with others that share it, waiting while another request has the key exclusively.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_distributed_lock::Error> {
    /// # let locks = tower_distributed_lock::Locks::in_memory();
    /// let reading = locks.lock_shared("reports/7").await?;
    /// let also_reading = locks.lock_shared("reports/7").await?;
    /// assert!(locks.try_lock("reports/7").await?.is_none());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A guard that shares a key cannot become exclusive: two requests that both try would wait for each other. Drop the
    /// guard, lock the key with [`lock`](Locks::lock), and check again what was read. A request that may have to write
    /// can lock exclusively from the start, and [`downgrade`](LockGuard::downgrade) its guard if it does not.
    ///
    /// # Errors
    ///
    /// The same as for [`lock`](Locks::lock), and [`ErrorKind::Foreign`] if the key is in use for
    /// [permits](Locks::permit).
    ///
    /// # Cancel safety
    ///
    /// The same as for [`lock`](Locks::lock).
    pub async fn lock_shared(
        &self,
        key: impl TryInto<LockKey, Error: Into<Error>>,
    ) -> Result<LockGuard, Error> {
        self.lock_waiting(key, Mode::Shared, self.usual_wait())
            .await
    }

    /// Locks a key like [`lock_shared`](Locks::lock_shared), waiting for at most `limit`.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_distributed_lock::Error> {
    /// # let locks = tower_distributed_lock::Locks::in_memory();
    /// use std::time::Duration;
    /// use tower_distributed_lock::ErrorKind;
    ///
    /// let writing = locks.lock("reports/7").await?;
    /// let reading = locks.lock_shared_within("reports/7", Duration::from_millis(10)).await;
    /// assert_eq!(reading.unwrap_err().kind(), ErrorKind::Held);
    /// # drop(writing);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The same as for [`lock_within`](Locks::lock_within).
    ///
    /// # Cancel safety
    ///
    /// The same as for [`lock`](Locks::lock).
    pub async fn lock_shared_within(
        &self,
        key: impl TryInto<LockKey, Error: Into<Error>>,
        limit: Duration,
    ) -> Result<LockGuard, Error> {
        self.lock_waiting(key, Mode::Shared, Wait::AtMost(limit))
            .await
    }

    /// Locks a key like [`lock_shared`](Locks::lock_shared), without waiting.
    ///
    /// Returns `None` if another request has the key exclusively, or waits for that.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_distributed_lock::Error> {
    /// # let locks = tower_distributed_lock::Locks::in_memory();
    /// let reading = locks.lock_shared("reports/7").await?;
    /// assert!(locks.try_lock_shared("reports/7").await?.is_some());
    /// drop(reading);
    ///
    /// let writing = locks.lock("reports/7").await?;
    /// assert!(locks.try_lock_shared("reports/7").await?.is_none());
    /// # drop(writing);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// See [`ErrorKind`]; [`ErrorKind::Held`] is not among the errors returned here.
    ///
    /// # Cancel safety
    ///
    /// The same as for [`lock`](Locks::lock).
    pub async fn try_lock_shared(
        &self,
        key: impl TryInto<LockKey, Error: Into<Error>>,
    ) -> Result<Option<LockGuard>, Error> {
        none_if_held(self.lock_waiting(key, Mode::Shared, Wait::NotAtAll).await)
    }
}

/// # Permits
///
/// A key can be a semaphore: at most `of` requests of the whole fleet hold one of its permits at a time. Each permit is a
/// lease of its own, and the permit of a crashed process comes back when its lease expires. To limit the requests of one
/// process, [tower's concurrency limit](https://docs.rs/tower/latest/tower/limit/concurrency/) is enough, and costs no
/// call to a store.
///
/// Users of one key should all name the same number. If they do not, each of them is granted a permit only while fewer
/// permits than *its* number are held.
impl Locks {
    /// Takes one of the `of` permits of a key, waiting while all are taken.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_distributed_lock::Error> {
    /// # let locks = tower_distributed_lock::Locks::in_memory();
    /// let first = locks.permit("exports", 2).await?;
    /// let second = locks.permit("exports", 2).await?;
    /// assert!(locks.try_permit("exports", 2).await?.is_none());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The same as for [`lock`](Locks::lock), and
    ///
    /// - [`ErrorKind::InvalidConfig`] if `of` is zero, or on a [`QuorumStore`](crate::store::QuorumStore), which has no
    ///   permits;
    /// - [`ErrorKind::Foreign`] if the key is locked: use different keys for locks and permits.
    ///
    /// # Cancel safety
    ///
    /// The same as for [`lock`](Locks::lock).
    pub async fn permit(
        &self,
        key: impl TryInto<LockKey, Error: Into<Error>>,
        of: u32,
    ) -> Result<LockGuard, Error> {
        self.lock_waiting(key, permit(of)?, self.usual_wait()).await
    }

    /// Takes a permit like [`permit`](Locks::permit), waiting for at most `limit`.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_distributed_lock::Error> {
    /// # let locks = tower_distributed_lock::Locks::in_memory();
    /// use std::time::Duration;
    /// use tower_distributed_lock::ErrorKind;
    ///
    /// let permit = locks.permit("exports", 1).await?;
    /// let second = locks.permit_within("exports", 1, Duration::from_millis(10)).await;
    /// assert_eq!(second.unwrap_err().kind(), ErrorKind::Held);
    /// # drop(permit);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The same as for [`permit`](Locks::permit).
    ///
    /// # Cancel safety
    ///
    /// The same as for [`lock`](Locks::lock).
    pub async fn permit_within(
        &self,
        key: impl TryInto<LockKey, Error: Into<Error>>,
        of: u32,
        limit: Duration,
    ) -> Result<LockGuard, Error> {
        self.lock_waiting(key, permit(of)?, Wait::AtMost(limit))
            .await
    }

    /// Takes a permit like [`permit`](Locks::permit), without waiting. Returns `None` if all permits are taken.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_distributed_lock::Error> {
    /// # let locks = tower_distributed_lock::Locks::in_memory();
    /// match locks.try_permit("exports", 4).await? {
    ///     Some(permit) => println!("export as {}", permit.owner()),
    ///     None => println!("four exports run already: try again later"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The same as for [`permit`](Locks::permit), except [`ErrorKind::Held`].
    ///
    /// # Cancel safety
    ///
    /// The same as for [`lock`](Locks::lock).
    pub async fn try_permit(
        &self,
        key: impl TryInto<LockKey, Error: Into<Error>>,
        of: u32,
    ) -> Result<Option<LockGuard>, Error> {
        none_if_held(self.lock_waiting(key, permit(of)?, Wait::NotAtAll).await)
    }
}

/// The mode of a permit.
///
/// # Errors
///
/// [`ErrorKind::InvalidConfig`] for a key without permits.
pub(crate) fn permit(of: u32) -> Result<Mode, Error> {
    match of {
        0 => Err(Error::new(
            ErrorKind::InvalidConfig,
            "a key with 0 permits could never be held: name at least 1",
        )),
        of => Ok(Mode::Permit { of }),
    }
}
