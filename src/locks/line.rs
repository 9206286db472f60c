//! One key in one process: who has its turn, who waits for it, and what becomes of the lease in between.
//!
//! A [`Line`] is plain data. Its methods are the transitions of a state machine; each runs under the lock of the
//! map that holds the line ([`Lines`](super::lines::Lines)), is told the time, and says by [`Effect`]s what is to
//! happen once that lock is let go of. So an interleaving of requests, cancellations, replies and timers is nothing but
//! an order of transitions.
//!
//! 1. A line is in the map exactly as long as it is not [`State::Gone`]: somebody contends, holds, or ends a lease.
//! 2. At most one turn is under way, and only in [`State::Taken`]. It ends once: by its number and its owner it is told
//!    apart from every other turn, so an end that comes late changes nothing.
//! 3. A turn begins only under a lease that is valid by the clock and confirmed, with a token of its own.
//! 4. Whoever waits stands in `waiters`; whoever is taken out of it is told something, exactly once.
//! 5. While anybody waits, something is under way that ends the waiting: a contender, a turn, a renewal or a release.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use tokio::{
    sync::{Notify, oneshot},
    time::Instant,
};

use crate::{
    Error, ErrorKind, LockKey, Loss,
    lease::Lease,
    store::{Grant, Tokens},
    time::later,
};

/// How many tokens a refill brings at least: so many turns of a short line cost one command.
const REFILL_AT_LEAST: u32 = 32;
/// How many tokens are reserved at once at most, however long the line.
const BLOCK_AT_MOST: u32 = 1024;
/// A refill is asked for before fewer than so many are left, if so many wait.
const TOKENS_AHEAD: usize = 16;

/// Within what bounds a line works.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// How many may wait.
    pub(crate) longest_line: usize,
    /// How many turns a lease still serves once another instance is known to wait,
    pub(crate) pass_turns: u32,
    /// and for how long.
    pub(crate) pass_time: Duration,
}

/// A turn as it is handed to the one whose turn it is.
#[derive(Debug)]
pub(crate) struct Granted {
    pub(crate) lease: Arc<Lease>,
    pub(crate) turn: u64,
    pub(crate) token: u64,
}

/// Why a waiter gets no turn.
#[derive(Debug)]
pub(crate) enum Miss {
    /// There is none to be had.
    Failed(Error),
    /// What it would claim was done before, with this record.
    Recorded(Bytes),
    /// Somebody claims the key for something else.
    OtherClaim,
}

impl Miss {
    /// For a lock that claimed nothing, and so can miss its turn only by a failure.
    pub(crate) fn into_error(self) -> Error {
        match self {
            Self::Failed(error) => error,
            Self::Recorded(_) | Self::OtherClaim => recorded(),
        }
    }
}

impl From<Error> for Miss {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// What a waiter wants.
#[derive(Debug, Clone)]
pub(crate) struct Wish {
    /// It stays while the key is held.
    pub(crate) patient: bool,
    /// It claims the key for one thing, which is done once and then recorded; a digest of it. All who claim the same
    /// share the record. A plain lock claims nothing.
    pub(crate) claim: Option<Bytes>,
}

/// Where a waiter is told what became of its waiting,
pub(crate) type Ticket = oneshot::Sender<Result<Granted, Miss>>;
/// and where it learns of it.
pub(crate) type Answer = oneshot::Receiver<Result<Granted, Miss>>;
/// Where the one who released learns whether the lease was ours until then.
pub(crate) type Confirmation = oneshot::Sender<Result<(), Error>>;

/// What is to happen after a transition, in this order.
#[derive(Debug)]
pub(crate) enum Effect {
    /// Tell a waiter. If it is gone, its turn has ended.
    Tell(Ticket, Result<Granted, Miss>),
    /// Tell the one who released.
    Confirm(Confirmation, Result<(), Error>),
    /// Ask the store for the key, until it is granted or nobody wants it.
    Contend(Arc<Contention>, LockKey),
    /// Let the contender look at its line now.
    Wake(Arc<Contention>),
    /// Renew the lease now, with a refill if [`Line::needs`] says so.
    Renew(Arc<Lease>),
    /// Renew the lease more often, so that it notices others who wait.
    Quicken(Arc<Lease>),
    /// Release the lease in the store, then call [`Line::released`].
    Release(Arc<Lease>, Option<Confirmation>),
    /// Release the lease unless somebody wants it before ([`Line::unpark`]).
    Unpark(Arc<Lease>),
    /// The lease is past its deadline: tell its loss.
    Lose(Arc<Lease>, Loss),
}

pub(crate) type Effects = Vec<Effect>;

/// One contender's quest for the key.
#[derive(Debug, Default)]
pub(crate) struct Contention {
    /// The wish that it looks again.
    pub(crate) wake: Notify,
    /// The store has said something.
    answered: AtomicBool,
}

#[derive(Debug)]
pub(crate) struct Line {
    state: State,
    waiters: VecDeque<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    id: u64,
    wish: Wish,
    ticket: Ticket,
}

impl Waiting {
    fn tell(self, miss: impl Into<Miss>) -> Effect {
        Effect::Tell(self.ticket, Err(miss.into()))
    }

