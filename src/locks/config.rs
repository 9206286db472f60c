//! Configuration, its defaults, and what cannot work.

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use super::{Holding, Locks, inner::Inner, line::Limits};
use crate::{
    Error, ErrorKind,
    lease::{Pace, drift},
    store::{Queueing, Store},
};

/// See [`Config::head_start`].
const HEAD_START: Duration = Duration::from_millis(300);

#[derive(Debug, Clone, Copy)]
pub(crate) struct Config {
    pub(crate) lease: Duration,
    renew_every: Option<Duration>,
    pub(crate) wait_limit: Option<Duration>,
    pub(crate) max_hold: Duration,
    longest_line: usize,
    pub(crate) max_keys: usize,
    fail_fast: bool,
    pub(crate) poll_interval: Duration,
    waiter_deadline: Duration,
    pass_turns: u32,
    pass_time: Duration,
    give_up_after: Option<NonZeroU32>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(30),
            renew_every: None,
            wait_limit: Some(Duration::from_secs(10)),
            max_hold: Duration::from_secs(600),
            longest_line: 1024,
            max_keys: 131_072,
            fail_fast: false,
            poll_interval: Duration::from_secs(1),
            waiter_deadline: Duration::from_secs(3),
            pass_turns: 16,
            pass_time: Duration::from_millis(10),
            give_up_after: None,
        }
    }
}

impl Config {
    pub(crate) fn queueing(&self, patient: bool) -> Queueing {
        match patient {
            true => Queueing::Wait {
                deadline: self.waiter_deadline,
                head_start: self.head_start(),
            },
            false => Queueing::No,
        }
    }

    /// How long the head of the store's queue may leave a free key untaken before the next attempt passes it by.
    pub(crate) fn head_start(&self) -> Duration {
        HEAD_START
    }

    pub(crate) fn limits(&self) -> Limits {
        Limits {
            longest_line: self.longest_line,
            pass_turns: self.pass_turns,
            pass_time: self.pass_time,
            max_hold: self.max_hold,
            waiter_deadline: self.waiter_deadline,
            fail_fast: self.fail_fast,
            pace: self.pace(),
        }
    }

    fn pace(&self) -> Pace {
        let every = self.renew_every();
        Pace {
            every,
            every_when_passing: self.poll_interval,
            retry: (every / 8).min(Duration::from_secs(1)),
            give_up_after: self.give_up_after.map(NonZeroU32::get),
        }
    }

    fn renew_every(&self) -> Duration {
        self.renew_every.unwrap_or(self.lease / 3)
    }

    pub(crate) fn check_holding(&self, holding: Holding) -> Result<(), Error> {
        let own = Self {
            lease: holding.lease.unwrap_or(self.lease),
            max_hold: holding.max_hold.unwrap_or(self.max_hold),
            renew_every: None,
            ..*self
        };
        own.check()
    }

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
                "a lease of {lease:?} is not longer than its drift margin of {drift:?}: nobody would ever hold it"
            ));
        }
        if every.is_zero() || every >= lease / 2 {
            return refuse(format!(
                "renewing every {every:?} does not fit a lease of {lease:?}: it must be above zero and below half of \
                 the lease, so that a renewal can fail once"
            ));
        }
        if poll_interval.is_zero() || poll_interval >= waiter_deadline {
            return refuse(format!(
                "a poll interval of {poll_interval:?} does not fit a waiter's deadline of {waiter_deadline:?}: it must \
                 be above zero and below the deadline, or a waiter loses its place between two polls"
            ));
        }
        if self.max_hold.is_zero() {
            return refuse("a `max_hold` of 0ns leaves no time for any turn".into());
        }
        Ok(())
    }
}

/// Builds [`Locks`].
///
/// | setting | default | what it is |
/// |---|---|---|
/// | [`lease`](Self::lease) | 30 s | how long a crashed holder keeps its key |
/// | [`renew_every`](Self::renew_every) | a third of the lease | how often a held lease is prolonged |
/// | [`give_up_after`](Self::give_up_after) | never | how many unanswered renewals in a row are a loss before the deadline |
/// | [`max_hold`](Self::max_hold) | 10 min | how long one turn may last |
/// | [`wait_limit`](Self::wait_limit) | 10 s | how long [`Locks::lock`] waits |
/// | [`longest_line`](Self::longest_line) | 1,024 | how many requests of this process may wait for one key |
/// | [`max_keys`](Self::max_keys) | 131,072 | how many keys this process may use at a time |
/// | [`fail_fast`](Self::fail_fast) | no | whether waiters are told at once that the store is away |
/// | [`poll_interval`](Self::poll_interval) | 1 s | how often a waiter asks when no hint reaches it |
/// | [`waiter_deadline`](Self::waiter_deadline) | 3 s | how long a waiter that is not heard of keeps its place |
/// | [`pass_turns`](Self::pass_turns) | 16 | how many turns a lease still serves once another instance waits, |
/// | [`pass_time`](Self::pass_time) | 10 ms | and for how long; whichever ends first |
///
/// A combination that cannot work is refused by [`build`](Self::build), not bent into one that can. All instances
/// that share a store should have the same settings.
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct LocksBuilder {
    store: Arc<dyn Store>,
    config: Config,
}

