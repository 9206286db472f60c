//! Acquires that count only once replicas have them.
//!
//! 1. WAIT answers for what was written on its own connection, and blocks whoever shares that. So an acquire and its WAIT
//!    have a connection to themselves, out of a pool, and not a lane's.
//! 2. Then no connection keeps the order of an acquire and the release that follows it. `key_order` does, for all calls but
//!    renewals: nobody renews a lease before its grant was answered, and no renewal should wait for a replica. Calls for
//!    other keys never wait.
//! 3. An acquire of unknown outcome can still take effect, as long as its connection lives. So that is closed from the
//!    server's side before the acquire is released (see `in_order`).
//! 4. There are never more than [`CONNECTIONS`]: whoever has no permit waits, before it looks at the pool.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use bb8_redis::bb8::{AddError, Pool, PooledConnection, RunError};
use redis::{Cmd, Pipeline, Value, cmd};
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::{Instant, timeout_at},
};

use super::{
    Shared,
    calls::{Call, Dialect, Operation},
    connection::{Connection, Connector, Health, Peer},
    explain,
    fence::Floors,
    in_order::Failed,
    lane::is_noscript,
    primary::Primary,
    script::By,
};
use crate::{
    Error,
    store::{Acquire, Acquired},
};

/// How many acquires wait for their replicas at the same time.
const CONNECTIONS: u32 = 16;

#[derive(Debug)]
pub(super) struct Replicated {
    primary: Arc<Primary>,
    floors: Arc<Floors>,
    limit: Duration,
    /// Made at first use: bb8 needs a runtime, and a store can be built outside of one.
    pool: OnceLock<Pool<Connector>>,
    permits: Semaphore,
    replicas: usize,
    timeout: Duration,
}

/// A connection for one acquire.
struct CheckedOut<'a> {
    connection: PooledConnection<'a, Connector>,
    /// Given back after the connection.
    _permit: SemaphorePermit<'a>,
}

/// Why an acquire on a connection of its own has no answer, and how the server knows that connection.
struct Unknown {
    error: Error,
    peer: Option<Peer>,
}

impl Replicated {
    pub(super) fn new(
        primary: Arc<Primary>,
        floors: Arc<Floors>,
        limit: Duration,
        replicas: usize,
        timeout: Duration,
    ) -> Self {
        Self {
            primary,
            floors,
            limit,
            pool: OnceLock::new(),
            permits: Semaphore::new(CONNECTIONS as usize),
            replicas,
            timeout,
        }
    }

    /// How long an acquire may wait for its replicas.
    pub(super) fn time(&self) -> Duration {
        self.timeout + self.limit
    }

    fn pool(&self) -> &Pool<Connector> {
        self.pool.get_or_init(|| {
            let connector =
                Connector::of_many(self.primary.clone(), self.floors.clone(), self.limit);
            Pool::builder()
                .max_size(CONNECTIONS)
                .min_idle(None)
                .test_on_check_out(false)
                .retry_connection(false)
                .connection_timeout(self.limit)
                .build_unchecked(connector)
        })
    }