    /// Whether it wants the key for something else than it is held for.
    fn differs(&self, claim: &Option<Bytes>) -> bool {
        matches!((&self.wish.claim, claim), (Some(ours), Some(theirs)) if ours != theirs)
    }
}

#[derive(Debug, Default)]
enum State {
    /// The contender asks the store.
    Contending(Arc<Contention>),
    /// A turn is under way.
    Taken(Tenure),
    /// The lease waits for a renewal that confirms it or brings tokens; then it is served on.
    Confirming(Tenure, Option<(Confirmation, Instant)>),
    /// Nobody wants the lease; it is about to be released.
    Parked(Tenure),
    /// The release is under way.
    Releasing(Arc<Lease>),
    /// Nothing is left.
    #[default]
    Gone,
}

/// A lease, and what is needed to pass it on.
#[derive(Debug)]
struct Tenure {
    lease: Arc<Lease>,
    tokens: Tokens,
    /// What the key is held for.
    claim: Option<Bytes>,
    /// How many turns it has served, the present one included.
    turn: u64,
    /// Since when, and since how many turns, another instance is known to wait.
    wanted: Option<(Instant, u64)>,
    refill_asked: bool,
    quickened: bool,
}

/// What a contender shall ask for.
#[derive(Debug)]
pub(crate) struct Demand {
    /// Whether anybody would stay if the key is held.
    pub(crate) patient: bool,
    /// How many tokens are of use.
    pub(crate) block: u32,
    /// What the first who waits would claim.
    pub(crate) claim: Option<Bytes>,
}

impl Tenure {
    fn is_used_up(&self, limits: &Limits, now: Instant) -> bool {
        self.wanted.is_some_and(|(since, turns)| {
            let enough_turns = self.turn >= turns + u64::from(limits.pass_turns);
            self.turn > 0 && (enough_turns || now >= later(since, limits.pass_time))
        })
    }

    fn want(&mut self, now: Instant) {
        self.wanted.get_or_insert((now, self.turn));
    }
}

/// Entering and leaving.
impl Line {
    /// The line of the first who comes: it has to be contended for.
    pub(crate) fn first(id: u64, wish: Wish, ticket: Ticket) -> (Self, Arc<Contention>) {
        let contention = Arc::<Contention>::default();
        let line = Self {
            state: State::Contending(contention.clone()),
            waiters: VecDeque::from([Waiting { id, wish, ticket }]),
        };
        (line, contention)
    }

    pub(crate) fn is_gone(&self) -> bool {
        matches!(self.state, State::Gone)
    }

