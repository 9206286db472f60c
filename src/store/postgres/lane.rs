//! A lane: one connection at a time, on which calls are gathered and made.
//!
//! ```text
//!  Lane::swap, Lane::query ──> queue ──> a turn: swaps that need no disk, and their hints   one statement
//!                                │               swaps that are durable                     one statement
//!                                │               the hints of these                         one statement
//!                                │               other questions                            one each
//!                                └─ not connected: wait; a connect fails: refused
//! ```
//!
//! 1. One task makes turns, one after another; all that has gathered while one was under way is in
//!    the next. It ends when the lane is dropped, or gets another task, and its queue is empty.
//! 2. A call is sent once. [`Ticket`] decides whether it was: the task takes it before it sends, and
//!    the caller takes it when its time is over. Who comes first has it.
//! 3. A call that was sent and not answered has an unknown outcome; so has one whose task has ended
//!    with its runtime.
//! 4. The swaps of a statement are sorted by key: statements that lock rows in one order do not wait
//!    for each other in a circle.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    time::Duration,
};

use futures_util::future::{join_all, join4};
use tokio::{
    runtime,
    sync::{
        mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
        oneshot,
    },
    time::sleep,
};
use tokio_postgres::{
    Client, Row,
    types::{ToSql, Type},
};

use super::{
    batch::{self, Batch, Message},
    connect::{Server, Session, failed},
};
use crate::{
    Error, ErrorKind, LockKey,
    store::{
        Outcome,
        engine::{Care, Swap, Swapped},
        home::Home,
    },
    sync::{Mutex, random},
    time::{Instant, now, timeout, timeout_at},
};

/// The most calls of a turn.
const MOST: usize = 256;
/// After so many bytes of records, a turn takes no more calls: a server refuses a statement of 1 GB.
const MOST_BYTES: usize = 16 << 20;
/// A connection on which an answer is due is given up after a silence of this many time limits.
const SILENT_LIMITS: u32 = 3;
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// A stream of calls on one connection.
#[derive(Debug)]
pub(super) struct Lane {
    server: Arc<Server>,
    home: Home,
    /// The queue of the task, and its runtime.
    task: Mutex<Option<(runtime::Id, UnboundedSender<Call>)>>,
}

/// A call in the queue.
#[derive(Debug)]
enum Call {
    Swap(Item),
    Query(Query),
}

/// A swap, or without one, a read.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) key: LockKey,
    pub(super) swap: Option<Box<Swap>>,
    ticket: Ticket,
    answer: oneshot::Sender<Outcome<Swapped>>,
}

/// A statement of its own.
#[derive(Debug)]
struct Query {
    sql: String,
    params: Vec<(Param, Type)>,
    ticket: Ticket,
    answer: oneshot::Sender<Outcome<Vec<Row>>>,
}

pub(super) type Param = Box<dyn ToSql + Sync + Send>;

/// Whether a call was sent, or given up before (invariant 2).
#[derive(Debug, Clone, Default)]
struct Ticket(Arc<AtomicU8>);

impl Ticket {
    const SENT: u8 = 1;
    const GIVEN_UP: u8 = 2;

    /// Whether this one came first.
    fn take(&self, to: u8) -> bool {
        let taken = self
            .0
            .compare_exchange(0, to, Ordering::AcqRel, Ordering::Acquire);
        taken.is_ok()
    }
}

impl Lane {
    pub(super) fn new(server: Arc<Server>, home: Home) -> Self {
        Self {
            server,
            home,
            task: Mutex::new(None),
        }
    }

    /// Makes a swap, or reads the value.
    pub(super) async fn swap(
        &self,
        key: LockKey,
        swap: Option<Swap>,
        deadline: Instant,
    ) -> Outcome<Swapped> {
        let (answer, outcome) = oneshot::channel();
        let ticket = Ticket::default();
        self.send(Call::Swap(Item {
            key,
            swap: swap.map(Box::new),
            ticket: ticket.clone(),
            answer,
        }));
        self.outcome(ticket, outcome, deadline).await
    }

    /// Runs a statement.
    pub(super) async fn query(
        &self,
        sql: String,
        params: Vec<(Param, Type)>,
        deadline: Instant,
    ) -> Outcome<Vec<Row>> {
        let (answer, outcome) = oneshot::channel();
        let ticket = Ticket::default();
        self.send(Call::Query(Query {
            sql,
            params,
            ticket: ticket.clone(),
            answer,
        }));
        self.outcome(ticket, outcome, deadline).await
    }

