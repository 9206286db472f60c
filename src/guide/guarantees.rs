//! What can I rely on, and what not?
//!
//! A lock of this crate is a **lease**: the use of a key for a limited time, renewed while the
//! holder lives. A process that stops, and a store that forgets, break such a promise about time,
//! and no lock with an expiry can prevent that. The **fencing token** covers these cases: the
//! resource itself refuses a writer whose turn is over. If two writers at once would do damage, use
//! the token. If they would only waste work, the lease alone is enough.
//!
//! # What holds
//!
//! | property | statement | assumptions |
//! |---|---|---|
//! | exclusion | two turns at a key do not overlap, unless both [share](super::which_lock#readers-and-writers) the key; and at most *n* of *n* permits are held | the store keeps the lease for its whole time; clocks run at the same speed, to within 1 %; the holder does not act after its loss |
//! | tokens rise | a later turn at a key has a higher token (turns that share the key may have the same one), across crashes and restarts of processes and servers | see [tokens](#tokens-when-a-server-forgets) |
//! | no stuck key | the key of a crashed process is free after the lease; the key of a dropped or panicked request is free at once | the store can be reached, otherwise: after the lease |
//! | no silent wait | a process that waits for a key, and has no turn under way there, asks the store once in a [`poll_interval`](crate::LocksBuilder::poll_interval) (1 s) at least, whatever hints and connections were lost; a key that is free is taken, or has the process in its queue, after that time | a question that gets no answer ends with the time limit of the store (1 s on Redis), and the next one follows within 50 ms |
//! | loss is reported | a holder that cannot confirm its lease is told so, at the latest at the lease's deadline on its own clock, even if the store hangs | the process runs |
//! | fairness | first come, first served: in a process, and between processes | a process may pass a key on to its own waiters for up to 16 turns or 10 ms after another process began to wait, and lets no reader overtake a waiting writer; in a quorum, order is best effort |
//! | one run | a request with an `Idempotency-Key` that a living process began is not begun again | the store can be reached and keeps its data |
//!
//! # What does not hold
//!
//! - **A stopped process does not know that time has passed.** See [below](#the-paused-process).
//! - **A store that loses data grants the key again**: a restart without persistence, `FLUSHALL`,
//!   an eviction, a fail-over to a replica that had not received the lease. [Redis](super::redis)
//!   has the settings that make this rare.
//! - **A cancelled handler may go on acting elsewhere.** See
//!   [cancellation](#cancelling-a-future-is-not-an-undo).
//! - **Two handlers that each hold one key and ask for the other's wait for each other**, until a
//!   limit ends the wait. Lock both keys together: [`key::all_of`](crate::key::all_of()),
//!   [`Locks::lock_all`](crate::Locks::lock_all).
//! - **Idempotency is not exactly-once.** A process that crashes after its side effect and before
//!   its answer is stored lets the request run again after the lease.
//!   [`at_most_once`](crate::IdempotencyLayer::at_most_once) forbids the second run, and then a
//!   person has to find out how the first one ended ([`settle`](crate::Locks::settle)). With the
//!   answer in the transaction of the data, it [is](super::exactly_once).
//!
//! # The paused process
//!
//! A virtual machine migrates, a container is frozen, a laptop sleeps, a thread waits for swapped
//! memory. Process A stops *between two instructions*, so no check in A can help: A may stop right
//! after the check.
//!
//! The ledger remembers the highest token, and compares:
//!
//! ```text
//!   process A                  store                    process B                 ledger
//!      │                         │                         │                        │
//!      ├── acquire ─────────────▶│ lease A, token 34       │                        │
//!      ├── read with 34 ─────────┼─────────────────────────┼───────────────────────▶│ 100, highest token 34
//!      ┊                         │                         │                        │
//!      ┊ A is paused             │◀──────────── acquire ───┤ waits                  │
//!      ┊ for 40 s                │ lease A expires         │                        │
//!      ┊                         │ lease B, token 35 ─────▶│                        │
//!      ┊                         │                         ├── read with 35 ───────▶│ 100, highest token 35
//!      ┊ A runs again            │                         │                        │
//!      ├── write 130 with 34 ────┼─────────────────────────┼───────────────────────▶│ refused: 34 < 35
//!      │                         │                         ├── write 120 with 35 ──▶│ 120
//! ```
//!
//! Without tokens, the ledger would take the write of A, and the deposit of B would be gone. The
//! order of the last two writes does not matter. Two details do:
//!
//! 1. **Compare and write in one step.** A token that is compared in the process, or in a statement
//!    of its own, is compared too early.
//! 2. **Show the token when you read.** If B only read, and the ledger did not learn of 35, the
//!    write of A would be accepted between B's read and B's write. The
//!    [recipe](super::work#fencing-in-postgresql-and-sqlite) has both steps for SQL.
//!
//! **A token orders the runs; it does not make a second run harmless.** The ledger refuses the
//! write of a run whose turn is over. But if A has charged a card before its pause, B, with a
//! higher token, rightly writes, and charges the card again: no token is in the way. Work that must
//! not be done twice needs a memory of what was done: an
//! [`IdempotencyLayer`](crate::IdempotencyLayer) on a store that keeps its data, and an idempotency
//! key of the payment service itself, or a unique constraint in the same transaction as the effect.
//!
//! This is not a theory: the [README](crate#how-it-is-measured) counts the acknowledged deposits
//! that a ledger without tokens lost in half an hour of pauses, kills and wiped stores.
//!
//! # Tokens when a server forgets
//!
//! Redis keeps one counter for each of 4,096 groups of keys. A counter that is missing starts at
//! the server's clock in microseconds; no counter passes the clock, however hot its keys; and no
//! process accepts a token below one that it has seen, or below the server's clock at its last
//! connect. So tokens fall only if a server loses its counters, its clock was set back (or
//! [`raise_fence`](crate::store::Store::raise_fence) had lifted the counter above it), and all
//! processes that knew better have ended. Behind Sentinel and in a Cluster, a new primary continues
//! above the old one as long as the clocks of both agree to within the time of a fail-over. Tokens
//! stay below 2^53 and fit a signed 64-bit column.
//!
//! # Clocks and sleep
//!
//! - A lease counts from **before** the request was sent, less 1 % and 2 ms: a lease of 30 s is
//!   trusted for 29.698 s.
//! - The holder measures with the **monotonic** clock. A step of the system time does not touch it.
//! - On Linux, the monotonic clock does not advance while the machine is **suspended**. After a
//!   suspension, [`is_held`](crate::LockGuard::is_held) may return `true` for an expired lease,
//!   until the next renewal. Tokens cover this case.
//! - Redis expires keys by its own **system** clock. A step forward on the server ends leases
//!   early. Configure the server's time service to slew the clock, not to step it, after start-up
//!   (`makestep 1 3` in chrony).
//!
//! # Quorum, WAIT, tokens: which answers what
//!
//! | event | lease on one server | [`replicas`](crate::store::RedisStoreBuilder::replicas) (WAIT) | [`QuorumStore`](crate::store::QuorumStore) | tokens |
//! |---|---|---|---|---|
//! | the holder crashes | ✓ | ✓ | ✓ | |
//! | the holder is paused past its lease | ✗ | ✗ | ✗ | ✓ |
//! | the holder goes on after its loss | ✗ | ✗ | ✗ | ✓ |
//! | the server restarts empty | ✗ | ✗ | ✓ for a minority of the servers | ✓ |
//! | the server is gone | ✗ no lock can be taken | fail-over | ✓ for a minority of the servers | |
//! | a fail-over forgets a lease | ✗ | less likely, not excluded | no replicas, no fail-over | ✓ |
//! | two primaries at once | ✗ | less likely, not excluded | no replicas, no fail-over | ✓ |
//! | eviction, `FLUSHALL`, a clock step on one server | ✗ | ✗ | ✓ while a majority still has the lease | ✓ |
//!
//! Quorum and WAIT make a second holder *rarer*. Only the token keeps a second holder from
//! overwriting the first. A quorum costs a round trip to all servers and, after a node was missing,
//! a second one. If the resource compares tokens, one server is a sound choice.
//!
//! # Choosing lease, wait and hold
//!
//! | setting | default | too short | too long |
//! |---|---|---|---|
//! | [`lease`](crate::LocksBuilder::lease) | 30 s | a slow store or a pause ends turns | a crashed process blocks its keys for so long |
//! | [`wait`](crate::DistributedLockLayer::wait) of the layer | 5 s | requests are refused (423) in a burst | requests outlive the patience of their clients, and fill the line |
//! | [`wait_limit`](crate::LocksBuilder::wait_limit) of [`Locks::lock`](crate::Locks::lock) | 10 s | the same | the same; two callers that wait for each other end only by this limit |
//! | [`max_hold`](crate::LocksBuilder::max_hold) | 10 min | long handlers are cut off | a handler that hangs blocks its key for so long |
//!
//! - **Lease.** Leases are renewed at a third of their time, so a store that is away for less than
//!   two thirds of the lease (just under 20 s) ends no turn. A lease need not be longer than the
//!   handler: renewals cover the rest.
//! - **Wait.** Below the timeout of the client and of every proxy in between. Above the lease only
//!   if requests shall outlast a crashed holder.
//! - **Hold.** About twice the time of the slowest handler that still makes sense. When the time is
//!   over, the turn is lost with [`Loss::MaxHold`](crate::Loss::MaxHold), the handler is dropped,
//!   and the key is released at once.
//!
//! ```
//! # fn main() -> Result<(), tower_distributed_lock::Error> {
//! use std::time::Duration;
//! use tower_distributed_lock::{Locks, store::MemoryStore};
//!
//! let locks = Locks::builder(MemoryStore::new())
//!     .lease(Duration::from_secs(15))
//!     .wait_limit(Duration::from_secs(3))
//!     .max_hold(Duration::from_secs(60))
//!     .build()?;
//! # Ok(())
//! # }
//! ```
//!
//! # Cancelling a future is not an undo
//!
//! When a lease is lost, the layer drops the handler's future, as a timeout or a disconnected
//! client would. Dropping a future stops it at its last `.await`. Dropping a future does **not**
//! stop:
//!
//! - a statement that the database has already received: it runs, and a transaction without a
//!   rollback may still commit;
//! - an HTTP call, an e-mail or a message that is already on its way;
//! - tasks started with `tokio::spawn` or `spawn_blocking`;
//! - a loop that computes without an `.await`.
//!
//! Therefore a lost lease (409 `lease-lost`) says *the handler may have acted*, and is not marked
//! as retryable. To be safe:
//!
//! - send the token with every write;
//! - give spawned tasks a clone of the guard, so that the turn lasts until they end, and let them
//!   watch [`lost`](crate::LockGuard::lost);
//! - before an effect that nothing protects, call [`confirm`](crate::LockGuard::confirm). This
//!   shortens the dangerous time to a round trip; it does not close it;
//! - for work that must not be cut off, use [`detached`](crate::DistributedLockLayer::detached), or
//!   [`OnLoss::Finish`](crate::OnLoss::Finish) with a [`Fenced`](crate::lock::Fenced) answer.
//!
//! # When a client disconnects
//!
//! hyper drops a request's future when it notices that the client is gone. A request that waits
//! then leaves the line, without having run. A handler is dropped, and its key is free at once.
//! When hyper notices depends on the protocol:
//!
//! | | HTTP/1 | HTTP/2 |
//! |---|---|---|
//! | the client closes the connection | noticed, once the whole request was read | noticed at once, for all streams of the connection |
//! | the client resets one stream | – | noticed at once; other streams go on |
//! | a large body is unread | **hides the disconnect**: the request waits on, its handler runs to the end | hides nothing |
//! | remedy | [`ReadBodyLayer`](crate::ReadBodyLayer) outside of the lock | none needed |
//!
//! A reverse proxy may hide a disconnect as well: it may finish the request towards the service
//! after its own client has gone.
//!
//! Handlers behind [`detached`](crate::DistributedLockLayer::detached), an
//! [`IdempotencyLayer`](crate::IdempotencyLayer) or a
//! [`SingleFlightLayer`](crate::SingleFlightLayer) are tasks of their own, which a disconnect does
//! not reach. They keep their key, and those of all lock layers further out, until they end. The
//! loss of a lease does reach them, and leaves an idempotency key with *outcome unknown*; with
//! [`OnLoss::Finish`](crate::OnLoss::Finish) at each lock layer around it, nothing but the end of
//! the process cuts a handler off.
//!
//! # Sources
//!
//! 1. Martin Kleppmann, [How to do distributed locking](https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html),
//!    2016: the paused process, fencing tokens, and why Redlock alone has none.
//! 2. Redis documentation, [Distributed Locks with Redis](https://redis.io/topics/distlock): the
//!    lock on one server, Redlock, drift, delayed restarts.
//! 3. Redis documentation, [WAIT](https://redis.io/docs/latest/commands/wait/): synchronous
//!    replication is not strong consistency.
