//! The fence of a guard, for transactions in the store's own database.

use super::LockGuard;
use crate::{
    Error, ErrorKind,
    store::{Fence, Mode},
};

impl LockGuard {
    /// Returns a call for a transaction in the database of the store: from the call to the end of
    /// the transaction, nobody else is granted the key. See [`Fence`].
    ///
    /// ```no_run
    /// # async fn pay(locks: tower_distributed_lock::Locks, client: &mut tokio_postgres::Client)
    /// # -> Result<(), Box<dyn std::error::Error>> {
    /// let guard = locks.lock("accounts/1").await?;
    /// let transaction = client.transaction().await?;
    /// guard.fence()?.run(&transaction).await?;
    /// // … the statements that only the holder may make
    /// transaction.commit().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] if the guard is not exclusive, or if the store is not a
    /// [`PostgresStore`](crate::store::PostgresStore) that is
    /// [`fenced`](crate::store::PostgresStoreBuilder::fenced).
    pub fn fence(&self) -> Result<Fence, Error> {
        let refused = |message| Error::new(ErrorKind::InvalidConfig, message);
        if self.mode() != Mode::Exclusive {
            return Err(refused(
                "only an exclusive lock can be fenced: a fence names one owner",
            ));
        }
        self.fence_by(false).ok_or_else(|| {
            refused("the locks are not in a `PostgresStore` that was built with `fenced(true)`")
        })
    }

    /// The fence, if the store has fences for the guards of claims, or for all.
    pub(crate) fn fence_by(&self, is_claim: bool) -> Option<Fence> {
        let schema = self.inner().store.fence_schema(is_claim)?;
        let key = self.key().clone();
        Some(Fence::new(schema, key, self.owner(), self.token()))
    }
}
