//! A lane: one connection at a time, on which calls take effect in the order in which they were started.
//!
//! 1. Who sends holds the `gate`, from before it asks for the connection until its commands are in that connection's
//!    queue. The gate is fair, so the order of first polls is the order on the wire.
//! 2. Nothing awaits under the gate but the connecting itself. Everybody who had asked by the time when that failed fails
//!    with it, instead of trying one after another.
//! 3. A call whose outcome is unknown is sent again only on a connection that is fenced off from earlier ones (see
//!    `connection`): else the first could take effect after the second, and after whatever follows that.

use std::{future::poll_fn, pin::pin, sync::Arc, task::Poll, time::Duration};

use bb8_redis::bb8::{Pool, RunError};
use redis::{Pipeline, RedisResult, ServerErrorKind, Value};
use tokio::{
    sync::Mutex as FairMutex,
    task::unconstrained,
    time::{Instant, timeout_at},
};

use super::{
    connection::{Connection, Manager, Peer},
    explain,
    fence::Floors,
    primary::Primary,
    script::{By, Call},
};
use crate::Error;

/// A connection without a word for so many time limits is given up.
const SILENT_LIMITS: u32 = 3;

#[derive(Debug)]
pub(super) struct Lane {
    pool: Pool<Manager>,
    gate: FairMutex<Option<Refusal>>,
    primary: Arc<Primary>,
    floors: Arc<Floors>,
    limit: Duration,
}

/// When it was that no connection could be had, and why.
#[derive(Debug)]
struct Refusal {
    at: Instant,
    error: Error,
}

/// What came back.
#[derive(Debug)]
pub(super) struct Replies {
    /// One for each call; an error is one that the server answered with.
    pub(super) each: Vec<Result<Value, Error>>,
    /// The calls were sent twice, and may have taken effect twice.
    pub(super) repeated: bool,
    /// Nothing sent on the lane before can take effect any more.
    pub(super) settled: bool,
    /// What is to be done about the first of the calls that this node of a Cluster sent away.
    pub(super) redirect: Option<Redirect>,
}

/// Why a node of a Cluster has done nothing, and what to do about it.
#[derive(Debug)]
pub(super) enum Redirect {
    /// Another has it, and this one knows which.
    Moved(Arc<str>),
    /// It is on its way to another, which may have it already.
    Ask(Arc<str>),
    /// It is on its way, and half of it there.
    TryAgain,
    /// A fail-over is under way, or nobody has it.
    Down,
}

/// Why nothing came back.
#[derive(Debug)]
pub(super) enum Failure {
    /// Nothing was sent.
    NotSent(Error),
    /// What was sent may have taken effect, or may still do so.
    Unknown(Error),
}

impl Failure {
    pub(super) fn error(self) -> Error {
        match self {
            Self::NotSent(error) | Self::Unknown(error) => error,
        }
    }
}

/// What came back from one connection.
enum Sent {
    /// The values, and whether they are settled (see [`Replies`]).
    Replies(Vec<Value>, bool),
    Broke(Error),
}

/// What is sent at once.
struct Message<'a> {
    calls: Vec<&'a Call>,
    by: By,
    before: Before<'a>,
}

/// What is sent before the calls.
#[derive(Clone, Copy, Default)]
struct Before<'a> {
    /// Connections to be closed.
    kill: &'a [Peer],
    /// ASKING, which lets one call pass.
    asking: bool,
}

impl Sent {
    fn or_unknown(self) -> Result<(Vec<Value>, bool), Failure> {
        match self {
            Self::Replies(values, settled) => Ok((values, settled)),
            Self::Broke(error) => Err(Failure::Unknown(error)),
        }
    }
}

impl Lane {
    pub(super) fn new(primary: Arc<Primary>, floors: Arc<Floors>, limit: Duration) -> Self {
        let manager = Manager::of_one(primary.clone(), floors.clone(), limit);
        let pool = Pool::builder()
            .max_size(1)
            .min_idle(None)
            .test_on_check_out(false)
            .retry_connection(false)
            .connection_timeout(limit)
            // Its life is one of use: leases must not wait for a connection that was closed for its age.
            .max_lifetime(None)
            .idle_timeout(None)
            .build_unchecked(manager);
        Self {
            pool,
            gate: FairMutex::new(None),
            primary,
            floors,
            limit,
        }
    }

