//! Who is served next, and under which lease: from the question to the store to the begin of a
//! turn.
//!
//! [`Line::serve`] is the last step of every transition that could change who is next. The method
//! does three things, in this order:
//!
//! 1. `begin_turns`: as long as a lease can serve the first request in line, the request's turn
//!    begins.
//! 2. `settle_idle_leases`: a lease without a turn is confirmed (if the lease serves the first
//!    request next, but must be renewed before), or released.
//! 3. If the first request needs a lease that the line does not have, a contender starts. Otherwise
//!    a contender under way is woken, and gives up its place in the store's queue.
//!
//! The decisions depend on the modes. For the first request in line:
//!
//! | the request is | the line has | so the request |
//! |---|---|---|
//! | exclusive | an exclusive lease | waits for the turn before it |
//! | exclusive | no lease, or a shared one | needs a lease of its own, from the store's queue |
//! | shared | an exclusive lease | waits for the turn before it |
//! | shared | a shared lease that no other instance waits for | begins at once |
//! | shared | no lease, or a shared one that another instance waits for | needs a lease, behind that instance |
//! | a permit | fewer leases than permits | needs one more lease |
//! | a permit | as many leases as permits | waits for the end of a turn |

use std::{collections::VecDeque, sync::Arc, time::Duration};

use bytes::Bytes;

use super::{
    Contending, Granted, HeldLease, Line, NoTurn, Phase, Transition, Turn, contend::Asked,
    leases::Leases, other,
};
use crate::{
    LockKey, Loss,
    lease::Lease,
    store::{End, Grant, Mode, Owner, Tokens},
    time::{Instant, later},
};

/// The largest number of permits to ask for in one call.
const PERMITS_AT_MOST: usize = 256;

/// The largest block of tokens to reserve, however long the line.
const BLOCK_AT_MOST: u32 = 1024;

/// A refill is requested when fewer than this many tokens are left for the requests that wait.
const TOKENS_AHEAD: usize = 16;

/// A question for the store, as the requests in the line need it.
///
/// For a line with three exclusive requests, of which the first has waited in the store's queue
/// before:
///
/// ```text
/// Demand { owner: 0c6f…:7, more: [], mode: Exclusive, patient: true, block: 3, fingerprint: None, lease: 30 s, ends: [] }
/// ```
///
/// For three requests at a key with two permits, of which the line holds none, `more` has one
/// further owner and `block` is rounded up to a multiple of two, so that each lease gets the same
/// number of tokens.
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
    /// How long the lease lasts.
    pub(crate) lease: Duration,
    /// The endings of the key that the question carries.
    pub(crate) ends: Vec<End>,
}

impl Line {
    /// Creates the line of a first request, which contends for the key.
    pub(crate) fn first(contender: u64, turn: Arc<Turn>) -> Self {
        Self {
            contending: Some(Contending::new(contender, false, None)),
            leases: Leases::default(),
            some_are_impatient: !turn.request.patient,
            waiters: VecDeque::from([turn]),
        }
    }

    /// Returns the next question for the store. If no request needs a lease, the contender ends,
    /// and its place in the store's queue is given up.
    pub(crate) fn demand(&mut self, key: &LockKey, t: &mut Transition<'_>) -> Option<Demand> {
        let first = self.waiters.front().filter(|turn| self.needs_lease(turn));
        let mode = first.map(|turn| turn.request.mode);
        let place = self.contending.as_ref().and_then(Contending::place);
        let place = place.filter(|place| mode == Some(place.mode));
        if place.is_none() {
            self.give_up_place(key, t);
        }
        let permits = self.permits_to_ask_for();
        let (Some(first), Some(contending)) = (
            self.waiters.front().filter(|_| mode.is_some()),
            &mut self.contending,
        ) else {
            self.contending = None;
            return None;
        };
        let first = &first.request;
        let owner = place.map_or_else(|| t.fresh_owner(), |place| place.owner);
        let more: Vec<Owner> = (1..permits).map(|_| t.fresh_owner()).collect();
        let lease = first.holding.lease.unwrap_or(t.limits.lease);
        contending.ask(Asked {
            at: t.now,
            owners: std::iter::once(owner).chain(more.iter().copied()).collect(),
            mode: first.mode,
            lasts: lease.max(t.limits.waiter_deadline),
            had_place: place.is_some(),
        });
        Some(Demand {
            at: t.now,
            owner,
            more,
            mode: first.mode,
            fingerprint: first.fingerprint.clone(),
            lease,
            ends: t.ends.to_carry(key),
            patient: self.waits_for(first.mode),
            block: match first.mode {
                Mode::Shared => 1,
                // As many for each lease as it serves turns while others wait: more of them would
                // be lost with the lease.
                Mode::Exclusive | Mode::Permit { .. } => {
                    let usable = t.limits.pass_turns.saturating_mul(permits as u32);
                    let block = self.block(1).min(usable.max(1));
                    block.next_multiple_of(permits as u32)
                }
            },
        })
    }

