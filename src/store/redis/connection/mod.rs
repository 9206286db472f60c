//! One connection of a lane, or of the pool of `replicated`, and the connector that makes connections.
//!
//! ```text
//! find the server (Upstream) ──> open (TCP, TLS, login) ──> handshake ──> Connection
//! ```
//!
//! 1. When a connection of a lane works, all earlier connections of the lane *to the same server* are **closed by the server**
//!    (CLIENT KILL), so that no command on them can still take effect. Commands can lie unread in the buffers of a server that
//!    hangs, long after the client has closed its end.
//! 2. Closing takes CLIENT INFO and CLIENT KILL. If the server denies the user these commands, connections work nevertheless, but every
//!    later connection of the lane to that server has `predecessors_closed` false.
//! 3. A connection counts only if the server has answered every command of the handshake, or has denied the command for good. A server
//!    that is busy or loading has closed nothing and told no time: the connect has failed, and is tried again.
//! 4. After a fail-over, the connections to the old primary cannot be closed from the new primary, and need not be. The new server
//!    has the role of a primary already (ROLE), and so does not replicate later writes of the old primary; and the old primary forgets
//!    those writes before any server replicates from it again. If the lane ever comes back to the old primary, the connections that are
//!    left there are closed then: the lane remembers the last connection to each server.

mod handshake;
mod peer;

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::Waker,
    time::Duration,
};

use bb8_redis::bb8::ManageConnection;
use futures_util::task::AtomicWaker;
use redis::{AsyncConnectionConfig, PushInfo, PushKind, ServerError, aio::MultiplexedConnection};
use tokio::time::timeout;

pub(super) use self::peer::Peer;
use super::{
    explain,
    floors::{Floors, Fraction},
    outcome::Redirect,
    persistence::Persistence,
    topology::{Server, Upstream},
};
use crate::{
    Error,
    sync::Mutex,
    trace::{self, ConnectResult},
};

/// The number of messages in the client library's buffer beyond which a sender waits. A lane has fewer messages in flight.
pub(super) const BUFFERED: usize = 1024;

/// A connection that has passed the handshake.
#[derive(Debug, Clone)]
pub(super) struct Connection {
    pub(super) multiplexed: MultiplexedConnection,
    pub(super) health: Arc<Health>,
    /// Whether no command on an earlier connection of the lane to this server can still take effect.
    pub(super) predecessors_closed: bool,
    /// The address of the server.
    pub(super) address: Arc<str>,
    /// Set if tokens follow the server's clock.
    pub(super) fraction: Option<Fraction>,
    /// The server's name for the connection. `None` if CLIENT INFO is denied.
    pub(super) peer: Option<Peer>,
}

/// Whether a connection is known to be broken.
#[derive(Debug, Default)]
pub(super) struct Health {
    is_broken: AtomicBool,
    /// Wakes the driver of the lane.
    waker: AtomicWaker,
}

impl Health {
    pub(super) fn is_broken(&self) -> bool {
        self.is_broken.load(Ordering::Acquire)
    }

    pub(super) fn broke(&self) {
        self.is_broken.store(true, Ordering::Release);
        self.waker.wake();
    }

    /// Lets the end of the connection wake this task.
    pub(super) fn wakes(&self, waker: &Waker) {
        self.waker.register(waker);
    }
}

/// Makes the connections of a lane or of a pool.
#[derive(Debug)]
pub(super) struct Connector {
    upstream: Arc<dyn Upstream>,
    floors: Arc<Floors>,
    limit: Duration,
    /// The name of the connections in CLIENT LIST.
    client_name: Arc<str>,
    /// What lanes alone need. `None` in a pool.
    lane: Option<ForLane>,
}

/// The part of a connector that only lanes have.
#[derive(Debug)]
struct ForLane {
    /// The last connection to each server, by address.
    predecessors: Mutex<HashMap<Arc<str>, Predecessor>>,
    persistence: Persistence,
}