impl LocksBuilder {
    pub(crate) fn new(store: Arc<dyn Store>) -> Self {
        Self {
            store,
            config: Config::default(),
        }
    }

    /// How long the store keeps a lease that is not renewed: so long does the key of a crashed process stay locked.
    /// Default: 30 s.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.config.lease = lease;
        self
    }

    /// How often a held lease is renewed; below half of the lease. Default: a third of the lease.
    pub fn renew_every(mut self, interval: Duration) -> Self {
        self.config.renew_every = Some(interval);
        self
    }

    /// Counts a lease as lost after so many renewals in a row without an answer, although its time is not over yet.
    /// Default: only at the deadline.
    pub fn give_up_after(mut self, unknowns: NonZeroU32) -> Self {
        self.config.give_up_after = Some(unknowns);
        self
    }

    /// How long one turn may last: a handler that hangs must not hold its key for ever. Then the turn is lost, with
    /// [`Loss::MaxHold`](crate::Loss::MaxHold). Default: 10 minutes.
    pub fn max_hold(mut self, longest: Duration) -> Self {
        self.config.max_hold = longest;
        self
    }

    /// How long [`Locks::lock`] waits before it fails with [`ErrorKind::Held`]. Default: 10 s.
    ///
    /// To outlast a holder that has crashed, the limit must be above the lease. Requests that wait for each other (each holds
    /// a key that the other one waits for) end by this limit, and by nothing else.
    pub fn wait_limit(mut self, limit: Duration) -> Self {
        self.config.wait_limit = Some(limit);
        self
    }

    /// Lets [`Locks::lock`] wait without a limit. Two requests that wait for each other's keys then wait for ever.
    pub fn wait_forever(mut self) -> Self {
        self.config.wait_limit = None;
        self
    }

    /// How many requests of this process may wait for one key; one more fails with [`ErrorKind::LineFull`].
    /// Default: 1,024.
    pub fn longest_line(mut self, waiters: usize) -> Self {
        self.config.longest_line = waiters;
        self
    }

    /// How many keys may be held or waited for at a time; a request for one more fails with [`ErrorKind::TooManyKeys`]. Keys are made
    /// of what clients send, so without a bound a client could fill this process and the store. Default: 131,072.
    pub fn max_keys(mut self, keys: usize) -> Self {
        self.config.max_keys = keys;
        self
    }

    /// Refuses all who wait as soon as the store fails once, with [`ErrorKind::Unreachable`]. By default those who wait for a
    /// key survive a store that is away for a while, within their own limits, once the store has answered for that key;
    /// only [`Locks::try_lock`], and the first question for a key, fail at once.
    pub fn fail_fast(mut self, fails_fast: bool) -> Self {
        self.config.fail_fast = fails_fast;
        self
    }

    /// How often a waiting instance asks the store when no hint reaches it. Default: 1 s.
    pub fn poll_interval(mut self, interval: Duration) -> Self {
        self.config.poll_interval = interval;
        self
    }

    /// How long a waiting instance keeps its place in the store's queue without asking again; so long do others wait
    /// behind one that has crashed. Above the poll interval. Default: 3 s.
    pub fn waiter_deadline(mut self, deadline: Duration) -> Self {
        self.config.waiter_deadline = deadline;
        self
    }

    /// How many more turns a lease serves in this process once another instance is known to wait. Default: 16.
    pub fn pass_turns(mut self, turns: u32) -> Self {
        self.config.pass_turns = turns;
        self
    }

    /// For how long a lease is still passed on in this process once another instance is known to wait. A turn
    /// under way is not cut short. Default: 10 ms.
    pub fn pass_time(mut self, time: Duration) -> Self {
        self.config.pass_time = time;
        self
    }

    /// Checks the settings.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`], naming the values that do not go together.
    pub fn build(self) -> Result<Locks, Error> {
        self.config.check()?;
        Ok(Locks(Arc::new(Inner::new(self.store, self.config))))
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
    fn what_cannot_work_is_refused_with_its_values() {
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
    fn what_can_work_is_taken() {
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
    fn trusts_a_lease_less_its_drift() {
        let lease = Config::default().lease;
        assert_eq!(crate::lease::validity(lease), 29_698 * MS);
    }
}
