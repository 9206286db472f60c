//! Which lock do I need, and when none?
//!
//! | what must hold | take |
//! |---|---|
//! | one request at a time per account, order or tenant | a [`DistributedLockLayer`](crate::DistributedLockLayer); without HTTP, [`Locks::lock`](crate::Locks::lock) |
//! | the same, but skip the work instead of waiting | [`reject_if_held`](crate::DistributedLockLayer::reject_if_held); [`lock(..).now()`](crate::Lock::now) |
//! | many readers or one writer | [`shared_when_safe`](crate::DistributedLockLayer::shared_when_safe): GET and HEAD share; [`lock(..).shared()`](crate::Lock::shared) |
//! | at most *n* at a time in the whole fleet | [`permits`](crate::DistributedLockLayer::permits); [`Locks::permit`](crate::Locks::permit) |
//! | two accounts together | [`key::all_of`](crate::key::all_of()); [`Locks::lock_all`](crate::Locks::lock_all) |
//! | a retried POST does not act twice | an [`IdempotencyLayer`](crate::IdempotencyLayer) |
//! | a message, webhook or job is worked on once | [`Locks::run_once`](crate::Locks::run_once) ([recipes](super::work)) |
//! | of many equal reads one runs (a cache stampede) | a [`SingleFlightLayer`](crate::SingleFlightLayer) |
//! | one replica leads | [leader-like work](super::work#leader-like-work) |
//! | two writers at once would do damage | any of these, **and** the [fencing token](super::guarantees#the-paused-process) |
//!
//! Idempotency, `run_once` and single flights claim their keys exclusively, always. They combine
//! with lock layers of other keys, from the outside in: idempotency, then the lock or the permits,
//! so that a kept answer takes neither.
//!
//! # When none
//!
//! - **Your database can do it.** If all of the work is one short transaction, the
//!   [transaction itself is the lock](super::postgres#when-the-transaction-is-the-lock).
//! - **The resource cannot compare tokens, and needs exclusion through every fault.** Use a
//!   consensus system (etcd, ZooKeeper, Consul). The paused process remains a problem there, too.
//! - **One process.** `tokio::sync::Mutex` is simpler. (A map of mutexes by key needs care;
//!   [`Locks::in_memory`](crate::Locks::in_memory) has done that work.)
//! - **The load on one process**: its memory, its CPU, its pool of connections. [Tower's
//!   concurrency limit](https://docs.rs/tower/latest/tower/limit/concurrency/) needs no store. With
//!   a limit of *n* in each of *k* processes, up to *k × n* requests run; if that is acceptable,
//!   prefer it to permits.
//! - **How *often* something runs.** That is a rate limit; a lock limits how many run at a time.
//! - **A queue of work.** A message broker keeps messages while no consumer runs; a line keeps
//!   requests only while their clients wait.
//! - **Reads of data with transactions or snapshots**, or that is replaced in one step (a rename, a
//!   single row). They need no lock at all.
//! - **Leadership for days**, where the platform has leases of its own (Kubernetes `Lease`
//!   objects).
//!
//! # Which store
//!
//! All stores have the same locks, layers and modes, but for the permits that a quorum lacks.
//!
//! | | memory | PostgreSQL | Redis | a quorum of Redis servers |
//! |---|---|---|---|---|
//! | take it if | one process is all there is | the data is in PostgreSQL | many locks a second, or no PostgreSQL | locks must outlive the loss of a server, and nothing can fence |
//! | what enforces the lock | the process | the [transaction](super::postgres#a-fence) | the resource, if it [compares tokens](super::guarantees#the-paused-process) | the same |
//! | [exactly once](super::exactly_once) | a table of your own, and [`recall`](crate::IdempotencyLayer::recall) | one call, in the transaction of the data | as for memory | the same |
//! | after a restart of the server | – | all is there | what its persistence has kept | the other servers have it |
//! | a lock waits for | nothing | a commit: the disk of the server | one round trip | the slower half of the servers |
//! | connections of a process | none | three | two | two to each server |
//!
//! PostgreSQL takes several times the server's CPU of Redis for a lock, and its rate is that of its
//! commits, many locks to each; `benches/RESULTS.md` has both in one table. Begin with the database
//! that you have. A second [`Locks`](crate::Locks) on Redis can take the locks that are many and
//! need no transaction.
//!
//! # Readers and writers
//!
//! Share a key if a read that meets a half-finished write would do damage: a report in several
//! files, rows of two databases, a directory that is being replaced.
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
//! - All modes wait in one queue, first come, first served. Readers that stand next to each other
//!   get their turns together. No reader overtakes a writer that waits, so neither starves.
//! - The readers of one process share one lease: 10,000 reads of a hot key cost fewer than 200
//!   commands. If the lease is lost, all of them are told.
//! - Writers wait for the slowest reader. [`max_hold`](crate::DistributedLockLayer::max_hold)
//!   counts for each reader by itself.
//!
//! **There is no upgrade.** Two readers that both try would each wait for the other to leave. Drop
//! the guard, lock exclusively, and check again what was read. Behind a layer that shares the key,
//! the layer holds the guard until the end: let such a route lock exclusively
//! ([`all_methods`](crate::DistributedLockLayer::all_methods)), and **downgrade**, which leaves no
//! gap for another writer:
//!
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
//! # Permits
//!
//! For something that the whole fleet shares: a database, a licence, a partner's API. A concurrency
//! limit for the process belongs inside, so that a request that waits for its permit takes up no
//! room there:
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
//! - A permit is a lease of its own. Those of a crashed process come back when their leases expire.
//! - A limit for each tenant is a key with the tenant: `key::name("exports").extension::<Tenant>("tenant")`.
//! - All users of a key should name the same number. Where they differ, each is granted a permit
//!   while fewer than *its* number are held, so a deployment that changes the number is safe: no
//!   more than the larger number run.
//!
//! A [`QuorumStore`](crate::store::QuorumStore) **has no permits**. Two majorities have a node in
//! common, which is enough to exclude, but not to count: with four permits and three nodes, each
//! node counts to four and each holder needs two nodes, so twelve places make six holders. Use a
//! second [`Locks`](crate::Locks) on one server, Sentinel or a Cluster for permits.
//!
//! # One key, one kind
//!
//! A key is used for locks (exclusive or shared), or for permits. While one kind is held or waited
//! for, a request of the other kind fails with [`ErrorKind::Foreign`](crate::ErrorKind::Foreign);
//! behind a layer, with 500 `misconfigured`. Name the keys differently, such as `report` and
//! `exports`, also when a deployment changes the kind.
//!
//! Layers of *one* key around one handler are one turn, in the mode of the outer layer. If that is
//! not enough for the inner layer, the request is refused with 500 `misconfigured`.
//!
//! # What a token is good for
//!
//! The token of a shared turn or of a permit is above those of all earlier exclusive turns and
//! below those of all later ones. Shared turns of one process may have the same token.
//!
//! | mode | use |
//! |---|---|
//! | exclusive | [fencing](super::guarantees#the-paused-process): the resource refuses a lower token than the highest seen |
//! | shared | finding stale reads: data with a *higher* token was written after the reader's lease was lost. A replica has caught up if its data has at least the token of the client's last write |
//! | permit | telling runs apart in a log. It must **not** fence: of two exports that rightly run at once, the second to begin would shut out the first |
