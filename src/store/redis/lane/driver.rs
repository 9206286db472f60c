//! The task of a lane.
//!
//! Each poll of the [`Driver`] makes one [`Step`] after another, until there is nothing to do but
//! wait:
//!
//! ```text
//! step ─┬─ Connect ──> connected ──> step
//!       ├─ Wait until a reply, the end of a connect, or the next deadline ──> step
//!       └─ End, once the lane was dropped and nothing is left to do
//! ```

use std::{
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use redis::{RedisResult, ServerError, ServerErrorKind, Value};
use smallvec::SmallVec;
use tokio::time::{Instant, Sleep, sleep_until};

use super::{
    super::{connection::Connection, explain, operations::NOT_YET},
    DriverId, Inner, SILENT_LIMITS, State,
    connecting::BackOff,
    entry::is_noscript,
    message::{Flight, Replies},
};
use crate::{Error, time::can_sleep};

/// The next action of the driver.
enum Step {
    Connect,
    /// Wait for a reply, for the end of a connect, or until the given time.
    Wait(Option<Instant>),
    End,
}

/// The reply of a joint script.
enum JointReply {
    /// One value for each call.
    Each(std::vec::IntoIter<Value>),
    /// The server has made none of the calls.
    Refused(ServerError),
}

impl JointReply {
    fn new(reply: Option<Value>) -> Self {
        match reply {
            Some(Value::Array(values)) => Self::Each(values.into_iter()),
            Some(Value::ServerError(error)) => Self::Refused(error),
            _ => Self::Each(Vec::new().into_iter()),
        }
    }

    /// Whether the server never runs a script with keys of two buckets, as a node of a Cluster or a
    /// proxy in front of one, which may have an error of its own for that.
    fn is_never_run(&self) -> bool {
        use ServerErrorKind::{CrossSlot, ResponseError};
        matches!(self, Self::Refused(error) if matches!(error.kind(), Some(CrossSlot | ResponseError)))
    }

    /// The reply to the next call. `None` if the call was not made, and must be sent by itself. A
    /// script that the server does not have is sent again as it was.
    fn next(&mut self) -> Option<Value> {
        match self {
            // A missing value is a reply that no script gives.
            Self::Each(values) => {
                let value = values.next().unwrap_or(Value::Okay);
                (value != Value::Nil).then_some(value)
            }
            Self::Refused(error) => {
                let error = Value::ServerError(error.clone());
                is_noscript(&error).then_some(error)
            }
        }
    }
}

type Connecting = Pin<Box<dyn Future<Output = Result<Connection, Error>> + Send>>;

/// The task of a lane.
pub(super) struct Driver {
    inner: Arc<Inner>,
    id: DriverId,
    connecting: Option<Connecting>,
    timer: Option<Pin<Box<Sleep>>>,
    was_polled: bool,
}

impl Driver {
    pub(super) fn new(inner: Arc<Inner>, id: DriverId) -> Self {
        Self {
            inner,
            id,
            connecting: None,
            timer: None,
            was_polled: false,
        }
    }

    /// Polls the connect that is under way, if there is one.
    fn poll_connecting(&mut self, cx: &mut Context<'_>) -> Poll<Result<Connection, Error>> {
        let Some(connecting) = &mut self.connecting else {
            return Poll::Pending;
        };
        let outcome = ready!(connecting.as_mut().poll(cx));
        self.connecting = None;
        Poll::Ready(outcome)
    }

    /// Sets and polls the timer. Without a time, only replies wake the driver.
    fn poll_timer(&mut self, until: Option<Instant>, cx: &mut Context<'_>) -> Poll<()> {
        let Some(until) = until else {
            return Poll::Pending;
        };
        let timer = (self.timer).get_or_insert_with(|| Box::pin(sleep_until(until)));
        if timer.deadline() != until {
            timer.as_mut().reset(until);
        }
        timer.as_mut().poll(cx)
    }
}

/// The driver is dropped with its runtime, or after its last step, or because the lane has moved.
impl Drop for Driver {
    fn drop(&mut self) {
        self.inner.driver_ended(self.id);
    }
}

impl Future for Driver {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let driver = &mut *self;
        let is_first = !mem::replace(&mut driver.was_polled, true);
        if is_first && !can_sleep() {
            // A driver needs timers, and ends as with a runtime that shuts down.
            return Poll::Ready(());
        }
        loop {
            let until = match driver
                .inner
                .step(driver.id, driver.connecting.is_some(), cx)
            {
                Step::End => return Poll::Ready(()),
                Step::Connect => {
                    let inner = driver.inner.clone();
                    driver.connecting =
                        Some(Box::pin(
                            async move { inner.connector.connect_in_time().await },
                        ));
                    continue;
                }
                Step::Wait(until) => until,
            };
            if let Poll::Ready(outcome) = driver.poll_connecting(cx) {
                driver.inner.connected(driver.id, outcome);
            } else if driver.poll_timer(until, cx).is_pending() {
                return Poll::Pending;
            }
        }
    }
}