    async fn connection(&self) -> Result<CheckedOut<'_>, Error> {
        let permit = self.permits.acquire().await;
        let permit = permit.map_err(|_| explain::too_many_before())?;
        let pool = self.pool();
        loop {
            let state = pool.state();
            if state.idle_connections == 0 && state.connections < CONNECTIONS {
                // Not by `get`, which would only say that it waited in vain, and not why.
                let fresh = pool.dedicated_connection().await?;
                // One more than there may be is dropped, and the next to come back taken in its place.
                let _: Result<(), AddError<Connection>> = pool.add(fresh);
            }
            let connection = pool.get().await.map_err(|error| match error {
                RunError::User(error) => error,
                RunError::TimedOut => explain::too_many_before(),
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
}

impl Shared {
    /// Acquires on a connection of its own, and waits for the replicas.
    pub(super) async fn acquire_replicated(
        &self,
        replicated: &Replicated,
        request: &Acquire,
        deadline: Instant,
    ) -> Result<Acquired, Failed> {
        let refused = |error| Failed {
            error,
            in_doubt: None,
        };
        let connecting = replicated.connection();
        let checked_out = match timeout_at(deadline, connecting).await {
            Ok(connection) => connection.map_err(refused)?,
            Err(_) => {
                let name = replicated.primary.name();
                return Err(refused(explain::cannot_connect_in_time(name, self.timeout)));
            }
        };
        let connection = &checked_out.connection;
        let reply = match self.acquire_on(connection, request, deadline).await {
            Ok(reply) => reply.extract_error().map_err(explain::refused),
            Err(Unknown { error, peer }) => {
                let cannot_be_closed = peer.is_none();
                let mut failed = Failed::in_doubt(error, peer);
                if let Some(in_doubt) = &mut failed.in_doubt {
                    in_doubt.cannot_be_closed = cannot_be_closed;
                }
                return Err(failed);
            }
        };
        let acquired = self.acquired(request, reply.map_err(refused)?);
        let acquired = acquired.map_err(Failed::answered)?;
        if matches!(acquired, Acquired::Granted(_)) {
            let acknowledged = replicated.wait(connection, self.timeout).await;
            acknowledged.map_err(Failed::answered)?;
        }
        Ok(acquired)
    }

    async fn acquire_on(
        &self,
        connection: &Connection,
        request: &Acquire,
        deadline: Instant,
    ) -> Result<Value, Unknown> {
        let call = Call::from(Operation::Acquire(request.clone()));
        let dialect = Dialect {
            names: &self.names,
            floors: &self.floors,
            fraction: connection.fraction,
        };
        let mut by = By::Hash;
        loop {
            let (mut pipeline, mut command) = (Pipeline::new(), Cmd::new());
            call.write(by, dialect, &mut command);
            pipeline.add_command(command);
            let sent = send(connection, &pipeline, deadline, self.timeout).await;
            match (sent, by) {
                (Ok(reply), By::Hash) if is_noscript(&reply) => by = By::Text,
                (Ok(reply), _) => return Ok(reply),
                (Err(error), _) => {
                    let peer = connection.peer.clone();
                    return Err(Unknown { error, peer });
                }
            }
        }
    }
}

impl Replicated {
    /// Waits for the replicas.
    async fn wait(&self, connection: &Connection, limit: Duration) -> Result<(), Error> {
        let millis = self.timeout.as_micros().div_ceil(1000).max(1);
        let millis = u64::try_from(millis).unwrap_or(u64::MAX);
        let mut wait = cmd("WAIT");
        wait.arg(self.replicas).arg(millis);
        let mut pipeline = Pipeline::new();
        pipeline.add_command(wait);
        let deadline = Instant::now() + self.timeout + limit;
        let reply = send(connection, &pipeline, deadline, self.timeout + limit).await?;
        match reply.extract_error().map_err(explain::refused)? {
            Value::Int(replicas) if usize::try_from(replicas).is_ok_and(|n| n >= self.replicas) => {
                Ok(())
            }
            Value::Int(replicas) => Err(explain::too_few_replicas(
                replicas,
                self.replicas,
                self.timeout,
            )),
            _ => Err(explain::nonsense()),
        }
    }
}

/// Sends one command. A connection whose answer nobody has heard, or whose server is no primary, is not used again.
async fn send(
    connection: &Connection,
    command: &Pipeline,
    deadline: Instant,
    limit: Duration,
) -> Result<Value, Error> {
    let unheard = Unheard(Some(&connection.health));
    let mut multiplexed = connection.multiplexed.clone();
    let reply = timeout_at(deadline, multiplexed.send_packed_commands(command, 0, 1)).await;
    let mut replies = match reply {
        Ok(Ok(replies)) => replies,
        Ok(Err(error)) => return Err(explain::connection_broke(error)),
        Err(_) => return Err(explain::no_answer(limit)),
    };
    let reply = replies.pop().ok_or_else(explain::nonsense)?;
    if explain::demoted(&reply).is_none() {
        unheard.disarm();
    }
    Ok(reply)
}

/// Gives a connection up when it is dropped.
struct Unheard<'a>(Option<&'a Health>);

impl Unheard<'_> {
    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for Unheard<'_> {
    fn drop(&mut self) {
        if let Some(health) = self.0 {
            health.broke();
        }
    }
}
