//! Contending: the line has no lease, and its contender asks the store for one.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use bytes::Bytes;

use super::{
    Away, HeldLease, Line, NoTurn, Place, State, Transition, WaitRequest, differ, held, recorded,
};
use crate::{
    Error, LockKey,
    lease::Lease,
    store::{Grant, Held, Owner},
    sync::{
        Notify,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

/// The identity of one contender, shared between the line and the contender.
#[derive(Debug)]
pub(crate) struct Contention {
    pub(crate) key: LockKey,
    /// Notified when the contender should ask the store again.
    pub(crate) wake: Notify,
    /// The key was offered to the attempt before ours in the store's queue: ask once its head start is over.
    next: AtomicBool,
}

impl Contention {
    pub(super) fn new(key: LockKey) -> Arc<Self> {
        Arc::new(Self {
            key,
            wake: Notify::new(),
            next: AtomicBool::new(false),
        })
    }

    /// Whether the contender was woken only to ask once the head start is over.
    pub(crate) fn take_next(&self) -> bool {
        self.next.swap(false, Ordering::AcqRel)
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
}

impl Contending {
    pub(super) fn new(contention: Arc<Contention>, answered: bool, away: Option<Away>) -> Self {
        Self {
            contention,
            answered,
            asked: None,
            away,
        }
    }

    pub(super) fn away(&self, now: Instant, patience: Duration) -> Option<Away> {
        let unanswered = |since: &Instant| !self.answered || now >= *since + patience;
        let silent = || self.asked.filter(unanswered);
        self.away
            .clone()
            .or_else(|| silent().map(|since| Away { since, error: None }))
    }
}

/// What a contender shall ask for.
#[derive(Debug)]
pub(crate) struct Demand {
    /// Whether anybody would stay if the key is held.
    pub(crate) patient: bool,
    /// How many tokens are of use.
    pub(crate) block: u32,
    /// What the first who waits wants the key for.
    pub(crate) fingerprint: Option<Bytes>,
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
    pub(crate) fn first(key: LockKey, request: WaitRequest) -> (Self, Arc<Contention>, Place) {
        let contention = Contention::new(key);
        let contending = Contending::new(contention.clone(), false, None);
        let mut line = Self {
            state: State::Contending(contending),
            waiters: VecDeque::new(),
            next_waiter: 0,
        };
        let place = line.enter(request);
        (line, contention, place)
    }

    /// Something has changed that the contender may want to know.
    pub(crate) fn wake_contender(&mut self) {
        if let State::Contending(contending) = &self.state {
            contending.contention.wake.notify_one();
        }
    }

    /// The key was offered to the attempt before ours.
    pub(crate) fn is_next(&mut self) {
        if let State::Contending(contending) = &self.state {
            contending.contention.next.store(true, Ordering::Release);
            contending.contention.wake.notify_one();
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
            self.turn_away(|request| (!request.patient).then(|| held().into()));
        }
    }

    /// The key is held elsewhere: those who do not wait are told so, and those who want it for something else than it is
    /// held for. Says whether anybody is left.
    pub(crate) fn held(&mut self, found: &Held) -> bool {
        if let State::Contending(contending) = &mut self.state {
            contending.answered = true;
            contending.asked = None;
            contending.away = None;
        }
        self.turn_away(|request| {
            if differ(&request.fingerprint, &found.fingerprint) {
                return Some(NoTurn::OtherFingerprint);
            }
            (!request.patient).then(|| held().into())
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
