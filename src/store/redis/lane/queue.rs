//! The calls of a lane. The queue knows neither connections nor timers.
//!
//! ```text
//!   push ──> unsent ──> in flight ──> answered
//!              ^  │         │  └─ the connection breaks: unknown
//!              │  └─ due: refused
//!              └────────────┤ the server says that it has not run the call
//!                           └─ due: unknown; the call stays until its reply comes
//! ```
//!
//! 1. `calls` has the calls in flight first, in the order in which they were sent: the next reply
//!    belongs to the first of them. They stay even if their callers were answered before.
//! 2. A caller is answered once: [`Entry::answer`] is `None` afterwards. An unsent call has a
//!    caller.
//! 3. No caller must be answered before `next_deadline`. The time may be too early, which costs a
//!    look at all calls: most calls are answered long before, and none of them pays for a timer.

use std::collections::VecDeque;

use redis::Value;
use tokio::time::Instant;

use super::{
    super::{explain, script::By},
    entry::{Entry, Told, is_noscript},
};
use crate::{Error, store::Outcome};

/// The calls of a lane.
#[derive(Debug, Default)]
pub(super) struct Queue {
    calls: VecDeque<Entry>,
    in_flight: usize,
    next_deadline: Option<Instant>,
    /// Whether the last call that was sent is [large](super::super::operations::Call::is_large).
    last_is_large: bool,
    /// The outcomes of releases, which are given when the mutex is free.
    pub(super) told: Told,
}

impl Queue {
    pub(super) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    pub(super) fn unsent(&self) -> usize {
        self.calls.len() - self.in_flight
    }

    /// A time before which no caller must be answered.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.next_deadline
    }

    /// Appends a call.
    pub(super) fn push(&mut self, entry: Entry) {
        let next = self.next_deadline.get_or_insert(entry.deadline);
        *next = entry.deadline.min(*next);
        self.calls.push_back(entry);
    }

    /// The next call to be sent, which counts as in flight from now on. A large call is in flight
    /// alone. A call whose caller has left is not sent.
    pub(super) fn next_unsent(&mut self) -> Option<&mut Entry> {
        while self.calls.get(self.in_flight)?.is_given_up() {
            self.calls.remove(self.in_flight);
        }
        let is_large = self.calls[self.in_flight].call.is_large();
        if self.in_flight > 0 && (is_large || self.last_is_large) {
            return None;
        }
        self.last_is_large = is_large;
        self.in_flight += 1;
        self.calls.get_mut(self.in_flight - 1)
    }

    /// The calls in flight from a place on.
    pub(super) fn sent_from(&self, place: usize) -> impl Iterator<Item = &Entry> {
        self.calls.range(place..self.in_flight)
    }

    /// The first call in flight, whose reply comes next.
    pub(super) fn first_in_flight(&mut self) -> Option<&mut Entry> {
        self.calls.front_mut().filter(|_| self.in_flight > 0)
    }

    /// Takes the reply to the first call in flight. A call whose script the server does not have is
    /// sent again, by text.
    pub(super) fn answered(&mut self, value: Value) {
        let is_forgotten = is_noscript(&value);
        if let Some(mut entry) = self.take_first_in_flight() {
            if is_forgotten && matches!(entry.by, By::Hash) {
                entry.by = By::Text;
                self.send_again(entry);
            } else {
                entry.tell(Outcome::Answered(value), &mut self.told);
            }
        }
    }

    /// Sends the first call in flight again, by itself: a joint script has not run it, or has taken
    /// the key with a token that is too low.
    pub(super) fn failed_jointly(&mut self, has_taken: bool) {
        if let Some(mut entry) = self.take_first_in_flight() {
            entry.is_apart = true;
            entry.has_taken |= has_taken;
            self.send_again(entry);
        }
    }

    /// Sends the first call in flight again: the server has not run it, and another one may.
    pub(super) fn refused(&mut self) {
        if let Some(entry) = self.take_first_in_flight() {
            self.send_again(entry);
        }
    }

    fn take_first_in_flight(&mut self) -> Option<Entry> {
        self.in_flight = self.in_flight.checked_sub(1)?;
        self.calls.pop_front()
    }

    /// Queues a call again, unless its caller was answered meanwhile.
    fn send_again(&mut self, entry: Entry) {
        if entry.answer.is_some() {
            self.calls.push_back(entry);
        }
    }

    /// Answers the callers whose deadlines have passed, with the error of `why` for a call that was
    /// sent or not.
    pub(super) fn expire(&mut self, now: Instant, why: impl Fn(bool) -> Error) {
        if self.next_deadline.is_none_or(|next| now < next) {
            return;
        }
        let mut next = None;
        for (place, entry) in self.calls.iter_mut().enumerate() {
            if entry.deadline <= now {
                let was_sent = place < self.in_flight;
                let error = why(was_sent);
                let outcome = if was_sent {
                    Outcome::Unknown(error)
                } else {
                    Outcome::Refused(error)
                };
                entry.tell(outcome, &mut self.told);
            } else if entry.answer.is_some() {
                next = next.into_iter().chain([entry.deadline]).min();
            }
        }
        self.next_deadline = next;
        let mut in_flight = self.in_flight;
        self.calls.retain(|entry| {
            let is_sent = in_flight > 0;
            in_flight = in_flight.saturating_sub(1);
            is_sent || entry.answer.is_some()
        });
    }

    /// Handles the end of the connection: the outcome of all calls in flight is unknown.
    pub(super) fn broke(&mut self, error: &Error) {
        for mut entry in self.calls.drain(..self.in_flight) {
            let too_large = entry.call.is_large().then(explain::record_too_large);
            let error = too_large.unwrap_or_else(|| error.clone());
            entry.tell(Outcome::Unknown(error), &mut self.told);
        }
        self.in_flight = 0;
    }

    /// Answers all callers of calls that were not sent.
    pub(super) fn fail_unsent(&mut self, outcome: impl Fn() -> Outcome<Value>) {
        for mut entry in self.calls.drain(self.in_flight..) {
            entry.tell(outcome(), &mut self.told);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::{
        super::{super::operations::Operation, entry::Receiver},
        *,
    };

    /// Fault: the server had taken the key, and nobody was told to free it.
    #[test]
    fn a_call_that_has_taken_its_key_and_fails_after_that_has_an_unknown_outcome() {
        let is_unknown = |has_taken, ends: fn(&mut Queue, Instant)| {
            let (now, mut queue) = (Instant::now(), Queue::default());
            let (answer, mut outcome) = oneshot::channel();
            let call = Operation::Ping { bucket: 0 }.into();
            queue.push(Entry::new(call, now, Receiver::One(answer)));
            queue.next_unsent().unwrap();
            queue.failed_jointly(has_taken);
            ends(&mut queue, now);
            matches!(outcome.try_recv().unwrap(), Outcome::Unknown(_))
        };
        let too_late: fn(&mut Queue, Instant) =
            |queue, now| queue.expire(now, |_| explain::no_runtime());
        let not_sent: fn(&mut Queue, Instant) =
            |queue, _| queue.fail_unsent(|| Outcome::Refused(explain::no_runtime()));
        let refused: fn(&mut Queue, Instant) = |queue, _| {
            queue.next_unsent().unwrap();
            queue.answered(redis::parse_redis_value(b"-OOM full\r\n").unwrap());
        };
        for ends in [too_late, not_sent, refused] {
            assert!(is_unknown(true, ends));
            assert!(!is_unknown(false, ends));
        }
    }
}
