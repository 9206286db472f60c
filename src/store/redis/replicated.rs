//! Acquires that count only once replicas have them.
//!
//! 1. WAIT answers for what was written on its own connection, and blocks whoever shares that. So an acquire and its WAIT
//!    have a connection to themselves, out of a pool, and not a lane's.
//! 2. Then no connection keeps the order of an acquire and the release that follows it. `turns` does, for all calls but
//!    renewals: nobody renews a lease before its grant was answered, and no renewal should wait for a replica.
//! 3. An acquire of unknown outcome can still take effect, as long as its connection lives. So that is closed from the
//!    server's side before its orphan is released (see `orphans`).

use std::{sync::Arc, time::Duration};

use bb8_redis::bb8::{AddError, Pool, PooledConnection, RunError};
use redis::{Pipeline, Value, cmd};
use tokio::time::{Instant, timeout_at};

use super::{
    Shared, calls,
    connection::{Connection, Health, Manager, Peer},
    explain,
    fence::Floors,
    lane::{Failure, is_noscript},
    orphans::Behind,
    primary::Primary,
    reply,
    script::By,
};
use crate::{
    Error,
    store::{Acquire, Acquired, Ending, Release},
};

/// How many acquires wait for their replicas at the same time.
const CONNECTIONS: u32 = 16;

#[derive(Debug)]
pub(super) struct Replicated {
    primary: Arc<Primary>,
    pool: Pool<Manager>,
    replicas: usize,
    timeout: Duration,
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
        let manager = Manager::of_many(primary.clone(), floors, limit);
        let pool = Pool::builder()
            .max_size(CONNECTIONS)
            .min_idle(None)
            .test_on_check_out(false)
            .retry_connection(false)
            .connection_timeout(limit)
            .build_unchecked(manager);
        Self {
            primary,
            pool,
            replicas,
            timeout,
        }
    }

    async fn connection(&self) -> Result<PooledConnection<'_, Manager>, Error> {
        loop {
            let state = self.pool.state();
            if state.idle_connections == 0 && state.connections < CONNECTIONS {
                // Not by `get`, which would only say that it waited in vain, and not why.
                let fresh = self.pool.dedicated_connection().await?;
                // One more than there may be is dropped, and the next to come back taken in its place.
                let _: Result<(), AddError<Connection>> = self.pool.add(fresh);
            }
            let connection = self.pool.get().await.map_err(|error| match error {
                RunError::User(error) => error,
                RunError::TimedOut => explain::too_many_before(),
            })?;
            if !self.primary.is_current(&connection.address) {
                connection.health.broke();
            }
            if !connection.health.is_broken() {
                return Ok(connection);
            }
        }
    }
}

impl Shared {
    pub(super) async fn acquire_replicated(
        self: &Arc<Self>,
        replicated: &Replicated,
        request: Acquire,
    ) -> Result<Acquired, Error> {
        let deadline = Instant::now() + self.timeout;
        let _turn = self
            .turn(&request.key, deadline)
            .await
            .map_err(Failure::error)?;
        let connecting = replicated.connection();
        let connection = match timeout_at(deadline, connecting).await {
            Ok(connection) => connection?,
            Err(_) => {
                let name = replicated.primary.name();
                return Err(explain::cannot_connect_in_time(name, self.timeout));
            }
        };
        let undo = Release {
            key: request.key.clone(),
            owner: request.owner,
            ending: Ending::Free,
            owed_for: request.lease,
        };
        let reply = match self.acquire_on(&connection, &request, deadline).await {
            Ok(reply) => reply.extract_error().map_err(explain::refused)?,
            Err(Unknown { error, peer }) => {
                drop(connection);
                self.clean_up(undo, request.lease, Behind::Connection(peer));
                return Err(error);
            }
        };
        let floor = self.floors.of(&request.key);
        let outcome = match reply::acquired(reply, request.block.max(1), floor) {
            Ok(granted @ Acquired::Granted(_)) => {
                let acknowledged = replicated.wait(&connection, self.timeout).await;
                acknowledged.map(|()| granted)
            }
            other => other,
        };
        drop(connection);
        if outcome.is_err() {
            // It was answered, so nothing can come after this.
            let giving_back = calls::release(&self.names.of(&undo.key), &undo);
            match self.routes.call(&undo.key, giving_back, &[]).await {
                Ok(replies) if replies.each.iter().all(Result::is_ok) => {}
                _ => self.clean_up(undo, request.lease, Behind::Lane),
            }
        }
        outcome
    }

    async fn acquire_on(
        &self,
        connection: &Connection,
        request: &Acquire,
        deadline: Instant,
    ) -> Result<Value, Unknown> {
        let call = calls::acquire(self.names.of(&request.key), request);
        let mut by = By::Hash;
        loop {
            let mut pipeline = Pipeline::new();
            pipeline.add_command(call.command(by, &self.floors, connection.fraction));
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
