//! What can I measure? Metrics, spans and events.
//!
//! # Metrics
//!
//! With the feature `metrics`, this crate reports through the [`metrics`](https://docs.rs/metrics)
//! facade, to any recorder of that ecosystem. `examples/metrics.rs` in the repository is a service
//! with an endpoint for Prometheus, and `docs/grafana.json` is a dashboard.
//! [Operating](super::operating#what-to-alert-on) says what to alert on.
//!
//! | metric | kind | unit | labels | meaning |
//! |---|---|---|---|---|
//! | `distributed_lock_turns_total` | counter | count | `outcome` | requests for a turn |
//! | `distributed_lock_wait_seconds` | histogram | seconds | `outcome` | how long they waited |
//! | `distributed_lock_hold_seconds` | histogram | seconds | `outcome` | how long turns lasted |
//! | `distributed_lock_losses_total` | counter | count | `reason` | leases that were lost |
//! | `distributed_lock_renewals_total` | counter | count | `result` | renewals of leases |
//! | `distributed_lock_refusals_total` | counter | count | `reason` | HTTP and gRPC requests that were refused, by [`Reason::code`](crate::rejection::Reason::code) |
//! | `distributed_lock_failed_open_total` | counter | count | | requests that ran without their lock ([`fail_open`](crate::DistributedLockLayer::fail_open)) |
//! | `distributed_lock_idempotency_total` | counter | count | `outcome` | requests with an `Idempotency-Key`, and calls of [`run_once`](crate::Locks::run_once) |
//! | `distributed_lock_records_total` | counter | count | `result` | answers and results to be kept in the store |
//! | `distributed_lock_single_flight_total` | counter | count | `role` | requests of the [`SingleFlightLayer`](crate::SingleFlightLayer) |
//! | `distributed_lock_hints_total` | counter | count | `kind` | hints of the store |
//! | `distributed_lock_store_call_seconds` | histogram | seconds | `operation`, `result` | calls to Redis or PostgreSQL, from their start to their answer; in a quorum, calls to each server |
//! | `distributed_lock_connects_total` | counter | count | `connection`, `result` | connects to Redis or PostgreSQL; all but the first few are reconnects |
//! | `distributed_lock_keys` | gauge | count | | keys that are held or waited for |
//! | `distributed_lock_leases` | gauge | count | | leases that are held |
//! | `distributed_lock_waiting` | gauge | count | | requests that wait for a turn |
//! | `distributed_lock_longest_line` | gauge | count | | requests that wait for the most wanted key |
//! | `distributed_lock_background_calls` | gauge | count | | renewals, and questions for keys that are held elsewhere, under way |
//! | `distributed_lock_owed_releases` | gauge | count | | releases that the store has not answered |
//!
//! No label has a key, or any other text of a request, so the number of series is fixed. The values
//! of the labels:
//!
//! | metric | label | values |
//! |---|---|---|
//! | `distributed_lock_turns_total`, `distributed_lock_wait_seconds` | `outcome` | `granted`: the store granted a lease. `passed_on`: the turn before it passed its lease on, without a new grant. `held`, `line_full`, `too_many_keys`, `unreachable`, `closed`: the [kind](crate::ErrorKind) of the error. `recorded`: the work was done before. `other_request`: the key is held for other work. `failed`: another error. `cancelled`: the future was dropped, or [`lock_all`](crate::Locks::lock_all) has withdrawn the request because the key is held, and waits with another |
//! | `distributed_lock_hold_seconds` | `outcome` | `released`, `lost` |
//! | `distributed_lock_losses_total` | `reason` | `not_ours`, `expired`, `gave_up`, `max_hold`, `closed`: the variants of [`Loss`](crate::Loss) |
//! | `distributed_lock_renewals_total` | `result` | `renewed`, `not_ours`, `unknown` (no answer) |
//! | `distributed_lock_idempotency_total` | `outcome` | `first`: the handler runs. `replayed`: a kept answer. `conflict`: the key was used for another request. `in_progress`: the first request still runs. `unknown`: the first request was cut off, or its process has died, and a person has to find out how it ended. `failed`: another refusal |
//! | `distributed_lock_records_total` | `result` | `kept`, `superseded` (another request has run since), `refused`, `unknown` (no answer) |
//! | `distributed_lock_single_flight_total` | `role` | `lead`, `follow` (got a copy), `alone` (ran without sharing, or shared within its process only) |
//! | `distributed_lock_hints_total` | `kind` | `free`, `next`, `wanted`, `listening`, `reconnected`, `moved` |
//! | `distributed_lock_store_call_seconds` | `operation` | `acquire`, `renew`, `release`, `other` |
//! | `distributed_lock_store_call_seconds` | `result` | `answered`, `redirected` (by a Cluster), `failed` (an error of the server, or no answer in time) |
//! | `distributed_lock_connects_total` | `connection` | `calls`, `hints` |
//! | `distributed_lock_connects_total` | `result` | `connected`, `failed` |
//!
//! ## Gauges
//!
//! Counters and histograms are recorded as things happen. Gauges are set by
//! [`Locks::record_gauges`](crate::Locks::record_gauges), which counts the present state anew. Call
//! it before each scrape:
//!
//! ```
//! # #[cfg(feature = "metrics")] {
//! use tower_distributed_lock::Locks;
//!
//! # let render = || String::new();
//! let locks = Locks::in_memory();
//! let scrape = move || {
//!     Locks::record_gauges([&locks]);
//!     render()
//! };
//! # scrape();
//! # }
//! ```
//!
//! ## Histograms
//!
//! All times are in seconds. The Prometheus exporter makes summaries of them, unless told which
//! buckets to use. Buckets can be summed over the instances of a fleet, and the dashboard needs
//! them: `set_buckets_for_metric(Matcher::Suffix("_seconds".into()), …)` with bounds from 0.5 ms (a
//! call to Redis) to a minute (a long turn).
//!
//! # Spans
//!
//! With the feature `tracing` (on by default), each lock has up to three spans at info level, as
//! children of the span in which the lock is requested: below a `TraceLayer` of tower-http, that is
//! the span of the request.
//!
//! | span | from, to | fields |
//! |---|---|---|
//! | `lock.acquire` | the request for a turn, until its turn begins or waiting ends | `waited_ms`, `outcome` (as above: `granted` or `passed_on` for a turn), `token` |
//! | `lock.hold` | the turn | `token`, `owner`, `outcome` (`released` or `lost`) |
//! | `lock.release` | a release whose answer is awaited, as by [`LockGuard::release`](crate::LockGuard::release) | `token` |
//!
//! Handlers behind a [`DistributedLockLayer`](crate::DistributedLockLayer) or an
//! [`IdempotencyLayer`](crate::IdempotencyLayer) run within `lock.hold`: each of their own log
//! lines has the fencing token. (With several keys, that of the first.) A guard that is dropped
//! releases its key in the background, which has no span, but the event `lock.release` at debug
//! level.
//!
//! # Events
//!
//! All events have the target `tower_distributed_lock`;
//! [Operating](super::operating#what-to-alert-on) lists those at info level and above. Keys may be
//! personal data, so they are in events at debug level only, and in no span. Other events have the
//! `owner` of the lease, which is [also in
//! Redis](super::operating#reading-the-keys-with-redis-cli), and at debug level in `lock.granted`
//! and `lock.turn` with the key.
