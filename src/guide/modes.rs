//! Readers and writers, and permits: keys that several requests hold at the same time.
//!
//! A request asks for a key in a [`Mode`](crate::store::Mode):
//!
//! | mode | holders at a time | without HTTP | in a layer |
//! |---|---|---|---|
//! | exclusive | one | [`lock`](crate::Locks::lock) | the default |
//! | shared | any number, and no exclusive one | [`lock(..).shared()`](crate::Lock::shared) | [`shared_when_safe`](crate::DistributedLockLayer::shared_when_safe): GET and HEAD share |
//! | permit | at most *n* | [`permit`](crate::Locks::permit) | [`permits`](crate::DistributedLockLayer::permits) |
//!
//! All modes wait in one queue, first come, first served. Requests that share a key and stand next
//! to each other in the queue get their turns together. A request that shares does not overtake a
//! writer that waits, so a stream of readers does not keep a writer out, and writers do not starve
//! readers. `examples/reports.rs` is a service with all three modes.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), tower_distributed_lock::Error> {
//! use tower_distributed_lock::{Locks, store::Mode};
//!
//! let locks = Locks::in_memory();
//! let (one, other) = (locks.lock("report/7").shared().await?, locks.lock("report/7").shared().await?);
//! assert!(locks.lock("report/7").now().await?.is_none()); // no writer beside readers
//! drop((one, other));
//!
//! let export = locks.permit("exports", 4).await?; // one of four in the whole fleet
//! assert_eq!(export.mode(), Mode::Permit { of: 4 });
//! # Ok(())
//! # }
//! ```
//!
//! # When to share
//!
//! Share a key if a read that meets a half-finished write would do damage, and the resource itself
//! cannot prevent that: a report in several files, rows of two databases, a directory that is being
//! replaced. If the resource has transactions or snapshots, or is replaced in one step (a rename, a
//! single row), reads need no lock at all.
//!
//! - The readers of one process share one lease. 10,000 reads of a hot key cost fewer than 200
//!   commands.
//! - A reader whose lease is lost is told in the same way as a writer. All readers under that lease
//!   are told; the readers of other processes, which have leases of their own, are not.
//! - [`max_hold`](crate::LocksBuilder::max_hold) counts for each reader by itself. A reader that
//!   takes too long loses its turn, and the others go on.
//! - Sharing makes *writers* wait for the slowest reader. Keep reads under a shared key short, or
//!   give them a short [`max_hold`](crate::DistributedLockLayer::max_hold).
//!
//! # When to take a permit, and when tower's limit is enough
//!
//! | to limit | use |
//! |---|---|
//! | the load on one process: its memory, its CPU, its pool of connections | [tower's concurrency limit](https://docs.rs/tower/latest/tower/limit/concurrency/): a semaphore in the process, no call to a store, no lease |
//! | the load on something that the whole fleet shares: a database, a licence, a partner's API | [`permits`](crate::DistributedLockLayer::permits) |
//! | how *often* something runs | a rate limit: a permit limits how many run at a time |
//!
//! With a limit of *n* in each of *k* processes, up to *k × n* requests run, and autoscaling
//! changes *k*. If that is acceptable, prefer tower's limit.
//!
//! Both work together. The concurrency limit belongs inside of the lock layer, so that a request
//! that waits for its permit takes up no room in the process:
#![cfg_attr(feature = "axum", doc = "```")]
#![cfg_attr(not(feature = "axum"), doc = "```ignore")]
//! use axum::{Router, routing::post};
//! use tower::{ServiceBuilder, limit::GlobalConcurrencyLimitLayer};
//! use tower_distributed_lock::{DistributedLockLayer, Locks, key};
//!
//! fn routes(locks: Locks) -> Router {
//!     let exports = DistributedLockLayer::new(locks, key::name("exports"));
//!     Router::new()
//!         .route("/exports", post(async || "exported"))
//!         .route_layer(
//!             ServiceBuilder::new()
//!                 .layer(exports.permits(4)) // in the whole fleet
//!                 .layer(GlobalConcurrencyLimitLayer::new(2)), // in this process
//!         )
//! }
//! # let _ = routes(Locks::in_memory());
//! ```
//!
//! - A permit is a lease of its own. The permits of a crashed process come back when their leases expire, 30 s after their last renewal by
//!   default.
//! - A permit for each tenant is a key with the tenant: `key::name("exports").extension::<Tenant>("tenant")`.
//! - All users of a key should name the same number. If they differ, each is granted a permit only while fewer than *its* number are held. A
//!   deployment that changes the number is therefore safe: during the deployment, no more than the larger number run.
//!
//! # No upgrade
//!
//! A shared guard cannot become exclusive. Two readers that both try would each wait for the other to leave, for ever. Drop the guard, lock
//! exclusively, and check again what was read, because a writer may have come in between:
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), tower_distributed_lock::Error> {
//! # use tower_distributed_lock::{Error, Locks};
//! # use std::sync::Mutex;
//! # struct Report(Mutex<bool>);
//! # impl Report {
//! #     async fn is_stale(&self) -> bool { *self.0.lock().unwrap() }
//! #     async fn write(&self, _token: u64) { *self.0.lock().unwrap() = false }
//! # }
//! async fn refresh(locks: &Locks, report: &Report) -> Result<(), Error> {
//!     let reading = locks.lock("report/7").shared().await?;
//!     let is_stale = report.is_stale().await;
//!     drop(reading);
//!     if is_stale {
//!         let writing = locks.lock("report/7").await?;
//!         if report.is_stale().await { // another request may have written the report meanwhile
//!             report.write(writing.token()).await;
//!         }
//!     }
//!     Ok(())
//! }
//! # let (locks, report) = (Locks::in_memory(), Report(Mutex::new(true)));
//! # refresh(&locks, &report).await?;
//! # assert!(!report.is_stale().await);
//! # Ok(())
//! # }
//! ```
//!
//! In a handler behind a layer that shares the key, this is not possible: the layer holds the guard until the end. Let such a route lock exclusively
//! ([`all_methods`](crate::DistributedLockLayer::all_methods)), and downgrade.
//!
//! # Downgrade
//!
//! [`LockGuard::downgrade`](crate::LockGuard::downgrade) makes an exclusive turn a shared one. There is no gap: no other writer has the key between
//! the write and the end of this turn. Readers that wait ahead of the first waiting writer get their turns at once. Use a downgrade after a write that is
//! followed by slow work which only reads, such as rendering the answer, or if a request that might have had to write finds nothing to write:
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), tower_distributed_lock::Error> {
//! # use tower_distributed_lock::Locks;
//! # let locks = Locks::in_memory();
//! # async fn write(_token: u64) {}
//! # async fn render() {}
//! let guard = locks.lock("report/7").await?;
//! write(guard.token()).await;
//! guard.downgrade().await?;
//! let reading = locks.lock("report/7").shared().await?; // others read as well
//! render().await;
//! # assert!(reading.is_held() && guard.is_held());
//! # Ok(())
//! # }
//! ```
//!
//! # Tokens
//!
//! Every turn has a token, in every mode. The token of a shared turn or of a permit is above those of all earlier exclusive turns and below those of all
//! later ones. The shared turns of one process may have the same token, and permits are not ordered by their tokens: several run at once.
//!
//! | mode | what the token is good for |
//! |---|---|
//! | exclusive | [fencing](super::guarantees#the-paused-process): the resource refuses writes with a lower token than the highest seen |
//! | shared | finding stale reads: data that was written with a *higher* token than the reader's was written after the reader's lease was lost |
//! | permit | telling runs apart in a log. A permit's token must **not** fence: of two exports that rightly run at once, the second to begin would shut out the first |
//!
//! A read that is to see an earlier write compares the two tokens. The writer returns its token to the client, the client sends the token with its next read, and the
//! read is late enough if its own token is higher. Under one store that always holds, because the tokens rise. Over a *replica* of the data, the stored
//! token decides whether the replica has caught up:
//! ```
//! /// Whether data that was stored with the token `stored` may be returned.
//! fn may_return(stored: u64, reader: u64, last_write_of_client: u64) -> bool {
//!     let has_caught_up = stored >= last_write_of_client; // read your writes
//!     let is_not_overtaken = stored < reader; // no later writer has been here: the lease was held
//!     has_caught_up && is_not_overtaken
//! }
//! assert!(may_return(34, 36, 34));
//! assert!(!may_return(30, 36, 34), "the replica of the data lags behind");
//! assert!(!may_return(38, 36, 34), "the reader has lost its lease, and a writer has come");
//! ```
//!
//! # Locks and permits at one key
//!
//! A key is used for locks (exclusive or shared), or for permits. While one kind is held or waited for, a request of the other kind fails with
//! [`ErrorKind::Foreign`](crate::ErrorKind::Foreign); behind a layer, with 500 `misconfigured`. A semaphore and a lock of the same name are a mistake of the
//! program, and waiting would hide the mistake. Name the keys differently, such as `report` and `exports`.
//!
//! Layers of *one* key around one handler are one turn, in the mode of the outer layer. If that mode is not enough for the inner layer (a shared key that is to
//! be exclusive, or permits and a lock), the request is refused with 500 `misconfigured`.
//!
//! # A quorum has no permits
//!
//! Two majorities of a [`QuorumStore`](crate::store::QuorumStore) always have a node in common. That is enough for exclusive and shared leases: the common node
//! refuses one of two that exclude each other. It is not enough to count. With four permits and three nodes, each node counts to four, and each holder needs two
//! nodes: twelve places for two each are six holders. The quorum therefore refuses permits, with
//! [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig); behind a layer, with 500 `misconfigured`. Use a second [`Locks`](crate::Locks) on one server,
//! Sentinel or a Cluster for permits: if that server is gone, too many exports are rarely the worst problem.
//!
//! # Idempotency and single flight
//!
//! [`IdempotencyLayer`](crate::IdempotencyLayer), [`run_once`](crate::Locks::run_once) and [`SingleFlightLayer`](crate::SingleFlightLayer) claim their keys
//! exclusively, always: one run is what they are for. They combine with lock layers of other keys in any mode, from the outside in: idempotency,
//! then the lock or the permits. A kept answer takes no permit then.
//!
//! # Deployments
//!
//! | the old version of the service | the new version | while both run |
//! |---|---|---|
//! | locks exclusively | shares the key for reads | they exclude each other as they should |
//! | does not lock reads | shares the key for reads | reads of the old version may meet a write, as before |
//! | locks exclusively | takes permits of the same key | one kind refuses the other with 500: use a new name |
//! | takes *n* permits | takes *m* permits | at most the larger number run |
//! | has another version of the format in Redis | | they do not see each other: [rolling deployments](super::operating#rolling-deployments) |
