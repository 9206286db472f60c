//! A lane: one connection at a time, on which calls take effect in the order in which they were started.
//!
//! ```text
//!  Lane::call ──> queue ──> message in flight ──> server
//!                  ^  ^            │
//!                  │  │            ├─ a reply: the driver takes the reply, the queue answers the caller
//!                  │  └────────────┤  NOSCRIPT: sent again by text (invariant 6 of `queue`)
//!                  └───────────────┘  the connection breaks: the driver connects again, the calls are sent again (invariant 5)
//! ```
//!
//! A call without a reply is answered with an error at its deadline. An acquire that failed this way is followed by its release.
//!
//! 1. A call is started by [`Lane::call`]. When the method returns, the call has its place in the queue, which needs no runtime. On a
//!    working connection, the queue is then in the connection's buffer as well, if it has as many calls as are in flight. Otherwise the driver
//!    sends it soon, without waiting for a reply ([`Gathering`]).
//! 2. The lane owns the futures of the replies. A caller only waits for the outcome, so a caller that goes away takes nothing back.
//! 3. Fewer messages are in flight than the connection's buffer holds. With a full buffer, the client library would not keep the order
//!    of two senders.
//! 4. Replies come in the order of the messages, so only the first message in flight is polled. Every reply wakes the driver.
//! 5. When a connection breaks, all calls in flight are queued again in their order, in front of the others, unless they have been sent
//!    too often (`trouble`). Calls other than releases are sent again only on a connection whose predecessors are closed (see
//!    `connection`): otherwise the first sending could take effect after the second one, and after the calls that follow. A release ends
//!    only the lease of its own owner, so a late first sending does no harm.
//! 6. One task, the driver, connects, takes the replies and keeps the time limits. The driver ends with the lane, after the calls that
//!    were started have been answered or have run out of time. A call starts the driver if there is
//!    none, at the store's [`Home`].
//! 7. The driver and the connection end with their runtime. All callers, which may be on other
//!    runtimes, then get an error that says so. Releases that are left go on with the next driver. A
//!    lane that is driven elsewhere when the store gets its home moves there ([`Lane::resume`]): a new
//!    driver takes its place, and the old one, which finds that it is not the driver any more, ends
//!    without a trace.
//! 8. The mutex is never held over an await. Under the mutex, only code is called that neither blocks nor comes back to the lane: the
//!    client library's buffer, wakers, channels to callers, and the recorder of metrics. The outcomes of releases, and the spawning of the driver, follow
//!    when the mutex is free ([`Locked`]): an outcome may come back to the lane with a further release, and a runtime that shuts down drops a
//!    new driver at once, and the drop takes the mutex.

mod connecting;
mod deadlines;
mod driver;
mod entry;
mod order;
mod pending;
mod queue;
mod resting;
mod spare;
mod trouble;

use std::{
    collections::VecDeque,
    mem,
    ops::{Deref, DerefMut},
    sync::Arc,
    task::Waker,
    time::Duration,
};

use tokio::{
    runtime::{self, Handle},
    sync::{Semaphore, mpsc, oneshot},
    time::{Instant, timeout},
};

use self::{
    connecting::BackOff,
    driver::{Driver, Flight, Message},
    entry::{AnswerTo, Told},
    queue::Queue,
    spare::Spare,
};
pub(super) use self::{
    entry::{Before, Failure, Start, after, is_noscript},
    pending::Pending,
};
use super::{
    connection::{BUFFERED, Connection, Connector},
    explain,
    floors::Floors,
    names::Names,
    operations::{Dialect, ReleaseAll},
    outcome::Outcome,
    topology::{LaneSettings, Upstream},
};
use crate::{
    Error,
    store::{self, Answer, home::Home},
    sync::{Mutex, MutexGuard},
};

/// The number of calls in one message: enough to save round trips, few enough not to delay others.
pub(super) const BATCH: usize = 128;
/// The number of messages in flight (invariant 3).
const MOST_IN_FLIGHT: usize = BUFFERED - 1;
/// The number of calls that are worth a message while further calls are about to follow.
const ENOUGH: usize = 2;
/// A connection on which a reply is due is given up after a silence of this many time limits.
const SILENT_LIMITS: u32 = 3;

/// The number of releases that are repeated at the same time, by those who repeat releases by themselves.
const REPETITIONS: usize = 4;

