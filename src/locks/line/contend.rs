//! Transitions of a line whose contender asks the store for a lease.
//!
//! The contender and its line talk in rounds. Each round is one call to the store (`demand` and
//! `granted` are in `serve`):
//!
//! ```text
//! Line                                             Contender
//! demand ── Demand { owner, mode, block, .. } ───▶ Store::acquire
//!                                                       │
//! granted(lease, tokens) ◀── Granted ───────────────────┤   the contender ends
//! held(label, asked)     ◀── Held ──────────────────────┤   pause, then the next round with the same owner
//! recorded(content)      ◀── Recorded ──────────────────┤   the contender ends
//! ask_failed(error)      ◀── refused, or unknown ────────┘   pause, then the next round; after *unknown* with a new owner
//! ```
//!
//! The line keeps the owners that a round names: as `asked` while the question is under way, and as
//! `place` while the attempt is in the store's queue. Whoever takes one of them away gives it a
//! lease or an ending, so the end of a contender, at whatever moment, leaves no owner behind.
//!
//! The demand is made anew for each round, because the requests in line change: the first request
//! may have left, or may want another mode than the attempt that is in the store's queue. The line
//! then gives up the place of that attempt.
//!
//! An answer of *held* is for the requests whose modes it covers. A key that cannot be had
//! exclusively may still be shared, and one without room for the fourth permit may have room for
//! the eighth:
//!
//! ```text
//! [now, now and shared]     asked exclusively: held   the first is refused, and the second asks at once
//! [waits, now and shared]   asked exclusively: held   the first pauses, and the second, which is behind, is refused
//! ```

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use smallvec::SmallVec;

use super::{
    Away, Line, NoTurn, SILENT_AFTER, Transition, elsewhere, held_error, other, recorded_error,
};
use crate::{
    Error, ErrorKind, LockKey,
    lease::{Lease, validity},
    store::{Held, Mode, Owner},
    sync::Notify,
    time::{Instant, later},
};

/// Why a contender is woken up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Wake {
    /// The store has offered the key to the attempt before this one in the queue: ask once the head
    /// start is over.
    Next,
    /// Ask now.
    Now,
}

/// The part of a line's state that concerns its contender.
#[derive(Debug)]
pub(super) struct Contending {
    /// The number of the contender. `None` while the contender is gone with its runtime, and the
    /// next one has not started yet.
    contender: Option<u64>,
    /// The contender may be with the first request of the line, which has been alone so far.
    is_alone: bool,
    /// The strongest wake-up that the contender has not taken yet.
    wake: Option<Wake>,
    /// Notified about wake-ups while the contender pauses.
    woken: Option<Arc<Notify>>,
    /// The store has answered a question for this line before.
    answered: bool,
    /// The question under way.
    asked: Option<Asked>,
    /// The attempt's place in the store's queue, while no question is under way.
    place: Option<Place>,
    /// Set while the store fails.
    away: Option<Away>,
    /// The label of the holder's store.
    holder: Option<Arc<str>>,
}

impl Contending {
    /// `answered` is whether the store has answered for this line before; `away` is set if the
    /// store failed for a lease that the line had until now.
    pub(super) fn new(contender: u64, answered: bool, away: Option<Away>) -> Self {
        Self {
            contender: Some(contender),
            is_alone: !answered,
            wake: None,
            woken: None,
            answered,
            asked: None,
            place: None,
            away,
            holder: None,
        }
    }

    /// Notes that a question is asked.
    pub(super) fn ask(&mut self, asked: Asked) {
        self.asked = Some(asked);
        self.place = None;
    }

    /// Takes the question under way, unless the time of its leases is over.
    pub(super) fn take_if_in_time(&mut self, now: Instant) -> Option<Asked> {
        let is_in_time = |asked: &mut Asked| now < later(asked.at, validity(asked.length));
        self.asked.take_if(is_in_time)
    }

    /// The attempt's place in the store's queue.
    pub(super) fn place(&self) -> Option<Place> {
        self.place
    }

