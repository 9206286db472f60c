//! How do I use it in jobs, consumers and leaders, and how do I fence?
//!
//! # Fencing in PostgreSQL and SQLite
//!
//! One column and one condition. These statements are the same in PostgreSQL and in SQLite 3.35 or
//! later, and were run on PostgreSQL 15 and SQLite 3.40. `$1` is the token, as a signed 64-bit
//! number.
//!
//! ```sql
//! ALTER TABLE accounts ADD COLUMN token BIGINT NOT NULL DEFAULT 0;
//!
//! -- Read, and show the token. No row: a later turn was here.
//! UPDATE accounts SET token = $1 WHERE id = $2 AND token <= $1 RETURNING balance;
//!
//! -- Write. No row: a later turn was here, and nothing was written.
//! UPDATE accounts SET balance = $3, token = $1 WHERE id = $2 AND token <= $1 RETURNING balance;
//! ```
//!
//! An update that does not depend on an earlier read (`balance = balance + 20`) needs the second
//! statement only.
//!
//! Where a turn writes to several tables, or creates rows, keep the tokens in a table of their own:
//! [`LockGuard::TOKEN_FENCE`](crate::LockGuard::TOKEN_FENCE) is the statement for the beginning of
//! each transaction. Where the locks are in the same PostgreSQL, take [its
//! fence](super::postgres#a-fence) instead: it also holds off the next grant.
//!
//! Why the read shows its token, and what a token does not do:
//! [the paused process](super::guarantees#the-paused-process).
//!
//! # Webhooks and queue consumers
//!
//! Senders of webhooks and message brokers deliver a message again until it is acknowledged.
//! [`Locks::run_once`](crate::Locks::run_once) runs the work once for each message id, and gives
//! the result to every later delivery:
//!
//! ```
//! use std::time::Duration;
//! use tower_distributed_lock::{LockGuard, Locks, idempotency::RunOnceError, key};
//! # #[derive(Debug)] struct Failed;
//! # async fn book(_: &str, _: u64) -> Result<String, Failed> { Ok("booked".into()) }
//!
//! const WEEK: Duration = Duration::from_secs(7 * 24 * 3600);
//!
//! /// Called for each delivery. Returns whether to acknowledge the message.
//! async fn consume(locks: &Locks, id: &str, body: &str) -> bool {
//!     let key = key::name("invoice").value("id", id); // encodes any text
//!     let work = async |guard: LockGuard| book(body, guard.token()).await;
//!     match locks.run_once(&key, WEEK, work).await {
//!         Ok(_) => true, // now, or at an earlier delivery
//!         Err(RunOnceError::Work(_)) => false, // nothing is kept: the next delivery tries again
//!         Err(RunOnceError::Lock(_)) => false, // another consumer works on it, or the store is away
//!         Err(_) => true, // done, and the result cannot be read: a retry would not help
//!     }
//! }
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! #     let locks = Locks::in_memory();
//! #     assert!(consume(&locks, "17", "").await && consume(&locks, "17", "").await);
//! # }
//! ```
//!
//! Keep results for longer than the sender retries. For webhooks over HTTP,
//! [`key_header`](crate::IdempotencyLayer::key_header) takes the sender's message id in the place
//! of `Idempotency-Key`, such as `webhook-id` or `x-github-delivery`.
//!
//! # A job that runs once in a fleet
//!
//! Every replica has the same schedule. The name of the job's run is the key, so the first replica
//! runs the job and the others get its result:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use std::time::Duration;
//! # use tower_distributed_lock::{LockGuard, Locks};
//! # let (locks, today) = (Locks::in_memory(), "2026-11-16");
//! # async fn send_reports(_: u64) -> Result<(), std::io::Error> { Ok(()) }
//! let two_days = Duration::from_secs(48 * 3600);
//! let work = async |guard: LockGuard| send_reports(guard.token()).await;
//! let run = locks.run_once(format!("job/reports/{today}"), two_days, work).await?;
//! if !run.replayed {
//!     println!("sent by this replica");
//! }
//! # Ok(())
//! # }
//! ```
//!
//! A run that fails is not kept, and the next replica that asks tries again. If the job must only
//! not *overlap* with itself, use [`lock(..).now()`](crate::Lock::now) and skip the run on `None`.
//!
//! # Leader-like work
//!
//! One replica works, the others stand by. [`LockGuard::run`](crate::LockGuard::run) ends the work
//! when the lease is lost:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), tower_distributed_lock::Error> {
//! # use std::time::Duration;
//! # use tower_distributed_lock::{Error, ErrorKind, Locks, store::MemoryStore};
//! # async fn lead(_token: u64) { std::future::pending().await }
//! async fn campaign(locks: Locks) -> Result<(), Error> {
//!     loop {
//!         let guard = locks.lock("leader/outbox").await?;
//!         match guard.run(lead(guard.token())).await {
//!             Err(error) if error.kind() == ErrorKind::Lost => continue, // stand by again
//!             other => return other,
//!         }
//!     }
//! }
//!
//! let locks = Locks::builder(MemoryStore::new())
//!     .wait_forever() // a standby waits for as long as it takes
//!     .max_hold(Duration::from_secs(3600)) // then the next in line leads
//!     .build()?;
//! # let leading = tokio::spawn(campaign(locks.clone()));
//! # while locks.stats().leases == 0 { tokio::task::yield_now().await; }
//! # locks.close(Duration::ZERO).await;
//! # assert_eq!(leading.await.unwrap().unwrap_err().kind(), ErrorKind::Closed);
//! # Ok(())
//! # }
//! ```
//!
//! - [`max_hold`](crate::LocksBuilder::max_hold) is 10 min by default: a leader is replaced
//!   after that time, with [`Loss::MaxHold`](crate::Loss::MaxHold). Set a longer time, or
//!   `Duration::MAX` for no limit. A limit is worth having: a leader that hangs keeps renewing its
//!   lease.
//! - Use a [`Locks`](crate::Locks) of its own for such work, so that request handlers keep their
//!   short limits.
//! - For a moment, two replicas can take themselves for the leader. The token decides between them.
