//! Other libraries, feature by feature; and when not to use this crate.
//!
//! Checked in November 2026 against the [sources](#sources) at the end of this page. "n. d." means
//! *not documented*: nothing was found in the documentation or in the public source. Corrections
//! are welcome.
//!
//! # Locks
//!
//! | | `SET NX` by hand | rslock 0.10 [1] | async-redis-lock 0.4 [2] | Redisson [3] | DistributedLock for .NET [4] | redsync [5] | this crate |
//! |---|---|---|---|---|---|---|---|
//! | language | any | Rust | Rust | Java | C# | Go | Rust |
//! | renewed while held | no | in `using` only | yes | yes, unless a lease time is given | yes | no, `Extend` by hand | yes |
//! | released when the handle is dropped, or its task is cancelled | no | no: the key stays until its TTL | yes, in the background, best effort | no: `unlock` in `finally` | on `Dispose` | no: `Unlock` by hand | yes, also at the moment of the grant |
//! | a release that fails is repeated | no | no | once | n. d. | n. d. | no | until the lease has ended |
//! | the holder learns of a loss | no | `using` returns an error | a flag to poll | no, a failed renewal is logged [6] | `HandleLostToken` [7] | `Valid`, result of `Extend` | a future; the layer cancels the handler |
//! | fencing token | no | no | no | `RFencedLock` | n. d. | no | yes, each turn |
//! | waiting | as written | polling | polling, every 100 ms | publish/subscribe | polling, random pause | polling | queue and publish/subscribe, polling as a fallback |
//! | first come, first served | no | n. d. | n. d. | `FairLock` | n. d. | n. d. | yes |
//! | a dead waiter delays the others by | – | – | – | 5 s each (`FairLock`) | – | – | less than 0.5 s each |
//! | waiters of one process share one place | no | no | no | n. d. | n. d. | no | yes |
//! | several keys together | no | no | **atomically** | `MultiLock` | n. d. | no | one after another, in a fixed order |
//! | reader-writer locks | no | no | no | yes | yes | no | yes; the readers of one process share one lease |
//! | semaphores | no | no | no | yes | yes | no | yes, except on a quorum |
//! | independent servers (Redlock) | no | yes | no | deprecated | yes | yes | yes, with tokens |
//! | waits for replicas | no | no | no | **yes, by default** | n. d. | n. d. | optional |
//! | Redis Cluster, Sentinel | by the client | Cluster | n. d. | yes | by the client | by the client | yes |
//! | other backends | – | no | no | Valkey | **SQL Server, PostgreSQL, MySQL, Oracle, MongoDB, Azure, ZooKeeper, files** | no | memory, for one process |
//! | HTTP middleware | no | no | no | no | no | no | yes (Tower) |
//! | async runtimes | – | **tokio and smol** | tokio | – | – | – | tokio |
//!
//! # Cost
//!
//! From `benches/RESULTS.md`, a full run on two cores with Redis on the same machine. Ratios are to
//! the hand-written lock. This crate's guards are dropped, in the last row released. A later run
//! overwrites that file; trust the file, not this page.
//!
//! | | rslock | async-redis-lock | this crate |
//! |---|---|---|---|
//! | locks per second, 32 tasks, each with a key of its own | 0.92 | 0.74 | 0.95; awaited **0.72** |
//! | client CPU for each of them | 1.27 | 1.17 | 0.77; awaited **1.25** |
//! | commands for each of them | 2 | 2 | 2 |
//! | turns per second, one hot key, 32 tasks of one process | 1.02 | 0.81 | **39.2** |
//! | commands for each of them (hand-written: 2.27) | 2.09 | 2.04 | **0.03** |
//! | hand-over to another process, median (hand-written: 5.4 ms) | 113 ms | 93 ms | **0.4 ms** |
//!
//! In short: where keys do not collide, a hand-written lock is cheaper. Where keys collide, this
//! crate is faster, and fair.
//!
//! # Idempotency
//!
//! | | IETF draft [8] | Stripe, API v1 [9] | `idempotent` 2.0 [10] | this crate |
//! |---|---|---|---|---|
//! | duplicate while the first runs | 409 | an error, nothing is saved | 409 | waits up to 5 s for the answer, then 409; 409 at once with [`reject_if_running`](crate::IdempotencyLayer::reject_if_running) |
//! | same key, other request | 422 | an error | 400 | 422 |
//! | missing key, where one is required | 400 | – | 400 | 400 |
//! | 500 of the handler | up to the server | kept | kept | kept |
//! | 4xx of the handler | up to the server | kept, if the endpoint began to run | kept, unless `cache-control: no-store` | not kept, except 402; changeable by [`keep`](crate::IdempotencyLayer::keep) |
//! | the handler panicked or was cut off | – | n. d. | n. d. | a record of the unknown outcome: 409, no second run |
//! | crash of the process | – | n. d. | runs again after the lease | runs again after the lease; never with [`at_most_once`](crate::IdempotencyLayer::at_most_once) |
//! | kept for | published by the server | at least 24 h | chosen by the service | 24 h, changeable |
//! | scope of a key | – | n. d. | optional closure | required argument |
//! | handler survives a disconnect | – | – | yes | yes |
//! | token for side effects | – | – | yes | yes |
//! | outside of HTTP | – | – | `execute_or_replay` | [`run_once`](crate::Locks::run_once) |
//! | several Redis servers | – | – | **one node**, Cluster not supported | Sentinel, Cluster, quorum |
//! | stores of one's own | – | – | **yes**, a public trait | no, the trait is sealed |
//! | gRPC | – | – | n. d. | yes |
//! | lowest Rust version | – | – | 1.98 | 1.88 |
//!
//! This crate departs from the draft in one point by default: a duplicate waits, where the draft
//! answers 409 at once.
//!
//! # Where others are better
//!
//! - **Redisson** has latches, rate limiters and many more objects, waits for replicas by default,
//!   and has been in production for many years.
//! - **DistributedLock for .NET** works on the database that you already have.
//! - **async-redis-lock** takes several keys in one atomic step. Here the keys are taken one after
//!   another, and the first is held while the second is waited for.
//! - **rslock** runs on smol, and is small enough to read in an hour.
//! - **`idempotent`** lets you bring your own store, for example the database of the service, so
//!   that side effect and record are one transaction. With this crate, they are not.
//! - **A hand-written `SET NX`** has no dependency and needs less time on the server (1.4 to 1.6 ×
//!   here), and less client CPU where releases are awaited.
//! - Most of them have been in use for years. This crate is at version 0.1.
//!
//! # When not to use this
//!
//! - **Your database can do it.** If all writers use one PostgreSQL, a unique constraint, `SELECT …
//!   FOR UPDATE` or `pg_advisory_xact_lock` has no lease, no clock and no second server. Take a
//!   lock of this crate for work that spans systems, or that should wait outside of the database.
//! - **You need exclusion through every fault, and cannot compare tokens.** Use a consensus system
//!   (etcd, ZooKeeper, Consul). The paused process remains a problem there, too.
//! - **One process.** `tokio::sync::Mutex` is simpler. (A map of mutexes by key needs care;
//!   [`Locks::in_memory`](crate::Locks::in_memory) has done that work.)
//! - **At most *n* at once, in one process.** [Tower's concurrency
//!   limit](super::modes#when-to-take-a-permit-and-when-towers-limit-is-enough) needs no store.
//! - **Rate limits.** A lock limits how many run, not how often.
//! - **A queue of work.** A message broker keeps messages while no consumer runs; a line keeps
//!   requests only while their clients wait.
//! - **Leadership for days.** It [works](super::cookbook::work#leader-like-work), but a platform
//!   with leases of its own (Kubernetes `Lease` objects) needs no further server.
//! - **The highest rate of locks that never collide.** See [cost](#cost).
//! - **A runtime other than tokio.**
//!
//! # Sources
//!
//! 1. rslock 0.10.0: [README](https://docs.rs/crate/rslock/0.10.0) and the documentation of
//!    `LockGuard` ("Dropping a guard does not release it"), `LockManager::using`,
//!    `LockManager::extend`.
//! 2. async-redis-lock 0.4.0: [documentation](https://docs.rs/async-redis-lock/0.4.0) of
//!    `Lock::is_lost`, `Lock::release`, `Options`.
//! 3. Redisson: [Locks and synchronizers](https://redisson.pro/docs/data-and-services/locks-and-synchronizers/).
//! 4. DistributedLock: [Redis](https://github.com/madelson/DistributedLock/blob/master/docs/DistributedLock.Redis.md)
//!    and the list of packages in its `docs` folder.
//! 5. redsync: [`mutex.go`](https://github.com/go-redsync/redsync/blob/master/mutex.go).
//! 6. Redisson issue [4698](https://github.com/redisson/redisson/issues/4698), "Add a callback on lock renewal failure"; open, with a pull request
//!    ([7254](https://github.com/redisson/redisson/pull/7254)).
//! 7. DistributedLock, `RedisDistributedLockHandle.HandleLostToken` in the API reference of its `docs` folder; its limits in issue
//!    [133](https://github.com/madelson/DistributedLock/issues/133).
//! 8. [draft-ietf-httpapi-idempotency-key-header](https://datatracker.ietf.org/doc/draft-ietf-httpapi-idempotency-key-header/).
//! 9. Stripe: [Idempotent requests](https://docs.stripe.com/api/idempotent_requests). API v2
//!    differs: failed work is completed by a retry.
//! 10. `idempotent` 2.0.0: [README](https://docs.rs/crate/idempotent/2.0.0).
//!
//! [1]: #sources
//! [2]: #sources
//! [3]: #sources
//! [4]: #sources
//! [5]: #sources
//! [6]: #sources
//! [7]: #sources
//! [8]: #sources
//! [9]: #sources
//! [10]: #sources
