//! A lane: one connection at a time, on which calls are gathered, sent and answered.
//!
//! ```text
//!  Lane::call ──> queue ──> message in flight ──> server
//!                  ^  │            │
//!                  │  │            ├─ a reply: the driver takes it, the queue answers the caller
//!                  │  │            └─ the connection breaks: the outcome is unknown
//!                  │  └─ the deadline, or two failed connects: refused
//!                  └─ NOSCRIPT; READONLY, where another server is the primary: sent again
//! ```
//!
//! 1. A call is started by [`Lane::call`] or [`Lane::release`]. When the method returns, the call
//!    has its place in the queue. On a working connection, the queue is then in the connection's
//!    buffer as well, if it has as many calls as are in flight. Otherwise the driver sends it soon,
//!    without waiting for a reply ([`Gathering`]).
//! 2. The lane owns the futures of the replies. A caller only waits for the outcome, so a caller
//!    that goes away takes nothing back.
//! 3. Fewer messages are in flight than the connection's buffer holds. With a full buffer, the
//!    client library would not keep the order of two senders.
//! 4. Replies come in the order of the messages, so only the first message in flight is polled.
//!    Every reply wakes the driver.
//! 5. A call is sent again only if the server has said that it has not run the call. When a
//!    connection breaks, the outcome of all calls in flight is unknown, at once; those that were
//!    not sent wait for the next connection, until their deadlines. Lanes promise no order.
//!    Calls of one message share a script where they can ([`Joint`]), and the joint scripts come
//!    first. Only the first call of a bucket joins, so calls for one key keep their order. A call
//!    that a joint script has not made is sent again, by itself.
//! 6. One task, the driver, connects, takes the replies and keeps the time limits. The driver ends
//!    with the lane, after the calls that were started have been answered or have run out of time.
//!    A call starts the driver if there is none, at the store's [`Home`], and is refused if there
//!    is no runtime.
//! 7. The driver and the connection end with their runtime. All callers, which may be on other
//!    runtimes, then get an error that says so. A lane that is driven elsewhere when the store gets
//!    its home moves there ([`Lane::move_home`]): a new driver takes its place, and the old one,
//!    which finds that it is not the driver any more, ends without a trace.
//! 8. The mutex is never held over an await. Under the mutex, only code is called that neither
//!    blocks nor comes back to the lane: the client library's buffer, wakers, channels to callers,
//!    and the recorder of metrics. The outcomes of releases, and the spawning of the driver, follow
//!    when the mutex is free ([`Locked`]): an outcome may come back to the lane with a further
//!    release, and a runtime that shuts down drops a new driver at once, and the drop takes the
//!    mutex.

mod connecting;
mod driver;
mod entry;
mod message;
mod queue;
mod spare;

use std::{
    collections::VecDeque,
    mem,
    ops::{Deref, DerefMut},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use redis::Value;
use smallvec::SmallVec;
use tokio::{runtime, sync::oneshot, time::Instant};

pub(super) use self::{
    connecting::BackOff,
    entry::{is_noscript, result},
};
use self::{
    driver::Driver,
    entry::{Entry, Receiver, Told},
    message::{Flight, Joints, Message},
    queue::Queue,
    spare::Spare,
};
use super::{
    connection::{BUFFERED, Connection, Connector, Peer},
    explain,
    floors::Floors,
    names::{BUCKETS, Names},
    operations::{Call, Dialect, Joint},
    script::By,
    topology::{LaneSettings, Upstream},
};
use crate::{
    Error,
    store::{Answer, Outcome, home::Home},
    sync::{Mutex, MutexGuard},
};

/// The number of calls in one message, and so in one script: enough to save round trips, few enough
/// not to delay others.
const BATCH: usize = 32;
/// The number of messages in flight (invariant 3).
const MOST_IN_FLIGHT: usize = BUFFERED - 1;
/// The number of calls that are worth a message while further calls are about to follow.
const ENOUGH: usize = 8;
/// A connection on which a reply is due is given up after a silence of this many time limits.
const SILENT_LIMITS: u32 = 3;

/// A stream of calls to one server. The driver shares `Inner` and ends after the lane was dropped.
#[derive(Debug)]
pub(super) struct Lane(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    state: Mutex<State>,
    connector: Connector,
    names: Names,
    floors: Arc<Floors>,
    /// The time limit of a connect, and of the calls that are left when the lane is dropped.
    /// [`SILENT_LIMITS`] times this limit is the longest silence of a connection.
    limit: Duration,
    home: Home,
}

#[derive(Debug)]
struct State {
    queue: Queue,
    connection: Option<Connection>,
    /// Whether there ever was a connection.
    was_connected: bool,
    /// The messages that were sent on `connection`, oldest first.
    flights: VecDeque<Flight>,
    /// When the connection last brought a reply.
    last_reply: Option<Instant>,
    /// The server is not the primary any more, or closes the connection, for this reason. Nothing
    /// is sent any more, and the connection is given up when all replies have come.
    leaving: Option<Error>,
    /// The reason why the last connection ended or could not be made, on the runtime of the
    /// driver.
    trouble: Option<Error>,
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

/// The locked state of a lane. The outcomes of releases are given when the mutex is free
/// (invariant 8), because the fields are dropped in this order.
struct Locked<'a> {
    state: MutexGuard<'a, State>,
    told: Told,
}

/// A driver of a lane, and its runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct DriverId {
    number: u64,
    runtime: runtime::Id,
}

