//! Transitions of a line whose contender asks the store for a lease.
//!
//! The contender and its line talk in rounds. Each round is one call to the store:
//!
//! ```text
//! Line                                             Contender
//! demand ── Demand { owner, mode, block, .. } ───▶ Store::acquire
//!                                                       │
//! granted(lease, tokens) ◀── Granted ───────────────────┤   the contender ends
//! held(remaining, label) ◀── Held ──────────────────────┤   pause, then the next round with the same owner
//! recorded(content)      ◀── Recorded ──────────────────┤   the contender ends
//! ask_failed(error)      ◀── an error ──────────────────┘   pause, then the next round with a new owner
//! ```
//!
//! The demand is made anew for each round, because the requests in line change: the first request may have left, or may
//! want another mode than the attempt that is in the store's queue. The line then gives up the place of that attempt.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use bytes::Bytes;

use super::{
    Away, HeldLease, Line, NoTurn, SILENT_AFTER, Transition, Turn, differ, elsewhere, held,
    leases::Leases, recorded,
};
use crate::{
    Error, ErrorKind, LockKey,
    lease::Lease,
    store::{Grant, Held, Mode, Owner, Tokens},
    sync::Notify,
    time::Instant,
};

/// The largest number of permits to ask for in one call.
const PERMITS_AT_MOST: usize = 256;

/// Why a contender is woken up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Wake {
    /// The store has offered the key to the attempt before this one in the queue: ask once the head start is over.
    Next,
    /// Ask now.
    Now,
}

/// The part of a line's state that concerns its contender.
#[derive(Debug)]
pub(super) struct Contending {
    /// The number of the contender.
    contender: u64,
    /// The strongest wake-up that the contender has not taken yet.
    wake: Option<Wake>,
    /// Notified about wake-ups while the contender pauses.
    woken: Option<Arc<Notify>>,
    /// The store has answered a question for this line before.
    answered: bool,
    /// When the unanswered question was sent.
    asked: Option<Instant>,
    /// Set while the store fails.
    away: Option<Away>,
    /// The label of the store that holds the key.
    holder: Option<Arc<str>>,
}

impl Contending {
    /// `answered` is whether the store has answered for this line before; `away` is set if the store failed for a lease that
    /// the line had until now.
    pub(super) fn new(contender: u64, answered: bool, away: Option<Away>) -> Self {
        Self {
            contender,
            wake: None,
            woken: None,
            answered,
            asked: None,
            away,
            holder: None,
        }
    }

    /// Stores a wake-up, unless a stronger one is already there, and notifies the contender.
    fn wake(&mut self, wake: Wake) {
        self.wake = self.wake.max(Some(wake));
        self.woken.iter().for_each(|woken| woken.notify_one());
    }

    /// Since when the store has failed, or has left a question unanswered for longer than `patience`.
    pub(super) fn away(&self, now: Instant, patience: Duration) -> Option<Away> {
        let silent = |since: &Instant| now >= *since + patience;
        let silent = || self.asked.filter(silent);
        self.away
            .clone()
            .or_else(|| silent().map(|since| Away { since, error: None }))
    }

    /// The label of the holder, from the last answer of *held*.
    pub(super) fn holder(&self) -> Option<&Arc<str>> {
        self.holder.as_ref()
    }

    /// How long a question may be unanswered before the store counts as away, for a request that has waited for
    /// `limit`. Zero if the store has never answered for this line.
    pub(super) fn patience(&self, limit: Duration) -> Duration {
        match self.answered {
            true => limit.min(SILENT_AFTER),
            false => Duration::ZERO,
        }
    }
}

