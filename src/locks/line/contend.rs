//! Contending: the line has no lease, and its contender asks the store for one.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use bytes::Bytes;

use super::{
    Away, HeldLease, Line, NoTurn, Place, SILENT_AFTER, State, Transition, WaitRequest, differ,
    elsewhere, held, recorded,
};
use crate::{
    Error, LockKey,
    lease::Lease,
    store::{Grant, Held, Owner},
    sync::{
        Notify,
        atomic::{AtomicU8, Ordering},
    },
    time::Instant,
};

/// The identity of one contender, shared between the line and the contender.
#[derive(Debug)]
pub(crate) struct Contention {
    pub(crate) key: LockKey,
    /// Notified when there is a [`Wake`] for the contender.
    pub(crate) woken: Notify,
    /// The strongest wake-up that the contender has not taken yet.
    wake: AtomicU8,
}

/// What a contender is woken up for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Wake {
    /// The key was offered to the attempt before ours in the store's queue: ask once its head start is over.
    Next = 1,
    /// Ask now.
    Now = 2,
}

impl Contention {
    pub(super) fn new(key: LockKey) -> Arc<Self> {
        Arc::new(Self {
            key,
            woken: Notify::new(),
            wake: AtomicU8::new(0),
        })
    }

    fn wake(&self, wake: Wake) {
        self.wake.fetch_max(wake as u8, Ordering::AcqRel);
        self.woken.notify_one();
    }

    /// What the contender was woken up for. Two wake-ups that came together are the stronger one; the notification of the
    /// second one may be left over, and then there is nothing to ask for now.
    pub(crate) fn take_wake(&self) -> Wake {
        match self.wake.swap(0, Ordering::AcqRel) {
            now if now == Wake::Now as u8 => Wake::Now,
            _ => Wake::Next,
        }
    }
}

#[derive(Debug)]
pub(super) struct Contending {
    contention: Arc<Contention>,
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
    pub(super) fn new(contention: Arc<Contention>, answered: bool, away: Option<Away>) -> Self {
        Self {
            contention,
            answered,
            asked: None,
            away,
            holder: None,
        }
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
    pub(crate) fn first(
        key: LockKey,
        id: u64,
        request: WaitRequest,
    ) -> (Self, Arc<Contention>, Place) {
        let contention = Contention::new(key);
        let contending = Contending::new(contention.clone(), false, None);
        let mut line = Self {
            state: State::Contending(contending),
            waiters: VecDeque::new(),
        };
        let place = line.enter(id, request);
        (line, contention, place)
    }

    /// Something has changed that the contender may want to know.
    pub(crate) fn wake_contender(&mut self) {
        if let State::Contending(contending) = &self.state {
            contending.contention.wake(Wake::Now);
        }
    }

    /// The key was offered to the attempt before ours.
    pub(crate) fn is_next(&mut self) {
        if let State::Contending(contending) = &self.state {
            contending.contention.wake(Wake::Next);
        }
    }

    /// Whether this is the contender that the line has.
    pub(crate) fn is_contended_by(&self, contention: &Arc<Contention>) -> bool {
        matches!(&self.state, State::Contending(contending) if Arc::ptr_eq(&contending.contention, contention))
    }

    /// What to ask the store for. If nobody wants the key any more, the line is gone, and its place in the store's queue
    /// given up.
    pub(crate) fn demand(
        &mut self,
        queued: Option<Owner>,
        t: &mut Transition<'_>,
    ) -> Option<Demand> {
        let State::Contending(contending) = &mut self.state else {
            return None;
        };
        let Some(first) = self.waiters.front() else {
            if let Some(owner) = queued {
                t.release_place(&contending.contention, owner);
            }
            self.state = State::Gone;
            return None;
        };
        contending.asked = Some(t.now);
        Some(Demand {
            fingerprint: first.request.fingerprint.clone(),
            lease: first.request.holding.lease,
            patient: self.waiters.iter().any(|waiting| waiting.request.patient),
            block: self.block(1),
        })
    }

    /// The store has granted a lease.
    pub(crate) fn granted(&mut self, lease: Arc<Lease>, grant: Grant, t: &mut Transition<'_>) {
        let fingerprint = lease.fingerprint.clone();
        if !self.wants_other_than(&fingerprint) {
            self.turn_away(|request| {
                differ(&request.fingerprint, &fingerprint).then_some(NoTurn::OtherFingerprint)
            });
        }
        self.serve(HeldLease::new(lease, grant, t.now), t);
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
        error: &Error,
        queued: Option<Owner>,
        t: &mut Transition<'_>,
    ) -> AfterFailure {
        let State::Contending(contending) = &mut self.state else {
            return AfterFailure::End;
        };
        if let Some(owner) = queued {
            t.release_place(&contending.contention, owner);
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
        error: &Error,
        queued: Option<Owner>,
        t: &mut Transition<'_>,
    ) {
        if let (Some(owner), State::Contending(contending)) = (queued, &self.state) {
            t.release_place(&contending.contention, owner);
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
    fn a_notification_that_is_left_over_is_not_for_now() {
        let contention = Contention::new(LockKey::new("k").unwrap());
        contention.wake(Wake::Next);
        contention.wake(Wake::Next);
        assert_eq!(contention.take_wake(), Wake::Next);
        assert_eq!(contention.take_wake(), Wake::Next, "it was taken already");
        contention.wake(Wake::Now);
        contention.wake(Wake::Next);
        assert_eq!(contention.take_wake(), Wake::Now);
    }
}
