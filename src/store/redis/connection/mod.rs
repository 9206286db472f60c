//! One connection of a lane, or of the pool of `replicated`, and the connector that makes
//! connections.
//!
//! ```text
//! find the server (Upstream) ──> open (TCP, TLS, login) ──> handshake ──> Connection
//! ```
//!
//! 1. A connection that is given up is a stray (`strays`), which the next connection of the store
//!    to the same server has closed, or the next release on another one whose answer depends on it.
//!    Where the server denies CLIENT INFO or CLIENT KILL, connections work nevertheless.
//! 2. A connection counts only if the server has answered every command of the handshake, or has
//!    denied the command for good. A server that is busy or loading has closed nothing and told no
//!    time: the connect has failed, and is tried again.

mod handshake;
mod peer;
mod strays;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::Waker,
    time::Duration,
};

use bb8_redis::bb8::ManageConnection;
use futures_util::task::AtomicWaker;
use redis::{AsyncConnectionConfig, PushInfo, PushKind, Value, aio::MultiplexedConnection};
use tokio::time::timeout;

pub(super) use self::{peer::Peer, strays::Strays};
use super::{
    explain,
    floors::{Floors, Fraction},
    persistence::Persistence,
    topology::{LaneSettings, Server, Upstream},
};
use crate::{
    Error,
    trace::{self, ConnectResult},
};

/// The number of messages in the client library's buffer beyond which a sender waits. A lane has
/// fewer messages in flight.
pub(super) const BUFFERED: usize = 1024;

/// A connection that has passed the handshake. Once dropped, it is a stray.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) multiplexed: MultiplexedConnection,
    pub(super) health: Arc<Health>,
    /// The address of the server.
    pub(super) address: Arc<str>,
    /// Set if tokens follow the server's clock.
    pub(super) fraction: Option<Fraction>,
    /// The server's name for the connection. `None` if CLIENT INFO is denied.
    peer: Option<Peer>,
    /// Whether one script may have the names of several buckets. Not in a Cluster; nor where CLIENT
    /// INFO is not answered, because a proxy may spread the buckets over several servers, and would
    /// send the script to that of its first name; nor where such a script was refused.
    pub(super) joins: bool,
    strays: Arc<Strays>,
}

impl Connection {
    /// The strays at the same server.
    pub(super) fn strays(&self) -> Vec<Peer> {
        self.strays.at(&self.address)
    }

    /// Takes the server's reply to the command that closes a stray.
    pub(super) fn closed(&self, stray: &Peer, reply: &Value) {
        self.strays.met(&self.address, stray, reply);
    }

    /// Whether a command on an earlier connection to the same server may still take effect.
    pub(super) fn is_beside_strays(&self) -> bool {
        self.strays.are_left_at(&self.address)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.strays.add(&self.address, self.peer.take());
    }
}

/// Whether a connection is known to be broken.
#[derive(Debug, Default)]
pub(super) struct Health {
    is_broken: AtomicBool,
    /// Whether a call in a connection of the pool has got no reply. If it is given up, so is the
    /// connection.
    awaits_reply: AtomicBool,
    /// Wakes the driver of the lane.
    waker: AtomicWaker,
}

impl Health {
    pub(super) fn is_broken(&self) -> bool {
        let flags = [&self.is_broken, &self.awaits_reply];
        flags.iter().any(|flag| flag.load(Ordering::Acquire))
    }

    pub(super) fn awaits_reply(&self, awaits: bool) {
        self.awaits_reply.store(awaits, Ordering::Release);
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
    pub(super) upstream: Arc<Upstream>,
    floors: Arc<Floors>,
    limit: Duration,
    /// The name of the connections in CLIENT LIST.
    client_name: Arc<str>,
    strays: Arc<Strays>,
    persistence: Persistence,
}

impl Connector {
    pub(super) fn new(upstream: Arc<Upstream>, settings: &LaneSettings) -> Self {
        Self {
            upstream,
            floors: settings.floors.clone(),
            limit: settings.limit,
            client_name: settings.names.client_name(),
            strays: settings.strays.clone(),
            persistence: settings.persistence.clone(),
        }
    }

    pub(super) fn too_late(&self) -> Error {
        explain::cannot_connect_in_time(&self.upstream.name, self.limit)
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
        let peer = self.shake_hands(&server, &mut multiplexed).await?;
        let floor_by_clock = self.upstream.floor_by_clock();
        Ok(Connection {
            multiplexed,
            health,
            fraction: floor_by_clock.then(|| Fraction::of(&server.address)),
            address: server.address,
            joins: peer.is_some() && !self.upstream.has_slots(),
            peer,
            strays: self.strays.clone(),
        })
    }

    async fn open(
        &self,
        server: &Server,
        health: Arc<Health>,
    ) -> Result<MultiplexedConnection, Error> {
        // The lane keeps the time limits, because only the lane knows that a command which timed
        // out may still take effect.
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

    /// Never called, because the pool does not test connections: a PING before every call would
    /// double the traffic and prove nothing about the time after the PING.
    async fn is_valid(&self, _: &mut Connection) -> Result<(), Error> {
        Ok(())
    }

    fn has_broken(&self, connection: &mut Connection) -> bool {
        connection.health.is_broken()
    }
}