/// A question for the store, as the requests in the line need it.
///
/// For a line with three exclusive requests, of which the first has waited in the store's queue before:
///
/// ```text
/// Demand { owner: 0c6f…:7, more: [], mode: Exclusive, patient: true, block: 3, fingerprint: None, lease: None }
/// ```
///
/// For three requests at a key with two permits, of which the line holds none, `more` has one further owner and `block`
/// is rounded up to a multiple of two, so that each lease gets the same number of tokens.
#[derive(Debug)]
pub(crate) struct Demand {
    /// When the question is asked.
    pub(crate) at: Instant,
    /// The attempt that is in the store's queue, or a new one.
    pub(crate) owner: Owner,
    /// Further owners that can use a permit.
    pub(crate) more: Vec<Owner>,
    /// The mode of the first request in line.
    pub(crate) mode: Mode,
    /// Whether any request stays in line if the key is held.
    pub(crate) patient: bool,
    /// How many tokens are useful.
    pub(crate) block: u32,
    /// The fingerprint of the first request in line.
    pub(crate) fingerprint: Option<Bytes>,
    /// The length of the lease, if the first request in line sets its own.
    pub(crate) lease: Option<Duration>,
}

/// An attempt's place in the store's queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) owner: Owner,
    pub(crate) mode: Mode,
}

/// The contender's next step after the store has failed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum AfterFailure {
    /// Requests still wait: ask again after a pause.
    AskAgain,
    /// The contender is not needed any more.
    End,
}

impl Line {
    /// Creates the line of a first request, which contends for the key.
    pub(crate) fn first(contender: u64, turn: Arc<Turn>) -> Self {
        Self {
            contending: Some(Contending::new(contender, false, None)),
            leases: Leases::default(),
            waiters: VecDeque::from([turn]),
        }
    }

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

    /// Takes the contender's wake-up, if there is one. Later wake-ups notify `woken`.
    pub(crate) fn take_wake(&mut self, woken: &Arc<Notify>) -> Option<Wake> {
        let contending = self.contending.as_mut()?;
        contending.woken = Some(woken.clone());
        contending.wake.take()
    }

    /// Whether the line contends, and the contender has this number.
    pub(crate) fn is_contended_by(&self, contender: u64) -> bool {
        let contending = self.contending.as_ref();
        contending.is_some_and(|contending| contending.contender == contender)
    }

    /// Returns the next question for the store. If no request needs a lease, the contender ends, and its place in the
    /// store's queue is given up.
    pub(crate) fn demand(
        &mut self,
        key: &LockKey,
        queued: Option<Place>,
        t: &mut Transition<'_>,
    ) -> Option<Demand> {
        let first = self.waiters.front().map(|turn| &turn.request);
        let first = first.filter(|request| self.needs_lease(request));
        let place = queued.filter(|place| first.is_some_and(|first| first.mode == place.mode));
        if let Some(queued) = queued
            && place.is_none()
        {
            t.release_place(key.clone(), queued);
        }
        let (Some(first), Some(contending)) = (first, &mut self.contending) else {
            self.contending = None;
            return None;
        };
        contending.asked = Some(t.now);
        let permits = self.permits_to_ask_for();
        Some(Demand {
            at: t.now,
            owner: place.map_or_else(|| t.fresh_owner(), |place| place.owner),
            more: (1..permits).map(|_| t.fresh_owner()).collect(),
            mode: first.mode,
            fingerprint: first.fingerprint.clone(),
            lease: first.holding.lease,
            patient: self.waiters.iter().any(|turn| turn.request.patient),
            block: match first.mode {
                Mode::Shared => 1,
                _ => self.block(1).next_multiple_of(permits as u32),
            },
        })
    }

    /// How many permits the requests at the head of the line can use beside those that the line has. One in other modes.
    fn permits_to_ask_for(&self) -> usize {
        let Some(mode @ Mode::Permit { of }) = self.waiters.front().map(|turn| turn.request.mode)
        else {
            return 1;
        };
        let most = (of as usize).saturating_sub(self.leases.len());
        let alike = self.waiters.iter().take(most.min(PERMITS_AT_MOST));
        let alike = alike.take_while(|turn| turn.request.mode == mode);
        alike.count().max(1)
    }