    /// Whether a place in the store's queue is of use. The requests that do not wait leave the line
    /// if the key is held, so the place is for the first one that does.
    fn waits_for(&self, mode: Mode) -> bool {
        let mut waiters = self.waiters.iter().map(|turn| &turn.request);
        let first = waiters.find(|request| request.patient);
        first.is_some_and(|request| request.mode == mode)
    }

    /// How many permits the requests at the head of the line can use beside those that the line
    /// has. One in other modes.
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

    /// Handles granted leases.
    pub(crate) fn granted(
        &mut self,
        leases: impl Iterator<Item = Arc<Lease>>,
        sent: Instant,
        grant: &Grant,
        t: &mut Transition<'_>,
    ) {
        self.contending = None;
        let each = grant.tokens.left() / grant.count.max(1);
        let mut first_token = grant.tokens.first().unwrap_or_default();
        for lease in leases {
            self.refuse_other_work(&lease.fingerprint, t);
            let tokens = Tokens::new(first_token, each);
            first_token += u64::from(each);
            let held = HeldLease::new(lease, tokens, grant.others_wait, sent, t);
            self.leases.add(held);
        }
        self.serve(t);
    }

    /// Refuses the requests with another fingerprint than the lease's, unless the first request in
    /// line is one of them: the lease is then not for this line any more.
    fn refuse_other_work(&mut self, fingerprint: &Option<Bytes>, t: &mut Transition<'_>) {
        let first = self.waiters.front();
        if fingerprint.is_some()
            && first.is_none_or(|first| first.request.fingerprint == *fingerprint)
        {
            self.refuse_if(t, |turn| {
                let other = other(&turn.request.fingerprint, fingerprint);
                other.map(NoTurn::OtherFingerprint)
            });
        }
    }

    /// Brings the line up to date after a change: begins the turns that can begin, gives back the
    /// leases that are not needed, and asks the store for a lease if one is needed.
    pub(super) fn serve(&mut self, t: &mut Transition<'_>) {
        self.begin_turns(t);
        self.settle_idle_leases(t);
        let first = self.waiters.front();
        let needs_lease = first.is_some_and(|first| self.needs_lease(first));
        if !needs_lease && self.is_left_behind() {
            self.contending = None;
        } else if !needs_lease {
            // The contender gives up its place in the store's queue.
            self.wake_contender();
        } else if self.contending.is_none() {
            let contender = t.number();
            // The store has answered for this line before, so the requests that wait survive if the
            // store is away for a while.
            self.contending = Some(Contending::new(contender, true, t.away.take()));
            t.follow_up.contend = Some(contender);
        }
        self.look_ahead(t);
    }

    /// Begins the turns of the requests at the head of the line, as far as there are leases for
    /// them.
    fn begin_turns(&mut self, t: &mut Transition<'_>) {
        while let Some((lease, mode)) = self.begin_turn(t) {
            match mode {
                Mode::Exclusive => self.refuse_those_who_would_wait(t),
                Mode::Shared => {}
                Mode::Permit { .. } => self.leases.sort(lease),
            }
        }
        // The readers that were in line when a lease was granted or downgraded have begun, unless
        // the lease has to be confirmed before, or to get a token for them.
        let ready = self.leases.iter_open_mut().filter(|held| held.is_ready(t));
        ready.for_each(|held| held.late_from = 0);
    }

