//! A lane: one connection at a time, on which calls take effect in the order in which they were started.
//!
//! 1. A call is started by [`Lane::call`]: when that returns, the call has its place in the queue, and if there is a working
//!    connection with room, it is in that connection's buffer, too. Neither needs a runtime.
//! 2. The lane owns the futures of the replies. A caller only waits for the outcome, so a caller that goes away takes nothing back.
//! 3. Fewer messages are in flight than the connection's buffer holds. With a full buffer, the client library would not keep the order
//!    of two senders.
//! 4. Replies come in the order of the messages, so only the first message in flight is polled.
//! 5. When a connection breaks, all calls in flight are queued again in their order, in front of the others. They are sent again only on
//!    a connection whose predecessors are closed (see `connection`): else the first sending could take effect after the
//!    second, and after whatever follows that.
//! 6. One task, the driver, connects, hears the replies and keeps the time limits. It ends when nothing is left to do. A call from
//!    within a runtime starts the driver if there is none, or if the driver's runtime has ended.
//! 7. The mutex is never held over an await. Under it, nothing is called but the client library's buffer and wakers.

mod driver;
mod entry;
mod pending;
mod queue;

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use redis::{Pipeline, RedisResult, Value};
use tokio::{
    runtime::Handle,
    sync::{Notify, mpsc, oneshot},
    task::{JoinHandle, unconstrained},
    time::{Instant, timeout},
};

use self::{
    driver::BackOff,
    entry::AnswerTo,
    pending::Undo,
    queue::{Id, Queue},
};
pub(super) use self::{
    entry::{Before, Failure, Start, after, is_noscript},
    pending::Pending,
};
use super::{
    connection::{BUFFERED, Connection, Connector},
    explain,
    fence::Floors,
    names::Names,
    outcome::Outcome,
    owed::Owed,
    topology::Upstream,
};
use crate::{Error, LockKey, store::Owner, sync::Mutex};

/// How many calls travel in one message: enough to spare round trips, few enough not to keep others waiting.
pub(super) const BATCH: usize = 128;
/// Invariant 3.
const MOST_IN_FLIGHT: usize = BUFFERED - 1;
/// A connection that has been silent for so many time limits, although a reply is due, is given up.
const SILENT_LIMITS: u32 = 3;

#[derive(Debug)]
pub(super) struct Lane(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    state: Mutex<State>,
    /// Wakes the driver.
    wake: Notify,
    connector: Connector,
    floors: Arc<Floors>,
    limit: Duration,
}

#[derive(Debug)]
struct State {
    queue: Queue,
    connection: Option<Connection>,
    /// Sent on `connection`, oldest first.
    in_flight: VecDeque<Message>,
    /// When the connection last brought a reply.
    heard: Option<Instant>,
    /// Why the last connection ended, or could not be made.
    trouble: Option<Error>,
    /// Who waits for a connection.
    connecting: Vec<oneshot::Sender<Result<(), Error>>>,
    back_off: BackOff,
    driver: Option<JoinHandle<()>>,
    /// When the driver wakes up by itself.
    wakes_at: Option<Instant>,
    /// When the last handle was dropped.
    closed: Option<Instant>,
}

/// Calls that were sent together.
struct Message {
    calls: Vec<Sent>,
    sent: Instant,
    reply: ReplyFuture,
    /// The reply, where it was there at once.
    at_once: Option<RedisResult<Vec<Value>>>,
    /// The driver is woken by the reply.
    is_watched: bool,
}

#[derive(Debug)]
struct Sent {
    id: Id,
    /// Another command goes before the call, and has a reply of its own.
    has_command_before: bool,
}

type ReplyFuture = Pin<Box<dyn Future<Output = RedisResult<Vec<Value>>> + Send>>;

impl Lane {
    pub(super) fn new(
        upstream: Arc<dyn Upstream>,
        floors: Arc<Floors>,
        limit: Duration,
        names: Names,
        owed: Owed,
    ) -> Self {
        let connector = Connector::for_lane(upstream, floors.clone(), limit);
        Self(Arc::new(Inner {
            state: Mutex::new(State {
                queue: Queue::new(names, owed),
                connection: None,
                in_flight: VecDeque::new(),
                heard: None,
                trouble: None,
                connecting: Vec::new(),
                back_off: BackOff::default(),
                driver: None,
                wakes_at: None,
                closed: None,
            }),
            wake: Notify::new(),
            connector,
            floors,
            limit,
        }))
    }

