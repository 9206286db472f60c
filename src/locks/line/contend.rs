//! Contending: the line has no lease, and its contender asks the store for one.

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

/// What a contender is woken up for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Wake {
    /// The key was offered to the attempt before ours in the store's queue: ask once its head start is over.
    Next,
    /// Ask now.
    Now,
}

#[derive(Debug)]
pub(super) struct Contending {
    /// The number of the contender.
    contender: u64,
    /// The strongest wake-up that the contender has not taken yet.
    wake: Option<Wake>,
    /// Notified when there is a wake-up for a contender that pauses.
    woken: Option<Arc<Notify>>,
    /// The store has answered a question for this line before.
    answered: bool,
    /// When the question that is on its way was asked.
    asked: Option<Instant>,
    /// The store has failed since then.
    away: Option<Away>,
    /// Who holds the key, by the label of its store.
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

    /// How long a waiter that has waited for `limit` gives a question: no time at all if the store never answered it.
    pub(super) fn patience(&self, limit: Duration) -> Duration {
        match self.answered {
            true => limit.min(SILENT_AFTER),
            false => Duration::ZERO,
        }
    }
}

/// What a contender shall ask for.
#[derive(Debug)]
pub(crate) struct Demand {
    /// When it was found out.
    pub(crate) at: Instant,
    /// Who asks: the attempt that is in the store's queue, or a fresh one.
    pub(crate) owner: Owner,
    /// Whether anybody would stay if the key is held.
    pub(crate) patient: bool,
    /// How many tokens are of use.
    pub(crate) block: u32,
    /// What the first who waits wants the key for,
    pub(crate) fingerprint: Option<Bytes>,
    /// and how long the store shall keep its lease, if that differs from what is usual.
    pub(crate) lease: Option<Duration>,
}

/// What a contender does after the store has failed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum AfterFailure {
    /// Waiters are left: ask again after a pause.
    AskAgain,
    /// The line is gone.
    End,
}

impl Line {
    /// The line of the first who comes: the key has to be contended for.
    pub(crate) fn first(contender: u64, turn: Arc<Turn>) -> Self {
        Self {
            state: State::Contending(Contending::new(contender, false, None)),
            waiters: VecDeque::from([turn]),
        }
    }

    /// Something has changed that the contender may want to know.
    pub(crate) fn wake_contender(&mut self) {
        if let State::Contending(contending) = &mut self.state {
            contending.wake(Wake::Now);
        }
    }

    /// The key was offered to the attempt before ours.
    pub(crate) fn is_next(&mut self) {
        if let State::Contending(contending) = &mut self.state {
            contending.wake(Wake::Next);
        }
    }

    /// Takes the wake-up that the contender has got. Later ones notify `woken`.
    pub(crate) fn take_wake(&mut self, woken: &Arc<Notify>) -> Option<Wake> {
        let State::Contending(contending) = &mut self.state else {
            return None;
        };
        contending.woken = Some(woken.clone());
        contending.wake.take()
    }

    /// Whether the contender of this number is the one that the line has.
    pub(crate) fn is_contended_by(&self, contender: u64) -> bool {
        matches!(&self.state, State::Contending(contending) if contending.contender == contender)
    }

    /// What to ask the store for. If nobody wants the key any more, the line is gone, and its place in the store's queue
    /// given up.
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

    /// The store has granted a lease.
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

    /// The key is held elsewhere: those who do not wait are told so, and those who want it for something else than it is
    /// held for. Says whether anybody is left.
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

    /// What the key is wanted for was done before.
    pub(crate) fn recorded(&mut self, record: &Bytes) {
        self.state = State::Gone;
        self.share(record);
        self.refuse_all(&recorded());
    }

    /// The store has failed. If it never answered for this line, it fails for everybody who waits; else those who are patient
    /// go on waiting.
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

    /// The contender cannot go on.
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

    fn failed(&mut self, error: &Error) {
        self.state = State::Gone;
        self.refuse_all(error);
    }

    /// Tells those who do not wait for a store that is away.
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