    /// Begins the turn of the first request in line, if there is a lease for it. Returns the number
    /// and the mode of that lease.
    fn begin_turn(&mut self, t: &mut Transition<'_>) -> Option<(u64, Mode)> {
        let first = self.waiters.front()?;
        let mut leases = self.leases.iter_open_mut();
        let held = leases.find(|held| held.can_serve(first, t))?;
        held.begin(self.waiters.pop_front()?, t);
        if held.mode().is_permit() {
            held.look_ahead(self.waiters.len(), t);
        }
        Some((held.number(), held.mode()))
    }

    /// Decides about the leases without a turn: a lease that is passed on, but cannot serve yet, is
    /// confirmed first, and every other one is released.
    fn settle_idle_leases(&mut self, t: &mut Transition<'_>) {
        let mut next = self.leases.next_open(None);
        while let Some(number) = next {
            self.settle_if_idle(number, t);
            next = self.leases.next_open(Some(number));
        }
    }

    fn settle_if_idle(&mut self, number: u64, t: &mut Transition<'_>) {
        let is_passed_on = self.is_passed_on(number, t);
        let Some(held) = self.leases.get(number).filter(|held| held.is_idle()) else {
            return;
        };
        if matches!(held.phase, Phase::Outlived | Phase::Confirming(Some(_))) {
            return;
        }
        if !held.lease.is_valid(t.now) {
            self.over(number, Loss::Expired, t);
        } else if is_passed_on {
            if !held.is_confirming() {
                held.confirm(None, t);
            }
        } else if let Some(held) = self.leases.remove(number) {
            t.release(held, None);
        }
    }

    /// Whether a lease serves the first request in line next.
    pub(super) fn is_passed_on(&mut self, number: u64, t: &Transition<'_>) -> bool {
        match (self.leases.get(number), self.waiters.front()) {
            (Some(held), Some(first)) => held.is_passed_on_to(first, t),
            _ => false,
        }
    }

    /// Whether the store must be asked for a lease before the request can have its turn. If not,
    /// the turn begins after a turn or a renewal that is under way.
    pub(super) fn needs_lease(&self, turn: &Turn) -> bool {
        let is_exclusive = |held: &HeldLease| held.mode() == Mode::Exclusive;
        match turn.request.mode {
            Mode::Exclusive => !self.leases.iter().any(is_exclusive),
            // Later readers wait behind the request of another instance, and need a lease after
            // that.
            Mode::Shared => !self
                .leases
                .iter()
                .any(|held| is_exclusive(held) || !held.is_too_late_for(turn)),
            Mode::Permit { of } => self.leases.len() < of as usize,
        }
    }

    /// Requests further tokens before they run out. A permit has its own look at the begin of each
    /// turn, because there may be thousands of them.
    fn look_ahead(&mut self, t: &mut Transition<'_>) {
        let waiting = self.waiters.len();
        let leases = self.leases.iter_open_mut();
        for held in leases.filter(|held| !held.mode().is_permit()) {
            held.look_ahead(waiting, t);
        }
    }

    /// How many tokens to request.
    pub(super) fn block(&self, at_least: u32) -> u32 {
        let waiting = u32::try_from(self.waiters.len()).unwrap_or(BLOCK_AT_MOST);
        waiting.clamp(at_least, BLOCK_AT_MOST)
    }
}

impl HeldLease {
    /// Whether a turn of this request can begin now.
    fn can_serve(&self, turn: &Turn, t: &Transition<'_>) -> bool {
        (self.mode() == Mode::Shared || self.is_idle())
            && self.is_passed_on_to(turn, t)
            && self.is_ready(t)
    }

    /// Whether turns can begin under the lease, as far as the lease is concerned.
    fn is_ready(&self, t: &Transition<'_>) -> bool {
        matches!(self.phase, Phase::Serving)
            && self.lease.is_valid(t.now)
            && self.lease.is_confirmed()
            && self.tokens.left() > 0
    }

