//! What an instance tells of a store that does not answer, and of lost leases.
//!
//! A store that dies under 2,000 leases fails thousands of calls. The log tells the begin and the
//! end of such an outage, the end with counts, and each call and each lost lease at debug level
//! only:
//!
//! ```text
//!  0 s    a renewal without an answer    warn   lock.store_away { error }
//!  1 s    1,999 renewals, 40 questions   debug  lock.renewal_unknown, lock.store_failed
//! 30 s    2,000 leases expire            debug  lock.lost
//! 41 s    the store answers
//! 46 s    nothing has failed since       warn   lock.store_back { lasted: 41 s, losses: 2000, .. }
//! ```
//!
//! 1. An outage begins with the first failure. It ends when the store has answered, and nothing has
//!    failed and no lease was lost for [`CALM`] since. So an outage of one of several servers, or
//!    one in which some calls are answered, is one outage. So are the leases that a server has
//!    forgotten when it comes back.
//! 2. A loss without an outage is told at once. Further losses are counted in the same way, until
//!    none follows for [`CALM`].
//! 3. While all is well, an answer of the store costs one load.
//! 4. Events are written without any lock held.

use std::time::Duration;

use super::Totals;
use crate::{
    Error, ErrorKind, Loss,
    store::{Instance, Owner},
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Instant, later, now},
    trace::{self, Toll},
};

/// For how long nothing may go wrong before an outage counts as over. Longer than the pauses
/// between the questions and the renewals that a store which is away does not answer.
const CALM: Duration = Duration::from_secs(5);

/// What goes wrong at present, and how often something has gone wrong so far.
pub(crate) struct Troubles {
    instance: Instance,
    /// Whether there is a [`Trouble`].
    is_on: AtomicBool,
    trouble: Mutex<Option<Trouble>>,
    /// A release has failed, and none was answered since.
    releases_fail: AtomicBool,
    losses: AtomicU64,
    unanswered_renewals: AtomicU64,
    refused: AtomicU64,
}

/// An outage, or losses without one.
struct Trouble {
    /// When the first call failed, or the first lease was lost.
    began: Instant,
    /// Whether a call has failed.
    is_outage: bool,
    /// When the store answered for the first time after the last failure. `None` while it has not
    /// answered.
    answered: Option<Instant>,
    /// The time of the latest failure or loss.
    last: Instant,
    failed_questions: u64,
    unanswered_renewals: u64,
    losses: u64,
}