/// An ordered stream of calls to one server. The driver shares `Inner` and ends after the lane was dropped.
#[derive(Debug)]
pub(super) struct Lane(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    state: Mutex<State>,
    connector: Connector,
    names: Names,
    floors: Arc<Floors>,
    /// The time limit of a connect, and of the calls that are left when the lane is dropped. [`SILENT_LIMITS`] times
    /// this limit is the longest silence of a connection.
    limit: Duration,
    home: Home,
    repetitions: Arc<Semaphore>,
}

#[derive(Debug)]
struct State {
    queue: Queue,
    connection: Option<Connection>,
    /// Whether there ever was a connection.
    was_connected: bool,
    /// The messages that were sent on `connection`, oldest first.
    in_flight: VecDeque<Flight>,
    /// When the connection last brought a reply.
    last_reply: Option<Instant>,
    /// The reason why the last connection ended or could not be made, on the runtime of the driver.
    trouble: Option<Error>,
    /// The callers of [`Lane::connect`] that wait for a connection.
    connecting: Vec<oneshot::Sender<Result<(), Error>>>,
    back_off: BackOff,
    /// `None` if there is no driver.
    driver: Option<DriverId>,
    /// The number of drivers so far.
    drivers: u64,
    /// Wakes the driver.
    waker: Waker,
    /// When the timer of the driver ends.
    wakes_at: Option<Instant>,
    /// When the last handle was dropped.
    closed: Option<Instant>,
    gathering: Gathering,
    spare: Spare,
}

/// A driver of a lane, and its runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct DriverId {
    number: u64,
    runtime: runtime::Id,
}

/// Whether calls wait in the queue to be sent as one message.
///
/// A message costs the client and the server several times as much as one more command in it. While replies are due, calls are therefore
/// left to the driver, which lets the tasks go first that can run now, and then sends the calls of all of them. So a call waits for running
/// tasks only, never for a reply or a timer.
///
/// Calls do not wait for each other while the server waits for calls: the queue is sent as soon as it has as many calls as are in flight.
/// After 32 calls were answered together, the 32 calls that follow become messages of 2, 2, 4, 8 and 16. With one message of 32,
/// the client and the server would work in turns, each of them idle for half of the time.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Gathering {
    #[default]
    No,
    /// A call waits, and the driver was woken for it.
    Asked,
    /// The driver has let other tasks go first, and sends when it is polled again.
    UnderWay,
}

impl Gathering {
    /// Whether so many waiting calls are worth a message, beside those in flight.
    fn is_enough(self, waiting: usize, in_flight: usize) -> bool {
        let least = match self {
            Self::No => 1,
            Self::Asked | Self::UnderWay => ENOUGH,
        };
        waiting >= in_flight.max(least)
    }
}

impl Lane {
    pub(super) fn new(upstream: Arc<dyn Upstream>, settings: &LaneSettings) -> Self {
        let (floors, limit) = (settings.floors.clone(), settings.limit);
        let names = settings.names.clone();
        let persistence = settings.persistence.clone();
        let name = names.client_name();
        let connector = Connector::for_lane(upstream, floors.clone(), persistence, limit, name);
        Self(Arc::new(Inner {
            state: Mutex::new(State {
                queue: Queue::new(settings.owed.clone()),
                connection: None,
                was_connected: false,
                in_flight: VecDeque::new(),
                last_reply: None,
                trouble: None,
                connecting: Vec::new(),
                back_off: BackOff::default(),
                driver: None,
                drivers: 0,
                waker: Waker::noop().clone(),
                wakes_at: None,
                closed: None,
                gathering: Gathering::No,
                spare: Spare::default(),
            }),
            connector,
            names,
            floors,
            limit,
            home: settings.home.clone(),
            repetitions: Arc::new(Semaphore::new(REPETITIONS)),
        }))
    }

