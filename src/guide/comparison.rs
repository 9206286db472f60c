//! How does it compare with other libraries?
//!
//! Checked in November 2026 against the [sources](#sources) at the end of this page. "n. d." means
//! *not documented*: nothing was found in the documentation or in the public source. Corrections
//! are welcome. [Which lock](super::which_lock#when-none) says when to use none of them.
//!
//! # Locks
//!
//! | | `SET NX` by hand | rslock 0.10 [1] | async-redis-lock 0.4 [2] | Redisson [3] | DistributedLock for .NET [4] | redsync [5] | this crate |
//! |---|---|---|---|---|---|---|---|
//! | language | any | Rust | Rust | Java | C# | Go | Rust |
//! | renewed while held | no | in `using` only | yes | yes, unless a lease time is given | yes | no, `Extend` by hand | yes |
//! | released when the handle is dropped, or its task is cancelled | no | no: the key stays until its TTL | yes, in the background, best effort | no: `unlock` in `finally` | on `Dispose` | no: `Unlock` by hand | yes, also at the moment of the grant |
//! | a release that fails is repeated | no | no | once | n. d. | n. d. | no | until the lease has ended |
//! | the holder learns of a loss | no | `using` returns an error | a flag to poll | no, a failed renewal is logged [6] | `HandleLostToken` | `Until`, result of `Extend` | a future; the layer cancels the handler |
//! | fencing token | no | no | no | `RFencedLock` | n. d. | no | yes, each turn |
//! | waiting | as written | polling | polling, every 100 ms | publish/subscribe | polling, random pause | polling | queue and publish/subscribe, polling as a fallback |
//! | first come, first served | no | n. d. | n. d. | `FairLock` | n. d. | n. d. | yes |
//! | a dead waiter delays the others by | – | – | – | 5 s each (`FairLock`) | – | – | less than 0.5 s each |
//! | waiters of one process share one place | no | no | no | n. d. | n. d. | no | yes |
//! | several keys together | no | no | **atomically** | `MultiLock` | one after another, in the caller's order | no | all at once; holds none while it waits, but for [keys in much use](crate::Locks::lock_all) |
//! | reader-writer locks | no | no | no | yes | yes | no | yes; the readers of one process share one lease |
//! | semaphores | no | no | no | yes | yes | no | yes, except on a quorum |
//! | independent servers (Redlock) | no | yes | no | deprecated | yes | yes | yes, with tokens |
//! | waits for replicas | no | no | no | **yes, by default** | n. d. | n. d. | optional |
//! | Redis Cluster, Sentinel | by the client | Cluster | n. d. | yes | by the client | by the client | yes |
//! | other backends | – | no | no | Valkey | **SQL Server, PostgreSQL, MySQL, Oracle, MongoDB, Azure, ZooKeeper, files** | no | PostgreSQL; memory, for one process |
//! | HTTP middleware | no | no | no | no | no | no | yes (Tower) |
//! | async runtimes | – | **tokio and smol** | tokio | – | – | – | tokio |
//!
//! What a lock costs with each of the Rust crates is [measured](crate#how-it-is-measured) by
//! `benches/run`. In short: where keys do not collide, a hand-written lock is cheaper; where they
//! collide, this crate is faster, and fair.
//!
//! # Idempotency
//!
//! | | IETF draft [7] | Stripe, API v1 [8] | `idempotent` 2.0 [9] | axum-idempotent 0.6 [10] | this crate |
//! |---|---|---|---|---|---|
//! | duplicate while the first runs | 409 | an error, nothing is saved | 409 | **runs as well** | waits up to 5 s for the answer, then 409; 409 at once with [`reject_if_running`](crate::IdempotencyLayer::reject_if_running) |
//! | same key, other request | 422 | an error | 400 | the kept answer; without a header, the request itself is the key | 422 |
//! | missing key, where one is required | 400 | – | 400 | 400 | 400 |
//! | 500 of the handler | up to the server | kept | kept | not kept, changeable | kept |
//! | 4xx of the handler | up to the server | kept, if the endpoint began to run | kept, unless `cache-control: no-store` | by a list of statuses, changeable | not kept, except 402; changeable by [`keep`](crate::IdempotencyLayer::keep) |
//! | the handler panicked or was cut off | – | n. d. | n. d. | runs again | a record of the unknown outcome: 409, no second run |
//! | crash of the process | – | n. d. | runs again after the lease | runs again | runs again after the lease; never with [`at_most_once`](crate::IdempotencyLayer::at_most_once); once, with the first answer, if the handler [keeps it with its data](super::exactly_once) |
//! | the store is away | – | – | n. d. | runs without it | 503 |
//! | kept for | published by the server | at least 24 h | chosen by the service | chosen by the service, at most as long as the session's cookie | 24 h, changeable |
//! | scope of a key | – | n. d. | optional closure | the session of the client (ruts); without a session, nothing is kept | required argument |
//! | handler survives a disconnect | – | – | yes | no | yes |
//! | token for side effects | – | – | yes | no | yes |
//! | outside of HTTP | – | – | `execute_or_replay` | no | [`run_once`](crate::Locks::run_once) |
//! | stores | – | – | memory, one Valkey or Redis (no Cluster), **your own** | those of ruts, **your own** | memory, Redis, Sentinel, Cluster, quorum, PostgreSQL |
//! | gRPC | – | – | n. d. | no | yes |
//! | lowest Rust version | – | – | 1.98 | 1.85 | 1.88 |
//!
//! This crate departs from the draft in one point by default: a duplicate waits, where the draft
//! answers 409 at once.
//!
//! # Where others are better
//!
//! - **Redisson** has latches, rate limiters and many more objects, waits for replicas by default,
//!   and has been in production for many years.
//! - **DistributedLock for .NET** works on many more databases than PostgreSQL, and on files.
//! - **async-redis-lock** takes several keys in one atomic step. Here they are asked for at the
//!   same time, and those that were granted are given back if another one is held.
//! - **rslock** runs on smol, and is small enough to read in an hour.
//! - **`idempotent`** lets you bring your own store. Here, the stores are those of the crate, and
//!   [another database](super::exactly_once) has only the answers.
//! - **axum-idempotent** asks nothing of the client: in its default mode an equal request is the
//!   same request. It calls itself best-effort.
//! - **ShedLock** (Java, for scheduled tasks, which it skips instead of waiting) has providers for
//!   more than twenty stores. [11]
//! - **A hand-written `SET NX`** has no dependency and needs less time on the server (1.4 to 1.6 ×
//!   here), and less client CPU where releases are awaited.
//! - Most of them have been in use for years. This crate is at version 0.1.
//!
//! # Sources
//!
//! 1. rslock 0.10.0: [README](https://docs.rs/crate/rslock/0.10.0) and the documentation of
//!    `LockGuard` ("Dropping a guard does not release it"), `LockManager::using`,
//!    `LockManager::extend`.
//! 2. async-redis-lock 0.4.0: [documentation](https://docs.rs/async-redis-lock/0.4.0) of
//!    `Lock::is_lost`, `Lock::release`, `Options`.
//! 3. Redisson: [Locks and synchronizers](https://redisson.pro/docs/data-and-services/locks-and-synchronizers/).
//! 4. DistributedLock: [Redis](https://github.com/madelson/DistributedLock/blob/master/docs/DistributedLock.Redis.md),
//!    the list of packages in its `docs` folder, and there *Other topics* (detecting handle loss,
//!    composite locking).
//! 5. redsync: [`mutex.go`](https://github.com/go-redsync/redsync/blob/master/mutex.go).
//! 6. Redisson issue [4698](https://github.com/redisson/redisson/issues/4698), "Add a callback on lock renewal failure"; open, with a pull request
//!    ([7254](https://github.com/redisson/redisson/pull/7254)).
//! 7. [draft-ietf-httpapi-idempotency-key-header](https://datatracker.ietf.org/doc/draft-ietf-httpapi-idempotency-key-header/).
//! 8. Stripe: [Idempotent requests](https://docs.stripe.com/api/idempotent_requests). API v2
//!    differs: failed work is completed by a retry.
//! 9. `idempotent` 2.0.0: [README](https://docs.rs/crate/idempotent/2.0.0).
//! 10. axum-idempotent 0.6.0: [README](https://docs.rs/crate/axum-idempotent/0.6.0) ("two identical
//!     requests that arrive concurrently can both reach the handler") and `src/lib.rs`.
//! 11. ShedLock: [README](https://github.com/lukas-krecan/ShedLock).
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
//! [11]: #sources
