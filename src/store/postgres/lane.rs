//! A lane: one connection at a time, on which calls are gathered and made.
//!
//! ```text
//!  Lane::swap ──> queue ──> a turn: swaps that need no disk, and their hints   one statement
//!                   │               swaps that are durable                     one statement
//!                   │               the hints of these                         one statement
//!                   └─ not connected: wait; a connect fails: refused
//! ```
//!
//! 1. One task makes turns, one after another; all that has gathered while one was under way is in
//!    the next. It ends when the lane is dropped, or gets another task, and its queue is empty.
//! 2. [`Ticket`] decides whether a call was sent: the task takes it before it sends, and the caller
//!    takes it when its time is over. Who comes first has it.
//! 3. A call that was sent and not answered has an unknown outcome; so has one whose task has ended
//!    with its runtime.
//! 4. The swaps of a statement are sorted by key: statements that lock rows in one order do not
//!    wait for each other in a circle. Where somebody else keeps a row locked, the statement fails
//!    and was rolled back, and each of its swaps is sent once more, alone.
//! 5. A connection is used until an outcome is unknown or the server accepts no writes: a pooler
//!    may have another server by now, and a new connection asks who it is. One with a commit under
//!    way is left to itself, and only a few of those at a time.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::future::{join_all, join3};
use tokio::{
    runtime,
    sync::{
        mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
        oneshot,
    },
    task::JoinHandle,
    time::sleep,
};
use tokio_postgres::{Client, error::SqlState};

use super::{
    batch,
    connect::{SILENT_LIMITS, Server, Session, failed},
};
use crate::{
    Error, ErrorKind,
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
/// So many connections are left at a time on which a commit is due, and then no further one is made:
/// each of them takes one of the server's, for as long as a standby is away.
const MOST_LEFT: usize = 4;
/// After so many bytes of records, a turn takes no more calls: a server refuses a statement of 1
/// GB.
const MOST_BYTES: usize = 16 << 20;
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

/// A swap in the queue.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) swap: Box<Swap>,
    ticket: Ticket,
    answer: oneshot::Sender<Outcome<Swapped>>,
}

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
        let (answer, outcome) = oneshot::channel();
        let ticket = Ticket::default();
        self.send(Call {
            swap: Box::new(swap),
            ticket: ticket.clone(),
            answer,
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
            left: Vec::new(),
            pause: FIRST_PAUSE,
        };
        runtime.spawn(driver.run());
    }
}

impl Call {
    /// The size of the record that the call writes.
    fn bytes(&self) -> usize {
        match &self.swap.care {
            Care::Record(record) => record.content.len(),
            Care::Nothing
            | Care::NoRecord
            | Care::Grant
            | Care::Claim { .. }
            | Care::NoRecordAnyMore => 0,
        }
    }
}

/// The task of a lane.
struct Driver {
    server: Arc<Server>,
    queue: UnboundedReceiver<Call>,
    session: Option<Session>,
    /// Connections on which a commit is due.
    left: Vec<JoinHandle<()>>,
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
                None => self.connect().await,
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

    async fn connect(&mut self) -> Result<Session, Error> {
        self.left.retain(|it| !it.is_finished());
        if self.left.len() == MOST_LEFT {
            let name = self.server.name();
            let message = format!(
                "PostgreSQL at {name} has not answered {MOST_LEFT} commits on as many connections: \
                 is a standby away that `synchronous_standby_names` has?"
            );
            return Err(Error::new(ErrorKind::Unreachable, message));
        }
        self.server.connect().await
    }

    /// Refuses the calls that wait for a connection, and pauses before the next attempt.
    async fn refuse(&mut self, calls: Vec<Call>, error: &Error) {
        for call in calls {
            let _ = call.answer.send(Outcome::Refused(error.clone()));
        }
        sleep(self.pause.mul_f64(0.5 + random() / 2.0)).await;
        self.pause = (self.pause * 2)
            .min(LONGEST_PAUSE)
            .min(self.server.limit / 2);
    }

