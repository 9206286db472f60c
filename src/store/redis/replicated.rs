//! Acquires and records that count only once replicas have acknowledged them.
//!
//! ```text
//! connection of the pool:   EVALSHA acquire.lua … ──> granted ──> WAIT <replicas> <ms> ──> acknowledged: the caller has the lock
//!                           EVALSHA release.lua … ──> recorded ─> WAIT <replicas> <ms> ──> acknowledged: the caller may answer
//!                                                                        └──> too few: the outcome is unknown
//! ```
//!
//! 1. WAIT answers for the writes of its own connection, and blocks every other user of that
//!    connection. A call and its WAIT therefore have a connection of a pool to themselves. A record
//!    that is there already is waited for as well: the server counts all writes up to the last
//!    command of the connection.
//! 2. An acquire of unknown outcome can still take effect as long as its connection lives. That
//!    connection is not used again, and is a stray (`connection`) until the server has closed it.
//! 3. There are never more than [`CONNECTIONS`] connections: a call waits for a permit before it
//!    looks at the pool.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use bb8_redis::bb8::{AddError, Pool, PooledConnection, RunError};
use redis::{Cmd, Value, cmd};
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::{Instant, timeout_at},
};

use super::{
    Shared,
    connection::{Connection, Connector},
    explain,
    lane::{is_noscript, result},
    operations::{Call, Dialect, Operation, acquired, millis, read, released},
    script::By,
    topology::{LaneSettings, Upstream},
};
use crate::{
    Error,
    store::{Acquire, Acquired, Outcome, Release, Released},
};

/// The number of connections, and so of calls that wait for their replicas at the same time.
const CONNECTIONS: u32 = 16;

/// The number of replicas that must acknowledge an acquire or a record, and the time limit.
#[derive(Debug, Clone, Copy)]
pub(super) struct Replicas {
    pub(super) count: usize,
    pub(super) timeout: Duration,
}

/// The pool of connections for calls that wait for replicas.
#[derive(Debug)]
pub(super) struct Replicated {
    primary: Arc<Upstream>,
    settings: LaneSettings,
    /// Made at first use: bb8 needs a runtime, and a store can be built outside of one.
    pool: OnceLock<Pool<Connector>>,
    permits: Semaphore,
    wanted: Replicas,
}

/// A connection for one call.
struct CheckedOut<'a> {
    connection: PooledConnection<'a, Connector>,
    /// Declared after the connection, so that the connection is returned first.
    _permit: SemaphorePermit<'a>,
}

impl Replicated {
    pub(super) fn new(primary: Arc<Upstream>, settings: LaneSettings, wanted: Replicas) -> Self {
        Self {
            primary,
            settings,
            pool: OnceLock::new(),
            permits: Semaphore::new(CONNECTIONS as usize),
            wanted,
        }
    }

    /// The time limit of a WAIT, from the sending to the reply.
    pub(super) fn time_to_wait(&self) -> Duration {
        self.wanted.timeout + self.settings.limit
    }

    fn pool(&self) -> &Pool<Connector> {
        self.pool.get_or_init(|| {
            let connector = Connector::new(self.primary.clone(), &self.settings);
            Pool::builder()
                .max_size(CONNECTIONS)
                .min_idle(None)
                .test_on_check_out(false)
                .retry_connection(false)
                .connection_timeout(self.settings.limit)
                .build_unchecked(connector)
        })
    }

    /// Waits for a connection that is free or may be made, and takes or makes the connection.
    async fn connection(&self, deadline: Instant) -> Result<CheckedOut<'_>, Error> {
        let permit = match timeout_at(deadline, self.permits.acquire()).await {
            Ok(Ok(permit)) => permit,
            Ok(Err(_)) | Err(_) => return Err(explain::not_sent_in_time()),
        };
        let connecting = timeout_at(deadline, self.connection_with(permit)).await;
        connecting.unwrap_or_else(|_| {
            let name = &self.primary.name;
            Err(explain::cannot_connect_in_time(name, self.settings.limit))
        })
    }

    /// Takes a working connection from the pool, or makes one.
    async fn connection_with<'a>(
        &'a self,
        permit: SemaphorePermit<'a>,
    ) -> Result<CheckedOut<'a>, Error> {
        let pool = self.pool();
        loop {
            let state = pool.state();
            if state.idle_connections == 0 && state.connections < CONNECTIONS {
                // `get` would hide why no connection can be made, and report a timeout.
                let fresh = pool.dedicated_connection().await?;
                // A connection beyond the maximum is dropped, and `get` waits for another one.
                let _: Result<(), AddError<Connection>> = pool.add(fresh);
            }
            let connection = pool.get().await.map_err(|error| match error {
                RunError::User(error) => error,
                RunError::TimedOut => explain::not_sent_in_time(),
            })?;
            if !self.primary.is_current(&connection.address) {
                connection.health.broke();
            }
            if !connection.health.is_broken() {
                return Ok(CheckedOut {
                    connection,
                    _permit: permit,
                });
            }
        }
    }

    /// Waits until the replicas have acknowledged all writes of a connection. The error says `what`
    /// was not acknowledged.
    async fn wait(&self, connection: &Connection, what: &str) -> Result<(), Error> {
        let Replicas { count, timeout } = self.wanted;
        let mut wait = cmd("WAIT");
        wait.arg(count).arg(millis(timeout));
        let limit = self.time_to_wait();
        let reply = send(connection, &wait, Instant::now() + limit, limit).await?;
        match reply.extract_error().map_err(explain::refused)? {
            Value::Int(found) if usize::try_from(found).is_ok_and(|found| found >= count) => Ok(()),
            Value::Int(found) => Err(explain::too_few_replicas(found, count, timeout, what)),
            _ => Err(explain::unexpected_reply()),
        }
    }
}