    /// Stores a wake-up, unless a stronger one is already there, and notifies the contender.
    fn wake(&mut self, wake: Wake) {
        self.wake = self.wake.max(Some(wake));
        self.woken.iter().for_each(|woken| woken.notify_one());
    }

    /// Since when the store has failed, or has left a question unanswered for longer than
    /// `patience`.
    pub(super) fn away(&self, now: Instant, patience: Duration) -> Option<Away> {
        let silent = |since: &Instant| now >= *since + patience;
        let silent = || self.asked.as_ref().map(|asked| asked.at).filter(silent);
        self.away
            .clone()
            .or_else(|| silent().map(|since| Away { since, error: None }))
    }

    /// The label of the holder, from the last answer of *held*.
    pub(super) fn holder(&self) -> Option<&Arc<str>> {
        self.holder.as_ref()
    }

    /// How long a question may be unanswered before the store counts as away, for a request that
    /// has waited for `limit`. Zero if the store has never answered for this line.
    pub(super) fn patience(&self, limit: Duration) -> Duration {
        if self.answered {
            limit.min(SILENT_AFTER)
        } else {
            Duration::ZERO
        }
    }
}

/// An attempt's place in the store's queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) owner: Owner,
    pub(crate) mode: Mode,
}

/// A question under way, with what the line needs to make leases of the answer.
#[derive(Debug)]
pub(super) struct Asked {
    /// When the question was asked.
    pub(super) at: Instant,
    /// The owners that it names.
    pub(super) owners: SmallVec<[Owner; 1]>,
    pub(super) mode: Mode,
    pub(super) length: Duration,
    pub(super) fingerprint: Option<Bytes>,
    /// The first owner keeps a place in the store's queue if the key is held.
    pub(super) waits: bool,
    /// The first owner has had a place before.
    pub(super) had_place: bool,
}

impl Asked {
    /// A lease that was granted to one of the owners.
    pub(super) fn lease(&self, key: &LockKey, owner: Owner) -> Arc<Lease> {
        let fingerprint = self.fingerprint.clone();
        let lease = Lease::new(
            key.clone(),
            owner,
            fingerprint,
            self.at,
            self.length,
            self.mode,
        );
        Arc::new(lease)
    }

    /// The place of the first owner in the store's queue.
    fn place(&self) -> Place {
        Place {
            owner: self.owners[0],
            mode: self.mode,
        }
    }
}

/// Why a question has brought no lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unanswered {
    /// The question has no effect, and never will.
    Refused,
    /// The question may have taken effect, or may still do so.
    Unknown,
    /// So many of the owners were granted a lease, whose time was over before the answer came.
    TooLate(usize),
}

impl Line {
    /// Makes the contender ask the store again.
    pub(crate) fn wake_contender(&mut self) {
        if let Some(contending) = &mut self.contending {
            contending.wake(Wake::Now);
        }
    }

    /// Tells the contender that the key was offered to the attempt before this one.
    pub(crate) fn is_next(&mut self) {
        if let Some(contending) = &mut self.contending {
            contending.wake(Wake::Next);
        }
    }

    /// Makes a contender ask again that pauses because the key is held. A contender that asks
    /// anyway, or that backs off from a store that is away, is left alone.
    pub(super) fn ask_if_queued(&mut self) {
        if self.is_queued() {
            self.wake_contender();
        }
    }

    /// Whether the key is held in another instance, as far as known, and the contender waits in the
    /// store's queue.
    pub(super) fn is_queued(&self) -> bool {
        let contending = self.contending.as_ref();
        contending.is_some_and(|it| it.place.is_some() && it.away.is_none())
    }

    /// Takes the contender's wake-up, if there is one. Later wake-ups notify `woken`.
    pub(crate) fn take_wake(&mut self, woken: &Arc<Notify>) -> Option<Wake> {
        let contending = self.contending.as_mut()?;
        contending.woken = Some(woken.clone());
        contending.wake.take()
    }

