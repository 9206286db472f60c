//! The fence: what a transaction of the user calls.

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use tokio_postgres::{
    Row, Transaction,
    types::{ToSql, Type},
};

use crate::{LockKey, store::Owner, time::FAR};

/// A call for a transaction in the database of a [`PostgresStore`](super::PostgresStore), from
/// [`LockGuard::fence`](crate::LockGuard::fence): from the call to the end of the transaction,
/// nobody else is granted the key. No clock is involved.
///
/// The call is SQL with plain values, so that any driver can make it. With `tokio-postgres`,
/// [`run`](Self::run) does:
///
/// ```no_run
/// # async fn pay(locks: tower_distributed_lock::Locks, client: &mut tokio_postgres::Client)
/// # -> Result<(), Box<dyn std::error::Error>> {
/// let guard = locks.lock("accounts/1").await?;
/// let transaction = client.transaction().await?;
/// guard.fence()?.run(&transaction).await?;
/// transaction.execute("UPDATE accounts SET balance = balance - 5 WHERE id = 1", &[]).await?;
/// transaction.commit().await?; // fails, or nobody else had the lock meanwhile
/// # Ok(())
/// # }
/// ```
///
/// # What is promised
///
/// For transactions that make this call before their COMMIT, and not in a savepoint that is rolled
/// back later:
///
/// 1. From the call to the end of the transaction, no other owner is granted the key. A lease that
///    runs out meanwhile changes nothing: the next attempt is told that the key is held.
/// 2. Once another owner was granted the key, the call fails (SQLSTATE `TDL01`; under REPEATABLE
///    READ and SERIALIZABLE it may be `40001`, and `TDL01` when the transaction is tried again). So
///    no transaction of an earlier owner commits.
/// 3. The same holds for the turns of one lease, by their [tokens](crate::LockGuard::token). So the
///    effects of two turns in this database never overlap, and are in the order of the tokens.
/// 4. If the call is the first statement of a READ COMMITTED transaction, all that it reads is at
///    least as new as what earlier owners have committed.
///
/// All of this within the history of one primary: what an old primary still commits after a replica
/// was promoted is in no one's history.
///
/// # What is not
///
/// Effects outside of this database, and transactions that do not make the call. A holder whose
/// transaction stays open keeps the key for as long. If it makes no statement for a minute, the
/// server ends its session: the call sets `idle_in_transaction_session_timeout` for this
/// transaction, unless the session has a limit of its own. Two transactions of one turn are not
/// kept apart.
#[derive(Clone)]
pub struct Fence {
    key: LockKey,
    owner: String,
    token: i64,
    schema: Arc<str>,
}

impl Fence {
    pub(crate) fn new(schema: Arc<str>, key: LockKey, owner: Owner, token: u64) -> Self {
        Self {
            key,
            owner: owner.to_string(),
            // Tokens are below 2⁵³.
            token: token.cast_signed(),
            schema,
        }
    }

    /// Returns the statement, with three parameters: [`key`](Self::key) and [`owner`](Self::owner)
    /// as `text`, and [`token`](Self::token) as `bigint`.
    ///
    /// ```no_run
    /// # async fn pay(locks: tower_distributed_lock::Locks) -> Result<(), tower_distributed_lock::Error> {
    /// let fence = locks.lock("accounts/1").await?.fence()?;
    /// assert_eq!(fence.sql(), "SELECT tdl.fence($1, $2, $3)");
    /// // With sqlx:
    /// // sqlx::query(&fence.sql()).bind(fence.key()).bind(fence.owner()).bind(fence.token()).execute(&mut *tx).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn sql(&self) -> String {
        format!("SELECT {}.fence($1, $2, $3)", self.schema)
    }

    /// Returns the first parameter.
    pub fn key(&self) -> &str {
        self.key.as_str()
    }

    /// Returns the second parameter.
    pub fn owner(&self) -> &str {
        &self.owner
    }

    /// Returns the third parameter.
    pub fn token(&self) -> i64 {
        self.token
    }

    /// Makes the call in a transaction of `tokio-postgres`.
    ///
    /// # Errors
    ///
    /// The error of the server: `TDL01` if the lock is not held any more.
    ///
    /// # Cancel safety
    ///
    /// The call may have been made when the future is dropped.
    pub async fn run(&self, transaction: &Transaction<'_>) -> Result<(), tokio_postgres::Error> {
        self.call(transaction, &self.sql(), &[]).await?;
        Ok(())
    }

    /// Makes a call whose first three parameters are those of the fence.
    async fn call(
        &self,
        transaction: &Transaction<'_>,
        sql: &str,
        more: &[Param<'_>],
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        let key = self.key();
        let mut params: Vec<Param<'_>> = vec![
            (&key, Type::TEXT),
            (&self.owner, Type::TEXT),
            (&self.token, Type::INT8),
        ];
        params.extend_from_slice(more);
        transaction.query_typed(sql, &params).await
    }
}