    /// Waits, if there is any point in it.
    pub(crate) fn join(
        &mut self,
        (id, wish, ticket): (u64, Wish, Ticket),
        limits: &Limits,
        now: Instant,
        out: &mut Effects,
    ) -> Result<(), Error> {
        let waiting = Waiting { id, wish, ticket };
        if let State::Taken(Tenure { claim, .. }) | State::Confirming(Tenure { claim, .. }, _) =
            &self.state
            && waiting.differs(claim)
        {
            out.push(waiting.tell(Miss::OtherClaim));
            return Ok(());
        }
        let ending = matches!(self.state, State::Parked(_) | State::Releasing(_));
        let busy = !ending || !self.waiters.is_empty();
        if busy && !waiting.wish.patient {
            return Err(held());
        }
        if busy && self.waiters.len() >= limits.longest_line {
            return Err(Error::new(
                ErrorKind::LineFull,
                format!("{} requests wait for this key already", self.waiters.len()),
            ));
        }
        self.waiters.push_back(waiting);
        match std::mem::take(&mut self.state) {
            State::Parked(tenure) => self.serve(tenure, limits, now, out),
            State::Taken(mut tenure) => {
                self.look_ahead(&mut tenure, out);
                self.state = State::Taken(tenure);
            }
            other => self.state = other,
        }
        Ok(())
    }

    /// A waiter goes away before it was told anything.
    pub(crate) fn leave(&mut self, id: u64, out: &mut Effects) {
        self.waiters.retain(|waiting| waiting.id != id);
        if self.waiters.is_empty() {
            self.wake_contender(out);
        }
    }

    /// All who wait are told that they wait in vain; the turn under way is left alone.
    pub(crate) fn refuse_all(&mut self, error: &Error, out: &mut Effects) {
        let refusals = self.waiters.drain(..);
        out.extend(refusals.map(|waiting| waiting.tell(error.clone())));
        self.wake_contender(out);
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiters.len()
    }
}

/// Contending.
impl Line {
    /// Something has changed that the contender may want to know.
    pub(crate) fn wake_contender(&mut self, out: &mut Effects) {
        if let State::Contending(contention) = &self.state {
            out.push(Effect::Wake(contention.clone()));
        }
    }

    /// Whether the store is being asked and has not answered once.
    pub(crate) fn is_store_silent(&self) -> bool {
        matches!(&self.state, State::Contending(contention) if !contention.answered.load(Ordering::Relaxed))
    }

    /// What to ask the store for, if anybody still wants the key.
    pub(crate) fn demand(&self) -> Option<Demand> {
        (!self.waiters.is_empty()).then(|| Demand {
            patient: self.waiters.iter().any(|waiting| waiting.wish.patient),
            block: self.block(1),
            claim: self
                .waiters
                .front()
                .and_then(|first| first.wish.claim.clone()),
        })
    }

    /// Whether this is the contention that the line is in.
    pub(crate) fn is_contended_by(&self, contention: &Arc<Contention>) -> bool {
        matches!(&self.state, State::Contending(current) if Arc::ptr_eq(current, contention))
    }

    pub(crate) fn granted(
        &mut self,
        lease: Arc<Lease>,
        (grant, claim): (Grant, Option<Bytes>),
        limits: &Limits,
        now: Instant,
        out: &mut Effects,
    ) {
        if !self.wants_other_than(&claim) {
            self.turn_away(
                |waiting| waiting.differs(&claim).then_some(Miss::OtherClaim),
                out,
            );
        }
        let tenure = Tenure {
            lease,
            claim,
            tokens: grant.tokens,
            turn: 0,
            wanted: grant.others_wait.then_some((now, 0)),
            refill_asked: false,
            quickened: false,
        };
        self.serve(tenure, limits, now, out);
    }

    /// The key is held, for this claim: those who do not wait are told so, and those who claim it for something else.
    /// Says whether anybody is left.
    pub(crate) fn held(&mut self, claim: &Option<Bytes>, out: &mut Effects) -> bool {
        if let State::Contending(contention) = &self.state {
            contention.answered.store(true, Ordering::Relaxed);
        }
        let miss = |waiting: &Waiting| match waiting.differs(claim) {
            true => Some(Miss::OtherClaim),
            false => (!waiting.wish.patient).then(|| held().into()),
        };
        self.turn_away(miss, out);
        !self.waiters.is_empty()
    }

