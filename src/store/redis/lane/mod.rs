//! A lane: one connection at a time, on which calls take effect in the order in which they were started.
//!
//! 1. A call is started by [`Lane::call`]: when that returns, the call has its place in the queue, and if there is a working
//!    connection with room, it is in that connection's buffer, too. Neither needs a runtime.
//! 2. The lane owns the futures of the replies. A caller only waits for the outcome, so a caller that goes away takes nothing back.
//! 3. Fewer messages are in flight than the connection's buffer holds. With a full buffer, the client library would not keep the order
//!    of two senders.
//! 4. Replies come in the order of the messages, so only the first message in flight is polled. Every reply wakes the driver.
//! 5. When a connection breaks, all calls in flight are queued again in their order, in front of the others. They are sent again only on
//!    a connection whose predecessors are closed (see `connection`): else the first sending could take effect after the
//!    second, and after whatever follows that.
//! 6. One task, the driver, connects, hears the replies and keeps the time limits. It ends with the lane. A call from
//!    within a runtime starts the driver if there is none, or if the driver's runtime has ended.
//! 7. The mutex is never held over an await. Under it, nothing is called but the client library's buffer and wakers.

mod deadlines;
mod driver;
mod entry;
mod flight;
mod order;
mod pending;
mod queue;
mod spare;
mod trouble;

use std::{collections::VecDeque, sync::Arc, task::Waker, time::Duration};

use tokio::{
    runtime::Handle,
    sync::{mpsc, oneshot},
    task::JoinHandle,
    time::{Instant, timeout},
};

use self::{
    driver::{BackOff, Driver},
    entry::AnswerTo,
    flight::{Flight, Message},
    queue::Queue,
    spare::Spare,
};
pub(super) use self::{
    entry::{Before, Failure, Start, after, is_noscript, release_of},
    pending::Pending,
};
use super::{
    calls::{Dialect, Operation},
    connection::{BUFFERED, Connection, Connector},
    explain,
    floors::Floors,
    names::Names,
    outcome::Outcome,
    owed::Owed,
    topology::Upstream,
};
use crate::{Error, store::Release, sync::Mutex};

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
    connector: Connector,
    names: Names,
    floors: Arc<Floors>,
    limit: Duration,
}

#[derive(Debug)]
struct State {
    queue: Queue,
    connection: Option<Connection>,
    /// Sent on `connection`, oldest first.
    in_flight: VecDeque<Flight>,
    /// When the connection last brought a reply.
    heard: Option<Instant>,
    /// Why the last connection ended, or could not be made.
    trouble: Option<Error>,
    /// Who waits for a connection.
    connecting: Vec<oneshot::Sender<Result<(), Error>>>,
    back_off: BackOff,
    driver: Option<JoinHandle<()>>,
    /// Wakes the driver.
    waker: Waker,
    /// When the driver wakes up by itself.
    wakes_at: Option<Instant>,
    /// When the last handle was dropped.
    closed: Option<Instant>,
    spare: Spare,
}

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
                queue: Queue::new(owed),
                connection: None,
                in_flight: VecDeque::new(),
                heard: None,
                trouble: None,
                connecting: Vec::new(),
                back_off: BackOff::default(),
                driver: None,
                waker: Waker::noop().clone(),
                wakes_at: None,
                closed: None,
                spare: Spare::default(),
            }),
            connector,
            names,
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
        let undo = match (&start.failure, start.call.operation()) {
            (Failure::CleanUp, Operation::Acquire(request)) => Some(release_of(request)),
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

    /// Starts the release of what an acquire may have taken. `until_expiry`: an answer does not settle the release.
    pub(super) fn clean_up(&self, release: Release, until_expiry: bool) {
        let mut state = self.0.state.lock();
        state.queue.clean_up(release, until_expiry);
        self.0.send(&mut state);
        self.0.drive(&mut state);
    }

    /// Goes on with what was started outside of a runtime.
    pub(super) fn resume(&self) {
        let mut state = self.0.state.lock();
        if !state.queue.is_empty() {
            self.0.drive(&mut state);
        }
    }
}

/// The driver goes on for as long as the calls that were started have time.
impl Drop for Lane {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.closed = Some(Instant::now());
        state.waker.wake_by_ref();
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
            spare,
            waker,
            ..
        } = state
        else {
            return;
        };
        let dialect = Dialect {
            names: &self.names,
            floors: &self.floors,
            fraction: connection.fraction,
        };
        while in_flight.len() < MOST_IN_FLIGHT {
            let (mut message, mut calls) = (Message::default(), 0);
            while calls < BATCH
                && let Some(entry) = queue.next_unsent()
            {
                let before = entry.before.command(connection);
                entry.has_command_before = before.is_some();
                if let Some(before) = before {
                    message.push(before);
                }
                let mut command = spare.command();
                entry.call.write(entry.by, dialect, &mut command);
                message.push(command);
                calls += 1;
            }
            if calls == 0 {
                return;
            }
            in_flight.push_back(message.send(calls, connection, spare.reply_future(), waker));
        }
    }

    /// Makes sure that the driver runs and knows what there is to do.
    fn drive(self: &Arc<Self>, state: &mut State) {
        if (state.driver.as_ref()).is_some_and(|driver| !driver.is_finished()) {
            if state.driver_must_wake() {
                state.waker.wake_by_ref();
            }
        } else if let Ok(runtime) = Handle::try_current() {
            state.wakes_at = None;
            state.driver = Some(runtime.spawn(Driver::new(self.clone())));
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

    /// Whether the driver would sleep through something: it is woken by replies and its own timer.
    fn driver_must_wake(&self) -> bool {
        let deadline = self.queue.next_deadline();
        let is_earlier = deadline.is_some_and(|at| self.wakes_at.is_none_or(|wakes| at < wakes));
        self.connection.is_none() || is_earlier
    }

    /// Since when a reply is due that has not come.
    fn silent_since(&self) -> Option<Instant> {
        let sent = self.in_flight.front()?.sent;
        Some(self.heard.map_or(sent, |heard| heard.max(sent)))
    }
}