/// A parameter, with its type: statements are not prepared, for the sake of poolers.
type Param<'a> = (&'a (dyn ToSql + Sync), Type);

/// A call for the transaction of an idempotent request, from
/// [`Claim::keep`](crate::idempotency::Claim::keep): its answer is stored with its data, or neither
/// is.
///
/// The call is SQL with plain values, so that any driver can make it. With `tokio-postgres`,
/// [`run`](Self::run) does.
///
/// # What is promised
///
/// What a [`Fence`] promises, and: the answer is there if and only if the transaction has
/// committed, and there is one answer for a claim. So a process that dies after its COMMIT, or does
/// not hear whether it has committed, has answered all later duplicates.
///
/// The transaction waits for the disk even if `synchronous_commit` was switched off before this
/// call: what was answered must not be forgotten.
#[derive(Debug, Clone)]
pub struct KeepAnswer {
    pub(crate) fence: Fence,
    pub(crate) content: Bytes,
    pub(crate) retain: Duration,
}

impl KeepAnswer {
    /// Returns the statement, with five parameters: key, owner and token as those of the
    /// [`fence`](Self::fence), [`content`](Self::content) as `bytea`, and
    /// [`retain_ms`](Self::retain_ms) as `bigint`.
    pub fn sql(&self) -> String {
        format!("SELECT {}.keep($1, $2, $3, $4, $5)", self.fence.schema)
    }

    /// Returns the fence, which this call includes, for the first three parameters.
    pub fn fence(&self) -> &Fence {
        &self.fence
    }

    /// Returns the fourth parameter.
    pub fn content(&self) -> &[u8] {
        &self.content
    }

    /// Returns the fifth parameter.
    pub fn retain_ms(&self) -> i64 {
        millis(self.retain)
    }

    /// Makes the call in a transaction of `tokio-postgres`.
    ///
    /// # Errors
    ///
    /// The error of the server: `TDL01` if the claim is not held any more, `TDL02` if its answer
    /// was kept already.
    ///
    /// # Cancel safety
    ///
    /// The call may have been made when the future is dropped.
    pub async fn run(&self, transaction: &Transaction<'_>) -> Result<(), tokio_postgres::Error> {
        let content = self.content();
        let more: [Param<'_>; 2] = [(&content, Type::BYTEA), (&self.retain_ms(), Type::INT8)];
        self.fence.call(transaction, &self.sql(), &more).await?;
        Ok(())
    }
}

/// A call for the transaction of an idempotent request, from
/// [`Claim::checkpoint`](crate::idempotency::Claim::checkpoint): how far the request has come is
/// stored with the data of the transaction, or neither is.
///
/// The call is SQL with plain values, so that any driver can make it. With `tokio-postgres`,
/// [`run`](Self::run) does. It promises what a [`Fence`] promises.
#[derive(Clone)]
pub struct Checkpoint {
    pub(crate) fence: Fence,
    pub(crate) fingerprint: Bytes,
    pub(crate) point: String,
    pub(crate) data: Bytes,
    pub(crate) retain: Duration,
}

impl Checkpoint {
    /// Returns the statement, with seven parameters: key, owner and token as those of the
    /// [`fence`](Self::fence), [`fingerprint`](Self::fingerprint) as `bytea`,
    /// [`point`](Self::point) as `text`, [`data`](Self::data) as `bytea`, and
    /// [`retain_ms`](Self::retain_ms) as `bigint`.
    pub fn sql(&self) -> String {
        let schema = &self.fence.schema;
        format!("SELECT {schema}.checkpoint($1, $2, $3, $4, $5, $6, $7)")
    }