    /// What would be claimed was done before. Only a claim can have been meant.
    pub(crate) fn recorded(&mut self, record: &Bytes, out: &mut Effects) {
        self.state = State::Gone;
        self.share(record, out);
        self.refuse_all(&recorded(), out);
    }

    /// Gives the record to all who claim it.
    fn share(&mut self, record: &Bytes, out: &mut Effects) {
        let claims = |waiting: &Waiting| waiting.wish.claim.is_some();
        self.turn_away(
            |waiting| claims(waiting).then(|| Miss::Recorded(record.clone())),
            out,
        );
    }

    /// Tells those who miss their turn why, and keeps the others, in their order.
    fn turn_away(&mut self, miss: impl Fn(&Waiting) -> Option<Miss>, out: &mut Effects) {
        for waiting in std::mem::take(&mut self.waiters) {
            match miss(&waiting) {
                Some(miss) => out.push(waiting.tell(miss)),
                None => self.waiters.push_back(waiting),
            }
        }
    }

    /// The store failed: so it would for everybody, one after another.
    pub(crate) fn failed(&mut self, error: &Error, out: &mut Effects) {
        self.state = State::Gone;
        self.refuse_all(error, out);
    }

    /// The contender has left the store's queue, as nobody waited. Says whether that is still so.
    pub(crate) fn gave_up(&mut self) -> bool {
        let nobody = self.waiters.is_empty();
        if nobody {
            self.state = State::Gone;
        }
        nobody
    }
}

/// Turns, one after another.
impl Line {
    /// A turn ends. With a confirmation, the store is asked whether the lease was ours until now.
    pub(crate) fn end(
        &mut self,
        granted: &Granted,
        confirmation: Option<Confirmation>,
        limits: &Limits,
        now: Instant,
        out: &mut Effects,
    ) {
        let tenure = match std::mem::take(&mut self.state) {
            State::Taken(tenure) if tenure.is(granted) => tenure,
            other => {
                self.state = other;
                out.extend(
                    confirmation.map(|ask| Effect::Confirm(ask, Err(lost(granted.lease.loss())))),
                );
                return;
            }
        };
        let Some(ask) = confirmation else {
            return self.serve(tenure, limits, now, out);
        };
        if !tenure.lease.is_valid(now) {
            out.push(Effect::Lose(tenure.lease.clone(), Loss::Expired));
            self.state = State::Confirming(tenure, Some((ask, now)));
        } else if self.waiters.is_empty() || tenure.is_used_up(limits, now) {
            self.release(tenure.lease, Some(ask), out);
        } else {
            out.push(Effect::Renew(tenure.lease.clone()));
            self.state = State::Confirming(tenure, Some((ask, now)));
        }
    }

    /// A turn has ended with a record in the lease's place.
    pub(crate) fn finished(&mut self, granted: &Granted, record: &Bytes, out: &mut Effects) {
        match std::mem::take(&mut self.state) {
            State::Taken(tenure) if tenure.is(granted) => {
                self.share(record, out);
                self.start_over(&granted.lease.key, out);
            }
            other => self.state = other,
        }
    }

    /// Finds the best use for a lease that serves no turn now.
    fn serve(&mut self, tenure: Tenure, limits: &Limits, now: Instant, out: &mut Effects) {
        let lease = tenure.lease.clone();
        if !lease.is_valid(now) {
            self.state = State::Confirming(tenure, None);
            out.push(Effect::Lose(lease, Loss::Expired));
        } else if self.waiters.is_empty() {
            self.state = State::Parked(tenure);
            out.push(Effect::Unpark(lease));
        } else if tenure.is_used_up(limits, now) || self.wants_other_than(&tenure.claim) {
            self.release(lease, None, out);
        } else if !lease.is_confirmed() || tenure.tokens.left() == 0 {
            self.state = State::Confirming(tenure, None);
            out.push(Effect::Renew(lease));
        } else {
            self.begin_turn(tenure, now, out);
        }
    }

