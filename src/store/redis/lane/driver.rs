//! The task of a lane: connects, hears the replies, keeps the time limits.

use std::{
    future::{pending, poll_fn},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use redis::{RedisResult, Value};
use tokio::time::{Instant, sleep_until};

use super::{Inner, Message, SILENT_LIMITS, State, entry::Reply};
use crate::{
    Error,
    store::redis::{connection::Connection, explain, outcome::Redirect},
    sync::random,
};

const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// What the driver does next.
enum Step {
    Connect,
    /// Waits for a reply, for the end of a connect, or until then.
    Wait(Option<Instant>),
    End,
}

/// The pause before the next connect, after connects that led to nothing.
#[derive(Debug, Default)]
pub(super) struct BackOff {
    pause: Duration,
    until: Option<Instant>,
}

type Connecting = Pin<Box<dyn Future<Output = Result<Connection, Error>> + Send>>;

pub(super) async fn drive(inner: Arc<Inner>) {
    let mut connecting: Option<Connecting> = None;
    loop {
        let step = inner.step(connecting.is_some());
        let until = match step {
            Step::End => return,
            Step::Connect => {
                let inner = inner.clone();
                connecting = Some(Box::pin(
                    async move { inner.connector.connect_in_time().await },
                ));
                continue;
            }
            Step::Wait(until) => until,
        };
        let connected = async {
            match &mut connecting {
                Some(connecting) => connecting.await,
                None => pending().await,
            }
        };
        let due = async {
            match until {
                Some(until) => sleep_until(until).await,
                None => pending().await,
            }
        };
        tokio::select! {
            biased;
            () = poll_fn(|cx| inner.poll_replies(cx)) => {}
            outcome = connected => {
                connecting = None;
                inner.connected(outcome);
            }
            () = inner.wake.notified() => {}
            () = due => {}
        }
    }
}

impl Inner {
    fn step(&self, is_connecting: bool) -> Step {
        let mut state = self.state.lock();
        let now = Instant::now();
        let state = &mut *state;
        let silence = self.limit * SILENT_LIMITS;
        if state
            .silent_since()
            .is_some_and(|since| now >= since + silence)
        {
            state.broke(explain::no_answer(silence));
        }
        self.send(state);
        // A reply that is there counts, however late the driver is.
        let _ = self.hear(state, &mut Context::from_waker(Waker::noop()));
        let (trouble, is_connected) = (&state.trouble, state.connection.is_some());
        state.queue.expire(now, |was_sent| match trouble {
            _ if was_sent || is_connected => explain::no_answer(self.limit),
            Some(error) => error.clone(),
            None => self.connector.too_late(),
        });
        // Clean-ups that were queued just now.
        self.send(state);

        let last_moment = state.closed.map(|closed| closed + self.limit);
        let is_over = last_moment.is_some_and(|last| now >= last);
        if is_over || state.queue.is_empty() && state.connecting.is_empty() {
            if is_over {
                state.queue.clear();
            }
            // Under the lock: the next call finds no driver, and starts another.
            state.driver = None;
            return Step::End;
        }
        let mut until: Vec<Instant> = state.queue.next_deadline().into_iter().collect();
        until.extend(last_moment);
        until.extend(state.silent_since().map(|since| since + silence));
        let wants_connection = state.queue.has_calls() || !state.connecting.is_empty();
        if state.connection.is_none() && !is_connecting && wants_connection {
            match state.back_off.until {
                Some(at) if now < at => until.push(at),
                _ => return Step::Connect,
            }
        }
        state.wakes_at = until.into_iter().min();
        Step::Wait(state.wakes_at)
    }

    /// A connect has ended. All who wait share the verdict: a connection, or the reason why two connects in a row have failed.
    fn connected(&self, outcome: Result<Connection, Error>) {
        let mut state = self.state.lock();
        // Counts until the connection has brought a reply: some break right after they were made.
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
                    // It may have met the same fault that broke the last connection.
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

    /// Hears all replies that are there. Pending if there is none.
    fn poll_replies(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.state.lock();
        let heard = self.hear(&mut state, cx);
        if let Some(first) = state.in_flight.front_mut() {
            first.is_watched = true;
        }
        heard
    }

    fn hear(&self, state: &mut State, cx: &mut Context<'_>) -> Poll<()> {
        let mut heard_any = false;
        while let Some(message) = state.in_flight.front_mut() {
            let polled = match message.at_once.take() {
                Some(reply) => Poll::Ready(reply),
                None => message.reply.as_mut().poll(cx),
            };
            let Poll::Ready(reply) = polled else {
                break;
            };
            heard_any = true;
            if let Some(message) = state.in_flight.pop_front() {
                self.heard(state, message, reply);
            }
        }
        if heard_any {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }

    fn heard(&self, state: &mut State, message: Message, reply: RedisResult<Vec<Value>>) {
        let values = match reply {
            Ok(values) => values,
            Err(error) => {
                // Still the lane's first call in flight, with all others behind it.
                return state.broke(explain::connection_broke(error));
            }
        };
        state.heard = Some(Instant::now());
        state.back_off = BackOff::default();
        let demoted = values.iter().find_map(explain::demoted);
        if let Some(error) = &demoted
            && self.connector.can_fail_over()
        {
            // Another server is the primary, or will be: all calls go there.
            return state.broke(error.clone());
        }
        let predecessors_closed =
            (state.connection.as_ref()).is_some_and(|it| it.predecessors_closed);
        let mut values = values.into_iter();
        for sent in message.calls {
            let mut all_closed = predecessors_closed;
            if sent.has_command_before {
                all_closed &= !matches!(values.next(), Some(Value::ServerError(_)));
            }
            let value = values.next().unwrap_or(Value::Nil);
            let reply = Reply {
                redirect: self.redirect(&value),
                value,
                predecessors_closed: all_closed,
            };
            state.queue.answered(sent.id, reply);
        }
        if let Some(error) = demoted {
            // Whoever looks for the server again may find another one under the same name.
            state.broke(error);
        }
    }

    fn redirect(&self, value: &Value) -> Option<Redirect> {
        match value {
            Value::ServerError(error) => self.connector.redirect(error),
            _ => None,
        }
    }
}

impl BackOff {
    /// Whether only one connect has led to nothing so far.
    fn is_first(&self) -> bool {
        self.pause <= FIRST_PAUSE
    }

    /// The next pause: twice as long, with jitter, and short enough that a call which waits sees the next connect.
    fn lengthen(&mut self, limit: Duration) {
        let longest = LONGEST_PAUSE.min(limit / 2);
        self.pause = (self.pause * 2).clamp(FIRST_PAUSE.min(longest), longest);
        self.until = Some(Instant::now() + self.pause.mul_f64(0.5 + random() / 2.0));
    }
}