impl Troubles {
    pub(crate) fn new(instance: Instance) -> Self {
        Self {
            instance,
            is_on: AtomicBool::new(false),
            trouble: Mutex::new(None),
            releases_fail: AtomicBool::new(false),
            losses: AtomicU64::new(0),
            unanswered_renewals: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }

    /// A question for a key has failed.
    pub(crate) fn question_failed(&self, owner: Owner, error: &Error) {
        let is_outage = error.kind() == ErrorKind::Unreachable;
        trace::store_failed(owner, error, is_outage);
        if is_outage {
            self.failed(error, |trouble| trouble.failed_questions += 1);
        }
    }

    /// The store has not answered the renewal of a lease.
    pub(crate) fn renewal_unanswered(&self, owner: Owner, error: &Error) {
        trace::renewal_unknown(owner, error);
        self.unanswered_renewals.fetch_add(1, Ordering::Relaxed);
        self.failed(error, |trouble| trouble.unanswered_renewals += 1);
    }

    /// The store has not answered the release of an owner, or has refused it.
    pub(crate) fn release_failed(&self, owner: Owner, error: &Error) {
        let is_outage = error.kind() == ErrorKind::Unreachable && !error.is_interrupted();
        let is_told = self.releases_fail.swap(true, Ordering::AcqRel);
        trace::release_failed(owner, error, !is_told);
        if is_outage {
            self.failed(error, |_| {});
        }
    }

    fn failed(&self, error: &Error, count: impl FnOnce(&mut Trouble)) {
        let now = now();
        let mut trouble = self.trouble.lock();
        let current = trouble.get_or_insert_with(|| Trouble::new(now));
        let begins = !current.is_outage;
        if begins {
            current.is_outage = true;
            current.began = now;
        }
        current.answered = None;
        current.last = now;
        count(current);
        self.is_on.store(true, Ordering::Release);
        drop(trouble);
        if begins {
            trace::store_away(self.instance, error);
        }
    }

    /// A lease was lost. Returns when to [`look`](Self::look) again at the latest.
    pub(crate) fn lost(&self, owner: Owner, loss: Loss) -> Option<Instant> {
        let now = now();
        let mut trouble = self.trouble.lock();
        let is_first = trouble.is_none();
        let current = trouble.get_or_insert_with(|| Trouble::new(now));
        current.losses += 1;
        current.last = now;
        let over_at = current.over_at();
        self.is_on.store(true, Ordering::Release);
        drop(trouble);
        self.losses.fetch_add(1, Ordering::Relaxed);
        trace::lost(owner, loss, loss.code(), is_first);
        over_at
    }

    /// The store has answered a release: the next one that fails is told.
    pub(crate) fn release_answered(&self) {
        if self.releases_fail.load(Ordering::Acquire) {
            self.releases_fail.store(false, Ordering::Release);
        }
    }

    /// The store has answered a call. Returns when to [`look`](Self::look) again at the latest, if
    /// this answer changes that.
    pub(crate) fn answered(&self) -> Option<Instant> {
        if !self.is_on.load(Ordering::Acquire) {
            return None;
        }
        let mut trouble = self.trouble.lock();
        let current = trouble.as_mut().filter(|it| it.answered.is_none())?;
        current.answered = Some(now());
        current.over_at()
    }

    /// Ends the outage, if it is over. Returns when it may be.
    pub(crate) fn look(&self, now: Instant) -> Option<Instant> {
        if !self.is_on.load(Ordering::Acquire) {
            return None;
        }
        let trouble = self.trouble.lock();
        let over_at = trouble.as_ref()?.over_at()?;
        if now < over_at {
            return Some(over_at);
        }
        self.end(trouble);
        None
    }

    /// Tells what there is to tell of an outage, because the instance ends.
    pub(crate) fn close(&self) {
        self.end(self.trouble.lock());
    }

    fn end(&self, mut trouble: MutexGuard<'_, Option<Trouble>>) {
        let over = trouble.take();
        self.is_on.store(false, Ordering::Release);
        drop(trouble);
        if let Some(over) = over {
            self.tell_end(over);
        }
    }

    fn tell_end(&self, over: Trouble) {
        let toll = Toll {
            lasted: over.lasted(),
            failed_questions: over.failed_questions,
            unanswered_renewals: over.unanswered_renewals,
            losses: over.losses,
        };
        match (over.is_outage, over.answered) {
            (true, Some(_)) => trace::store_back(self.instance, &toll),
            (true, None) => trace::closed_while_away(self.instance, &toll),
            // A single loss was told when it happened.
            (false, _) if toll.losses > 1 => trace::losses(self.instance, &toll),
            (false, _) => {}
        }
    }

    /// A request got no turn.
    pub(crate) fn refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Adds how often something has gone wrong so far.
    pub(super) fn add_to(&self, totals: &mut Totals) {
        totals.losses += self.losses.load(Ordering::Relaxed);
        totals.unanswered_renewals += self.unanswered_renewals.load(Ordering::Relaxed);
        totals.refused += self.refused.load(Ordering::Relaxed);
    }
}

impl Trouble {
    fn new(now: Instant) -> Self {
        Self {
            began: now,
            is_outage: false,
            answered: None,
            last: now,
            failed_questions: 0,
            unanswered_renewals: 0,
            losses: 0,
        }
    }

    /// When the trouble is over, if nothing happens until then. `None` while the store is away.
    fn over_at(&self) -> Option<Instant> {
        match self.answered {
            None if self.is_outage => None,
            None => Some(later(self.last, CALM)),
            Some(answered) => Some(later(answered.max(self.last), CALM)),
        }
    }

    /// How long the store was away, or for how long leases were lost.
    fn lasted(&self) -> Duration {
        let end = match self.answered {
            Some(answered) if self.is_outage => answered,
            _ => self.last,
        };
        end.saturating_duration_since(self.began)
    }
}