    /// Whether the first who waits wants the key for something else than this. Then it is not passed on: the store
    /// would tell others what it was claimed for before.
    fn wants_other_than(&self, claim: &Option<Bytes>) -> bool {
        self.waiters
            .front()
            .is_some_and(|first| first.wish.claim != *claim)
    }

    fn begin_turn(&mut self, mut tenure: Tenure, now: Instant, out: &mut Effects) {
        let (Some(next), Some(token)) = (self.waiters.pop_front(), tenure.tokens.take()) else {
            unreachable!("`serve` has looked at both under the same lock");
        };
        tenure.turn += 1;
        let lease = tenure.lease.clone();
        lease.begin_turn(now);
        if tenure.turn > 1 && !tenure.quickened {
            tenure.quickened = true;
            out.push(Effect::Quicken(lease.clone()));
        }
        let turn = tenure.turn;
        out.push(Effect::Tell(
            next.ticket,
            Ok(Granted { lease, turn, token }),
        ));
        self.look_ahead(&mut tenure, out);
        self.state = State::Taken(tenure);
    }

    /// Asks for tokens before they run out. Not for a claim: it most likely ends with a record, and needs no more.
    fn look_ahead(&self, tenure: &mut Tenure, out: &mut Effects) {
        if tenure.claim.is_none() && self.lacks_tokens(tenure) && !tenure.refill_asked {
            tenure.refill_asked = true;
            out.push(Effect::Renew(tenure.lease.clone()));
        }
    }

    fn lacks_tokens(&self, tenure: &Tenure) -> bool {
        (tenure.tokens.left() as usize) < self.waiters.len().min(TOKENS_AHEAD)
    }

    fn block(&self, at_least: u32) -> u32 {
        let waiting = u32::try_from(self.waiters.len()).unwrap_or(BLOCK_AT_MOST);
        waiting.clamp(at_least, BLOCK_AT_MOST)
    }

    fn release(&mut self, lease: Arc<Lease>, ask: Option<Confirmation>, out: &mut Effects) {
        self.state = State::Releasing(lease.clone());
        out.push(Effect::Release(lease, ask));
    }

    /// The lease is gone. Those who wait need a new one.
    fn start_over(&mut self, key: &LockKey, out: &mut Effects) {
        if self.waiters.is_empty() {
            self.state = State::Gone;
            return;
        }
        let contention = Arc::<Contention>::default();
        self.state = State::Contending(contention.clone());
        out.push(Effect::Contend(contention, key.clone()));
    }
}

/// News of the lease. Each of these is about one lease, and means nothing to a line that has another by now.
impl Line {
    /// How many tokens the next renewal of this lease shall bring.
    pub(crate) fn needs(&self, lease: &Lease) -> u32 {
        match &self.state {
            State::Taken(tenure) | State::Confirming(tenure, _)
                if tenure.is_of(lease) && self.lacks_tokens(tenure) =>
            {
                self.block(REFILL_AT_LEAST)
            }
            _ => 0,
        }
    }

    /// A renewal that was sent at `sent` was answered: the lease is ours.
    pub(crate) fn renewed(
        &mut self,
        lease: &Lease,
        (sent, tokens, others_wait): (Instant, Option<Tokens>, bool),
        limits: &Limits,
        now: Instant,
        out: &mut Effects,
    ) {
        let waiting = !self.waiters.is_empty();
        let Some(tenure) = self.tenure_of(lease) else {
            return;
        };
        tenure.refill_asked = false;
        tenure.quickened &= waiting;
        if tenure.quickened {
            out.push(Effect::Quicken(tenure.lease.clone()));
        }
        if let Some(tokens) = tokens {
            // What is left of the old block is lower, and so of no use any more.
            tenure.tokens = tokens;
        }
        if others_wait {
            tenure.want(now);
        } else {
            // A hint that came after the question knows better than its answer.
            tenure.wanted.take_if(|(since, _)| *since < sent);
        }
        match std::mem::take(&mut self.state) {
            State::Confirming(tenure, Some((ask, since))) if sent < since => {
                // It was on its way when the turn ended, so it says nothing about that end.
                out.push(Effect::Renew(tenure.lease.clone()));
                self.state = State::Confirming(tenure, Some((ask, since)));
            }
            State::Confirming(tenure, ask) => {
                out.extend(ask.map(|(ask, _)| Effect::Confirm(ask, Ok(()))));
                self.serve(tenure, limits, now, out);
            }
            other => self.state = other,
        }
    }

