//! The task of a lane: connects, takes the replies, keeps the time limits.
//!
//! Each poll makes one [`Step`] after another, until there is nothing to do but wait:
//!
//! ```text
//! step ─┬─ Connect ──> connected ──> step
//!       ├─ Wait until a reply, the end of a connect, or the next deadline ──> step
//!       └─ End, once the lane was dropped and nothing is left to do
//! ```

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use redis::{RedisResult, Value};
use tokio::time::{Instant, Sleep, sleep_until};

use super::{Inner, SILENT_LIMITS, State, entry::Reply, flight::Replies};
use crate::{
    Error,
    store::redis::{connection::Connection, explain, outcome::Redirect},
    sync::random,
    trace,
};

const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The next action of the driver.
enum Step {
    Connect,
    /// Wait for a reply, for the end of a connect, or until the given time.
    Wait(Option<Instant>),
    End,
}

/// The pause before the next connect, after connects that brought no reply.
#[derive(Debug, Default)]
pub(super) struct BackOff {
    pause: Duration,
    until: Option<Instant>,
}

type Connecting = Pin<Box<dyn Future<Output = Result<Connection, Error>> + Send>>;

/// The task of a lane.
pub(super) struct Driver {
    inner: Arc<Inner>,
    connecting: Option<Connecting>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Driver {
    pub(super) fn new(inner: Arc<Inner>) -> Self {
        Self {
            inner,
            connecting: None,
            timer: None,
        }
    }

    /// Polls the connect that is under way, if there is one.
    fn poll_connecting(&mut self, cx: &mut Context<'_>) -> Poll<Result<Connection, Error>> {
        let Some(connecting) = &mut self.connecting else {
            return Poll::Pending;
        };
        let outcome = std::task::ready!(connecting.as_mut().poll(cx));
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

impl Future for Driver {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let driver = &mut *self;
        loop {
            let until = match driver.inner.step(driver.connecting.is_some(), cx) {
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
                driver.inner.connected(outcome);
            } else if driver.poll_timer(until, cx).is_pending() {
                return Poll::Pending;
            }
        }
    }
}

impl Inner {
    /// Does all that is due, and returns the next action.
    fn step(&self, is_connecting: bool, cx: &mut Context<'_>) -> Step {
        let mut state = self.state.lock();
        let step = self.step_locked(&mut state, is_connecting, cx);
        let failed_releases = std::mem::take(&mut state.queue.failed_releases);
        drop(state);
        for (owner, error) in failed_releases {
            trace::release_failed(owner, &error);
        }
        step
    }

    fn step_locked(&self, state: &mut State, is_connecting: bool, cx: &mut Context<'_>) -> Step {
        state.waker.clone_from(cx.waker());
        // Replies come before deadlines: a reply that has arrived counts, however late the driver is.
        let answered = self.hear(state, cx);
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
        if !gathers {
            self.send(state);
        }
        let (trouble, is_connected) = (&state.trouble, state.connection.is_some());
        state.queue.expire(now, |was_sent| match trouble {
            _ if was_sent || is_connected => explain::no_answer(self.limit),
            Some(error) => error.clone(),
            None => self.connector.too_late(),
        });
        if !gathers {
            // `expire` may have queued releases of failed acquires.
            self.send(state);
        }

        let last_moment = state.closed.map(|closed| closed + self.limit);
        if let Some(last) = last_moment {
            let is_over = now >= last;
            if is_over {
                state.queue.clear();
            }
            if is_over || state.queue.is_empty() && state.connecting.is_empty() {
                return Step::End;
            }
        }
        let silent_at = state.silent_since().map(|since| since + silence);
        let deadlines = [state.queue.next_deadline(), last_moment, silent_at];
        let mut until = deadlines.into_iter().flatten().min();
        let wants_connection = state.queue.has_calls() || !state.connecting.is_empty();
        if state.connection.is_none() && !is_connecting && wants_connection {
            match state.back_off.until {
                Some(at) if now < at => until = Some(until.map_or(at, |until| until.min(at))),
                _ => return Step::Connect,
            }
        }
        // A timer that is set too early is not moved, because every reply would move the timer again.
        let set = state.wakes_at.filter(|at| now < *at);
        state.wakes_at = set.into_iter().chain(until).min();
        Step::Wait(state.wakes_at)
    }

    /// Handles the end of a connect. All waiting calls get the same verdict: a connection, or the reason why two connects in a row have
    /// failed.
    fn connected(&self, outcome: Result<Connection, Error>) {
        let mut state = self.state.lock();
        // The pause lasts until the connection has brought a reply, because some connections break right after they were made.
        state.back_off.lengthen(self.limit);
        let verdict = match outcome {
            Ok(connection) => {
                let broke = state
                    .trouble
                    .take()
                    .unwrap_or_else(explain::connection_ended);
                state
                    .queue
                    .connected(connection.predecessors_closed, &broke);
                state.connection = Some(connection);
                self.send(&mut state);
                Ok(())
            }
            Err(error) => {
                state.trouble = Some(error.clone());
                if state.back_off.is_first() {
                    // The connect may have met the same fault that broke the last connection.
                    return;
                }
                state.queue.fail_all(&error);
                Err(error)
            }
        };
        for waiting in state.connecting.drain(..) {
            let _ = waiting.send(verdict.clone());
        }
    }

    /// Takes all replies that have arrived. Returns the number of calls that were answered.
    fn hear(&self, state: &mut State, cx: &mut Context<'_>) -> usize {
        let (mut now, mut answered) = (None, 0);
        while let Some(flight) = state.in_flight.front_mut() {
            let Poll::Ready(replies) = flight.poll(cx) else {
                break;
            };
            let now = *now.get_or_insert_with(Instant::now);
            if let Some(flight) = state.in_flight.pop_front() {
                answered += flight.calls;
                self.heard(state, flight.calls, replies, now);
                state.spare.keep_reply_future(flight.into_spare());
            }
        }
        answered
    }

    /// Answers the calls of the first message in flight.
    fn heard(&self, state: &mut State, calls: usize, replies: RedisResult<Replies>, now: Instant) {
        let replies = match replies {
            Ok(replies) => replies,
            Err(error) => {
                // The calls of this message still are the first in flight, and are queued again with all the others.
                return state.broke(explain::connection_broke(error));
            }
        };
        state.heard = Some(now);
        state.back_off = BackOff::default();
        let demoted = replies.values().iter().find_map(explain::demoted);
        if let Some(error) = &demoted
            && self.connector.can_fail_over()
        {
            // Another server is the primary, or will be, and gets all calls again.
            return state.broke(error.clone());
        }
        let predecessors_closed =
            (state.connection.as_ref()).is_some_and(|it| it.predecessors_closed);
        let mut values = replies.values;
        for _ in 0..calls {
            let Some((id, entry)) = state.queue.first_in_flight() else {
                break;
            };
            let mut all_closed = predecessors_closed;
            if entry.has_command_before {
                all_closed &= !matches!(values.next(), Some(Value::ServerError(_)));
            }
            let value = values.next().unwrap_or(Value::Nil);
            let reply = Reply {
                redirect: self.redirect(&value),
                value,
                predecessors_closed: all_closed,
            };
            state.queue.answered(id, reply);
        }
        if let Some(command) = replies.spare {
            state.spare.keep_command(command);
        }
        if let Some(error) = demoted {
            // The next connect may find another server under the same name.
            state.broke(error);
        }
    }

    /// The redirect in a reply, in a Cluster.
    fn redirect(&self, value: &Value) -> Option<Redirect> {
        match value {
            Value::ServerError(error) => self.connector.redirect(error),
            _ => None,
        }
    }
}

impl BackOff {
    /// Whether only one connect has brought no reply so far.
    fn is_first(&self) -> bool {
        self.pause <= FIRST_PAUSE
    }

    /// Doubles the pause, with jitter. At half the time limit, the pause still lets a waiting call see the next connect.
    fn lengthen(&mut self, limit: Duration) {
        let longest = LONGEST_PAUSE.min(limit / 2);
        self.pause = (self.pause * 2).clamp(FIRST_PAUSE.min(longest), longest);
        self.until = Some(Instant::now() + self.pause.mul_f64(0.5 + random() / 2.0));
    }
}