/// The outcome of a call, for its caller.
///
/// # Cancel safety
///
/// The call goes on if the future is dropped, unless it was not sent yet.
#[derive(Debug)]
pub(super) struct Pending(oneshot::Receiver<Outcome<Value>>);

impl Future for Pending {
    type Output = Outcome<Value>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome<Value>> {
        let outcome = Pin::new(&mut self.0).poll(cx);
        outcome.map(|it| it.unwrap_or_else(|_| Outcome::Unknown(explain::runtime_ended())))
    }
}

/// Whether calls wait in the queue to be sent as one message.
///
/// A message costs the client and the server several times as much as one more command in it. While
/// replies are due, calls are therefore left to the driver, which lets the tasks go first that can
/// run now, and then sends the calls of all of them. So a call waits for running tasks only, never
/// for a reply or a timer.
///
/// Calls do not wait for each other while the server waits for calls: the queue is sent as
/// soon as it has as many calls as are in flight. After 32 calls were answered together, the 32
/// calls that follow become messages of 8, 8 and 16. With one message of 32, the client and the
/// server would work in turns, each of them idle for half of the time; with smaller ones, fewer
/// calls share a script.
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

/// The buckets of a message's calls.
struct Buckets([u64; BUCKETS / 64]);

impl Default for Buckets {
    fn default() -> Self {
        Self([0; BUCKETS / 64])
    }
}

impl Buckets {
    /// Adds a bucket. Returns whether it is new.
    fn insert(&mut self, bucket: usize) -> bool {
        let (word, bit) = (&mut self.0[bucket / 64], 1 << (bucket % 64));
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }
}

impl Lane {
    pub(super) fn new(upstream: Arc<Upstream>, settings: &LaneSettings) -> Self {
        Self(Arc::new(Inner {
            state: Mutex::new(State {
                queue: Queue::default(),
                connection: None,
                was_connected: false,
                flights: VecDeque::new(),
                last_reply: None,
                leaving: None,
                trouble: None,
                back_off: BackOff::default(),
                driver: None,
                drivers: 0,
                waker: Waker::noop().clone(),
                wakes_at: None,
                closed: None,
                gathering: Gathering::No,
                spare: Spare::default(),
            }),
            connector: Connector::new(upstream, settings),
            names: settings.names.clone(),
            floors: settings.floors.clone(),
            limit: settings.limit,
            home: settings.home.clone(),
        }))
    }

    /// Starts a call (invariant 1). The future waits for the outcome.
    pub(super) fn call(&self, call: Call, deadline: Instant) -> Pending {
        let (answer, outcome) = oneshot::channel();
        self.start(Entry::new(call, deadline, Receiver::One(answer)));
        Pending(outcome)
    }

    /// Starts a release, also outside of a runtime.
    pub(super) fn release(&self, call: Call, deadline: Instant, answer: Answer) {
        self.start(Entry::new(call, deadline, Receiver::Release(answer)));
    }

    fn start(&self, entry: Entry) {
        let mut state = self.0.lock();
        let sends_now = state.sends_now();
        state.queue.push(entry);
        if sends_now {
            self.0.send(&mut state);
        }
        self.0.drive(state);
    }

    /// Moves the driver to the store's home, if it runs elsewhere.
    pub(super) fn move_home(&self) {
        let mut state = self.0.lock();
        let (Some(driver), Some(home)) = (state.driver, self.0.home.settled()) else {
            return;
        };
        if driver.runtime != home.id() {
            // The connection belongs to the other runtime as well.
            state.broke(explain::connection_ended());
            state.trouble = None;
            let old = mem::replace(&mut state.waker, Waker::noop().clone());
            self.0.start_driver(state);
            old.wake();
        }
    }
}

/// The driver goes on until the calls that were started have been answered, for at most one time
/// limit.
impl Drop for Lane {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.closed = Some(Instant::now());
        state.waker.wake_by_ref();
    }
}