    /// A renewal was not answered. Those who wait for it would wait for every further one too.
    pub(crate) fn renewal_unknown(&mut self, lease: &Lease, error: &Error, out: &mut Effects) {
        match std::mem::take(&mut self.state) {
            State::Confirming(tenure, ask) if tenure.is_of(lease) => {
                out.extend(ask.map(|(ask, _)| Effect::Confirm(ask, Err(error.clone()))));
                self.refuse_all(error, out);
                self.release(tenure.lease, None, out);
            }
            other => self.state = other,
        }
    }

    /// Another instance waits for the key.
    pub(crate) fn wanted(&mut self, now: Instant) {
        if let State::Taken(tenure) | State::Confirming(tenure, _) | State::Parked(tenure) =
            &mut self.state
        {
            tenure.want(now);
        }
    }

    /// The lease is lost.
    pub(crate) fn lost(&mut self, lease: &Lease, out: &mut Effects) {
        if self.tenure_of(lease).is_none() {
            return;
        }
        if let State::Confirming(_, Some((ask, _))) = std::mem::take(&mut self.state) {
            out.push(Effect::Confirm(ask, Err(lost(lease.loss()))));
        }
        self.start_over(&lease.key, out);
    }

    /// Takes the lease out to be released, if nobody has wanted it since it was parked.
    pub(crate) fn unpark(&mut self, lease: &Lease) -> bool {
        match std::mem::take(&mut self.state) {
            State::Parked(tenure) if tenure.is_of(lease) => {
                self.state = State::Releasing(tenure.lease);
                true
            }
            other => {
                self.state = other;
                false
            }
        }
    }

    /// The release has ended, one way or another.
    pub(crate) fn released(&mut self, lease: &Lease, out: &mut Effects) {
        if matches!(&self.state, State::Releasing(current) if current.owner == lease.owner) {
            self.start_over(&lease.key, out);
        }
    }

    /// The lease under which a turn is, or is about to be.
    pub(crate) fn lease(&self) -> Option<&Arc<Lease>> {
        match &self.state {
            State::Taken(tenure) | State::Confirming(tenure, _) => Some(&tenure.lease),
            _ => None,
        }
    }

    fn tenure_of(&mut self, lease: &Lease) -> Option<&mut Tenure> {
        match &mut self.state {
            State::Taken(tenure) | State::Confirming(tenure, _) | State::Parked(tenure) => {
                tenure.is_of(lease).then_some(tenure)
            }
            _ => None,
        }
    }
}

impl Tenure {
    fn is(&self, granted: &Granted) -> bool {
        self.is_of(&granted.lease) && self.turn == granted.turn
    }

    fn is_of(&self, lease: &Lease) -> bool {
        self.lease.owner == lease.owner
    }
}

pub(crate) fn held() -> Error {
    Error::new(ErrorKind::Held, "the key is held by somebody else")
}

fn recorded() -> Error {
    Error::new(
        ErrorKind::Foreign,
        "the record of a finished idempotent request stands at this key: use another key for plain locks",
    )
}

pub(crate) fn lost(loss: Option<Loss>) -> Error {
    match loss {
        Some(loss) => Error::new(ErrorKind::Lost, format!("the lease was lost: {loss}")),
        None => Error::new(ErrorKind::Lost, "the lease was lost"),
    }
}
