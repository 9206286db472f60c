//! The settings of a [`Locks`], their defaults, and the check that refuses combinations that cannot
//! work.
//!
//! [`Config`] is what a running [`Locks`] keeps, and its lines ask. The [`Pace`] of renewals is
//! derived from it. The defaults give these times for a lease of 30 s:
//!
//! ```text
//! lease                       30 s
//! drift margin                302 ms            a hundredth of the lease, and 2 ms
//! valid for the holder        29.698 s          counted from before the request was sent
//! renewed every               10 s              a third of the lease
//! retried without an answer   after 1 s         an eighth of the interval, at most 1 s
//! ```

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use super::{Holding, Locks, inner::Inner};
use crate::{
    Background, Error, ErrorKind,
    defaults::locks as defaults,
    lease::{Pace, drift},
    store::{Queueing, Store},
};

/// How long the head of the store's queue may leave a free key untaken before the next attempt may
/// take the key.
pub(super) const HEAD_START: Duration = Duration::from_millis(300);

/// The settings of a [`Locks`]. [`LocksBuilder`] documents each of them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Config {
    pub(crate) lease: Duration,
    renew_every: Option<Duration>,
    pub(crate) wait_limit: Option<Duration>,
    pub(crate) max_hold: Duration,
    pub(super) longest_line: usize,
    pub(crate) max_keys: usize,
    pub(super) fail_fast: bool,
    pub(crate) poll_interval: Duration,
    pub(super) waiter_deadline: Duration,
    pub(super) pass_turns: u32,
    pub(super) pass_time: Duration,
    give_up_after: Option<NonZeroU32>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            lease: defaults::LEASE,
            renew_every: None,
            wait_limit: Some(defaults::WAIT_LIMIT),
            max_hold: defaults::MAX_HOLD,
            longest_line: defaults::LONGEST_LINE,
            max_keys: defaults::MAX_KEYS,
            fail_fast: defaults::FAIL_FAST,
            poll_interval: defaults::POLL_INTERVAL,
            waiter_deadline: defaults::WAITER_DEADLINE,
            pass_turns: defaults::PASS_TURNS,
            pass_time: defaults::PASS_TIME,
            give_up_after: None,
        }
    }
}

impl Config {
    /// How an attempt queues at the store. Only an attempt that some request waits for takes a
    /// place in the queue.
    pub(super) fn queueing(&self, waits: bool) -> Queueing {
        if waits {
            Queueing::Wait {
                deadline: self.waiter_deadline,
                head_start: HEAD_START,
            }
        } else {
            Queueing::No
        }
    }

    /// The settings that renewals need. A renewal without an answer is retried after an eighth of
    /// the interval.
    pub(super) fn pace(&self) -> Pace {
        let every = self.renew_every();
        Pace {
            every,
            every_when_passing: self.poll_interval,
            retry: (every / 8).min(Duration::from_secs(1)),
            give_up_after: self.give_up_after.map(NonZeroU32::get),
        }
    }

    /// The interval of the renewals: the one that was set, or a third of the lease.
    fn renew_every(&self) -> Duration {
        self.renew_every.unwrap_or(self.lease / 3)
    }

    /// Checks the settings with the lease and `max_hold` of one layer or request in place of the
    /// common ones.
    pub(crate) fn check_holding(&self, holding: Holding) -> Result<(), Error> {
        let own = Self {
            lease: holding.lease.unwrap_or(self.lease),
            max_hold: holding.max_hold.unwrap_or(self.max_hold),
            renew_every: None,
            ..*self
        };
        own.check()
    }

    /// Refuses settings that cannot work together. The message names the values.
    fn check(&self) -> Result<(), Error> {
        let refuse = |message| Err(Error::new(ErrorKind::InvalidConfig, message));
        let Self {
            lease,
            poll_interval,
            waiter_deadline,
            ..
        } = *self;
        let (drift, every) = (drift(lease), self.renew_every());
        if lease <= drift {
            return refuse(format!(
                "a lease of {lease:?} is not longer than its drift margin of {drift:?}: the lease would be over before any turn could begin"
            ));
        }
        if every.is_zero() || every >= lease / 2 {
            return refuse(format!(
                "renewing every {every:?} does not fit a lease of {lease:?}: the interval must be above zero and below half of \
                 the lease, so that a renewal can fail once"
            ));
        }
        if poll_interval.is_zero() || poll_interval >= waiter_deadline {
            return refuse(format!(
                "a poll interval of {poll_interval:?} does not fit a `waiter_deadline` of {waiter_deadline:?}: the interval must \
                 be above zero and below the deadline, or a waiter loses its place between two polls"
            ));
        }
        if self.max_hold.is_zero() {
            return refuse("a `max_hold` of 0ns leaves no time for any turn".into());
        }
        Ok(())
    }
}

