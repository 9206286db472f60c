//! Transitions of a line that has no lease, and whose contender asks the store for one.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use bytes::Bytes;

use super::{
    Away, HeldLease, Line, NoTurn, SILENT_AFTER, State, Transition, Turn, differ, elsewhere, held,
    recorded,
};
use crate::{
    Error, LockKey,
    lease::Lease,
    store::{Grant, Held, Owner},
    sync::Notify,
    time::Instant,
};

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
#[derive(Debug)]
pub(crate) struct Demand {
    /// When the question is asked.
    pub(crate) at: Instant,
    /// The attempt that is in the store's queue, or a new one.
    pub(crate) owner: Owner,
    /// Whether any request stays in line if the key is held.
    pub(crate) patient: bool,
    /// How many tokens are useful.
    pub(crate) block: u32,
    /// The fingerprint of the first request in line.
    pub(crate) fingerprint: Option<Bytes>,
    /// The length of the lease, if the first request in line sets its own.
    pub(crate) lease: Option<Duration>,
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
            state: State::Contending(Contending::new(contender, false, None)),
            waiters: VecDeque::from([turn]),
        }
    }

    /// Makes the contender ask the store again.
    pub(crate) fn wake_contender(&mut self) {
        if let State::Contending(contending) = &mut self.state {
            contending.wake(Wake::Now);
        }
    }

    /// Tells the contender that the key was offered to the attempt before this one.
    pub(crate) fn is_next(&mut self) {
        if let State::Contending(contending) = &mut self.state {
            contending.wake(Wake::Next);
        }
    }

    /// Takes the contender's wake-up, if there is one. Later wake-ups notify `woken`.
    pub(crate) fn take_wake(&mut self, woken: &Arc<Notify>) -> Option<Wake> {
        let State::Contending(contending) = &mut self.state else {
            return None;
        };
        contending.woken = Some(woken.clone());
        contending.wake.take()
    }

    /// Whether the line contends, and the contender has this number.
    pub(crate) fn is_contended_by(&self, contender: u64) -> bool {
        matches!(&self.state, State::Contending(contending) if contending.contender == contender)
    }

    /// Returns the next question for the store. If no request is left, the line ends, and its place in the store's
    /// queue is given up.
    pub(crate) fn demand(
        &mut self,
        key: &LockKey,
        queued: Option<Owner>,
        t: &mut Transition<'_>,
    ) -> Option<Demand> {
        let State::Contending(contending) = &mut self.state else {
            return None;
        };
        let Some(first) = self.waiters.front() else {
            if let Some(owner) = queued {
                t.release_place(key.clone(), owner);
            }
            self.state = State::Gone;
            return None;
        };
        contending.asked = Some(t.now);
        Some(Demand {
            at: t.now,
            owner: queued.unwrap_or_else(|| t.fresh_owner()),
            fingerprint: first.request.fingerprint.clone(),
            lease: first.request.holding.lease,
            patient: self.waiters.iter().any(|turn| turn.request.patient),
            block: self.block(1),
        })
    }

    /// Handles a granted lease.
    pub(crate) fn granted(
        &mut self,
        lease: Arc<Lease>,
        sent: Instant,
        grant: Grant,
        t: &mut Transition<'_>,
    ) {
        let fingerprint = lease.fingerprint.clone();
        if !self.wants_other_than(&fingerprint) {
            self.turn_away(|request| {
                differ(&request.fingerprint, &fingerprint).then_some(NoTurn::OtherFingerprint)
            });
        }
        self.serve(HeldLease::new(lease, grant, sent, t), t);
        if !matches!(self.state, State::Contending(_)) {
            self.turn_away(|request| (!request.patient).then(|| held(None).into()));
        }
    }

    /// Handles the answer that the key is held elsewhere. Requests that do not wait are refused, and so are requests
    /// with another fingerprint than the holder's. Returns whether any request is left.
    pub(crate) fn held(&mut self, found: &Held) -> bool {
        if let State::Contending(contending) = &mut self.state {
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

    /// Ends the line, because the work that the key is claimed for is already recorded.
    pub(crate) fn recorded(&mut self, record: &Bytes) {
        self.state = State::Gone;
        self.share(record);
        self.refuse_all(&recorded());
    }

    /// Handles a failure of the store. All requests fail if the store has never answered for this line; otherwise the
    /// patient ones go on waiting.
    pub(crate) fn ask_failed(
        &mut self,
        key: &LockKey,
        error: &Error,
        queued: Option<Owner>,
        t: &mut Transition<'_>,
    ) -> AfterFailure {
        let State::Contending(contending) = &mut self.state else {
            return AfterFailure::End;
        };
        if let Some(owner) = queued {
            t.release_place(key.clone(), owner);
        }
        if !contending.answered || t.limits.fail_fast {
            self.failed(error);
            return AfterFailure::End;
        }
        let since = contending.asked.take().unwrap_or(t.now);
        let away = contending.away.get_or_insert(Away { since, error: None });
        away.error = Some(error.clone());
        self.refuse_the_impatient(error);
        if self.waiters.is_empty() {
            self.state = State::Gone;
            return AfterFailure::End;
        }
        AfterFailure::AskAgain
    }

    /// Ends the line, because its contender was dropped.
    pub(crate) fn abandoned(
        &mut self,
        key: &LockKey,
        error: &Error,
        queued: Option<Owner>,
        t: &mut Transition<'_>,
    ) {
        if let Some(owner) = queued {
            t.release_place(key.clone(), owner);
        }
        self.failed(error);
    }

    /// Ends the line, and refuses all requests.
    fn failed(&mut self, error: &Error) {
        self.state = State::Gone;
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
