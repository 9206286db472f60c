//! Entering and leaving.

use std::{collections::VecDeque, sync::Arc};

use tokio::time::Instant;

use super::{Contention, Effects, Limits, Line, Miss, State, Tenure, Ticket, Waiting, Wish, held};
use crate::{Error, ErrorKind};

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
        // What is claimed may be recorded already: only the store can tell, and is about to.
        let asked_already =
            waiting.wish.claim.is_some() && matches!(self.state, State::Contending(_));
        if busy && !waiting.wish.patient && !asked_already {
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