    /// Makes the calls of a turn. `None` if the connection is given up.
    async fn turn(&mut self, session: Session, mut calls: Vec<Call>) -> Option<Session> {
        let (client, server) = (&session.client, &*self.server);
        // Those are not sent whose callers have left.
        calls.retain(|call| call.ticket.take());
        calls.sort_by(|a, b| a.swap.key.cmp(&b.swap.key));
        let is_durable = |call: &Call| call.swap.is_durable;
        let (durable, relaxed): (Vec<_>, Vec<_>) = calls.into_iter().partition(is_durable);
        let waits_for_disk = !durable.is_empty();
        // Hints do not go with the durable swaps: NOTIFY takes a lock that all sessions of a
        // database share, and holds it until the disk has the transaction. They are sent even if
        // their swap is stale: a hint that is wrong costs a question.
        let hints = batch::messages(&durable, false);
        let made = async {
            // Sent in this order, because that is the order of their first polls.
            let relaxed = swap_all(client, server, relaxed);
            let durable = swap_all(client, server, durable);
            let hints = async {
                if !hints.is_empty() {
                    // One that is lost costs time.
                    let _ = batch::run(client, server, &[], &hints).await;
                }
            };
            let (relaxed, durable, ()) = join3(relaxed, durable, hints).await;
            relaxed && durable
        };
        match timeout(server.limit * SILENT_LIMITS, made).await {
            Some(is_usable) => is_usable.then_some(session),
            None => {
                // The callers have run out of time.
                if waits_for_disk {
                    self.left.push(session.leave());
                } else {
                    session.cancel(server.limit);
                }
                None
            }
        }
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

/// Makes swaps, in one statement if it can, and answers the callers. Returns whether the connection
/// can be used further (invariant 5).
async fn swap_all(client: &Client, server: &Server, calls: Vec<Call>) -> bool {
    let with_hints = calls.iter().all(|call| !call.swap.is_durable);
    let Err((error, calls)) = swap_together(client, server, calls, with_hints).await else {
        return true;
    };
    if error.code() != Some(&SqlState::LOCK_NOT_AVAILABLE) || calls.len() == 1 {
        return refuse_all(error, calls);
    }
    let alone = calls.into_iter().map(async |call| {
        let swapped = swap_together(client, server, vec![call], true).await;
        swapped.map_or_else(|(error, calls)| refuse_all(error, calls), |()| true)
    });
    let are_usable = join_all(alone).await;
    are_usable.into_iter().all(|is_usable| is_usable)
}

/// Makes swaps in one statement, and answers the callers, unless the statement fails.
async fn swap_together(
    client: &Client,
    server: &Server,
    calls: Vec<Call>,
    with_hints: bool,
) -> Result<(), (tokio_postgres::Error, Vec<Call>)> {
    if calls.is_empty() {
        return Ok(());
    }
    let hints = if with_hints {
        batch::messages(&calls, true)
    } else {
        Vec::new()
    };
    let sent = now();
    match batch::run(client, server, &calls, &hints).await {
        Ok(rows) => {
            for (call, row) in calls.into_iter().zip(&rows) {
                let _ = call.answer.send(batch::answer(row, sent));
            }
            Ok(())
        }
        Err(error) => Err((error, calls)),
    }
}

/// Answers the callers of a statement that has failed. Returns whether the connection can be used
/// further.
fn refuse_all(error: tokio_postgres::Error, calls: Vec<Call>) -> bool {
    let is_read_only = error.code() == Some(&SqlState::READ_ONLY_SQL_TRANSACTION);
    let outcome = failed(error);
    for call in calls {
        let _ = call.answer.send(outcome.clone());
    }
    !is_read_only && matches!(outcome, Outcome::Refused(_))
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
            swap: Box::new(swap),
            ticket: Ticket::default(),
            answer: oneshot::channel().0,
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
