//! Acquires and records that count only once replicas have acknowledged them.
//!
//! ```text
//! connection of the pool:   EVALSHA acquire.lua … ──> granted ──> WAIT <replicas> <ms> ──> acknowledged: the caller has the lock
//!                                                                        │
//! lane of the key:                                                       └──> too few: release, then the caller gets the error
//!
//! connection of the pool:   EVALSHA release.lua … ──> recorded ─> WAIT <replicas> <ms> ──> acknowledged: the caller may answer
//!                                                                        └──> too few: the caller gets the error, and tries again
//! ```
//!
//! 1. WAIT answers for the writes of its own connection, and blocks every other user of that connection. A call and its WAIT therefore
//!    have a connection of a pool to themselves. A record that is there already is waited for as well: the server counts all writes up
//!    to the last command of the connection.
//! 2. Hence no connection keeps the order of an acquire and its release. `key_order` keeps the order of all calls but
//!    renewals: no lease is renewed before its grant was answered, and no renewal should wait for a replica. Calls for
//!    different keys never wait for each other, except for a connection.
//! 3. An acquire of unknown outcome can still take effect as long as its connection lives. The server therefore closes that connection
//!    before the acquire is released (see `in_order`).
//! 4. A record of unknown outcome, or one that was refused, is repeated on the lane like any other release: the caller has its answer.
//! 5. There are never more than [`CONNECTIONS`] connections: a call waits for a permit before it looks at the pool.

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
    connection::{Connection, Connector, Health},
    explain,
    floors::Floors,
    in_order::InDoubt,
    lane::is_noscript,
    operations::{Call, Dialect, Operation, ReleaseAll, released},
    outcome::{Answered, Outcome},
    script::By,
    topology::Upstream,
};
use crate::{
    Error,
    store::{Acquire, Acquired, Released},
    trace::{StoreCall, StoreOperation, StoreResult},
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
    upstream: Arc<dyn Upstream>,
    floors: Arc<Floors>,
    /// The time limit of every other call.
    limit: Duration,
    client_name: Arc<str>,
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
    pub(super) fn new(
        upstream: Arc<dyn Upstream>,
        floors: Arc<Floors>,
        limit: Duration,
        client_name: Arc<str>,
        wanted: Replicas,
    ) -> Self {
        Self {
            upstream,
            floors,
            limit,
            client_name,
            pool: OnceLock::new(),
            permits: Semaphore::new(CONNECTIONS as usize),
            wanted,
        }
    }

    /// The time limit of a WAIT, from the sending to the reply.
    pub(super) fn time_to_wait(&self) -> Duration {
        self.wanted.timeout + self.limit
    }

    fn pool(&self) -> &Pool<Connector> {
        self.pool.get_or_init(|| {
            let connector = Connector::for_pool(
                self.upstream.clone(),
                self.floors.clone(),
                self.limit,
                self.client_name.clone(),
            );
            Pool::builder()
                .max_size(CONNECTIONS)
                .min_idle(None)
                .test_on_check_out(false)
                .retry_connection(false)
                .connection_timeout(self.limit)
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
            let name = self.upstream.name();
            Err(explain::cannot_connect_in_time(name, self.limit))
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
            if !self.upstream.is_current(&connection.address) {
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

    /// Waits until the replicas have acknowledged all writes of a connection. The error says `what` was not acknowledged.
    async fn wait(&self, connection: &Connection, what: &str) -> Result<(), Error> {
        let Replicas { count, timeout } = self.wanted;
        let millis = timeout.as_micros().div_ceil(1000).max(1);
        let millis = u64::try_from(millis).unwrap_or(u64::MAX);
        let mut wait = cmd("WAIT");
        wait.arg(count).arg(millis);
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
    /// Acquires on a connection of the pool, and waits for the replicas. `in_doubt` is set before the sending, and `None`
    /// again when the server has refused the acquire.
    ///
    /// # Cancel safety
    ///
    /// A dropped acquire may have taken effect: `in_doubt` says so.
    pub(super) async fn acquire_replicated(
        &self,
        replicated: &Replicated,
        request: &Acquire,
        deadline: Instant,
        in_doubt: &mut Option<InDoubt>,
    ) -> Result<Acquired, Error> {
        let checked_out = replicated.connection(deadline).await?;
        let connection = &checked_out.connection;
        let time = StoreCall::begin(StoreOperation::Acquire);
        *in_doubt = Some(InDoubt::SentOn(connection.peer.clone()));
        let call = Call::from(Operation::Acquire(request.clone()));
        let reply = match self.call_on(connection, &call, deadline).await {
            Ok(reply) => {
                time.end(StoreResult::Answered);
                reply.extract_error()
            }
            Err(error) => {
                time.end(StoreResult::Failed);
                return Err(error);
            }
        };
        *in_doubt = reply.is_ok().then_some(InDoubt::Answered);
        let acquired = self.acquired(request, reply.map_err(explain::refused)?)?;
        if matches!(acquired, Acquired::Granted(_)) {
            let what = "the lock, which was released again,";
            replicated.wait(connection, what).await?;
        }
        Ok(acquired)
    }

    /// Puts a record into the lease's place on a connection of the pool, and waits for the replicas. The outer error is that of a record
    /// which the server has not answered, or has refused.
    pub(super) async fn record_replicated(
        &self,
        replicated: &Replicated,
        record: ReleaseAll,
        deadline: Instant,
    ) -> Result<Result<Released, Error>, Error> {
        let checked_out = replicated.connection(deadline).await?;
        let connection = &checked_out.connection;
        let time = StoreCall::begin(StoreOperation::Release);
        let call = Call::from(Operation::Release(record));
        let reply = self.call_on(connection, &call, deadline).await;
        time.end(match &reply {
            Ok(_) => StoreResult::Answered,
            Err(_) => StoreResult::Failed,
        });
        let value = reply?.extract_error().map_err(explain::refused)?;
        let answered = Outcome::Answered(Answered {
            value,
            repeated: false,
            predecessors_closed: true,
        });
        let released = released(answered, false).into_result()?;
        if released == Released::Freed {
            let what = "the record, which a fail-over may forget,";
            if let Err(error) = replicated.wait(connection, what).await {
                return Ok(Err(error));
            }
        }
        Ok(Ok(released))
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
            call.write(by, dialect, &mut command);
            let sent = send(connection, &command, deadline, self.timeout).await;
            match (sent, by) {
                (Ok(reply), By::Hash) if is_noscript(&reply) => by = By::Text,
                (sent, _) => return sent,
            }
        }
    }
}

/// Sends one command. A connection that brings no answer, or whose server is not a primary, is not used again.
async fn send(
    connection: &Connection,
    command: &Cmd,
    deadline: Instant,
    limit: Duration,
) -> Result<Value, Error> {
    let unless_answered = GiveUp(Some(&connection.health));
    let mut multiplexed = connection.multiplexed.clone();
    let reply = timeout_at(deadline, multiplexed.send_packed_command(command)).await;
    let reply = match reply {
        Ok(Ok(reply)) => reply,
        Ok(Err(error)) => return Err(explain::connection_broke(error)),
        Err(_) => return Err(explain::no_answer(limit)),
    };
    if explain::demoted(&reply).is_none() {
        unless_answered.disarm();
    }
    Ok(reply)
}

/// Gives a connection up when dropped.
struct GiveUp<'a>(Option<&'a Health>);

impl GiveUp<'_> {
    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for GiveUp<'_> {
    fn drop(&mut self) {
        if let Some(health) = self.0 {
            health.broke();
        }
    }
}
