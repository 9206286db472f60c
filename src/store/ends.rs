//! The owners that a store has to forget: of leases that are over, of places in a queue that were
//! given up, and of questions whose outcome is not known.
//!
//! [`Ends`] is plain data that takes the time as an argument. An ending is added when its release
//! is sent, and is kept until the store has confirmed that it has nothing of that owner, or until
//! the owner's time is over in the store:
//!
//! ```text
//! add ──▶ under way ── freed, not ours ─────────────────────────▶ gone
//!          ▲   │  └─── refused, because it cannot work ─────────▶ gone
//!          │   └────── no answer, or not yet ──▶ paused ── `until` ──▶ gone
//!          └─────────── take_due ─────────────────┘
//! ```
//!
//! 1. An ending is repeated until it is gone. Releases are harmless in any number and any order,
//!    because an owner that ends is never asked for again.
//! 2. *Not yet* means that an acquire of the same owner may still take effect: the ending stays.
//! 3. Paused endings are repeated in rounds of [`AT_ONCE`], so that a store that is away, or that
//!    refuses them, costs the same however many endings there are. The rounds follow each other at
//!    once while they succeed, and otherwise after pauses that grow to [`LONGEST_REST`]. After such
//!    a pause, one ending goes first.
//! 4. Acquires of the same key name its endings ([`to_carry`](Ends::to_carry)), which makes room
//!    for them at once. That settles nothing: only the answer to a release does.
//! 5. A caller that waits is told after a few failures, or when nothing is left that would repeat
//!    the release. The ending itself goes on.
//! 6. An ending with a record is not carried: the acquire would free the key of work that is done.
//!    Nor is one whose caller waits, for whom *not ours* means that the lease was lost.
//! 7. An owner has one ending, however often its end is asked for.

use std::{collections::VecDeque, time::Duration};

use smallvec::SmallVec;

use super::{End, Ending, Outcome, Owner, Release, Released};
use crate::{
    Error, ErrorKind, LockKey, Loss,
    key::KeyMap,
    sync::oneshot,
    time::{BackOff, Instant, later},
};

/// How many paused endings are repeated in one round.
const AT_ONCE: usize = 4;
/// How many endings an acquire carries.
const CARRIED: usize = 16;
/// The pause before the second round in a row without success. The first one follows at once.
const FIRST_REST: Duration = Duration::from_millis(20);
/// The longest pause between two rounds.
const LONGEST_REST: Duration = Duration::from_secs(1);
/// After this many failures, a caller that waits is told. The ending goes on.
const TRIES_OF_A_CALLER: u8 = 2;

/// A caller that is told whether a lease was held until the caller asked.
pub(crate) type Caller = oneshot::Sender<Result<(), Error>>;

/// The callers that wait for the same answer.
pub(crate) type Callers = SmallVec<[Caller; 1]>;

/// Tells callers the outcome. Wakes their tasks, and so must not be called with a lock held.
pub(crate) fn tell(callers: Callers, outcome: &Result<(), Error>) {
    for caller in callers {
        let _ = caller.send(outcome.clone());
    }
}

/// The endings of some keys.
#[derive(Debug, Default)]
pub(crate) struct Ends {
    by_key: KeyMap<SmallVec<[Entry; 1]>>,
    count: usize,
    /// The endings that wait for their next round, in order.
    paused: VecDeque<(LockKey, Owner)>,
    /// When the next round begins, while endings are paused.
    round: Option<Instant>,
    /// The pause before the next round but one.
    rest: BackOff,
}

#[derive(Debug)]
struct Entry {
    release: Release,
    /// When the store has nothing of the owner any more, whatever happens.
    until: Instant,
    /// How often the release has failed.
    tries: u8,
    /// A release had an unknown outcome, and may have been the one that freed the key.
    had_unknown: bool,
    is_paused: bool,
    /// The ending was added again after the release was sent, which is therefore repeated.
    once_more: bool,
    callers: Callers,
}

/// What is to be done when the time for a round has come, after the lock of the endings is free.
#[derive(Debug, Default)]
pub(crate) struct Round {
    /// The releases to be sent.
    pub(crate) releases: Vec<Release>,
    /// The callers that have waited for endings whose time is over.
    pub(crate) given_up: Callers,
}