    /// Whether the line contends, and the contender has this number.
    pub(crate) fn is_contended_by(&self, contender: u64) -> bool {
        let contending = self.contending.as_ref();
        contending.is_some_and(|contending| contending.contender == Some(contender))
    }

    /// Lets the background poll the question that the first request has polled while it was alone:
    /// a request that joins must not depend on whether the task of the first one is polled.
    pub(super) fn not_alone(&mut self, t: &mut Transition<'_>) {
        let contending = self.contending.as_mut();
        if contending.is_some_and(|contending| std::mem::take(&mut contending.is_alone)) {
            t.follow_up.asks_alone = self.waiters.front().cloned();
        }
    }

    /// Handles the answer that the key is held elsewhere. Requests that do not wait are refused if
    /// the answer covers them, or if a request ahead goes on waiting. Requests with another
    /// fingerprint than the holder's are refused, too.
    ///
    /// Returns whether the contender pauses: its attempt is in the store's queue, for the first
    /// request in line. No request that does not wait is left in that case.
    pub(crate) fn held(&mut self, found: &Held, t: &mut Transition<'_>) -> bool {
        let Some(contending) = &mut self.contending else {
            return false;
        };
        let Some(asked) = contending.asked.take() else {
            return false;
        };
        contending.answered = true;
        contending.away = None;
        contending.place = asked.waits.then(|| asked.place());
        contending.holder = found.label.clone();
        let mut waits_ahead = false;
        self.refuse_if(t, |turn| {
            let request = &turn.request;
            if let Some(other) = other(&request.fingerprint, &found.fingerprint) {
                return Some(NoTurn::OtherFingerprint(other));
            }
            let is_covered = asked.mode.held_means_held_for(request.mode);
            waits_ahead |= is_covered && request.patient;
            let is_refused = !request.patient && (is_covered || waits_ahead);
            is_refused.then(|| held_error(found.label.as_deref().map(elsewhere)).into())
        });
        let first = self.waiters.front().map(|turn| turn.request.mode);
        asked.waits && first == Some(asked.mode)
    }

    /// Ends the contender, because the work that the key is claimed for is already recorded.
    pub(crate) fn recorded(&mut self, record: &Bytes, t: &mut Transition<'_>) {
        self.contending = None;
        self.share(record, t);
        self.refuse_all(&recorded_error(), t);
    }

    /// Handles a failure of the store. All requests fail if asking again is pointless, or if the
    /// store has never answered for this line; otherwise the patient ones go on waiting. Returns
    /// whether there are any, for which the store is asked again.
    pub(crate) fn ask_failed(
        &mut self,
        key: &LockKey,
        error: &Error,
        why: Unanswered,
        t: &mut Transition<'_>,
    ) -> bool {
        let since = self.end_question(key, why, t).unwrap_or(t.now);
        let Some(contending) = &mut self.contending else {
            return false;
        };
        let is_final = error.kind() != ErrorKind::Unreachable;
        if is_final || !contending.answered || t.config.fail_fast {
            self.abandoned(key, error, t);
            return false;
        }
        let away = contending.away.get_or_insert(Away { since, error: None });
        away.error = Some(error.clone());
        self.refuse_the_impatient(error, t);
        self.goes_on(key, t)
    }

    /// Ends the contender if no request is left. Returns whether it goes on.
    fn goes_on(&mut self, key: &LockKey, t: &mut Transition<'_>) -> bool {
        if self.waiters.is_empty() {
            self.give_up_place(key, t);
            self.contending = None;
        }
        self.contending.is_some()
    }

    /// Ends the contender, and refuses all requests.
    pub(crate) fn abandoned(&mut self, key: &LockKey, error: &Error, t: &mut Transition<'_>) {
        self.end_question(key, Unanswered::Unknown, t);
        self.give_up_place(key, t);
        self.contending = None;
        self.refuse_all(error, t);
    }