impl Shared {
    /// Acquires on a connection of the pool, and waits for the replicas.
    ///
    /// # Cancel safety
    ///
    /// A dropped acquire may have taken effect.
    pub(super) async fn acquire_replicated(
        &self,
        request: Acquire,
        deadline: Instant,
    ) -> Outcome<Acquired> {
        let (key, block) = (request.key.clone(), request.block.max(1));
        let call = Operation::Acquire(request).into();
        let read = |outcome| {
            read(outcome, |reply| {
                acquired(reply, block, self.floors.of(&key))
            })
        };
        let is_granted = |acquired: &Acquired| matches!(acquired, Acquired::Granted(_));
        self.call_replicated(call, deadline, read, is_granted, "the lock")
            .await
    }

    /// Puts a record into the lease's place on a connection of the pool, and waits for the
    /// replicas.
    pub(super) async fn record_replicated(
        &self,
        record: Release,
        deadline: Instant,
    ) -> Outcome<Released> {
        let call = Operation::Release(record).into();
        let is_written = |released: &Released| *released == Released::Freed;
        let what = "the record, which a fail-over may forget,";
        self.call_replicated(call, deadline, released, is_written, what)
            .await
    }

    /// Makes a call on a connection of the pool. An answer that has written something counts once
    /// the replicas have it: otherwise its outcome is unknown, and the error says `what` was
    /// not acknowledged.
    async fn call_replicated<T>(
        &self,
        call: Call,
        deadline: Instant,
        read: impl FnOnce(Outcome<Value>) -> Outcome<T>,
        has_written: impl FnOnce(&T) -> bool,
        what: &str,
    ) -> Outcome<T> {
        let Some(replicated) = &self.replicated else {
            return Outcome::Refused(explain::not_sent_in_time());
        };
        let checked_out = match replicated.connection(deadline).await {
            Ok(checked_out) => checked_out,
            Err(error) => return Outcome::Refused(error),
        };
        let connection = &checked_out.connection;
        let time = call.operation.begin();
        let outcome = match self.call_on(connection, &call, deadline).await {
            Ok(reply) => Outcome::Answered(reply),
            Err(error) => Outcome::Unknown(error),
        };
        time.end(result(&outcome));
        let outcome = read(outcome);
        if let Outcome::Answered(answer) = &outcome
            && has_written(answer)
            && let Err(error) = replicated.wait(connection, what).await
        {
            return Outcome::Unknown(error);
        }
        outcome
    }

    /// Sends a call: by hash, and once more by text if the server does not have the script.
    async fn call_on(
        &self,
        connection: &Connection,
        call: &Call,
        deadline: Instant,
    ) -> Result<Value, Error> {
        let dialect = Dialect {
            names: &self.names,
            floors: &self.floors,
            fraction: connection.fraction,
        };
        let mut by = By::Hash;
        loop {
            let mut command = Cmd::new();
            call.write(&[], by, dialect, &mut command, &mut Vec::new());
            let sent = send(connection, &command, deadline, self.timeout).await;
            match (sent, by) {
                (Ok(reply), By::Hash) if is_noscript(&reply) => by = By::Text,
                (sent, _) => return sent,
            }
        }
    }
}

/// Sends one command. A connection that brings no answer, or whose server is not a primary, is not
/// used again.
async fn send(
    connection: &Connection,
    command: &Cmd,
    deadline: Instant,
    limit: Duration,
) -> Result<Value, Error> {
    connection.health.awaits_reply(true);
    let mut multiplexed = connection.multiplexed.clone();
    let reply = timeout_at(deadline, multiplexed.send_packed_command(command)).await;
    let reply = match reply {
        Ok(Ok(reply)) => reply,
        Ok(Err(error)) => return Err(explain::connection_broke(error)),
        Err(_) => return Err(explain::no_answer(limit)),
    };
    if explain::demoted(&reply).is_none() {
        connection.health.awaits_reply(false);
    }
    Ok(reply)
}