/// The effects of an outcome, for after the lock of the endings is free.
#[derive(Debug, Default)]
pub(crate) struct Told {
    /// The callers that have waited for the outcome, and what they are told.
    pub(crate) callers: Option<(Callers, Result<(), Error>)>,
    /// When the next round begins, if it has to be waited for.
    pub(crate) round: Option<Instant>,
    /// The ending has failed for the first time, for this reason.
    pub(crate) failed: Option<Error>,
    /// Callers wait for the next round.
    pub(crate) are_waiting: bool,
}

impl Ends {
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// Adds an ending. The caller sends the release that is returned. An owner that ends already
    /// has one: the new callers wait for the outcome of that one, which is repeated in any case.
    pub(crate) fn add(
        &mut self,
        release: Release,
        callers: Callers,
        now: Instant,
    ) -> Option<Release> {
        // What comes late lasts as long from then on.
        let lasts = (release.lasts).saturating_mul(1 + u32::from(release.in_doubt));
        let until = later(now, lasts);
        if let Some(entry) = self.entry(&release.key, release.owner) {
            entry.release.in_doubt |= release.in_doubt;
            entry.until = entry.until.max(until);
            entry.callers.extend(callers);
            // The release under way may be too early for what this one is to end.
            entry.once_more = true;
            return None;
        }
        let key = release.key.clone();
        let entry = Entry {
            release,
            until,
            tries: 0,
            had_unknown: false,
            is_paused: false,
            once_more: false,
            callers,
        };
        let release = entry.release(now);
        self.by_key.entry(key).or_default().push(entry);
        self.count += 1;
        Some(release)
    }

    /// The endings of a key that its next acquire names.
    pub(crate) fn to_carry(&self, key: &LockKey) -> Vec<End> {
        let Some(entries) = self.by_key.get(key) else {
            return Vec::new();
        };
        let carried = entries.iter().filter(|entry| entry.is_carried());
        let carried = carried.take(CARRIED).map(|entry| End {
            owner: entry.release.owner,
            mode: entry.release.mode,
        });
        carried.collect()
    }

    /// Whether the key has an ending of this owner.
    #[cfg(shuttle)]
    pub(crate) fn contains(&self, key: &LockKey, owner: Owner) -> bool {
        let entries = self.by_key.get(key);
        entries.is_some_and(|entries| entries.iter().any(|entry| entry.release.owner == owner))
    }

    /// Takes the outcome of a release.
    pub(crate) fn released(
        &mut self,
        key: &LockKey,
        owner: Owner,
        outcome: Outcome<Released>,
        now: Instant,
    ) -> Told {
        let rest = self.rest.last();
        let Some(entry) = self.entry(key, owner) else {
            return Told::default(); // its time was over before
        };
        let lost = || lost(entry.had_unknown);
        let once_more = std::mem::take(&mut entry.once_more);
        let (result, error) = match outcome {
            Outcome::Answered(Released::NotOurs | Released::NotYet) if once_more => (None, None),
            Outcome::Answered(Released::Freed) => (Some(Ok(())), None),
            Outcome::Answered(Released::NotOurs) => (Some(Err(lost())), None),
            Outcome::Answered(Released::NotYet) if !entry.release.in_doubt => {
                (Some(Err(lost())), None)
            }
            Outcome::Answered(Released::NotYet) => (None, None),
            // A release that cannot work is not repeated.
            Outcome::Refused(error) if error.kind() != ErrorKind::Unreachable => {
                (Some(Err(error.clone())), Some(error))
            }
            Outcome::Refused(error) => (None, Some(error)),
            Outcome::Unknown(error) => {
                entry.had_unknown = true;
                (None, Some(error))
            }
        };
        let failed = error.clone().filter(|_| entry.tries == 0);
        let mut told = Told {
            failed,
            ..Told::default()
        };
        if let Some(result) = result {
            let has_failed = entry.tries > 0;
            let callers = self.remove(key, owner).map(|entry| entry.callers);
            told.callers = callers.map(|callers| (callers, result));
            // A release that works at once says nothing about those that do not.
            if has_failed {
                self.hurry(now);
            }
        } else {
            entry.tries = entry.tries.saturating_add(1);
            entry.is_paused = true;
            // Where others fail as well, the next round of this one may be far away.
            if (entry.tries >= TRIES_OF_A_CALLER || !rest.is_zero())
                && let Some(error) = error
            {
                told.callers = Some((std::mem::take(&mut entry.callers), Err(error)));
            }
            told.are_waiting = !entry.callers.is_empty();
            if told.are_waiting {
                self.paused.push_front((key.clone(), owner));
            } else {
                self.paused.push_back((key.clone(), owner));
            }
            self.round.get_or_insert_with(|| later(now, rest));
        }
        told.round = self.round;
        told
    }