impl Inner {
    fn lock(&self) -> Locked<'_> {
        Locked {
            state: self.state.lock(),
            told: Told::default(),
        }
    }

    /// Whether a connection works, as far as is known, and leads to the current server.
    fn is_fit(&self, connection: &Connection) -> bool {
        !connection.health.is_broken() && self.connector.upstream.is_current(&connection.address)
    }

    /// Gives up a connection that is not fit.
    fn check_connection(&self, state: &mut State) {
        if state.connection.as_ref().is_some_and(|it| !self.is_fit(it)) {
            state.broke(explain::connection_ended());
        }
    }

    /// Sends queued calls while the connection has room.
    fn send(&self, state: &mut State) {
        let State {
            queue,
            connection: Some(connection),
            flights,
            leaving: None,
            spare,
            waker,
            ..
        } = state
        else {
            return;
        };
        if !self.is_fit(connection) {
            // The driver takes the replies that have come, and gives the connection up.
            return waker.wake_by_ref();
        }
        let dialect = Dialect {
            names: &self.names,
            floors: &self.floors,
            fraction: connection.fraction,
        };
        while flights.len() < MOST_IN_FLIGHT {
            let (first, mut calls) = (queue.in_flight(), 0);
            let (mut buckets, mut kinds) = (Buckets::default(), Joints::new());
            while calls < BATCH
                && let Some(entry) = queue.next_unsent()
            {
                let is_first = buckets.insert(entry.call.bucket());
                let may_join = connection.joins && is_first && !entry.is_apart;
                entry.joint = entry.call.joint().filter(|_| may_join);
                let is_new = |joint: &Joint| !kinds.contains(joint);
                if let Some(joint) = entry.joint.filter(is_new) {
                    kinds.push(joint);
                }
                if entry.call.is_in_doubt() {
                    entry.strays = connection.strays();
                }
                calls += 1;
            }
            if calls == 0 {
                return;
            }
            let (mut message, mut joints) = (Message::default(), Joints::new());
            if calls > 1 {
                for joint in kinds {
                    let joined = queue.sent_from(first);
                    let joined = joined.filter(|entry| entry.joint == Some(joint));
                    let joined: SmallVec<[&Entry; 32]> = joined.collect();
                    let [one, others @ ..] = &joined[..] else {
                        continue;
                    };
                    if others.is_empty() {
                        continue;
                    }
                    let is_forgotten = joined.iter().any(|it| matches!(it.by, By::Text));
                    let by = if is_forgotten { By::Text } else { By::Hash };
                    let others: SmallVec<[&Call; 32]> = others.iter().map(|it| &it.call).collect();
                    let mut command = spare.command(joined.len() == calls, joined.len());
                    let scratch = &mut spare.scratch;
                    (one.call).write(&others, by, dialect, &mut command, scratch);
                    message.push(command);
                    joints.push(joint);
                }
            }
            for entry in queue.sent_from(first) {
                if entry.joint.is_some_and(|it| joints.contains(&it)) {
                    continue;
                }
                if entry.call.is_asking {
                    message.push(redis::cmd("ASKING"));
                }
                let kills = entry.strays.iter().map(Peer::kill);
                kills.for_each(|kill| message.push(kill));
                let mut command = spare.command(calls == 1, 1);
                let scratch = &mut spare.scratch;
                (entry.call).write(&[], entry.by, dialect, &mut command, scratch);
                message.push(command);
            }
            let spare = spare.reply_future();
            flights.push_back(Flight::send(
                message, calls, joints, connection, spare, waker,
            ));
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

    /// Starts a driver, in the place of the last one. Without a runtime, the calls are refused.
    fn start_driver(self: &Arc<Self>, mut state: Locked<'_>) {
        let Some(runtime) = self.home.runtime() else {
            let refused = || Outcome::Refused(explain::no_runtime());
            return state.queue.fail_unsent(refused);
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

    /// Handles the end of the driver: no connection is left, and no caller would be answered any
    /// more.
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
        let unknown = || Outcome::Unknown(error.clone());
        state.queue.fail_unsent(unknown);
    }
}

impl State {
    /// Gives the connection up. The outcome of the calls in flight is unknown.
    fn broke(&mut self, error: Error) {
        self.connection = None;
        self.flights.clear();
        self.last_reply = None;
        self.leaving = None;
        self.queue.broke(&error);
        self.trouble = Some(error);
    }

    /// Whether the calls in the queue are sent together with this one. If not, the driver sends
    /// them, and is woken for that.
    fn sends_now(&mut self) -> bool {
        let (waiting, in_flight) = (self.queue.unsent() + 1, self.queue.in_flight());
        let is_enough = self.gathering.is_enough(waiting, in_flight);
        if is_enough || self.driver.is_none() {
            return true;
        }
        if self.gathering == Gathering::No {
            self.gathering = Gathering::Asked;
            self.waker.wake_by_ref();
        }
        false
    }

    /// Whether the driver lets other tasks go first before it sends. `answered`: the number of
    /// calls that the driver has just answered. Calls that were answered together are followed
    /// by others at the same time.
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
        let sent = self.flights.front()?.sent;
        Some(self.last_reply.map_or(sent, |last| last.max(sent)))
    }
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
        assert_eq!(messages(Gathering::UnderWay, 32), [8, 8, 16]);
    }

    #[test]
    fn a_call_beside_one_other_is_sent_at_once() {
        assert_eq!(messages(Gathering::No, 2), [1, 1]);
    }
}