    /// Handles granted leases. `asked` is how many leases the question was for.
    pub(crate) fn granted(
        &mut self,
        leases: impl Iterator<Item = Arc<Lease>>,
        sent: Instant,
        grant: &Grant,
        asked: u32,
        t: &mut Transition<'_>,
    ) {
        self.contending = None;
        let each = grant.tokens.left() / asked;
        let mut first_token = grant.tokens.first().unwrap_or_default();
        for lease in leases {
            self.refuse_other_work(&lease.fingerprint);
            let tokens = Tokens::new(first_token, each);
            first_token += u64::from(each);
            let held = HeldLease::new(lease, tokens, grant.others_wait, sent, t);
            self.leases.add(held);
        }
        self.serve(t);
        if self.contending.is_none() {
            self.turn_away(|request| (!request.patient).then(|| held(None).into()));
        }
    }

    /// Refuses the requests with another fingerprint than the lease's, unless the first request in line is one of them:
    /// the lease is then not for this line any more.
    fn refuse_other_work(&mut self, fingerprint: &Option<Bytes>) {
        let first = self.waiters.front();
        if first.is_none_or(|first| first.request.fingerprint == *fingerprint) {
            self.turn_away(|request| {
                differ(&request.fingerprint, fingerprint).then_some(NoTurn::OtherFingerprint)
            });
        }
    }

    /// Handles the answer that the key is held elsewhere. Requests that do not wait are refused, and so are requests
    /// with another fingerprint than the holder's. Returns whether any request is left.
    pub(crate) fn held(&mut self, found: &Held) -> bool {
        if let Some(contending) = &mut self.contending {
            contending.answered = true;
            contending.asked = None;
            contending.away = None;
            contending.holder = found.label.clone();
        }
        self.turn_away(|request| {
            if differ(&request.fingerprint, &found.fingerprint) {
                return Some(NoTurn::OtherFingerprint);
            }
            (!request.patient).then(|| held(found.label.as_deref().map(elsewhere)).into())
        });
        !self.waiters.is_empty()
    }

    /// Ends the contender, because the work that the key is claimed for is already recorded.
    pub(crate) fn recorded(&mut self, record: &Bytes) {
        self.contending = None;
        self.share(record);
        self.refuse_all(&recorded());
    }

    /// Handles a failure of the store. All requests fail if asking again is pointless, or if the store has never
    /// answered for this line; otherwise the patient ones go on waiting.
    pub(crate) fn ask_failed(
        &mut self,
        key: &LockKey,
        error: &Error,
        queued: Option<Place>,
        t: &mut Transition<'_>,
    ) -> AfterFailure {
        let Some(contending) = &mut self.contending else {
            return AfterFailure::End;
        };
        if let Some(place) = queued {
            t.release_place(key.clone(), place);
        }
        let is_final = error.kind() != ErrorKind::Unreachable;
        if is_final || !contending.answered || t.limits.fail_fast {
            self.failed(error);
            return AfterFailure::End;
        }
        let since = contending.asked.take().unwrap_or(t.now);
        let away = contending.away.get_or_insert(Away { since, error: None });
        away.error = Some(error.clone());
        self.refuse_the_impatient(error);
        if self.waiters.is_empty() {
            self.contending = None;
            return AfterFailure::End;
        }
        AfterFailure::AskAgain
    }

    /// Fails the requests that wait, because their contender was dropped.
    pub(crate) fn abandoned(
        &mut self,
        key: &LockKey,
        error: &Error,
        queued: Option<Place>,
        t: &mut Transition<'_>,
    ) {
        if let Some(place) = queued {
            t.release_place(key.clone(), place);
        }
        self.failed(error);
    }

    /// Ends the contender, and refuses all requests.
    ///
    /// The line is gone afterwards, unless the line has leases.
    fn failed(&mut self, error: &Error) {
        self.contending = None;
        self.refuse_all(error);
    }

    /// Refuses the requests that do not wait for a store that is away.
    pub(super) fn refuse_the_impatient(&mut self, error: &Error) {
        self.turn_away(|request| {
            (request.fail_fast || !request.patient).then(|| error.clone().into())
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
