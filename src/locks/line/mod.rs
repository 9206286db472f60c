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

mod contend;
mod enter;
mod news;
mod turns;

use std::{
    collections::VecDeque,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use bytes::Bytes;
use tokio::{
    sync::{Notify, oneshot},
    time::Instant,
};

use crate::{Error, ErrorKind, LockKey, Loss, lease::Lease, store::Tokens, time::later};

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