/// Builds [`Locks`] with settings other than the defaults.
///
/// | setting | default | meaning |
/// |---|---|---|
/// | [`lease`](Self::lease) | 30 s | how long a crashed holder keeps its key |
/// | [`renew_every`](Self::renew_every) | a third of the lease | how often a held lease is renewed |
/// | [`give_up_after`](Self::give_up_after) | never | after how many unanswered renewals in a row a lease is lost before its deadline |
/// | [`max_hold`](Self::max_hold) | 10 min | how long one turn may last |
/// | [`wait_limit`](Self::wait_limit) | 10 s | how long [`Locks::lock`] waits |
/// | [`longest_line`](Self::longest_line) | 1,024 | how many requests of this process may wait for one key |
/// | [`max_keys`](Self::max_keys) | 131,072 | how many keys this process may use at a time |
/// | [`fail_fast`](Self::fail_fast) | no | whether requests that wait fail as soon as the store does |
/// | [`poll_interval`](Self::poll_interval) | 1 s | how often a waiting instance asks the store without a hint |
/// | [`waiter_deadline`](Self::waiter_deadline) | 3 s | how long a silent instance keeps its place in the store's queue |
/// | [`pass_turns`](Self::pass_turns) | 16 | how many more turns a lease serves once another instance waits |
/// | [`pass_time`](Self::pass_time) | 10 ms | for how long a lease is passed on once another instance waits |
/// | [`background`](Self::background) | the runtime of the first use | where leases are renewed and requests are served |
///
/// [`build`](Self::build) refuses a combination of settings that cannot work, rather than adjusting
/// the values. All instances that share a store should have the same settings.
///
/// # Example
///
/// ```
/// # fn main() -> Result<(), tower_distributed_lock::Error> {
/// use std::time::Duration;
/// use tower_distributed_lock::{ErrorKind, Locks, store::MemoryStore};
///
/// let builder = Locks::builder(MemoryStore::new()).lease(Duration::from_secs(10));
/// let locks = builder.clone().max_hold(Duration::from_secs(60)).build()?;
///
/// // A lease that is renewed only after it has expired cannot work.
/// let refused = builder.renew_every(Duration::from_secs(20)).build().unwrap_err();
/// assert_eq!(refused.kind(), ErrorKind::InvalidConfig);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct LocksBuilder {
    store: Arc<dyn Store>,
    config: Config,
    background: Background,
}

impl LocksBuilder {
    pub(crate) fn new(store: Arc<dyn Store>) -> Self {
        Self {
            store,
            config: Config::default(),
            background: Background::default(),
        }
    }