    /// Connects if there is no connection.
    pub(super) async fn connect(&self) -> Result<(), Error> {
        let deadline = Instant::now() + self.limit;
        let mut gate = self.gate.lock().await;
        self.connection(&mut gate, deadline).await.map(drop)
    }

    /// Calls scripts, all of them in one round trip, once the server has closed other connections, if they are to the
    /// same server. If that is denied, the replies are not settled.
    pub(super) async fn call_without(
        &self,
        others: &[Peer],
        calls: &[Call],
    ) -> Result<Replies, Failure> {
        let deadline = Instant::now() + self.limit;
        let before = Before {
            kill: others,
            asking: false,
        };
        self.call_until(deadline, calls, before).await
    }

    /// Calls scripts right behind other batches of calls, each of which takes some time of its own.
    pub(super) async fn call_behind(
        &self,
        batches: u32,
        calls: &[Call],
    ) -> Result<Replies, Failure> {
        let deadline = Instant::now() + self.limit + self.limit / 10 * batches;
        self.call_until(deadline, calls, Before::default()).await
    }

    /// Calls a script at a node of a Cluster, to which another has sent us: for good, or by ASK for this one call.
    pub(super) async fn call_redirected(
        &self,
        call: &Call,
        others: &[Peer],
        asking: bool,
        deadline: Instant,
    ) -> Result<Replies, Failure> {
        let before = Before {
            kill: others,
            asking,
        };
        let calls = std::slice::from_ref(call);
        self.call_until(deadline, calls, before).await
    }

    async fn call_until(
        &self,
        deadline: Instant,
        calls: &[Call],
        before: Before<'_>,
    ) -> Result<Replies, Failure> {
        let mut repeated = false;
        let first = Message {
            calls: calls.iter().collect(),
            by: By::Hash,
            before,
        };
        let mut sent = self.send(&first, deadline, None).await?;
        if let Sent::Broke(error) = &sent {
            repeated = true;
            let again = self.send(&first, deadline, Some(error));
            sent = again
                .await
                .map_err(|failure| Failure::Unknown(failure.error()))?;
        }
        let (mut values, mut settled) = sent.or_unknown()?;

        let forgotten: Vec<usize> = (0..values.len())
            .filter(|i| is_noscript(&values[*i]))
            .collect();
        if !forgotten.is_empty() {
            let again = Message {
                calls: forgotten.iter().map(|i| &calls[*i]).collect(),
                by: By::Text,
                before,
            };
            let sent = self.send(&again, deadline, None).await?;
            let (again, settled_again) = sent.or_unknown()?;
            for (index, value) in forgotten.into_iter().zip(again) {
                values[index] = value;
            }
            settled = settled_again;
        }
        let redirect = values.iter().find_map(|value| self.redirect(value));
        let read = |value: Value| value.extract_error().map_err(explain::refused);
        Ok(Replies {
            redirect,
            each: values.into_iter().map(read).collect(),
            repeated,
            settled,
        })
    }

