//! The fences of a guard, for transactions in the store's own database and in any other.

#[cfg(feature = "postgres")]
use std::sync::Arc;

use super::LockGuard;
#[cfg(feature = "postgres")]
use crate::{
    Error, ErrorKind,
    lease::Lease,
    store::{Fence, Mode},
};

/// A fence for transactions in a SQL database of your own, with the tokens of any store.
impl LockGuard {
    /// The table of [`TOKEN_FENCE`](Self::TOKEN_FENCE), for your own migrations.
    pub const TOKEN_TABLE: &str =
        "CREATE TABLE IF NOT EXISTS fences (key text PRIMARY KEY, token bigint NOT NULL)";

    /// A statement for a transaction that only the holder of the lock may make, with the parameters
    /// `$1`, the [`key`](Self::key) as `text`, and `$2`, the [`token`](Self::token) as `bigint`.
    /// For PostgreSQL and SQLite, and an exclusive lock in any store.
    ///
    /// It fails if a transaction with a higher token has committed, because the stale token becomes
    /// a null that the table does not take: with SQLSTATE `23502` in PostgreSQL, or with `40001`
    /// under REPEATABLE READ and SERIALIZABLE if the snapshot is older. There is no result to
    /// check.
    ///
    /// ```no_run
    /// # async fn pay(locks: tower_distributed_lock::Locks, client: &mut tokio_postgres::Client)
    /// # -> Result<(), Box<dyn std::error::Error>> {
    /// use tower_distributed_lock::LockGuard;
    ///
    /// let guard = locks.lock("accounts/1").await?;
    /// let transaction = client.transaction().await?;
    /// let (key, token) = (guard.key().as_str(), guard.token() as i64);
    /// transaction.execute(LockGuard::TOKEN_FENCE, &[&key, &token]).await?;
    /// transaction.execute("UPDATE accounts SET balance = balance - 5 WHERE id = 1", &[]).await?;
    /// transaction.commit().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// It is weaker than [`LockGuard::fence`](Self), which a `PostgresStore` has. Both keep the
    /// transactions of two holders in the order of their tokens, one after another. But the store
    /// knows nothing of this table:
    ///
    /// - The next holder is granted the key while a transaction of the last one is still open. It
    ///   waits at its own fence, not before: what it has read or sent elsewhere until then, it did
    ///   beside the last one.
    /// - A holder that was paused is only refused once a later one has fenced a transaction. So
    ///   make this the first statement of every transaction under the lock.
    /// - A row for each key stays in the table: delete those of keys that are not used any more.
    ///   And a store that forgets its tokens must not begin again below them: see
    ///   [`raise_fence`](crate::store::Store::raise_fence).
    #[doc(alias = "fencing")]
    pub const TOKEN_FENCE: &str = "INSERT INTO fences AS f (key, token) VALUES ($1, $2) ON CONFLICT (key) DO UPDATE \
         SET token = CASE WHEN f.token <= excluded.token THEN excluded.token END";
}

#[cfg(feature = "postgres")]
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

    pub(crate) fn lease(&self) -> &Arc<Lease> {
        &self.granted().lease
    }
}