    /// Sets how long the store keeps a lease that is not renewed. The key of a crashed process
    /// stays locked for that long.
    ///
    /// Default: 30 s.
    ///
    /// A short lease frees the keys of a crashed process sooner. A long lease survives longer
    /// outages of the store, and needs fewer renewals. The store must be able to renew a lease
    /// well within a third of its time.
    ///
    /// ```
    /// # fn main() -> Result<(), tower_distributed_lock::Error> {
    /// use std::time::Duration;
    /// use tower_distributed_lock::{Locks, store::MemoryStore};
    ///
    /// let locks = Locks::builder(MemoryStore::new())
    ///     .lease(Duration::from_secs(10)) // renewed every 3.3 s
    ///     .build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn lease(mut self, lease: Duration) -> Self {
        self.config.lease = lease;
        self
    }

    /// Sets how often a held lease is renewed. The interval must be shorter than half of the lease,
    /// so that one renewal can fail.
    ///
    /// Default: a third of the lease.
    ///
    /// More renewals notice a deleted lease sooner, and cost more calls. All leases of an instance
    /// that are due at about the same time are renewed in one pipeline.
    ///
    /// ```
    /// # fn main() -> Result<(), tower_distributed_lock::Error> {
    /// use std::time::Duration;
    /// use tower_distributed_lock::{Locks, store::MemoryStore};
    ///
    /// let locks = Locks::builder(MemoryStore::new())
    ///     .lease(Duration::from_secs(30))
    ///     .renew_every(Duration::from_secs(3)) // nine renewals within one lease
    ///     .build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn renew_every(mut self, interval: Duration) -> Self {
        self.config.renew_every = Some(interval);
        self
    }

    /// Sets after how many unanswered renewals in a row a lease counts as lost, although its time
    /// is not over yet.
    ///
    /// By default, a lease is lost only at its deadline.
    ///
    /// An unanswered renewal is retried after an eighth of the interval, and after 1 second at the
    /// latest. With the default lease and `give_up_after(3)`, a holder learns of an unreachable
    /// store a few seconds after the first renewal that failed, instead of up to 20 seconds
    /// later. The loss is [`Loss::GaveUp`](crate::Loss::GaveUp).
    ///
    /// ```
    /// # fn main() -> Result<(), tower_distributed_lock::Error> {
    /// use std::num::NonZeroU32;
    /// use tower_distributed_lock::{Locks, store::MemoryStore};
    ///
    /// let three = NonZeroU32::new(3).unwrap();
    /// let locks = Locks::builder(MemoryStore::new()).give_up_after(three).build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn give_up_after(mut self, unknowns: NonZeroU32) -> Self {
        self.config.give_up_after = Some(unknowns);
        self
    }

    /// Sets how long one turn may last, so that a handler that hangs does not hold its key forever.
    /// A turn that takes longer is lost with [`Loss::MaxHold`](crate::Loss::MaxHold).
    ///
    /// Default: 10 min.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), tower_distributed_lock::Error> {
    /// use std::time::Duration;
    /// use tower_distributed_lock::{Locks, Loss, store::MemoryStore};
    ///
    /// let locks = Locks::builder(MemoryStore::new())
    ///     .max_hold(Duration::from_secs(60))
    ///     .build()?;
    /// let guard = locks.lock("orders/42").await?;
    /// assert_eq!(guard.lost().await, Loss::MaxHold); // resolves after one minute
    /// # Ok(())
    /// # }
    /// ```
    pub fn max_hold(mut self, longest: Duration) -> Self {
        self.config.max_hold = longest;
        self
    }

    /// Sets how long [`Locks::lock`] waits before failing with [`ErrorKind::Held`].
    ///
    /// To outlast a holder that has crashed, the limit must be longer than the lease. Requests that
    /// wait for each other, each holding a key that the other one wants, are ended only by this
    /// limit.
    ///
    /// Default: 10 s.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), tower_distributed_lock::Error> {
    /// use std::time::Duration;
    /// use tower_distributed_lock::{ErrorKind, Locks, store::MemoryStore};
    ///
    /// let locks = Locks::builder(MemoryStore::new())
    ///     .wait_limit(Duration::from_secs(2))
    ///     .build()?;
    /// let guard = locks.lock("orders/42").await?;
    /// let error = locks.lock("orders/42").await.unwrap_err(); // after two seconds
    /// assert_eq!(error.kind(), ErrorKind::Held);
    /// # drop(guard);
    /// # Ok(())
    /// # }
    /// ```
    pub fn wait_limit(mut self, limit: Duration) -> Self {
        self.config.wait_limit = Some(limit);
        self
    }

    /// Makes [`Locks::lock`] wait without a limit. Two requests that wait for each other's keys
    /// then wait forever.
    ///
    /// Callers that need a limit of their own can still use [`Lock::within`](crate::Lock::within),
    /// or drop the future:
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), tower_distributed_lock::Error> {
    /// use std::time::Duration;
    /// use tower_distributed_lock::{Locks, store::MemoryStore};
    ///
    /// let locks = Locks::builder(MemoryStore::new()).wait_forever().build()?;
    /// let guard = locks.lock("orders/42").await?;
    /// let waiting = tokio::time::timeout(Duration::from_secs(60), locks.lock("orders/42"));
    /// assert!(waiting.await.is_err()); // the place in line is given up
    /// # drop(guard);
    /// # Ok(())
    /// # }
    /// ```
    pub fn wait_forever(mut self) -> Self {
        self.config.wait_limit = None;
        self
    }

    /// Sets how many requests of this process may wait for one key. A further request fails with
    /// [`ErrorKind::LineFull`].
    ///
    /// Default: 1,024. Requests that wait for no turn of another, but for the answer to a
    /// question that has just been asked, do not count: readers that ask for a free key at once,
    /// for example.
    ///
    /// A full line is a sign of overload: the layer answers 503 with `Retry-After`, and the client
    /// can try another time.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_distributed_lock::Error> {
    /// use tower_distributed_lock::{ErrorKind, Locks, store::MemoryStore};
    ///
    /// // No request waits: a request gets its turn at once, or fails.
    /// let locks = Locks::builder(MemoryStore::new()).longest_line(0).build()?;
    /// let guard = locks.lock("orders/42").await?;
    /// let error = locks.lock("orders/42").await.unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::LineFull);
    /// # drop(guard);
    /// # Ok(())
    /// # }
    /// ```
    pub fn longest_line(mut self, waiters: usize) -> Self {
        self.config.longest_line = waiters;
        self
    }

    /// Sets how many keys this process may hold or wait for at a time. A request for a further key
    /// fails with [`ErrorKind::TooManyKeys`].
    ///
    /// Keys are made from values that clients send, so without a bound a client could fill the
    /// memory of this process and of the store. Default: 131,072.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_distributed_lock::Error> {
    /// use tower_distributed_lock::{ErrorKind, Locks, store::MemoryStore};
    ///
    /// let locks = Locks::builder(MemoryStore::new()).max_keys(1).build()?;
    /// let guard = locks.lock("orders/1").await?;
    /// let error = locks.lock("orders/2").await.unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::TooManyKeys);
    /// # drop(guard);
    /// # Ok(())
    /// # }
    /// ```
    pub fn max_keys(mut self, keys: usize) -> Self {
        self.config.max_keys = keys;
        self
    }

    /// Sets whether all requests that wait fail with [`ErrorKind::Unreachable`] as soon as the
    /// store fails once.
    ///
    /// Default: no. Requests keep waiting within their own limits while the store is away, provided
    /// that the store has answered for their key before. Only [`Lock::now`](crate::Lock::now),
    /// and the first question for a key, fail at once.
    ///
    /// Choose `true` where a caller has something better to do than to wait for a store that comes
    /// back: another store, a cached answer, a 503 that moves the client to another region.
    ///
    /// ```
    /// # fn main() -> Result<(), tower_distributed_lock::Error> {
    /// use tower_distributed_lock::{Locks, store::MemoryStore};
    ///
    /// let locks = Locks::builder(MemoryStore::new()).fail_fast(true).build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn fail_fast(mut self, fails_fast: bool) -> Self {
        self.config.fail_fast = fails_fast;
        self
    }

    /// Sets how often a waiting instance asks the store when no hint arrives.
    ///
    /// Default: 1 s.
    ///
    /// A hint is a message that the store sends when a key becomes free. Polling only makes up for
    /// hints that were lost, so a shorter interval does not make a hand-over faster in normal
    /// operation.
    ///
    /// A lease that is passed on from request to request is also renewed at this interval, to learn
    /// whether another instance waits.
    pub fn poll_interval(mut self, interval: Duration) -> Self {
        self.config.poll_interval = interval;
        self
    }

    /// Sets how long a waiting instance keeps its place in the store's queue without asking again.
    /// Other instances wait that long behind an instance that has crashed.
    ///
    /// The deadline must be longer than the poll interval. Default: 3 s.
    ///
    /// ```
    /// # fn main() -> Result<(), tower_distributed_lock::Error> {
    /// use std::time::Duration;
    /// use tower_distributed_lock::{Locks, store::MemoryStore};
    ///
    /// // A waiting instance that has crashed is in the way for one second at most.
    /// let locks = Locks::builder(MemoryStore::new())
    ///     .poll_interval(Duration::from_millis(300))
    ///     .waiter_deadline(Duration::from_secs(1))
    ///     .build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn waiter_deadline(mut self, deadline: Duration) -> Self {
        self.config.waiter_deadline = deadline;
        self
    }

    /// Sets how many more turns a lease serves in this process once another instance is known to
    /// wait.
    ///
    /// Default: 16.
    ///
    /// A higher number makes a hot key faster, because a turn that is passed on costs no call to
    /// the store. A lower number makes the waiting of other instances shorter. With 0, the
    /// lease is given back after the turn under way.
    ///
    /// ```
    /// # fn main() -> Result<(), tower_distributed_lock::Error> {
    /// use std::time::Duration;
    /// use tower_distributed_lock::{Locks, store::MemoryStore};
    ///
    /// // Throughput before fairness: up to 200 turns, and up to 100 ms, while another instance waits.
    /// let locks = Locks::builder(MemoryStore::new())
    ///     .pass_turns(200)
    ///     .pass_time(Duration::from_millis(100))
    ///     .build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn pass_turns(mut self, turns: u32) -> Self {
        self.config.pass_turns = turns;
        self
    }

    /// Sets for how long a lease is still passed on in this process once another instance is known
    /// to wait. A turn under way is not cut short.
    ///
    /// Default: 10 ms.
    ///
    /// The first of the two limits counts: [`pass_turns`](Self::pass_turns), or this time.
    pub fn pass_time(mut self, time: Duration) -> Self {
        self.config.pass_time = time;
        self
    }

    /// Sets where leases are renewed, the store is asked for requests that wait, and the
    /// connections of the store are kept.
    ///
    /// Default: [`Background::Current`]: the runtime of the first use. A program with several
    /// runtimes, or whose handlers block their runtime at times, gives one that always runs, or a
    /// thread of its own.
    ///
    /// ```
    /// # fn main() -> Result<(), tower_distributed_lock::Error> {
    /// use tower_distributed_lock::{Background, Locks, store::MemoryStore};
    ///
    /// let locks = Locks::builder(MemoryStore::new())
    ///     .background(Background::Thread)
    ///     .build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn background(mut self, background: Background) -> Self {
        self.background = background;
        self
    }

    /// Checks the settings and creates the locks.
    ///
    /// The store is not asked: `build` returns at once, also while the store is away.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_distributed_lock::{Locks, store::MemoryStore};
    ///
    /// let error = Locks::builder(MemoryStore::new())
    ///     .poll_interval(Duration::from_secs(5)) // longer than the `waiter_deadline` of 3 s
    ///     .build()
    ///     .unwrap_err();
    /// assert!(error.to_string().contains("waiter_deadline"));
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] if the settings do not fit together. The message names the
    /// values.
    pub fn build(self) -> Result<Locks, Error> {
        self.config.check()?;
        let inner = Inner::new(self.store, self.config, self.background);
        Ok(Locks(Arc::new(inner)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::MemoryStore;

    const MS: Duration = Duration::from_millis(1);

    fn builder() -> LocksBuilder {
        Locks::builder(MemoryStore::new())
    }

    #[track_caller]
    fn refused(builder: LocksBuilder, values: [&str; 2]) {
        let error = builder.build().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        for value in values {
            assert!(
                error.to_string().contains(value),
                "{error} does not name {value}"
            );
        }
    }

    #[test]
    fn settings_that_cannot_work_are_refused_with_their_values() {
        refused(builder().lease(Duration::ZERO), ["0ns", "2ms"]);
        refused(builder().lease(2 * MS), ["2ms", "2.02ms"]);
        refused(
            builder().lease(100 * MS).renew_every(50 * MS),
            ["50ms", "100ms"],
        );
        refused(
            builder().lease(100 * MS).renew_every(Duration::ZERO),
            ["0ns", "100ms"],
        );
        refused(builder().poll_interval(3000 * MS), ["3s", "3s"]);
        refused(builder().poll_interval(Duration::ZERO), ["0ns", "3s"]);
        refused(builder().max_hold(Duration::ZERO), ["max_hold", "0ns"]);
    }

    #[test]
    fn settings_that_can_work_are_accepted() {
        builder().build().unwrap();
        builder()
            .lease(100 * MS)
            .renew_every(49 * MS)
            .build()
            .unwrap();
        builder()
            .lease(Duration::MAX)
            .max_hold(Duration::MAX)
            .build()
            .unwrap();
    }

    #[test]
    fn a_lease_is_valid_for_its_length_less_the_drift_margin() {
        let lease = Config::default().lease;
        assert_eq!(crate::lease::validity(lease), 29_698 * MS);
    }
}