    /// Whether the lease serves this request next, rather than being released.
    ///
    /// A lease has one fingerprint, because the store shows it to other instances. A lease whose
    /// record was sent and not confirmed may have been replaced by now.
    fn is_passed_on_to(&self, turn: &Turn, t: &Transition<'_>) -> bool {
        self.mode() == turn.request.mode
            && self.lease.fingerprint == turn.request.fingerprint
            && !self.lease.is_recording()
            && !self.is_used_up(turn, t)
    }

    /// Whether the lease has served enough turns since another instance began to wait.
    fn is_used_up(&self, turn: &Turn, t: &Transition<'_>) -> bool {
        let Some((since, served)) = self.wanted else {
            return false;
        };
        if self.mode() == Mode::Shared {
            return self.is_too_late_for(turn);
        }
        let enough_turns = self.served >= served + u64::from(t.limits.pass_turns);
        self.served > 0 && (enough_turns || t.now >= later(since, t.limits.pass_time))
    }

    /// Whether a reader has come later than another instance's request, which it does not overtake.
    fn is_too_late_for(&self, turn: &Turn) -> bool {
        self.wanted.is_some() && turn.id >= self.late_from
    }

    /// Requests further tokens if they run out. A turn with a fingerprint most likely ends with a
    /// record, and needs no further tokens.
    fn look_ahead(&mut self, waiting: usize, t: &mut Transition<'_>) {
        if matches!(self.phase, Phase::Serving)
            && self.lease.fingerprint.is_none()
            && self.lacks_tokens(waiting, t)
            && !self.refill_asked
        {
            self.refill_asked = true;
            self.renew_now(t);
        }
    }

    /// Begins the turn of a request.
    fn begin(&mut self, turn: Arc<Turn>, t: &mut Transition<'_>) {
        // The turns of a shared lease share its token: they are not ordered among themselves.
        let token = match self.mode() {
            Mode::Shared => self.tokens.first(),
            _ => self.tokens.take(),
        };
        let Some(token) = token else {
            unreachable!("`can_serve` has looked under the same lock");
        };
        self.served += 1;
        self.token = Some(token);
        self.began = t.now;
        let max_hold = turn.request.holding.max_hold.unwrap_or(t.limits.max_hold);
        if self.mode() == Mode::Shared {
            let ends = later(t.now, max_hold);
            self.readers.add(self.served, t.now, ends, turn.clone());
        } else {
            self.in_turn = true;
            self.max_hold = max_hold;
        }
        self.set_turn_ends();
        if self.served > 1 && !self.is_passed_on {
            self.is_passed_on = true;
            self.renew_soon(t);
        }
        // The turn's time may be over before the lease needs attention for another reason.
        self.schedule(t);
        t.totals.began(t.now - turn.asked, self.served > 1);
        let waker = turn.grant(Granted {
            lease: self.lease.clone(),
            number: self.served,
            token,
        });
        t.follow_up.wakers.extend(waker);
    }

    /// Whether a refill is needed for the requests that wait, and for which this lease can begin a
    /// turn. Of a short block, half is used first: a store whose counter has reached the clock
    /// has a few tokens for each call, and would be asked again and again.
    pub(super) fn lacks_tokens(&self, waiting: usize, t: &Transition<'_>) -> bool {
        let needed = match self.mode() {
            Mode::Shared => waiting.min(1),
            _ => waiting
                .min(TOKENS_AHEAD)
                .min(self.turns_left(t))
                .min(self.block.div_ceil(2) as usize),
        };
        (self.tokens.left() as usize) < needed
    }

    /// How many more turns the lease serves, as far as others wait for the key.
    pub(super) fn turns_left(&self, t: &Transition<'_>) -> usize {
        if self.mode() == Mode::Shared {
            // Its turns share one token.
            return 1;
        }
        let Some((_, served)) = self.wanted else {
            return usize::MAX;
        };
        let last = served + u64::from(t.limits.pass_turns);
        let left = last
            .saturating_sub(self.served)
            .max(u64::from(self.served == 0));
        usize::try_from(left).unwrap_or(usize::MAX)
    }
}