    /// Sends commands and waits for their replies. With `after`, they were sent before, and that ended so.
    async fn send(
        &self,
        message: &Message<'_>,
        deadline: Instant,
        after: Option<&Error>,
    ) -> Result<Sent, Failure> {
        let asked = Instant::now();
        // Without `unconstrained`, a task that has used up its budget would not even stand in line at its first poll.
        let gate = timeout_at(deadline, unconstrained(self.gate.lock())).await;
        let mut gate = gate.map_err(|_| Failure::NotSent(self.too_late()))?;
        if let Some(refusal) = gate.as_ref().filter(|refusal| refusal.at >= asked) {
            return Err(Failure::NotSent(refusal.error.clone()));
        }
        let connection = self
            .connection(&mut gate, deadline)
            .await
            .map_err(Failure::NotSent)?;
        if let Some(error) = after.filter(|_| !connection.is_fenced) {
            return Err(Failure::Unknown(error.clone()));
        }

        let mut pipeline = Pipeline::new();
        let kill = message.before.kill.iter();
        for peer in kill.filter(|peer| peer.is_to(&connection.address)) {
            pipeline.add_command(peer.kill());
        }
        if message.before.asking {
            pipeline.cmd("ASKING");
        }
        let before = pipeline.len();
        for call in &message.calls {
            pipeline.add_command(call.command(message.by, &self.floors, connection.fraction));
        }
        let mut multiplexed = connection.multiplexed.clone();
        let mut replies = pin!(multiplexed.send_packed_commands(&pipeline, 0, pipeline.len()));
        connection.health.sent();
        let mut started = pin!(unconstrained(replies.as_mut()));
        let at_once = poll_fn(|cx| Poll::Ready(started.as_mut().poll(cx))).await;
        drop(gate);

        let outcome = match at_once {
            Poll::Ready(outcome) => Ok(outcome),
            Poll::Pending => timeout_at(deadline, replies).await,
        };
        self.judge(outcome, connection, before)
    }

    fn judge(
        &self,
        outcome: Result<RedisResult<Vec<Value>>, tokio::time::error::Elapsed>,
        connection: Connection,
        before: usize,
    ) -> Result<Sent, Failure> {
        match outcome {
            Ok(Ok(mut values)) => {
                connection.health.heard();
                if let Some(error) = values.iter().find_map(explain::demoted) {
                    // Whoever looks for it again may find another server under the same name.
                    connection.health.broke();
                    if self.primary.moves() {
                        return Ok(Sent::Broke(error));
                    }
                }
                let mut killed = values.drain(..before.min(values.len()));
                let all_killed = killed.all(|reply| !matches!(reply, Value::ServerError(_)));
                drop(killed);
                Ok(Sent::Replies(values, connection.is_fenced && all_killed))
            }
            Ok(Err(error)) => {
                connection.health.broke();
                Ok(Sent::Broke(explain::connection_broke(error)))
            }
            Err(_) => {
                connection
                    .health
                    .broke_if_silent_for(self.limit * SILENT_LIMITS);
                Err(Failure::Unknown(explain::no_answer(self.limit)))
            }
        }
    }

    /// The connection that is there and not known to be broken, or a new one.
    async fn connection(
        &self,
        gate: &mut Option<Refusal>,
        deadline: Instant,
    ) -> Result<Connection, Error> {
        let outcome = match timeout_at(deadline, self.check_out()).await {
            Ok(outcome) => outcome,
            Err(_) => Err(explain::cannot_connect_in_time(
                self.primary.name(),
                self.limit,
            )),
        };
        *gate = outcome.as_ref().err().map(|error| Refusal {
            at: Instant::now(),
            error: error.clone(),
        });
        outcome
    }

    async fn check_out(&self) -> Result<Connection, Error> {
        loop {
            if self.pool.state().connections == 0 {
                // Not by `get`, which would only say that it waited in vain, and not why.
                let fresh = self.pool.dedicated_connection().await?;
                // Refused only if it broke already: then the next round makes another.
                let _ = self.pool.add(fresh);
            }
            let connection = self.pool.get().await.map_err(|error| match error {
                RunError::User(error) => error,
                RunError::TimedOut => self.too_late(),
            })?;
            if !self.primary.is_current(&connection.address) {
                connection.health.broke();
            }
            if !connection.health.is_broken() {
                return Ok(connection.clone());
            }
            // Dropped here, and the pool forgets what has broken.
        }
    }

    fn redirect(&self, value: &Value) -> Option<Redirect> {
        match value {
            Value::ServerError(error) if self.primary.is_node() => {
                let details = error.details().unwrap_or_default();
                Redirect::read(error.code(), details, self.primary.name())
            }
            _ => None,
        }
    }

    fn too_late(&self) -> Error {
        explain::cannot_connect_in_time(self.primary.name(), self.limit)
    }
}

pub(super) fn is_noscript(value: &Value) -> bool {
    match value {
        Value::ServerError(error) => error.kind() == Some(ServerErrorKind::NoScript),
        _ => false,
    }
}