/// An earlier connection to the same server.
#[derive(Debug, Clone)]
struct Predecessor {
    peer: Option<Peer>,
    predecessors_closed: bool,
}

impl Connector {
    /// A connector for a lane, in which each connection closes its predecessor.
    pub(super) fn for_lane(
        upstream: Arc<dyn Upstream>,
        floors: Arc<Floors>,
        persistence: Persistence,
        limit: Duration,
        client_name: Arc<str>,
    ) -> Self {
        Self {
            lane: Some(ForLane {
                predecessors: Mutex::default(),
                persistence,
            }),
            ..Self::for_pool(upstream, floors, limit, client_name)
        }
    }

    /// A connector for a pool, in which connections exist side by side and none closes another.
    pub(super) fn for_pool(
        upstream: Arc<dyn Upstream>,
        floors: Arc<Floors>,
        limit: Duration,
        client_name: Arc<str>,
    ) -> Self {
        Self {
            upstream,
            floors,
            limit,
            client_name,
            lane: None,
        }
    }

    pub(super) fn stays_connected(&self) -> bool {
        self.upstream.stays_connected()
    }

    pub(super) fn can_fail_over(&self) -> bool {
        self.upstream.can_fail_over()
    }

    pub(super) fn redirect(&self, error: &ServerError) -> Option<Redirect> {
        self.upstream.redirect(error)
    }

    pub(super) fn is_current(&self, address: &Arc<str>) -> bool {
        self.upstream.is_current(address)
    }

    pub(super) fn too_late(&self) -> Error {
        explain::cannot_connect_in_time(self.upstream.name(), self.limit)
    }

    /// Connects within the time limit.
    pub(super) async fn connect_in_time(&self) -> Result<Connection, Error> {
        let connecting = timeout(self.limit, ManageConnection::connect(self));
        connecting.await.unwrap_or_else(|_| {
            trace::connected(trace::Connection::Calls, ConnectResult::Failed);
            Err(self.too_late())
        })
    }

    async fn find_and_open(&self) -> Result<Connection, Error> {
        let health = Arc::new(Health::default());
        let server = self.upstream.find(self.limit).await?;
        let mut multiplexed = self.open(&server, health.clone()).await?;
        let accepted = self.shake_hands(&server, &mut multiplexed).await?;
        let floor_by_clock = self.upstream.floor_by_clock();
        Ok(Connection {
            multiplexed,
            health,
            predecessors_closed: accepted.predecessors_closed,
            fraction: floor_by_clock.then(|| Fraction::of(&server.address)),
            address: server.address,
            peer: accepted.peer,
        })
    }

    async fn open(
        &self,
        server: &Server,
        health: Arc<Health>,
    ) -> Result<MultiplexedConnection, Error> {
        // The lane keeps the time limits, because only the lane knows that a command which timed out may still take effect.
        let mut config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_pipeline_buffer_size(BUFFERED);
        let client = server.client_for_calls().await?;
        let settings = client.get_connection_info().redis_settings();
        if settings.protocol().supports_resp3() {
            config = config.set_push_sender(move |push: PushInfo| {
                if push.kind == PushKind::Disconnection {
                    health.broke();
                }
                Ok::<(), ()>(())
            });
        }
        client
            .get_multiplexed_async_connection_with_config(&config)
            .await
            .map_err(|error| explain::cannot_connect(&server.address, error))
    }
}

impl ManageConnection for Connector {
    type Connection = Connection;
    type Error = Error;

    async fn connect(&self) -> Result<Connection, Error> {
        let connection = self.find_and_open().await;
        let result = ConnectResult::of(&connection);
        trace::connected(trace::Connection::Calls, result);
        connection
    }

    /// Never called, because the pool does not test connections: a PING before every call would double the traffic and prove nothing about
    /// the time after the PING.
    async fn is_valid(&self, _: &mut Connection) -> Result<(), Error> {
        Ok(())
    }

    fn has_broken(&self, connection: &mut Connection) -> bool {
        connection.health.is_broken()
    }
}