    /// The next round, if it is time for one. Endings whose time is over are dropped.
    pub(crate) fn take_due(&mut self, now: Instant) -> Round {
        let mut due = Round::default();
        if self.round.is_none_or(|round| now < round) {
            return due;
        }
        let has_rested = self.rest.last() >= LONGEST_REST;
        if has_rested {
            self.drop_expired(now, &mut due);
        }
        let most = if has_rested { 1 } else { AT_ONCE };
        while due.releases.len() < most
            && let Some((key, owner)) = self.paused.pop_front()
        {
            let entry = self.entry(&key, owner);
            if let Some(entry) = entry.filter(|entry| now < entry.until) {
                entry.is_paused = false;
                due.releases.push(entry.release(now));
            } else {
                let over = self.remove(&key, owner);
                due.given_up
                    .extend(over.into_iter().flat_map(|it| it.callers));
            }
        }
        // The next round follows the first success, or a pause without one.
        let rest = self.rest.lengthen(FIRST_REST, LONGEST_REST);
        self.round = (!self.paused.is_empty()).then(|| later(now, rest));
        due
    }

    /// The callers that wait for the next round, when nothing is left that would begin it.
    pub(crate) fn give_up_waiting(&mut self) -> Callers {
        let entries = self.by_key.values_mut().flatten();
        let paused = entries.filter(|entry| entry.is_paused);
        let callers = paused.map(|entry| std::mem::take(&mut entry.callers));
        callers.flatten().collect()
    }

    /// When the next round begins.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.round
    }

    /// Repeats the paused endings now, because the store is back.
    pub(crate) fn hurry(&mut self, now: Instant) -> Option<Instant> {
        self.rest = BackOff::default();
        if !self.paused.is_empty() {
            self.round = Some(now);
        }
        self.round
    }

    /// Drops the paused endings whose time is over, in one walk over all endings.
    fn drop_expired(&mut self, now: Instant, due: &mut Round) {
        self.paused.clear();
        self.by_key.retain(|key, entries| {
            entries.retain(|entry| {
                let is_over = entry.is_paused && entry.until <= now;
                if is_over {
                    self.count -= 1;
                    due.given_up.extend(std::mem::take(&mut entry.callers));
                } else if entry.is_paused {
                    self.paused.push_back((key.clone(), entry.release.owner));
                }
                !is_over
            });
            !entries.is_empty()
        });
    }

    fn entry(&mut self, key: &LockKey, owner: Owner) -> Option<&mut Entry> {
        let mut entries = self.by_key.get_mut(key)?.iter_mut();
        entries.find(|entry| entry.release.owner == owner)
    }

    fn remove(&mut self, key: &LockKey, owner: Owner) -> Option<Entry> {
        let entries = self.by_key.get_mut(key)?;
        let at = entries
            .iter()
            .position(|entry| entry.release.owner == owner)?;
        let entry = entries.swap_remove(at);
        if entries.is_empty() {
            self.by_key.remove(key);
        }
        self.count -= 1;
        Some(entry)
    }
}

impl Entry {
    fn is_carried(&self) -> bool {
        let mut callers = self.callers.iter();
        callers.all(Caller::is_closed) && self.release.ending == Ending::Free
    }

    fn release(&self, now: Instant) -> Release {
        Release {
            lasts: self.until.saturating_duration_since(now),
            ..self.release.clone()
        }
    }
}

/// What *not ours* means for a caller.
fn lost(had_unknown: bool) -> Error {
    if had_unknown {
        return Error::new(
            ErrorKind::Unreachable,
            "the answer to the release was lost: the key was freed by it, or the lease was lost before",
        );
    }
    let loss = Loss::NotOurs;
    Error::new(ErrorKind::Lost, format!("the lease was lost: {loss}"))
}
