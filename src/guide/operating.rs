//! How do I deploy it, and what do I do on call?
//!
//! # Before the first deployment
//!
//! 1. Set Redis up: [no eviction, and persistence for
//!    idempotency](super::redis#settings-of-the-server), memory for [its records](#sizing), [the
//!    rights of its user](super::redis#a-user-with-few-rights), and [a
//!    prefix](super::redis#one-server-for-several-services) if services share it.
//! 2. Call [`Locks::close`](crate::Locks::close) on shutdown ([recipe](#shutting-down)). A process
//!    that ends without it keeps its keys locked for up to a lease.
//! 3. Use the same settings in all instances that share a store.
//!
//! # What to alert on
//!
//! By metrics ([all of them](super::metrics)):
//!
//! | alert | for | meaning |
//! |---|---|---|
//! | `increase(distributed_lock_losses_total{reason!="closed"}[5m]) > 0` | 0 m | turns lost their lease; a page if the resource does not compare tokens |
//! | `rate(distributed_lock_refusals_total{reason="misconfigured"}[5m]) > 0` | 0 m | a layer is misconfigured; the event `lock.refused` names the fix |
//! | `rate(distributed_lock_refusals_total{reason="store-unreachable"}[5m]) > 0` | 2 m | requests get 503: the store is out of reach |
//! | `rate(distributed_lock_failed_open_total[5m]) > 0` | 0 m | requests run without their lock; fine only if that is acceptable |
//! | `rate(distributed_lock_records_total{result!="kept"}[5m]) > 0` | 0 m | answers were not kept: a retry may run its handler again |
//! | `rate(distributed_lock_renewals_total{result="unknown"}[1m]) > 0` | a third of the lease | renewals get no answer; losses follow |
//! | `distributed_lock_owed_releases > 0` | 2 m | the store does not answer releases: keys stay locked for up to a lease |
//! | `distributed_lock_keys > 100000` | 5 m | near [`max_keys`](crate::LocksBuilder::max_keys) (131,072): further keys are refused |
//! | `distributed_lock_longest_line > 500` | 5 m | near [`longest_line`](crate::LocksBuilder::longest_line) (1,024): one key is hot, or a handler hangs |
//! | 99th percentile of `distributed_lock_wait_seconds` above your own limit | 10 m | contention: hot keys, or long turns (`distributed_lock_hold_seconds`) |
//! | 99th percentile of `distributed_lock_store_call_seconds` above 50 ms | 10 m | a slow server or network |
//! | `rate(distributed_lock_connects_total[10m]) > 0.1` | 10 m | connections break again and again |
//!
//! By events (target `tower_distributed_lock`):
//!
//! | event | level | meaning | alert |
//! |---|---|---|---|
//! | `lock.store_away` | warn | an outage begins: the store has not answered a call; `error` says why | if `lock.store_back` does not follow within a third of the lease: losses follow |
//! | `lock.store_back` | info; warn if leases were lost | the outage is over, with `lasted`, `failed_questions`, `unanswered_renewals` and `losses` | on losses; a page if the resource does not compare tokens |
//! | `lock.closed_while_away` | warn | [`close`](crate::Locks::close) has ended during an outage; the same counts | no |
//! | `lock.lost` | warn | a turn lost its lease while the store answered; `loss` is the reason | on any; a page if the resource does not compare tokens |
//! | `lock.losses` | warn | further turns lost their leases right after that one; `losses` counts all of them | with `lock.lost` |
//! | `lock.store_failed` | warn | an acquire was refused, `error` says why: another program uses the key, say | on any |
//! | `lock.release_failed` | warn | a release was refused or got no answer, and is repeated until the lease has expired. Told once until a release is answered | if it lasts: keys stay locked for up to a lease |
//! | `lock.failed_open` | warn | the store is out of reach, and requests run without a lock from now on ([`fail_open`](crate::DistributedLockLayer::fail_open)); the metric counts them | on any, unless that is acceptable |
//! | `lock.force_released` | warn | an operator took a key away from its holder, or removed a record | no |
//! | `idempotency.settled` | warn | an operator wrote the answer of a request whose process had died | no |
//! | `lock.closing` | info | [`close`](crate::Locks::close) was called | no |
//! | `lock.refused` | error | a layer is misconfigured; `why` names the fix | on any |
//! | `idempotency.not_kept` | error | an answer could not be stored: a retry may run the handler again | on any |
//! | `idempotency.answer_not_kept` | warn | an answer is too large or does not end; `why` names the fix | once, then fix the route |
//! | `redis.evicts` | warn | the server may evict leases | on any |
//! | `redis.forgets` | warn | idempotent work relies on a server without an append-only file: a restart lets requests run again | on any |
//! | `redis.subscription_lost` | warn | hints do not arrive; waiting requests poll once a second | if `redis.resubscribed` does not follow |
//! | `redis.resubscribed` | info | hints arrive again | no |
//! | `postgres.forgets` | warn | idempotent work relies on a server with `fsync` or `synchronous_commit` off: a crash lets requests run again | on any |
//! | `postgres.listener_lost` | warn | hints do not arrive; waiting requests poll | if `postgres.listening_again` does not follow |
//! | `postgres.listening_again` | info | hints arrive again | no |
//! | `postgres.no_hints` | warn | a pooler takes LISTEN and delivers nothing: waiting requests poll; give a direct `listen_url` | on any |
//!
//! An outage is told once at its begin and once at its end, however many leases and requests there
//! are. It is over when the store has answered and nothing has failed for 5 s. Each call that
//! failed in between (`lock.store_failed`, `lock.renewal_unknown`, `lock.release_failed`), each
//! lost turn (`lock.lost`) and each refused request (`lock.refused`) is in the log at debug level,
//! and the metrics count them.
//!
//! Without either: [`Locks::stats`](crate::Locks::stats) has the present state of a process, and
//! the access log has the [statuses](crate::rejection::Reason) of refusals. Every refusal has an
//! `instance` (a UUID) that is in the answer and in the log.
//!
//! # Readiness
//!
//! [`Locks::ping`](crate::Locks::ping) makes a round trip on every connection that locks use, and
//! fails if a server does not answer in time, or answers and refuses writes (a replica, no memory
//! left, too few replicas). The message names the server. After [`close`](crate::Locks::close), the
//! check fails as well, so that a load balancer stops sending requests to a process that ends.
//!
//! ```
//! use axum::{Router, http::StatusCode, routing::get};
//! use tower_distributed_lock::Locks;
//!
//! fn health(locks: Locks) -> Router {
//!     let ready = async move || match locks.ping().await {
//!         Ok(()) => StatusCode::OK,
//!         Err(_) => StatusCode::SERVICE_UNAVAILABLE,
//!     };
//!     Router::new()
//!         .route("/live", get(async || StatusCode::OK))
//!         .route("/ready", get(ready))
//! }
//! # health(Locks::in_memory());
//! ```
//!
//! Use the check for readiness, not for liveness: a restart of the service does not bring Redis
//! back, and loses the turns that a short outage would have left alone. If all instances share one
//! Redis, all of them are unready together; a service with routes that need no lock may prefer to
//! stay ready and answer 503 on the others.
//!
//! # Shutting down
//!
//! On SIGTERM, the server stops accepting connections, requests that wait for a turn are refused
//! with 503 and `Retry-After`, and handlers have a grace to finish:
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use axum::Router;
//! use tokio::{net::TcpListener, sync::oneshot, time::timeout};
//! use tower_distributed_lock::Locks;
//!
//! async fn serve(listener: TcpListener, app: Router, locks: Locks) -> std::io::Result<()> {
//!     let (stop, stopped) = oneshot::channel::<()>();
//!     let server = axum::serve(listener, app).with_graceful_shutdown(async { drop(stopped.await) });
//!     let mut server = tokio::spawn(server.into_future());
//!     tokio::select! {
//!         served = &mut server => return served?,
//!         () = terminated() => drop(stop),
//!     }
//!     let closed = locks.close(Duration::from_secs(20)).await; // at most 22 s
//!     if !closed.is_complete() {
//!         let keys = closed.held.iter().map(|held| held.key.as_str()).collect::<Vec<_>>();
//!         eprintln!("{} handlers still run, and hold {keys:?}", closed.stats.running);
//!     }
//!     // The last answers are on their way. A client that does not read its answer is not waited for.
//!     let _ = timeout(Duration::from_secs(2), server).await;
//!     Ok(())
//! }
//!
//! /// SIGTERM, or Ctrl-C at a terminal.
//! async fn terminated() {
//!     use tokio::signal::{ctrl_c, unix::{SignalKind, signal}};
//!     let mut term = signal(SignalKind::terminate()).expect("signals can be handled");
//!     tokio::select! {
//!         _ = term.recv() => {}
//!         _ = ctrl_c() => {}
//!     }
//! }
//! ```
//!
//! The times add up to less than the 30 s after which Kubernetes kills a process.
//!
//! | handler that outlasts the grace | its key | its client |
//! |---|---|---|
//! | of a plain lock | lost with [`Loss::Closed`](crate::Loss::Closed), and released | 409 |
//! | of a lock with [`OnLoss::Finish`](crate::OnLoss::Finish) | lost and released; the handler goes on until the process ends | 409, if the handler ends in time |
//! | of an idempotent request | stays in the store until the lease expires | none: the connection closes. A retry waits for the lease, and then runs the handler again |
//!
//! # Reading the keys with redis-cli
//!
//! The [admin page](crate::admin) (feature `admin`) shows the same in a browser. Two replicas of
//! `examples/ledger.rs`, one of which works on account 7 while the other waits:
//!
//! ```text
//! $ redis-cli --scan --pattern 'tdl:2:*:lock:*'
//! tdl:2:{b3953}:lock:account,tenant=acme,id=7
//!
//! $ redis-cli GET 'tdl:2:{b3953}:lock:account,tenant=acme,id=7'
//! wanted:1bf136fa-f8c3-4a16-8818-9f1a3c82cfa0:1@vm
//!
//! $ redis-cli PTTL 'tdl:2:{b3953}:lock:account,tenant=acme,id=7'
//! 29535
//!
//! $ redis-cli ZRANGE 'tdl:2:{b3953}:queue:account,tenant=acme,id=7' 0 -1 WITHSCORES
//! e76580f3-d58a-492d-b8ee-d2147d15c156:1
//! 1
//! until:e76580f3-d58a-492d-b8ee-d2147d15c156:1
//! 1794825692000
//!
//! $ redis-cli GET 'tdl:2:{b3953}:fence'
//! 1794825688328926
//! ```
//!
//! A lock that several hold is a sorted set of holders, each scored with the time (Unix, in ms) at
//! which its lease ends: `ZRANGE 'tdl:2:{b2089}:lock:orders/42' 0 -1 WITHSCORES`.
//!
//! | part | meaning |
//! |---|---|
//! | `tdl` | the [prefix](crate::store::RedisStoreBuilder::prefix) |
//! | `2` | the version of the format |
//! | `{b3953}` | the bucket: which of the 4,096 token counters the key uses, and which slot in a Cluster |
//! | `account,tenant=acme,id=7` | the key, as [the `key` module](crate::key#the-format-of-a-key) writes it |
//! | `lease:` or `wanted:` | the key is held; `wanted`: and others wait, or have waited |
//! | `1bf136fa-…:1` | the owner: the instance, and the number of its acquisition. Log events have the same text as `owner` |
//! | `@vm` | the [label](crate::store::RedisStoreBuilder::label) of the holder, by default its host name |
//! | `shared:` | one of the holders that share the key |
//! | `permit:4:` | the holder of one of four permits |
//! | `record:` | a kept answer; its TTL is the rest of [`retain`](crate::IdempotencyLayer::retain) |
//! | members of the queue | one owner per waiting instance at its place in the order, with `shared:` or `permit:4:` in front if it does not want the key for itself alone; `until:` with the time (Unix, in ms) until which the place is kept; `free:` if the key was offered |
//!
//! Keys of idempotent requests begin with `idempotency`, those of `run_once` with `once`, those of
//! single flights with `flight`.
//!
//! # Matching a guard, a log line and a key
//!
//! One text stands for a lease everywhere: the owner, `<instance>:<attempt>`. It is
//! [`LockGuard::owner`](crate::LockGuard::owner) in a handler, the field `owner` of every event
//! about a lease, and the value in Redis. [`Locks::instance`](crate::Locks::instance) is the part
//! before the colon: log it once at start-up. The [label](crate::store::RedisStoreBuilder::label)
//! tells the host. [`Locks::held`](crate::Locks::held) lists the leases of this process,
//! [`Locks::list`](crate::Locks::list) and [`Locks::inspect`](crate::Locks::inspect) those of the
//! fleet:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), tower_distributed_lock::Error> {
//! # use tower_distributed_lock::{Locks, store::List};
//! # let locks = Locks::in_memory();
//! # let guard = locks.lock("orders/42").await?;
//! for key in locks.list(List::starting_with("orders/")).await?.keys {
//!     let seen = locks.inspect(&key).await?;
//!     for holder in &seen.holders {
//!         println!("{key}: {} ({:?}), {:?} left", holder.owner, holder.label, holder.remaining);
//!     }
//!     println!("{key}: {} instances wait", seen.queue.len());
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Freeing a key
//!
//! 1. **Wait.** A crashed holder's key is free after the lease (30 s). A handler that hangs is cut
//!    off after [`max_hold`](crate::LocksBuilder::max_hold) (10 min).
//! 2. **Stop the holder** that the label names. A graceful stop releases its keys as its handlers
//!    end; a kill frees them after the lease.
//! 3. **Take the key away**: [`Locks::force_release`](crate::Locks::force_release), from any
//!    instance, which also tells the next in the queue; or `redis-cli DEL 'tdl:2:{b…}:lock:…'`; or
//!    from one of several holders, `redis-cli ZREM` with its member.
//!
//! The holder is not stopped: until the holder's next renewal (10 s with the default lease; at once
//! if the holder is the instance that takes the key away), two requests may be inside, and only
//! their tokens tell them apart. Then the holder's handler is dropped, and its client gets 409.
//! After a plain `DEL`, the next in the queue finds out at its next poll, within a second.
//!
//! Deleting a **record** lets the same request run again. Do not delete the counters (`…:fence`).
//! The queue needs no cleaning: places expire by themselves.
//!
//! # Sizing
//!
//! Measured by `tests/cost`, `tests/fleet` and `benches/run`, and by `MEMORY USAGE` on Redis
//! 7.0.15.
//!
//! | resource | figure |
//! |---|---|
//! | connections | 2 for each [`Locks`](crate::Locks): 1 for calls ([`lanes`](crate::store::RedisStoreBuilder::lanes)), 1 for hints; up to 16 more with [`replicas`](crate::store::RedisStoreBuilder::replicas) |
//! | commands, uncontended request | 2: one before the handler, one after it |
//! | commands, idempotent request | 2 the first time, 1 for each replay |
//! | commands, hot key in one process | 158 for 10,000 turns |
//! | commands, hot key that is shared, one process | fewer than 200 for 10,000 reads |
//! | commands, a lock, a wait in another process, and the hand-over | 5 |
//! | commands, held lease | 1 renewal per third of the lease (10 s) |
//! | 10,000 leases held at once, default lease | 1.3 % of a core in the process, 1.1 % of a core in Redis |
//! | server time of an acquire | at most 1.7 × that of a script with `SET NX PX` (the test's limit) |
//! | server time of a release | at most 1.4 × that of compare-and-delete (the test's limit) |
//! | server time of a shared acquire, or of a permit | at most 1.5 × that of an exclusive acquire if the key is free, 2.5 × beside other holders (the test's limits) |
//! | memory, held key of 24 bytes | 152 bytes; 200 more while one instance waits |
//! | memory, record | about 300 bytes more than the body, with two headers |
//! | memory, token counters | 72 bytes each, at most 4,096 of them: below 300 KB |
//!
//! Records dominate the memory of a service with idempotency: requests per second ×
//! [`retain`](crate::IdempotencyLayer::retain) × size of a record. 10 requests per second with
//! answers of 1 KiB, kept for 24 h, take more than 1 GB. Shorten `retain` to the time for which
//! clients really retry.
//!
//! All keys of a fleet share one Redis server. A Cluster spreads them; a quorum does not, because
//! every server holds every key.
//!
//! # Several runtimes, and handlers that block
//!
//! Leases are renewed in the *background*: by default on the runtime of the first use, which is
//! right for a program with one runtime. With several (a pool of threads with a runtime each,
//! `block_on` in a library, parallel tests), or with handlers that block their runtime, choose with
//! [`LocksBuilder::background`](crate::LocksBuilder::background). A runtime that exists but is not
//! driven cannot be helped: nothing is renewed there.
//!
//! # Rolling deployments
//!
//! While two versions of a service run side by side, they exclude each other only if they agree on
//! all of this:
//!
//! | | if the versions differ |
//! |---|---|
//! | store and [prefix](crate::store::RedisStoreBuilder::prefix) | no exclusion: two sets of locks |
//! | version of the format (`2` in the names) | no exclusion: see [`RedisStore`](crate::store::RedisStore#versions-of-the-format). Stop the old processes first |
//! | the key's names, labels, order, types | no exclusion for the changed keys |
//! | the secret of [`hashed_with`](crate::key::RequestKey::hashed_with) | no exclusion |
//! | the nodes of a quorum, or their order | exclusion only if every majority of the one set overlaps every majority of the other |
//! | the lease | works; in a quorum, set [`longest_lease`](crate::store::QuorumStoreBuilder::longest_lease) to the longer one |
//! | the scope of idempotency | a retry at the other version runs the handler again |
//! | compared headers or fingerprint of idempotency | a retry at the other version gets 422 |
//!
//! A change of a key's form is safe in two deployments: first, a version that locks the old and the
//! new form together ([`key::all_of`](crate::key::all_of())); then, a version that locks the new
//! form alone.
//!
//! A key in another form has **another token counter**, and its tokens may be lower than those that
//! the resource has stored. Keep stored tokens by the text of the key (as the table `fences` in the
//! [recipe](super::work#fencing-in-postgresql-and-sqlite) does), or lift the counter of
//! the new key above the highest stored token, with
//! [`Store::raise_fence`](crate::store::Store::raise_fence), before the first turn.
//!
//! # Troubleshooting
//!
//! | symptom | likely cause | look at |
//! |---|---|---|
//! | 423 `held` for one key | its handler is slow or hangs | the label of the holder; `max_hold`; time of the handler |
//! | 423 for many keys, after a deployment or crash | processes ended without [`close`](crate::Locks::close); keys are free after the lease | the shutdown code; a shorter lease |
//! | 423 for requests that should not exclude each other | the key is too coarse: a part is missing | the key in Redis |
//! | 429 `no-permit` | all permits of the key are in use | the number of [`permits`](crate::DistributedLockLayer::permits); time of the handler |
//! | two requests run at once | different keys for one resource (`/7` and `/07` without [`param_as`](crate::key::RequestKey::param_as), two prefixes, two formats), a method that is not locked, `fail_open`, a lost lease | the keys in Redis; `lock.lost`, `lock.failed_open` |
//! | 503 `store-unreachable` | network, `maxclients`, out of memory, a fail-over, missing ACL rights | `error` of `lock.store_away`: it names the cause and the fix |
//! | 503 `line-full` | more than 1,024 requests of one process wait for one key | a hot key; [`longest_line`](crate::LocksBuilder::longest_line), [`wait`](crate::DistributedLockLayer::wait) |
//! | 503 `too-many-keys` | more than 131,072 keys in use in one process | a client that invents keys; [`max_keys`](crate::LocksBuilder::max_keys) |
//! | 409 `lease-lost` | `Expired`: the store was away for most of a lease, or the process was paused or starved. `NotOurs`: the key was deleted, evicted, or lost in a restart or fail-over. `MaxHold`: the handler took too long | `lock.store_away` before it; blocking code on the runtime's threads; the server's log and `evicted_keys` |
//! | 409 `outcome-unknown` | the first run was cut off: a timeout inside of the idempotency layer, a lost lock, an error of the locks after the handler had begun, or with `at_most_once` a process that died | move the timeout outside; find out what the first run did; then [`settle`](crate::Locks::settle) the request of a dead process, also by a form on the [admin page](crate::admin), or [`force_release`](crate::Locks::force_release) to let it run again |
//! | 422 `key-reused` | the client uses one `Idempotency-Key` for two requests, or a proxy changes the body; the detail names the parts that differ | the client; [`fingerprint_with`](crate::IdempotencyLayer::fingerprint_with) |
//! | 500 `misconfigured` | the layer's key needs a route or an extension that is not there; one key is used for locks and for [permits](super::which_lock#one-key-one-kind); a [quorum](super::which_lock#permits) is asked for permits | the event `lock.refused`, which names the fix |
//! | hand-over between processes takes up to a second | hints do not arrive: the ACL lacks `&tdl:*` or `+publish`, or a proxy has no pub/sub | `redis.subscription_lost` |
//! | a free key is taken about 0.3 s late | the head of the queue has crashed, and the next in the queue gives it a head start | nothing to do |
//! | `ErrorKind::Foreign` | one key is used for locks and for permits, or another program uses the same names; the message says which | other keys; another [prefix](crate::store::RedisStoreBuilder::prefix) |
//! | `release` returns `Lost` | the lease ended before the release: work may have overlapped | `lock.lost`; compare tokens at the resource |