    /// Returns the fence, which this call includes, for the first three parameters.
    pub fn fence(&self) -> &Fence {
        &self.fence
    }

    /// Returns the fourth parameter.
    pub fn fingerprint(&self) -> &[u8] {
        &self.fingerprint
    }

    /// Returns the fifth parameter.
    pub fn point(&self) -> &str {
        &self.point
    }

    /// Returns the sixth parameter.
    pub fn data(&self) -> &[u8] {
        &self.data
    }

    /// Returns the seventh parameter.
    pub fn retain_ms(&self) -> i64 {
        millis(self.retain)
    }

    /// Makes the call in a transaction of `tokio-postgres`.
    ///
    /// # Errors
    ///
    /// Those of [`KeepAnswer::run`].
    ///
    /// # Cancel safety
    ///
    /// The call may have been made when the future is dropped.
    pub async fn run(&self, transaction: &Transaction<'_>) -> Result<(), tokio_postgres::Error> {
        let (fingerprint, data) = (self.fingerprint(), self.data());
        let more: [Param<'_>; 4] = [
            (&fingerprint, Type::BYTEA),
            (&self.point, Type::TEXT),
            (&data, Type::BYTEA),
            (&self.retain_ms(), Type::INT8),
        ];
        self.fence.call(transaction, &self.sql(), &more).await?;
        Ok(())
    }
}

/// A call for the transaction of an idempotent request, from
/// [`Claim::reached`](crate::idempotency::Claim::reached): it fences the transaction, and returns
/// the last [`Checkpoint`] of the request, whichever process has run it.
///
/// The call is SQL with plain values, so that any driver can make it. With `tokio-postgres`,
/// [`run`](Self::run) does.
#[derive(Debug, Clone)]
pub struct Reached {
    pub(crate) fence: Fence,
    pub(crate) fingerprint: Bytes,
}

impl Reached {
    /// Returns the statement, with four parameters: key, owner and token as those of the
    /// [`fence`](Self::fence), and [`fingerprint`](Self::fingerprint) as `bytea`. Its answer is a
    /// row of `text` and `bytea`, or no row.
    pub fn sql(&self) -> String {
        let schema = &self.fence.schema;
        format!("SELECT point, data FROM {schema}.reached($1, $2, $3, $4)")
    }

    /// Returns the fence, which this call includes, for the first three parameters.
    pub fn fence(&self) -> &Fence {
        &self.fence
    }

    /// Returns the fourth parameter.
    pub fn fingerprint(&self) -> &[u8] {
        &self.fingerprint
    }

    /// Makes the call in a transaction of `tokio-postgres`. Returns the name and the data of the
    /// checkpoint.
    ///
    /// # Errors
    ///
    /// Those of [`KeepAnswer::run`].
    ///
    /// # Cancel safety
    ///
    /// The call may have been made when the future is dropped.
    pub async fn run(
        &self,
        transaction: &Transaction<'_>,
    ) -> Result<Option<(String, Vec<u8>)>, tokio_postgres::Error> {
        let fingerprint = self.fingerprint();
        let more: [Param<'_>; 1] = [(&fingerprint, Type::BYTEA)];
        let rows = self.fence.call(transaction, &self.sql(), &more).await?;
        Ok(rows.first().map(|row| (row.get(0), row.get(1))))
    }
}

fn millis(retain: Duration) -> i64 {
    retain.min(FAR).as_millis() as i64
}

/// The data may be personal.
impl fmt::Debug for Checkpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checkpoint")
            .field("fence", &self.fence)
            .field("point", &self.point)
            .finish_non_exhaustive()
    }
}

/// The key may be personal data.
impl fmt::Debug for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fence")
            .field("owner", &self.owner)
            .field("token", &self.token)
            .finish_non_exhaustive()
    }
}
