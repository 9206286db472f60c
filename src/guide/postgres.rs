//! Locks in PostgreSQL, and transactions that enforce them.
//!
//! # When the transaction is the lock
//!
//! If all of the work is one short transaction in one database, you need neither this crate nor a
//! lease. `SELECT … FOR UPDATE` of the row that matters, or `pg_advisory_xact_lock` of a number,
//! lasts exactly as long as the transaction, ends with a crash, and works behind a pooler. Use
//! [`PostgresStore`](crate::store::PostgresStore) where that is not enough:
//!
//! | | a lock of the transaction | a lease, and [a fence](#a-fence) |
//! |---|---|---|
//! | while a request waits | holds a connection and an open transaction: a hot key empties the pool | neither |
//! | calls to other services inside | the transaction stays open over the network, and keeps the server from cleaning up | short transactions around them |
//! | time limit | `lock_timeout` | for the wait, the hold and the lease |
//! | readers, permits | readers | both, in one queue |
//! | under REPEATABLE READ | reads what was there before it waited | fails, and can be tried again |
//! | the key | a row, or a number of 64 bits that all users share | any text |
//! | the answer for a retried request | no | [yes](crate::IdempotencyLayer) |
//!
//! # Setting it up
//!
//! [`PostgresStore::migrate`](crate::store::PostgresStore::migrate) makes the tables, in a schema
//! of their own. Where the service may not do that, run
//! [`schema_sql`](crate::store::PostgresStore::schema_sql) with your own migrations. A store checks
//! the version of the tables when it connects.
//!
//! ```
//! # #[cfg(feature = "postgres")]
//! # async fn connect() -> Result<(), tower_distributed_lock::Error> {
//! use tower_distributed_lock::{Locks, store::PostgresStore};
//!
//! let store = PostgresStore::builder("postgres://app@localhost/shop").fenced(true).build()?;
//! store.migrate().await?;
//! let locks = Locks::builder(store).build()?;
//! # drop(locks);
//! # Ok(())
//! # }
//! ```
//!
//! ## A role with few rights
//!
//! The functions have the rights of their owner. The role of the service needs no right to any
//! table; all tests of the store run with such a role.
//!
//! ```sql
//! CREATE ROLE app LOGIN;
//! GRANT USAGE ON SCHEMA tdl TO app;
//! GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA tdl TO app;
//! ```
//!
//! # A fence
//!
//! A lease is a promise about time, and a process that is paused for longer than its lease does not
//! know. Where the data is in the same database as the locks, the database can refuse what such a
//! process writes: [`LockGuard::fence`](crate::LockGuard) is a call for the beginning of a
//! transaction.
//!
//! ```
//! # #[cfg(feature = "postgres")]
//! # async fn pay(locks: tower_distributed_lock::Locks, client: &mut tokio_postgres::Client)
//! # -> Result<(), Box<dyn std::error::Error>> {
//! let guard = locks.lock("accounts/1").await?;
//! let transaction = client.transaction().await?;
//! guard.fence()?.run(&transaction).await?;
//! transaction.execute("UPDATE accounts SET balance = balance - 5 WHERE id = 1", &[]).await?;
//! transaction.commit().await?;
//! # Ok(())
//! # }
//! ```
//!
//! From the call to the end of the transaction, nobody else is granted the key, even if the lease
//! runs out. Once somebody else was granted the key, the call fails. No clock is involved.
//! [`Fence`](crate::store::Fence) has the exact promises, the SQL for other drivers, and what is
//! not promised.
//!
//! # The answer in the transaction
//!
//! The claim of an idempotent request can be fenced as well, and its answer can be written by the
//! transaction itself: then the answer is there if and only if the data is, whatever crashes in
//! between, and a COMMIT without an answer becomes known by asking again. No table of your own and
//! no [`recall`](crate::IdempotencyLayer::recall) is needed.
//!
//! ```
//! # #[cfg(all(feature = "postgres", feature = "axum"))]
//! # mod payments {
//! use axum::http::{Response, StatusCode};
//! use tower_distributed_lock::idempotency::Claim;
//!
//! # type BoxError = Box<dyn std::error::Error + Send + Sync>;
//! # async fn pay(claim: Claim, client: &mut tokio_postgres::Client) -> Result<Response<String>, BoxError> {
//! // In a handler behind an `IdempotencyLayer`, with the extractor `claim: Claim`:
//! let transaction = client.transaction().await?;
//! let paid = "INSERT INTO payments (amount) VALUES (5) RETURNING number";
//! let number: i64 = transaction.query_one(paid, &[]).await?.get(0);
//! let answer = Response::builder().status(StatusCode::CREATED).body(format!("payment {number}"))?;
//! claim.keep(&answer)?.run(&transaction).await?;
//! transaction.commit().await?; // a crash, a lost answer or a pause from here on: the retry gets this answer
//! Ok(answer)
//! # }
//! # }
//! ```
//!
//! A request of several transactions, with calls to other services between them, goes on after its
//! last one: see [phases](super::exactly_once#phases).
//!
//! For a COMMIT that fails, choose [`Keep::when_errors_do_nothing`](crate::idempotency::Keep): if
//! it has committed after all, the retry finds the answer, and if not, nothing was done. Other
//! drivers make the call with [`KeepAnswer::sql`](crate::store::KeepAnswer::sql) and its five
//! values.
//!
//! | SQLSTATE | meaning |
//! |---|---|
//! | `TDL01` | the claim is lost: another owner was granted the key, or a later turn has fenced a transaction. Under REPEATABLE READ and SERIALIZABLE also if the snapshot of the transaction is older than the grant of its own claim: then it passes when it is tried again |
//! | `TDL02` | the answer of this claim was kept already |
//! | `40001` | under REPEATABLE READ and SERIALIZABLE: try the transaction again |
//! | `40P01` | two transactions of one claim wanted to keep an answer: the other one has |
//!
//! ## Other drivers
//!
//! Each call is a statement with plain values. With sqlx 0.8:
//!
//! ```
//! # #[cfg(feature = "postgres")]
//! # mod with_sqlx {
//! use sqlx::{PgConnection, query};
//! use tower_distributed_lock::store::{Fence, KeepAnswer};
//!
//! async fn fence(call: &Fence, transaction: &mut PgConnection) -> sqlx::Result<()> {
//!     let sql = call.sql();
//!     let call = query(&sql).bind(call.key()).bind(call.owner()).bind(call.token());
//!     call.execute(transaction).await?;
//!     Ok(())
//! }
//!
//! async fn keep(call: &KeepAnswer, transaction: &mut PgConnection) -> sqlx::Result<()> {
//!     let (sql, claim) = (call.sql(), call.fence());
//!     let call = query(&sql)
//!         .bind(claim.key())
//!         .bind(claim.owner())
//!         .bind(claim.token())
//!         .bind(call.content())
//!         .bind(call.retain_ms());
//!     call.execute(transaction).await?;
//!     Ok(())
//! }
//! # }
//! ```
//!
//! The transaction is `&mut *tx`. Behind a pooler, connect with `statement_cache_capacity(0)`;
//! `examples/payments` is a whole service. No test compiles the two below. With sqlx 0.9, which
//! needs a later Rust than this crate, and takes a text that is not `'static` only if it is marked:
//!
//! ```text
//! query(AssertSqlSafe(call.sql())).bind(call.key()).bind(call.owner()).bind(call.token())
//! ```
//!
//! With diesel-async:
//!
//! ```text
//! diesel::sql_query(call.sql())
//!     .bind::<Text, _>(call.key())
//!     .bind::<Text, _>(call.owner())
//!     .bind::<BigInt, _>(call.token())
//!     .execute(&mut connection)
//!     .await?;
//! ```
//!
//! # Operating
//!
//! - **The disk.** A grant, a renewal and a record wait for the disk, as `synchronous_commit` says.
//!   A release, a refusal and a place in the queue do not: after a crash of the server, a lost
//!   release costs the time that its lease still has.
//! - **Vacuum and long transactions.** A lock updates one row in place, and the next one of that
//!   page reuses the space of the old versions. That needs no vacuum of yours: the tables have
//!   their own settings for autovacuum. But somebody's transaction that stays open for hours (a
//!   backup, a session that is idle in transaction), a replication slot that nobody reads, or a
//!   prepared transaction that was forgotten keeps all old versions since it began, in every table
//!   of the server: `tdl.keys` then grows with each lock, and each lock becomes slower. The oldest
//!   one is in `SELECT pid, xact_start FROM pg_stat_activity ORDER BY backend_xmin IS NULL,
//!   xact_start`.
//! - **Rows that are locked.** A row of `tdl.keys` that somebody keeps locked, with an open
//!   `DELETE` for example, is in the way of its own key: calls for it fail after half of the
//!   [timeout](crate::store::PostgresStoreBuilder::timeout), and others made with them are late by
//!   as much.
//! - **Open transactions.** A fenced transaction that is left open keeps its key, for a minute
//!   without a statement: then the server ends its session. Set
//!   `idle_in_transaction_session_timeout` for the role of the service, if that is too long or too
//!   short.
//! - **Poolers.** In transaction mode, give the server's own address as
//!   [`listen_url`](crate::store::PostgresStoreBuilder::listen_url); `postgres.no_hints` is logged
//!   otherwise, and waiting requests ask every 20 ms. `tests/postgres/pooler.rs` runs both behind
//!   PgBouncer.
//! - **Replicas.** A replica that is promoted may lack the last grants and records of the old
//!   primary, unless `synchronous_standby_names` says otherwise. While such a standby is away, a
//!   grant waits for it, its call ends with its time limit, and the key is not granted until the
//!   standby is back or the setting was changed. The store never cancels such a commit, which the
//!   server would then make without the standby; with four of them under way, each of its
//!   connections for calls waits for one to end, so that they do not take all of the server's.
//! - **Events.** `postgres.listener_lost` and `postgres.listening_again`: hints do not arrive, and
//!   arrive again.
//!
//! # What is not there yet
//!
//! Several keys all or none in one step: [`lock_all`](crate::Locks::lock_all) asks for each of
//! them, and gives back what it got if one is held.