    /// Connects if there is no connection.
    pub(super) async fn connect(&self) -> Result<(), Error> {
        let connected = {
            let mut state = self.0.state.lock();
            self.0.check_connection(&mut state);
            if state.connection.is_some() {
                return Ok(());
            }
            let (sender, connected) = oneshot::channel();
            state.connecting.push(sender);
            self.0.drive(&mut state);
            connected
        };
        match timeout(self.0.limit, connected).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) | Err(_) => Err(self.0.connector.too_late()),
        }
    }

    /// Starts a call.
    pub(super) fn call(self: &Arc<Self>, start: Start) -> Pending {
        let (answer, outcome) = oneshot::channel();
        let undo = match start.failure {
            Failure::CleanUp { owner, owed_for } => Some(Undo {
                key: start.key.clone(),
                owner,
                owed_for,
            }),
            _ => None,
        };
        let mut state = self.0.state.lock();
        let id = state.queue.push(start, Some(AnswerTo::One(answer)));
        self.0.send(&mut state);
        self.0.drive(&mut state);
        drop(state);
        Pending {
            lane: self.clone(),
            id,
            outcome,
            undo,
        }
    }

    /// Starts calls, whose outcomes go to a channel, each with the index that came with the call.
    pub(super) fn call_all(
        &self,
        calls: impl IntoIterator<Item = (usize, Start)>,
        to: &mpsc::UnboundedSender<(usize, Outcome)>,
    ) {
        let mut state = self.0.state.lock();
        for (index, start) in calls {
            state
                .queue
                .push(start, Some(AnswerTo::Batch(index, to.clone())));
        }
        self.0.send(&mut state);
        self.0.drive(&mut state);
    }

    /// Starts the release of what an acquire may have taken.
    pub(super) fn clean_up(
        &self,
        key: LockKey,
        owner: Owner,
        owed_for: Duration,
        until_expiry: bool,
    ) {
        let mut state = self.0.state.lock();
        state.queue.clean_up(key, owner, owed_for, until_expiry);
        self.0.send(&mut state);
        self.0.drive(&mut state);
    }

    /// Goes on with what was started outside of a runtime.
    pub(super) fn go_on(&self) {
        let mut state = self.0.state.lock();
        if !state.queue.is_empty() {
            self.0.drive(&mut state);
        }
    }
}

/// The driver goes on for as long as the calls that were started have time.
impl Drop for Lane {
    fn drop(&mut self) {
        self.0.state.lock().closed = Some(Instant::now());
        self.0.wake.notify_one();
    }
}

impl Inner {
    /// Gives the connection up if it is known to be broken, or not to lead to the primary.
    fn check_connection(&self, state: &mut State) {
        let is_fit = |connection: &Connection| {
            !connection.health.is_broken() && self.connector.is_current(&connection.address)
        };
        if state.connection.as_ref().is_some_and(|it| !is_fit(it)) {
            state.broke(explain::connection_ended());
        }
    }

    /// Sends what can be sent.
    fn send(&self, state: &mut State) {
        self.check_connection(state);
        let State {
            queue,
            connection: Some(connection),
            in_flight,
            ..
        } = state
        else {
            return;
        };
        if queue.is_held_back() {
            if !in_flight.is_empty() {
                return;
            }
            queue.send_forgotten_again();
        }
        while in_flight.len() < MOST_IN_FLIGHT {
            let batch = queue.send(BATCH);
            if batch.is_empty() {
                return;
            }
            in_flight.push_back(self.message(queue, connection, &batch));
        }
    }

    fn message(&self, queue: &Queue, connection: &Connection, batch: &[Id]) -> Message {
        let mut pipeline = Pipeline::with_capacity(batch.len());
        let mut calls = Vec::with_capacity(batch.len());
        for id in batch {
            let Some(entry) = queue.entry(*id) else {
                continue;
            };
            let before = match &entry.before {
                Before::Asking => Some(redis::cmd("ASKING")),
                Before::Close(peer) if peer.is_to(&connection.address) => Some(peer.kill()),
                Before::Close(_) | Before::Nothing => None,
            };
            calls.push(Sent {
                id: *id,
                has_command_before: before.is_some(),
            });
            if let Some(before) = before {
                pipeline.add_command(before);
            }
            let command = entry
                .call
                .command(entry.by, &self.floors, connection.fraction);
            pipeline.add_command(command);
        }
        let mut multiplexed = connection.multiplexed.clone();
        let mut reply: ReplyFuture = Box::pin(unconstrained(async move {
            let count = pipeline.len();
            multiplexed.send_packed_commands(&pipeline, 0, count).await
        }));
        // The first poll puts the message into the connection's buffer. The driver polls again, with a waker of its own.
        let at_once = match reply.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(outcome) => Some(outcome),
            Poll::Pending => None,
        };
        Message {
            calls,
            sent: Instant::now(),
            reply,
            at_once,
            is_watched: false,
        }
    }

    /// Makes sure that the driver runs and knows what there is to do.
    fn drive(self: &Arc<Self>, state: &mut State) {
        if (state.driver.as_ref()).is_some_and(|driver| !driver.is_finished()) {
            if state.has_news() {
                self.wake.notify_one();
            }
        } else if let Ok(runtime) = Handle::try_current() {
            state.driver = Some(runtime.spawn(driver::drive(self.clone())));
        }
    }
}

impl State {
    /// The connection is of no use any more.
    fn broke(&mut self, error: Error) {
        self.connection = None;
        self.in_flight.clear();
        self.heard = None;
        self.queue.broke(&error);
        self.trouble = Some(error);
    }

    /// Whether the driver would sleep through something: it watches the first message in flight, and its own timer.
    fn has_news(&self) -> bool {
        let is_unwatched = self.in_flight.front().is_some_and(|it| !it.is_watched);
        let deadline = self.queue.next_deadline();
        let is_earlier = deadline.is_some_and(|at| self.wakes_at.is_none_or(|wakes| at < wakes));
        self.connection.is_none() || is_unwatched || is_earlier
    }

    /// Since when a reply is due that has not come.
    fn silent_since(&self) -> Option<Instant> {
        let sent = self.in_flight.front()?.sent;
        Some(self.heard.map_or(sent, |heard| heard.max(sent)))
    }
}

impl std::fmt::Debug for Message {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Message")
            .field("calls", &self.calls)
            .field("sent", &self.sent)
            .finish_non_exhaustive()
    }
}