impl Inner {
    /// Does all that is due, and returns the next action.
    fn step(&self, driver: DriverId, is_connecting: bool, cx: &mut Context<'_>) -> Step {
        let mut locked = self.lock();
        let state: &mut State = &mut locked;
        if state.driver != Some(driver) {
            return Step::End;
        }
        state.waker.clone_from(cx.waker());
        if let Some(connection) = &state.connection {
            connection.health.wakes(cx.waker());
        }
        // Replies come before deadlines, and before the end of the connection: a reply that has
        // arrived counts.
        let answered = self.hear(state, cx);
        self.check_connection(state);
        let gathers = state.begins_to_gather(answered);
        if gathers {
            // A task that wakes itself is polled again after all tasks that are ready.
            cx.waker().wake_by_ref();
        }
        let now = Instant::now();
        let silence = self.limit * SILENT_LIMITS;
        let is_silent = |since| now >= since + silence;
        if state.silent_since().is_some_and(is_silent) {
            state.broke(explain::no_answer(silence));
        }
        self.expire(state, now);
        if !gathers {
            self.send(state);
        }

        let last_moment = state.closed.map(|closed| closed + self.limit);
        let is_idle = state.queue.is_empty();
        if last_moment.is_some_and(|last| is_idle || now >= last) {
            return Step::End;
        }
        let silent_at = state.silent_since().map(|since| since + silence);
        let deadlines = [state.queue.next_deadline(), last_moment, silent_at];
        let mut until = deadlines.into_iter().flatten().min();
        let wants_connection =
            !is_idle || state.was_connected && self.connector.upstream.stays_connected();
        if state.connection.is_none() && !is_connecting && wants_connection {
            match state.back_off.until {
                Some(at) if now < at => until = Some(until.map_or(at, |until| until.min(at))),
                _ => return Step::Connect,
            }
        }
        // A timer that is set too early is not moved, because every reply would move the timer
        // again.
        let set = state.wakes_at.filter(|at| now < *at);
        state.wakes_at = set.into_iter().chain(until).min();
        Step::Wait(state.wakes_at)
    }

    /// Answers the callers whose deadlines have passed.
    fn expire(&self, state: &mut State, now: Instant) {
        let (trouble, is_connected) = (&state.trouble, state.connection.is_some());
        state.queue.expire(now, |was_sent| match trouble {
            _ if was_sent || is_connected => explain::no_answer(self.limit),
            Some(error) => error.clone(),
            None => self.connector.too_late(),
        });
    }

    /// Takes all replies that have arrived. Returns the number of calls that were answered.
    fn hear(&self, state: &mut State, cx: &mut Context<'_>) -> usize {
        let (mut now, mut answered) = (None, 0);
        while let Some(flight) = state.flights.front_mut() {
            let Poll::Ready(replies) = flight.poll(cx) else {
                break;
            };
            let now = *now.get_or_insert_with(Instant::now);
            if let Some(flight) = state.flights.pop_front() {
                answered += flight.calls;
                self.heard(state, &flight, replies, now);
                state.spare.keep_reply_future(flight.into_spare());
            }
        }
        if state.flights.is_empty()
            && let Some(error) = state.leaving.take()
        {
            state.broke(error);
        }
        answered
    }

    /// Answers the calls of the first message in flight.
    fn heard(
        &self,
        state: &mut State,
        flight: &Flight,
        replies: RedisResult<Replies>,
        now: Instant,
    ) {
        let mut replies = match replies {
            Ok(replies) => replies,
            // The calls of this message still are the first in flight.
            Err(error) => return state.broke(explain::connection_broke(error)),
        };
        state.last_reply = Some(now);
        state.back_off = BackOff::default();
        let mut joints: SmallVec<[_; 4]> = (flight.joints.iter())
            .map(|joint| (*joint, JointReply::new(replies.values.next())))
            .collect();
        for _ in 0..flight.calls {
            let Some(entry) = state.queue.first_in_flight() else {
                break;
            };
            let joint = joints.iter_mut().find(|it| entry.joint == Some(it.0));
            if let Some((_, reply)) = joint {
                match reply.next() {
                    Some(value) if entry.call.is_granted_too_low(&value, &self.floors) => {
                        state.queue.failed_jointly(true);
                    }
                    Some(value) => state.queue.answered(value),
                    None => {
                        if let Some(connection) = &mut state.connection {
                            connection.joins &= !reply.is_never_run();
                        }
                        state.queue.failed_jointly(false);
                    }
                }
                continue;
            }
            if entry.call.is_asking {
                replies.values.next();
            }
            let mut next = || replies.values.next().unwrap_or(Value::Nil);
            if let Some(connection) = &state.connection {
                let strays = mem::take(&mut entry.strays);
                strays
                    .iter()
                    .for_each(|stray| connection.closed(stray, &next()));
            }
            let mut value = next();
            let is_beside_strays = || {
                state
                    .connection
                    .as_ref()
                    .is_some_and(Connection::is_beside_strays)
            };
            if entry.call.is_in_doubt() && value == Value::Int(0) && is_beside_strays() {
                value = NOT_YET;
            }
            if let Value::ServerError(error) = &value {
                if entry.call.is_large() {
                    // The server closes the connection if the record is too large.
                    state.leaving = Some(explain::refused(error.clone().into()));
                } else if let Some(error) = explain::demoted(&value) {
                    state.leaving = Some(error);
                    if self.connector.upstream.can_fail_over() {
                        state.queue.refused();
                        continue;
                    }
                }
            }
            state.queue.answered(value);
        }
        if let Some(command) = replies.spare {
            state.spare.keep_command(command);
        }
    }
}