    /// Connects if there is no connection.
    ///
    /// # Cancel safety
    ///
    /// The driver goes on connecting if the future is dropped.
    pub(super) async fn connect(&self) -> Result<(), Error> {
        let connected = {
            let mut state = self.0.lock();
            self.0.check_connection(&mut state);
            if state.connection.is_some() {
                return Ok(());
            }
            let (sender, connected) = oneshot::channel();
            state.connecting.push(sender);
            self.0.drive(state);
            connected
        };
        match timeout(self.0.limit, connected).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) | Err(_) => Err(self.0.connector.too_late()),
        }
    }

    /// Starts a call (invariant 1). The future waits for the outcome.
    pub(super) fn call(self: &Arc<Self>, start: Start) -> Pending {
        let (answer, outcome) = oneshot::channel();
        let undo = start.failure.undo(&start.call);
        let answer = AnswerTo::one(&start.call, answer);
        let mut state = self.0.lock();
        let id = state.queue.push(start, Some(answer));
        if state.sends_now() {
            self.0.send(&mut state);
        }
        self.0.drive(state);
        Pending {
            lane: self.clone(),
            id,
            outcome,
            undo,
        }
    }

    /// Starts a release, whose outcome is told to `answer`. Refused if nothing would ever drive it.
    pub(super) fn release(&self, start: Start, answer: Answer, in_doubt: bool) {
        let mut state = self.0.lock();
        if state.driver.is_none() && self.0.home.runtime().is_none() {
            drop(state);
            return answer.give(store::Outcome::Refused(explain::no_runtime()));
        }
        let answer = AnswerTo::release(&start.call, answer, in_doubt);
        state.queue.push(start, Some(answer));
        if state.sends_now() {
            self.0.send(&mut state);
        }
        self.0.drive(state);
    }

    /// Starts calls, whose outcomes go to a channel, each with the index that came with the call.
    pub(super) fn call_all(
        &self,
        calls: impl IntoIterator<Item = (usize, Start)>,
        to: &mpsc::UnboundedSender<(usize, Outcome)>,
    ) {
        let mut state = self.0.lock();
        for (index, start) in calls {
            let answer = AnswerTo::batch(&start.call, index, to.clone());
            state.queue.push(start, Some(answer));
        }
        self.0.send(&mut state);
        self.0.drive(state);
    }

    /// Starts the release of what an acquire may have taken. `until_expiry`: an answer does not settle the release.
    pub(super) fn clean_up(&self, release: ReleaseAll, until_expiry: bool) {
        let mut state = self.0.lock();
        state.queue.clean_up(release, until_expiry);
        self.0.send(&mut state);
        self.0.drive(state);
    }

    /// Those who repeat releases by themselves (`in_order`) need one of these permits.
    pub(super) fn repetitions(&self) -> Arc<Semaphore> {
        self.0.repetitions.clone()
    }

    /// Resumes calls that wait for a runtime, and moves home.
    pub(super) fn resume(&self) {
        let mut state = self.0.lock();
        let (driver, home) = (state.driver, self.0.home.settled());
        let is_at = |home: Handle| driver.is_none_or(|driver| driver.runtime == home.id());
        if !home.is_none_or(is_at) {
            // The connection belongs to the other runtime as well.
            state.broke(explain::connection_ended());
            state.trouble = None;
            let old = mem::replace(&mut state.waker, Waker::noop().clone());
            self.0.start_driver(state);
            old.wake();
        } else if driver.is_none() && !state.queue.is_empty() {
            self.0.start_driver(state);
        }
    }
}

/// The driver goes on until the calls that were started have been answered, for at most one time limit.
impl Drop for Lane {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.closed = Some(Instant::now());
        state.waker.wake_by_ref();
    }
}

/// The locked state of a lane. The outcomes of releases are given when the mutex is free
/// (invariant 8), because the fields are dropped in this order.
struct Locked<'a> {
    state: MutexGuard<'a, State>,
    told: Told,
}

impl Deref for Locked<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.told = mem::take(&mut self.state.queue.told);
    }
}