    async fn outcome<T>(
        &self,
        ticket: Ticket,
        outcome: oneshot::Receiver<Outcome<T>>,
        deadline: Instant,
    ) -> Outcome<T> {
        match timeout_at(deadline, outcome).await {
            Some(Ok(outcome)) => outcome,
            Some(Err(_)) => {
                let message = "the runtime of the connection ended before the answer came";
                Outcome::Unknown(Error::interrupted(message))
            }
            None => {
                let (name, limit) = (self.server.name(), self.server.limit);
                let message = format!("PostgreSQL at {name} did not answer within {limit:?}");
                let error = Error::new(ErrorKind::Unreachable, message);
                if ticket.take(Ticket::GIVEN_UP) {
                    Outcome::Refused(error)
                } else {
                    Outcome::Unknown(error)
                }
            }
        }
    }

    /// Moves the task to the store's home, if it runs elsewhere.
    pub(super) fn move_home(&self) {
        let home = self.home.settled().map(|home| home.id());
        let mut task = self.task.lock();
        if task.as_ref().is_some_and(|(at, _)| Some(*at) != home) {
            // The task ends after the calls that it has.
            *task = None;
        }
    }

    /// Queues a call, and starts the task if there is none. Without a runtime, the call is dropped.
    fn send(&self, call: Call) {
        let mut task = self.task.lock();
        let call = match &*task {
            Some((_, queue)) => match queue.send(call) {
                Ok(()) => return,
                Err(unsent) => unsent.0,
            },
            None => call,
        };
        let Some(runtime) = self.home.runtime() else {
            return;
        };
        let (sender, queue) = unbounded_channel();
        let _ = sender.send(call);
        *task = Some((runtime.id(), sender));
        drop(task);
        let driver = Driver {
            server: self.server.clone(),
            queue,
            session: None,
            pause: FIRST_PAUSE,
        };
        runtime.spawn(driver.run());
    }
}

impl Call {
    /// The size of the record that the call writes.
    fn bytes(&self) -> usize {
        match self {
            Self::Swap(item) => match item.swap.as_ref().map(|swap| &swap.care) {
                Some(Care::Record(record)) => record.content.len(),
                Some(_) | None => 0,
            },
            Self::Query(_) => 0,
        }
    }
}

/// The task of a lane.
struct Driver {
    server: Arc<Server>,
    queue: UnboundedReceiver<Call>,
    session: Option<Session>,
    pause: Duration,
}

impl Driver {
    async fn run(mut self) {
        while let Some(call) = self.queue.recv().await {
            // Tasks that can run now have calls for the same turn.
            tokio::task::yield_now().await;
            let calls = gather(call, &mut self.queue);
            let open = self.session.take();
            let open = open.filter(|session| !session.client.is_closed());
            let connected = match open {
                Some(session) => Ok(session),
                None => self.server.connect().await,
            };
            match connected {
                Ok(session) => {
                    self.pause = FIRST_PAUSE;
                    self.session = self.turn(session, calls).await;
                }
                Err(error) => self.refuse(calls, &error).await,
            }
        }
    }

    /// Refuses the calls that wait for a connection, and pauses before the next attempt.
    async fn refuse(&mut self, calls: Vec<Call>, error: &Error) {
        for call in calls {
            match call {
                Call::Swap(item) => drop(item.answer.send(Outcome::Refused(error.clone()))),
                Call::Query(query) => drop(query.answer.send(Outcome::Refused(error.clone()))),
            }
        }
        sleep(self.pause.mul_f64(0.5 + random() / 2.0)).await;
        self.pause = (self.pause * 2)
            .min(LONGEST_PAUSE)
            .min(self.server.limit / 2);
    }

