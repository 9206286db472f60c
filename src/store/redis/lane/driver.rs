//! The task of a lane, and the messages whose replies it takes.
//!
//! Each poll of the [`Driver`] makes one [`Step`] after another, until there is nothing to do but wait:
//!
//! ```text
//! step ─┬─ Connect ──> connected ──> step
//!       ├─ Wait until a reply, the end of a connect, or the next deadline ──> step
//!       └─ End, once the lane was dropped and nothing is left to do
//! ```
//!
//! A message is one command or several that are sent together:
//!
//! ```text
//! Message::push × n ──> Message::send ──> the connection's buffer
//!                             └──> Flight { calls: n, reply_future } ──> hear: Replies, in the order of the commands
//! ```

use std::{
    mem,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, Waker, ready},
    vec,
};

use redis::{Cmd, Pipeline, RedisResult, Value};
use tokio::{
    task::unconstrained,
    time::{Instant, Sleep, sleep_until},
};
use tokio_util::sync::ReusableBoxFuture;

use super::{
    super::{connection::Connection, explain, outcome::Redirect},
    DriverId, Inner, SILENT_LIMITS, State,
    connecting::BackOff,
    entry::Reply,
};
use crate::{Error, time::can_sleep};

/// The room in a new pipeline.
const USUAL_COMMANDS: usize = 16;

/// The next action of the driver.
enum Step {
    Connect,
    /// Wait for a reply, for the end of a connect, or until the given time.
    Wait(Option<Instant>),
    End,
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
        let mut state = self.lock();
        if state.driver != Some(driver) {
            return Step::End;
        }
        self.step_locked(&mut state, is_connecting, cx)
    }

    fn step_locked(&self, state: &mut State, is_connecting: bool, cx: &mut Context<'_>) -> Step {
        state.waker.clone_from(cx.waker());
        if let Some(connection) = &state.connection {
            connection.health.wakes(cx.waker());
        }
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
        self.expire(state, now);
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
        let wants_connection = state.queue.has_calls()
            || !state.connecting.is_empty()
            || state.was_connected && self.connector.stays_connected();
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
        state.last_reply = Some(now);
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

/// Commands that are sent together. A single one needs no pipeline, and its buffers are used again.
#[derive(Default)]
pub(super) enum Message {
    #[default]
    Empty,
    One(Cmd),
    Many(Pipeline),
}

/// A message that was sent.
pub(super) struct Flight {
    pub(super) sent: Instant,
    /// The number of calls in the message. They are the first calls in flight when the replies come.
    pub(super) calls: usize,
    reply_future: ReplyFuture,
    /// The replies, if they came with the first poll.
    replies: Option<RedisResult<Replies>>,
}

/// The future of the replies. Its box is used again for the next message.
pub(super) type ReplyFuture = ReusableBoxFuture<'static, RedisResult<Replies>>;

/// The replies to a message.
pub(super) struct Replies {
    pub(super) values: Values,
    /// A command whose buffers can be used again.
    pub(super) spare: Option<Cmd>,
}

/// The values of the replies, one for each command.
pub(super) enum Values {
    One(Option<Value>),
    Many(vec::IntoIter<Value>),
}

impl Message {
    /// Appends a command.
    pub(super) fn push(&mut self, command: Cmd) {
        *self = match mem::take(self) {
            Self::Empty => Self::One(command),
            Self::One(first) => {
                let mut pipeline = Pipeline::with_capacity(USUAL_COMMANDS);
                pipeline.add_command(first).add_command(command);
                Self::Many(pipeline)
            }
            Self::Many(mut pipeline) => {
                pipeline.add_command(command);
                Self::Many(pipeline)
            }
        };
    }

    /// Sends the commands of `calls` calls. When the method returns, the commands are in the connection's buffer, if the buffer has
    /// room. The replies wake `waker`.
    pub(super) fn send(
        self,
        calls: usize,
        connection: &Connection,
        spare: Option<ReplyFuture>,
        waker: &Waker,
    ) -> Flight {
        let mut connection = connection.multiplexed.clone();
        let reply_future = match self {
            Self::One(command) => boxed(spare, async move {
                let value = connection.send_packed_command(&command).await?;
                Ok(Replies {
                    values: Values::One(Some(value)),
                    spare: Some(command),
                })
            }),
            Self::Many(pipeline) => boxed(spare, async move {
                let all = pipeline.len();
                let values = connection.send_packed_commands(&pipeline, 0, all).await?;
                Ok(Replies {
                    values: Values::Many(values.into_iter()),
                    spare: None,
                })
            }),
            Self::Empty => boxed(spare, async {
                Ok(Replies {
                    values: Values::One(None),
                    spare: None,
                })
            }),
        };
        let mut flight = Flight {
            sent: Instant::now(),
            calls,
            reply_future,
            replies: None,
        };
        // The first poll puts the message into the connection's buffer. If this thread pauses in that poll, the replies can be there before
        // its end, and no later event wakes the driver for them.
        if let Poll::Ready(replies) = flight.poll(&mut Context::from_waker(waker)) {
            flight.replies = Some(replies);
            waker.wake_by_ref();
        }
        flight
    }
}

/// Boxes the future, in a spare box if there is one.
fn boxed(
    spare: Option<ReplyFuture>,
    future: impl Future<Output = RedisResult<Replies>> + Send + 'static,
) -> ReplyFuture {
    match spare {
        Some(mut spare) => {
            spare.set(future);
            spare
        }
        None => ReplyFuture::new(future),
    }
}

impl Flight {
    /// Polls for the replies, which are returned once.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<RedisResult<Replies>> {
        if let Some(replies) = self.replies.take() {
            return Poll::Ready(replies);
        }
        // Unconstrained, because the first poll sends the message and must not be put off when the task's budget is spent.
        pin!(unconstrained(self.reply_future.get_pin())).poll(cx)
    }

    /// The box, to be used again once the replies were taken.
    pub(super) fn into_spare(self) -> ReplyFuture {
        self.reply_future
    }
}

impl Replies {
    pub(super) fn values(&self) -> &[Value] {
        match &self.values {
            Values::One(value) => value.as_slice(),
            Values::Many(values) => values.as_slice(),
        }
    }
}

impl Iterator for Values {
    type Item = Value;

    fn next(&mut self) -> Option<Value> {
        match self {
            Self::One(value) => value.take(),
            Self::Many(values) => values.next(),
        }
    }
}

impl std::fmt::Debug for Flight {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Flight")
            .field("sent", &self.sent)
            .field("calls", &self.calls)
            .finish_non_exhaustive()
    }
}
