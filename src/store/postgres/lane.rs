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
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
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
    batch::{self, Message},
    connect::{Server, Session, failed},
};
use crate::{
    Error,
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
struct Call {
    ticket: Ticket,
    work: Work,
}

#[derive(Debug)]
enum Work {
    Swap(Item),
    Query(Query),
}

#[derive(Debug)]
pub(super) struct Item {
    pub(super) swap: Box<Swap>,
    answer: Reply<Swapped>,
}

/// A statement of its own.
#[derive(Debug)]
struct Query {
    sql: String,
    params: Vec<(Param, Type)>,
    answer: Reply<Vec<Row>>,
}

type Reply<T> = oneshot::Sender<Outcome<T>>;

pub(super) type Param = Box<dyn ToSql + Sync + Send>;

/// Whether a call was sent, or given up before (invariant 2).
#[derive(Debug, Clone, Default)]
struct Ticket(Arc<AtomicBool>);

impl Ticket {
    /// Whether this one came first.
    fn take(&self) -> bool {
        !self.0.swap(true, Ordering::AcqRel)
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

    /// Makes a swap.
    pub(super) async fn swap(&self, swap: Swap, deadline: Instant) -> Outcome<Swapped> {
        let swap = Box::new(swap);
        self.call(deadline, |answer| Work::Swap(Item { swap, answer }))
            .await
    }

    /// Runs a statement.
    pub(super) async fn query(
        &self,
        sql: String,
        params: Vec<(Param, Type)>,
        deadline: Instant,
    ) -> Outcome<Vec<Row>> {
        let query = |answer| Query {
            sql,
            params,
            answer,
        };
        self.call(deadline, |answer| Work::Query(query(answer)))
            .await
    }

    async fn call<T>(&self, deadline: Instant, work: impl FnOnce(Reply<T>) -> Work) -> Outcome<T> {
        let (answer, outcome) = oneshot::channel();
        let ticket = Ticket::default();
        self.send(Call {
            ticket: ticket.clone(),
            work: work(answer),
        });
        match timeout_at(deadline, outcome).await {
            Some(Ok(outcome)) => outcome,
            Some(Err(_)) => {
                let message = "the runtime of the connection ended before the answer came";
                Outcome::Unknown(Error::interrupted(message))
            }
            None if ticket.take() => Outcome::Refused(self.server.silent(self.server.limit)),
            None => Outcome::Unknown(self.server.silent(self.server.limit)),
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
        if let Work::Swap(item) = &self.work
            && let Care::Record(record) = &item.swap.care
        {
            return record.content.len();
        }
        0
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
            match call.work {
                Work::Swap(item) => drop(item.answer.send(Outcome::Refused(error.clone()))),
                Work::Query(query) => drop(query.answer.send(Outcome::Refused(error.clone()))),
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
        // Those are not sent whose callers have left.
        for call in calls.into_iter().filter(|call| call.ticket.take()) {
            match call.work {
                Work::Swap(item) => swaps.push(item),
                Work::Query(query) => queries.push(query),
            }
        }
        swaps.sort_by(|a: &Item, b| a.swap.key.cmp(&b.swap.key));
        let is_durable = |item: &Item| item.swap.is_durable;
        let (durable, relaxed): (Vec<_>, Vec<_>) = swaps.into_iter().partition(is_durable);
        // Hints do not go with the durable swaps: NOTIFY takes a lock that all sessions of a database
        // share, and holds it until the disk has the transaction. They are sent even if their swap
        // is stale: a hint that is wrong costs a question.
        let hints = batch::messages(&durable, false);
        let with_relaxed = batch::messages(&relaxed, true);
        let server = &self.server;
        let made = async {
            // Sent in this order, because that is the order of their first polls.
            let relaxed = swap_all(client, server, relaxed, with_relaxed);
            let durable = swap_all(client, server, durable, Vec::new());
            let hints = swap_all(client, server, Vec::new(), hints);
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
async fn swap_all(client: &Client, server: &Server, items: Vec<Item>, hints: Vec<Message>) {
    if items.is_empty() && hints.is_empty() {
        return;
    }
    let sent = now();
    match batch::run(client, &server.schema, &items, &hints).await {
        Ok(rows) => {
            for (item, row) in items.into_iter().zip(&rows) {
                let _ = item.answer.send(batch::answer(row, sent));
            }
        }
        Err(error) => {
            let outcome = failed(error);
            for item in items {
                let _ = item.answer.send(outcome.clone());
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
    use crate::{
        LockKey,
        store::{
            Instance, Owner,
            rules::{Moment, Record},
        },
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
            care: Care::Record(record),
            ..Swap::read(key)
        };
        Call {
            ticket: Ticket::default(),
            work: Work::Swap(Item {
                swap: Box::new(swap),
                answer: oneshot::channel().0,
            }),
        }
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