    /// Decides about the owners of a question that has brought no lease. Returns when the question
    /// was asked.
    pub(crate) fn end_question(
        &mut self,
        key: &LockKey,
        why: Unanswered,
        t: &mut Transition<'_>,
    ) -> Option<Instant> {
        let contending = self.contending.as_mut()?;
        let asked = contending.asked.take()?;
        let (ended, in_doubt) = match why {
            Unanswered::Refused => {
                contending.place = asked.had_place.then(|| asked.place());
                (0, false)
            }
            Unanswered::Unknown => (asked.owners.len(), true),
            Unanswered::TooLate(granted) => (granted, false),
        };
        let lasts = asked.length.max(t.config.waiter_deadline);
        for owner in asked.owners.into_iter().take(ended) {
            let mode = asked.mode;
            t.end_attempt(key, Place { owner, mode }, lasts, in_doubt);
        }
        Some(asked.at)
    }

    /// Gives up the attempt's place in the store's queue.
    pub(super) fn give_up_place(&mut self, key: &LockKey, t: &mut Transition<'_>) {
        let contending = self.contending.as_mut();
        if let Some(place) = contending.and_then(|contending| contending.place.take()) {
            t.end_attempt(key, place, t.config.waiter_deadline, false);
        }
    }

    /// Handles a question that gets no answer because a runtime has ended, which is no failure of
    /// the store. Returns whether a request is left, and the store is to be asked again.
    pub(crate) fn interrupted(
        &mut self,
        key: &LockKey,
        why: Unanswered,
        t: &mut Transition<'_>,
    ) -> bool {
        self.end_question(key, why, t);
        self.give_up_place(key, t);
        self.goes_on(key, t)
    }

    /// Handles the end of the contender with its runtime. Returns whether the line needs another
    /// one, which [`take_over`](Self::take_over) gives to it.
    pub(crate) fn left_behind(&mut self, key: &LockKey, t: &mut Transition<'_>) -> bool {
        let is_needed = self.interrupted(key, Unanswered::Unknown, t);
        if let Some(contending) = &mut self.contending {
            contending.contender = None;
        }
        is_needed
    }

    /// Whether the line has lost its contender with a runtime.
    pub(super) fn is_left_behind(&self) -> bool {
        let contending = self.contending.as_ref();
        contending.is_some_and(|contending| contending.contender.is_none())
    }

    /// Returns the number of a new contender, if the line was left behind.
    pub(crate) fn take_over(&mut self, t: &mut Transition<'_>) -> Option<u64> {
        let contending = self.contending.as_mut();
        let contending = contending.filter(|contending| contending.contender.is_none())?;
        contending.contender = Some(t.number());
        contending.contender
    }

    /// Whether a lease, a place or a question of the line is in this owner's name.
    #[cfg(shuttle)]
    pub(crate) fn knows(&self, owner: Owner) -> bool {
        let contending = self.contending.as_ref();
        self.leases.iter().any(|held| held.lease.owner == owner)
            || contending.is_some_and(|contending| {
                contending.place.is_some_and(|place| place.owner == owner)
                    || (contending.asked.as_ref())
                        .is_some_and(|asked| asked.owners.contains(&owner))
            })
    }

    /// Refuses the requests that do not wait for a store that is away.
    pub(super) fn refuse_the_impatient(&mut self, error: &Error, t: &mut Transition<'_>) {
        self.refuse_if(t, |turn| {
            let is_impatient = turn.request.fail_fast || !turn.request.patient;
            is_impatient.then(|| error.clone().into())
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_wake_ups_that_come_together_are_the_stronger_one() {
        let mut contending = Contending::new(1, false, None);
        contending.wake(Wake::Next);
        contending.wake(Wake::Next);
        assert_eq!(contending.wake.take(), Some(Wake::Next));
        assert_eq!(contending.wake.take(), None, "it was taken already");
        contending.wake(Wake::Now);
        contending.wake(Wake::Next);
        assert_eq!(contending.wake.take(), Some(Wake::Now));
    }
}