    /// Makes the calls of a turn. `None` if the connection is given up: the callers have run out of
    /// time, and what the server does with the statements does not matter any more.
    async fn turn(&self, session: Session, calls: Vec<Call>) -> Option<Session> {
        let client = &session.client;
        let (mut swaps, mut queries) = (Vec::new(), Vec::new());
        for call in calls {
            match call {
                Call::Swap(item) if item.ticket.take(Ticket::SENT) => swaps.push(item),
                Call::Query(query) if query.ticket.take(Ticket::SENT) => queries.push(query),
                // Its caller has left.
                Call::Swap(_) | Call::Query(_) => {}
            }
        }
        swaps.sort_by(|a, b| a.key.cmp(&b.key));
        let is_durable = |item: &Item| item.swap.as_ref().is_some_and(|swap| swap.is_durable);
        let (durable, relaxed): (Vec<_>, Vec<_>) = swaps.into_iter().partition(is_durable);
        // They are sent even if their swap is stale: a hint that is wrong costs a question.
        let hints = durable.iter().filter_map(|item| item.swap.as_ref());
        let hints = hints.flat_map(|swap| &swap.hints);
        let hints: Vec<_> = hints
            .filter_map(|(to, hint)| batch::message(*to, hint))
            .collect();
        let server = &self.server;
        let made = async {
            // Sent in this order, because that is the order of their first polls.
            let relaxed = swap_all(client, server, relaxed, Vec::new(), false);
            let durable = swap_all(client, server, durable, Vec::new(), true);
            let hints = swap_all(client, server, Vec::new(), hints, false);
            let queries = join_all(queries.into_iter().map(|query| run(client, query)));
            join4(relaxed, durable, hints, queries).await
        };
        if timeout(server.limit * SILENT_LIMITS, made).await.is_none() {
            session.give_up();
            return None;
        }
        Some(session)
    }
}

/// The calls of a turn: this one, and those that wait behind it.
fn gather(first: Call, queue: &mut UnboundedReceiver<Call>) -> Vec<Call> {
    let mut bytes = first.bytes();
    let mut calls = vec![first];
    while calls.len() < MOST
        && bytes < MOST_BYTES
        && let Ok(call) = queue.try_recv()
    {
        bytes += call.bytes();
        calls.push(call);
    }
    calls
}

/// Makes swaps in one statement, sends hints with it, and answers the callers.
async fn swap_all(
    client: &Client,
    server: &Server,
    items: Vec<Item>,
    hints: Vec<Message>,
    is_durable: bool,
) {
    if items.is_empty() && hints.is_empty() {
        return;
    }
    let batch = Batch::new(&items, hints, is_durable);
    let sent = now();
    match batch.run(client, &server.schema).await {
        Ok(rows) => {
            for (item, row) in items.into_iter().zip(&rows) {
                let _ = item.answer.send(batch::answer(row, sent));
            }
        }
        Err(error) => {
            let outcome: Outcome<Infallible> = failed(error);
            for item in items {
                let _ = item.answer.send(match &outcome {
                    Outcome::Refused(error) => Outcome::Refused(error.clone()),
                    Outcome::Unknown(error) => Outcome::Unknown(error.clone()),
                    Outcome::Answered(never) => match *never {},
                });
            }
        }
    }
}

async fn run(client: &Client, query: Query) {
    let params = query.params.iter();
    let params: Vec<(&(dyn ToSql + Sync), Type)> = params
        .map(|(param, of)| (&**param as &(dyn ToSql + Sync), of.clone()))
        .collect();
    let rows = client.query_typed(&query.sql, &params).await;
    let _ = query.answer.send(match rows {
        Ok(rows) => Outcome::Answered(rows),
        Err(error) => failed(error),
    });
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::store::{
        Instance, Owner,
        rules::{Moment, Record},
    };

    fn recording(bytes: usize) -> Call {
        let owner = Owner {
            instance: Instance::new(),
            attempt: 1,
        };
        let record = Record {
            owner,
            until: Moment(1),
            content: Bytes::from(vec![0; bytes]),
        };
        let key = LockKey::new("k").unwrap();
        let swap = Swap {
            key: key.clone(),
            expect: None,
            tag: 1,
            low: 0,
            token: 0,
            state: Bytes::new(),
            until: None,
            care: Care::Record(record),
            is_durable: true,
            hints: Vec::new(),
        };
        Call::Swap(Item {
            key,
            swap: Some(Box::new(swap)),
            ticket: Ticket::default(),
            answer: oneshot::channel().0,
        })
    }

    #[test]
    fn a_turn_has_many_calls_or_few_large_records() {
        for (bytes, calls) in [(10, MOST), (MOST_BYTES / 4, 4), (MOST_BYTES * 2, 1)] {
            let (sender, mut queue) = unbounded_channel();
            for _ in 0..2 * calls {
                sender.send(recording(bytes)).unwrap();
            }
            let first = queue.try_recv().unwrap();
            assert_eq!(gather(first, &mut queue).len(), calls, "{bytes} bytes");
        }
    }
}
