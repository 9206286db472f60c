//! Who is served next, and under which lease: from the question to the store to the begin of a
//! turn.
//!
//! [`Line::serve`] is the last step of every transition that could change who is next. The method
//! does three things, in this order:
//!
//! 1. `begin_turns`: as long as a lease can serve the first request in line, the request's turn
//!    begins.
//! 2. `settle_idle_leases`: a lease without a turn is renewed (if the lease serves the first
//!    request next, but cannot do so before), or released.
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

use std::{collections::VecDeque, sync::Arc};

use bytes::Bytes;

use super::{
    Contending, Granted, HeldLease, Line, NoTurn, Transition, Turn, contend::Asked, leases::Leases,
    other,
};
use crate::{
    Error, ErrorKind, LockKey, Loss,
    store::{Acquire, Grant, Mode, Owner, Tokens},
    time::later,
};

/// The largest number of permits to ask for in one call.
const PERMITS_AT_MOST: usize = 256;

/// The largest block of tokens to reserve, however long the line.
const BLOCK_AT_MOST: u32 = 1024;

/// A refill is requested when fewer than this many tokens are left for the requests that wait.
const TOKENS_AHEAD: usize = 16;

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

    /// Returns the next question for the store, as the requests in line need it. If no request
    /// needs a lease, the contender ends, and its place in the store's queue is given up.
    ///
    /// For a line with three exclusive requests, of which the first has waited in the store's queue
    /// before:
    ///
    /// ```text
    /// Acquire { owner: 0c6f…:7, more: [], mode: Exclusive, block: 3, fingerprint: None, lease: 30 s, ends: [], .. }
    /// ```
    ///
    /// For three requests at a key with two permits, of which the line holds none, `more` has one
    /// further owner and `block` is rounded up to a multiple of two, so that each lease gets the
    /// same number of tokens.
    pub(crate) fn demand(&mut self, key: &LockKey, t: &mut Transition<'_>) -> Option<Acquire> {
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
        let (mode, fingerprint) = (first.mode, first.fingerprint.clone());
        let lease = first.holding.lease.unwrap_or(t.config.lease);
        let waits = waits_for(&self.waiters, mode);
        let owner = place.map_or_else(|| t.fresh_owner(), |place| place.owner);
        let more: Vec<Owner> = (1..permits).map(|_| t.fresh_owner()).collect();
        contending.ask(Asked {
            at: t.now,
            owners: std::iter::once(owner).chain(more.iter().copied()).collect(),
            mode,
            length: lease,
            fingerprint: fingerprint.clone(),
            waits,
            had_place: place.is_some(),
        });
        Some(Acquire {
            key: key.clone(),
            owner,
            lease,
            block: self.block_of(mode, permits as u32, t),
            queueing: t.config.queueing(waits),
            mode,
            more,
            fingerprint,
            ends: t.ends.to_carry(key),
        })
    }

    /// How many tokens to reserve with so many new leases: as many for each as it serves turns
    /// while others wait, because more of them would be lost with the lease.
    fn block_of(&self, mode: Mode, leases: u32, t: &Transition<'_>) -> u32 {
        if mode.shares_turns() {
            return 1;
        }
        let usable = t.config.pass_turns.saturating_mul(leases);
        let block = self.block(1).min(usable.max(1));
        block.next_multiple_of(leases)
    }

    /// How many permits the requests at the head of the line can use beside those that the line
    /// has. One in other modes.
    fn permits_to_ask_for(&self) -> usize {
        let mode = self.waiters.front().map(|turn| turn.request.mode);
        let Some(of) = mode.and_then(Mode::permits) else {
            return 1;
        };
        let most = of.saturating_sub(self.leases.len());
        let alike = self.waiters.iter().take(most.min(PERMITS_AT_MOST));
        let alike = alike.take_while(|turn| Some(turn.request.mode) == mode);
        alike.count().max(1)
    }

    /// Handles granted leases, which are doubted if the store may have forgotten them since the
    /// question was asked. Leases whose time was over before the answer came are not taken, and
    /// the question has failed.
    pub(crate) fn granted(
        &mut self,
        key: &LockKey,
        grant: &Grant,
        is_doubted: bool,
        t: &mut Transition<'_>,
    ) -> Result<(), Error> {
        let asked = self.contending.as_mut();
        let Some(asked) = asked.and_then(|it| it.take_if_in_time(t.now)) else {
            let message = "the store granted a lease after its time was over";
            return Err(Error::new(ErrorKind::Unreachable, message));
        };
        self.contending = None;
        self.refuse_other_work(&asked.fingerprint, t);
        let each = grant.tokens.left() / grant.count.max(1);
        let mut first_token = grant.tokens.first().unwrap_or_default();
        for owner in asked.owners.iter().take(grant.count as usize) {
            let lease = asked.lease(key, *owner);
            let tokens = Tokens::new(first_token, each);
            first_token += u64::from(each);
            let mut held = HeldLease::new(lease, tokens, grant.others_wait, asked.at, t);
            held.is_doubted = is_doubted;
            self.leases.add(held);
        }
        self.serve(t);
        Ok(())
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
        if !self.waiters.is_empty() {
            self.begin_turns(t);
        }
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
        if !self.waiters.is_empty() {
            self.look_ahead(t);
        }
    }

    /// Begins the turns of the requests at the head of the line, as far as there are leases for
    /// them.
    fn begin_turns(&mut self, t: &mut Transition<'_>) {
        while let Some((lease, mode)) = self.begin_turn(t) {
            self.leases.sort(lease);
            if mode.is_alone() {
                self.refuse_those_who_would_wait(t);
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
        if held.mode().permits().is_some() {
            held.look_ahead(self.waiters.len(), t);
        }
        Some((held.number(), held.mode()))
    }

    /// Decides about the leases without a turn: a lease that is passed on, but cannot serve yet, is
    /// renewed first, and every other one is released.
    fn settle_idle_leases(&mut self, t: &mut Transition<'_>) {
        for number in self.leases.idle() {
            self.settle_idle(number, t);
        }
    }

    fn settle_idle(&mut self, number: u64, t: &mut Transition<'_>) {
        let Some(held) = self.leases.get(number).filter(|held| !held.is_outlived) else {
            return;
        };
        let first = self.waiters.front();
        if !held.lease.is_valid(t.now) {
            self.over(number, Loss::Expired, t);
        } else if first.is_some_and(|first| held.is_passed_on_to(first, t)) {
            held.renew_for_a_turn(t);
        } else if let Some(held) = self.leases.remove(number) {
            t.release(held);
        }
    }

    /// Whether the store must be asked for a lease before the request can have its turn. If not,
    /// the turn begins after a turn or a renewal that is under way.
    pub(super) fn needs_lease(&self, turn: &Turn) -> bool {
        let mode = turn.request.mode;
        if let Some(of) = mode.permits() {
            return self.leases.len() < of;
        }
        // Later readers wait behind the request of another instance, and need a lease after that.
        let mut leases = self.leases.iter();
        !leases.any(|held| {
            let is_late = held.mode().shares_turns() && held.is_too_late_for(turn);
            held.mode().includes(mode) && !is_late
        })
    }

    /// Requests further tokens before they run out. A permit has its own look at the begin of each
    /// turn, because there may be thousands of them.
    fn look_ahead(&mut self, t: &mut Transition<'_>) {
        let waiting = self.waiters.len();
        let leases = self.leases.iter_open_mut();
        for held in leases.filter(|held| held.mode().permits().is_none()) {
            held.look_ahead(waiting, t);
        }
    }

    /// How many tokens to request.
    pub(super) fn block(&self, at_least: u32) -> u32 {
        let waiting = u32::try_from(self.waiters.len()).unwrap_or(BLOCK_AT_MOST);
        waiting.clamp(at_least, BLOCK_AT_MOST)
    }
}

/// Whether a place in the store's queue is of use. The requests that do not wait leave the line if
/// the key is held, so the place is for the first one that does.
fn waits_for(waiters: &VecDeque<Arc<Turn>>, mode: Mode) -> bool {
    let mut waiters = waiters.iter().map(|turn| &turn.request);
    let first = waiters.find(|request| request.patient);
    first.is_some_and(|request| request.mode == mode)
}

impl HeldLease {
    /// Whether a turn of this request can begin now.
    fn can_serve(&self, turn: &Turn, t: &Transition<'_>) -> bool {
        (self.mode().shares_turns() || self.is_idle())
            && self.is_passed_on_to(turn, t)
            && self.is_ready(t)
    }

    /// Whether turns can begin under the lease, as far as the lease is concerned.
    fn is_ready(&self, t: &Transition<'_>) -> bool {
        !self.is_outlived
            && self.lease.is_valid(t.now)
            && !self.is_doubted
            && self.tokens.left() > 0
    }

    /// Whether the lease serves this request next, rather than being released.
    ///
    /// A lease has one fingerprint, because the store shows it to other instances. A lease whose
    /// record was sent and not confirmed may have been replaced by now, and so may one in whose
    /// place the program can put a record.
    fn is_passed_on_to(&self, turn: &Turn, t: &Transition<'_>) -> bool {
        self.mode() == turn.request.mode
            && self.lease.fingerprint == turn.request.fingerprint
            && !self.lease.is_recording()
            && !self.lease.may_be_kept_by_program()
            && !self.is_used_up(turn, t)
    }

    /// Whether the lease has served enough turns since another instance began to wait.
    fn is_used_up(&self, turn: &Turn, t: &Transition<'_>) -> bool {
        let Some((since, served)) = self.wanted else {
            return false;
        };
        if self.mode().shares_turns() {
            return self.is_too_late_for(turn);
        }
        let enough_turns = self.served >= served + u64::from(t.config.pass_turns);
        self.served > 0 && (enough_turns || t.now >= later(since, t.config.pass_time))
    }

    /// Whether a reader has come later than another instance's request, which it does not overtake.
    fn is_too_late_for(&self, turn: &Turn) -> bool {
        self.wanted.is_some() && turn.id >= self.late_from
    }

    /// Requests further tokens if they run out. A turn with a fingerprint most likely ends with a
    /// record, and needs no further tokens.
    fn look_ahead(&mut self, waiting: usize, t: &mut Transition<'_>) {
        if !self.is_outlived && self.lease.fingerprint.is_none() && self.lacks_tokens(waiting, t) {
            self.renew_for_a_turn(t);
        }
    }

    /// Begins the turn of a request.
    fn begin(&mut self, turn: Arc<Turn>, t: &mut Transition<'_>) {
        let shares = self.mode().shares_turns();
        // Turns that go side by side share a token: they are not ordered among themselves.
        let token = if shares {
            self.tokens.first()
        } else {
            self.tokens.take()
        };
        let Some(token) = token else {
            unreachable!("`can_serve` has looked under the same lock");
        };
        self.served += 1;
        self.token = Some(token);
        self.began = t.now;
        let max_hold = turn.request.holding.max_hold.unwrap_or(t.config.max_hold);
        if shares {
            let ends = later(t.now, max_hold);
            self.readers.add(self.served, t.now, ends, turn.clone());
        } else {
            self.in_turn = true;
            self.max_hold = max_hold;
        }
        if self.served > 1 {
            self.renewal.renew_soon(t.pace, t.now);
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
        let ahead = TOKENS_AHEAD.min(self.block.div_ceil(2) as usize);
        (self.tokens.left() as usize) < waiting.min(ahead).min(self.turns_left(t))
    }

    /// How many more turns the lease serves, as far as others wait for the key.
    pub(super) fn turns_left(&self, t: &Transition<'_>) -> usize {
        if self.mode().shares_turns() {
            return 1; // as far as tokens are concerned
        }
        let Some((_, served)) = self.wanted else {
            return usize::MAX;
        };
        let last = served + u64::from(t.config.pass_turns);
        let left = last
            .saturating_sub(self.served)
            .max(u64::from(self.served == 0));
        usize::try_from(left).unwrap_or(usize::MAX)
    }
}