impl Inner {
    fn lock(&self) -> Locked<'_> {
        Locked {
            state: self.state.lock(),
            told: Told::default(),
        }
    }

    /// Gives up a connection that is broken or does not lead to the current server.
    fn check_connection(&self, state: &mut State) {
        let is_fit = |connection: &Connection| {
            !connection.health.is_broken() && self.connector.is_current(&connection.address)
        };
        if state.connection.as_ref().is_some_and(|it| !is_fit(it)) {
            state.broke(explain::connection_ended());
        }
    }

    /// Sends queued calls while the connection has room.
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
            let is_alone = queue.unsent_at_most() <= 1;
            let (mut message, mut calls) = (Message::default(), 0);
            while calls < BATCH
                && let Some(entry) = queue.next_unsent()
            {
                let before = entry.before.command(connection);
                entry.has_command_before = before.is_some();
                if let Some(before) = before {
                    message.push(before);
                }
                let mut command = spare.command(is_alone);
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

    /// Starts the driver if none runs, and wakes a driver that would otherwise oversleep.
    fn drive(self: &Arc<Self>, state: Locked<'_>) {
        if state.driver.is_none() {
            self.start_driver(state);
        } else if state.driver_must_wake() {
            state.waker.wake_by_ref();
        }
    }

    /// Starts a driver, in the place of the last one. Without a runtime, the calls wait for one.
    fn start_driver(self: &Arc<Self>, mut state: Locked<'_>) {
        let Some(runtime) = self.home.runtime() else {
            return;
        };
        state.wakes_at = None;
        state.drivers += 1;
        let driver = DriverId {
            number: state.drivers,
            runtime: runtime.id(),
        };
        state.driver = Some(driver);
        drop(state);
        runtime.spawn(Driver::new(self.clone(), driver));
    }

    /// Handles the end of the driver: no connection is left, and no caller would be answered any more.
    fn driver_ended(&self, driver: DriverId) {
        let mut state = self.lock();
        if state.driver != Some(driver) {
            return;
        }
        state.driver = None;
        state.waker = Waker::noop().clone();
        let error = explain::runtime_ended();
        state.broke(error.clone());
        // Later calls have another runtime, and another reason if they fail.
        state.trouble = None;
        state.queue.fail_all(&error);
        for waiting in state.connecting.drain(..) {
            let _ = waiting.send(Err(error.clone()));
        }
    }
}

impl State {
    /// Gives the connection up, and queues the calls in flight again.
    fn broke(&mut self, error: Error) {
        self.connection = None;
        self.in_flight.clear();
        self.last_reply = None;
        self.queue.broke(&error);
        self.trouble = Some(error);
    }

    /// Whether the calls in the queue are sent now. If not, the driver sends them, and is woken for that.
    fn sends_now(&mut self) -> bool {
        let (waiting, in_flight) = (self.queue.unsent_at_most(), self.queue.in_flight);
        if self.gathering.is_enough(waiting, in_flight) || self.driver.is_none() {
            return true;
        }
        if self.gathering == Gathering::No {
            self.gathering = Gathering::Asked;
            self.waker.wake_by_ref();
        }
        false
    }

    /// Whether the driver lets other tasks go first before it sends. `answered`: the number of calls that the driver has just answered. Calls
    /// that were answered together are followed by others at the same time.
    fn begins_to_gather(&mut self, answered: usize) -> bool {
        let begins = match self.gathering {
            Gathering::No => answered > 1,
            Gathering::Asked => true,
            Gathering::UnderWay => false,
        };
        self.gathering = if begins {
            Gathering::UnderWay
        } else {
            Gathering::No
        };
        begins
    }

    /// Whether the driver must be woken, because neither a reply nor the timer does so in time.
    fn driver_must_wake(&self) -> bool {
        let deadline = self.queue.next_deadline();
        let is_earlier = deadline.is_some_and(|at| self.wakes_at.is_none_or(|wakes| at < wakes));
        self.connection.is_none() || is_earlier
    }

    /// When the silence of a connection began on which a reply is due.
    fn silent_since(&self) -> Option<Instant> {
        let sent = self.in_flight.front()?.sent;
        Some(self.last_reply.map_or(sent, |last| last.max(sent)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sizes of the messages that calls become while no reply comes.
    fn messages(gathering: Gathering, calls: usize) -> Vec<usize> {
        let (mut sent, mut waiting, mut in_flight) = (Vec::new(), 0, 0);
        for _ in 0..calls {
            waiting += 1;
            if gathering.is_enough(waiting, in_flight) {
                sent.push(waiting);
                in_flight += waiting;
                waiting = 0;
            }
        }
        sent
    }

    #[test]
    fn the_server_gets_the_first_calls_of_many_while_the_others_gather() {
        assert_eq!(messages(Gathering::UnderWay, 32), [2, 2, 4, 8, 16]);
    }

    #[test]
    fn a_call_beside_one_other_is_sent_at_once() {
        assert_eq!(messages(Gathering::No, 2), [1, 1]);
    }
}
