//! One connection of a lane, or of the pool of `replicated`, and how it is made.
//!
//! 1. When a connection of a lane works, all earlier ones of the lane *to the same server* are **closed by the server** (CLIENT KILL), so
//!    that nothing that was sent on them can still take effect. Commands can lie unread in the buffers of a server that
//!    hangs, long after the client has closed its end.
//! 2. That takes CLIENT INFO and CLIENT KILL. Where they are denied, the connection works all the same, and
//!    says that its predecessors are not closed.
//! 3. A connection is one only if every question of its preparation was answered, or denied for good. A server that is busy or loading
//!    right now has closed nothing and told no time: connecting has failed, and is tried again.
//! 4. After a fail-over, the connections to the old primary cannot be closed from the new one, and need not be. The new
//!    one is a primary already (ROLE), so it does not replicate what the old one still does; and before that one
//!    is replicated from again, it forgets what it did on its own. Should the lane come back to the old one as a primary
//!    after all, what is left there is closed then: each server's last connection is remembered.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bb8_redis::bb8::ManageConnection;
use redis::{
    AsyncConnectionConfig, PushInfo, PushKind, Value, aio::MultiplexedConnection, cmd, pipe,
};
use tokio::time::timeout;

use super::{
    explain,
    fence::{Floors, Fraction},
    primary::{Primary, Server, check_role},
    script,
};
use crate::{Error, sync::Mutex, trace};

/// How many messages may be on their way to the socket before a sender waits. A lane has fewer in flight.
pub(super) const BUFFERED: usize = 1024;

#[derive(Debug, Clone)]
pub(super) struct Connection {
    pub(super) multiplexed: MultiplexedConnection,
    pub(super) health: Arc<Health>,
    /// Nothing that was sent on an earlier connection of the lane can still take effect.
    pub(super) predecessors_closed: bool,
    /// Which server it is to.
    pub(super) address: Arc<str>,
    /// Where tokens follow the server's clock.
    pub(super) fraction: Option<Fraction>,
    /// How the server knows it, if it said so.
    pub(super) peer: Option<Peer>,
}

/// Whether a connection is known to be broken.
#[derive(Debug, Default)]
pub(super) struct Health(AtomicBool);

impl Health {
    pub(super) fn is_broken(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    pub(super) fn broke(&self) {
        self.0.store(true, Ordering::Release);
    }
}

#[derive(Debug)]
pub(super) struct Connector {
    primary: Arc<Primary>,
    floors: Arc<Floors>,
    limit: Duration,
    /// Where connections are there one at a time.
    past: Option<Mutex<Past>>,
}

/// What a lane remembers of its connections.
#[derive(Debug, Default)]
struct Past {
    servers: HashMap<Arc<str>, Last>,
}

/// What is known of a server that was connected to before.
#[derive(Debug, Clone)]
struct Last {
    peer: Option<Peer>,
    predecessors_closed: bool,
}

/// How the server knows a connection. The address makes sure that no stranger is hit: after a restart, ids start anew.
#[derive(Debug, Clone)]
pub(super) struct Peer {
    server: Arc<str>,
    id: String,
    address: String,
}

impl Connector {
    /// Of connections that follow one another.
    pub(super) fn of_one(primary: Arc<Primary>, floors: Arc<Floors>, limit: Duration) -> Self {
        Self {
            past: Some(Mutex::new(Past::default())),
            ..Self::of_many(primary, floors, limit)
        }
    }

    /// Of connections that exist side by side: none of them closes another.
    pub(super) fn of_many(primary: Arc<Primary>, floors: Arc<Floors>, limit: Duration) -> Self {
        Self {
            primary,
            floors,
            limit,
            past: None,
        }
    }

    pub(super) fn name(&self) -> &Arc<str> {
        self.primary.name()
    }

    pub(super) fn moves(&self) -> bool {
        self.primary.moves()
    }

    pub(super) fn is_node(&self) -> bool {
        self.primary.is_node()
    }

    pub(super) fn is_current(&self, address: &Arc<str>) -> bool {
        self.primary.is_current(address)
    }

    pub(super) fn too_late(&self) -> Error {
        explain::cannot_connect_in_time(self.primary.name(), self.limit)
    }

    /// Connects within the time limit.
    pub(super) async fn connect_in_time(&self) -> Result<Connection, Error> {
        let connecting = timeout(self.limit, ManageConnection::connect(self));
        connecting.await.unwrap_or_else(|_| Err(self.too_late()))
    }

    async fn open(
        &self,
        server: &Server,
        health: Arc<Health>,
    ) -> Result<MultiplexedConnection, Error> {
        // The lane has time limits of its own, which know what a command that timed out leaves behind.
        let mut config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_pipeline_buffer_size(BUFFERED);
        let client = server.for_calls()?;
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

    /// Everything that has to happen before the first call, in one round trip. Says whether earlier connections are closed, and
    /// how the server knows this one.
    async fn prepare(
        &self,
        server: &Server,
        connection: &mut MultiplexedConnection,
    ) -> Result<(bool, Option<Peer>), Error> {
        let past = self.past.as_ref();
        let before = past.and_then(|past| past.lock().servers.get(&server.address).cloned());
        let mut commands = pipe();
        commands.cmd("CLIENT").arg("INFO").cmd("TIME");
        // One section each: servers before 7.0 take no more.
        commands.cmd("INFO").arg("memory");
        commands.cmd("INFO").arg("server");
        match before.as_ref().and_then(|last| last.peer.as_ref()) {
            Some(peer) => commands.add_command(peer.kill()),
            None => commands.cmd("ECHO").arg("first"),
        };
        if self.primary.moves() {
            commands.cmd("ROLE");
        }
        // So that a call is not sent a second time, unless the server's scripts are flushed meanwhile.
        for script in script::in_daily_use() {
            commands.add_command(script.load(self.primary.by_clock()));
        }
        let replies = connection
            .send_packed_commands(&commands, 0, commands.len())
            .await
            .map_err(|error| explain::cannot_connect(&server.address, error))?;

        if let Some(error) = replies.iter().find_map(explain::not_now) {
            return Err(error);
        }
        let mut replies = replies.into_iter();
        let mut next = || replies.next().unwrap_or(Value::Nil);
        let (peer, time) = (next(), next());
        let (memory, about, killed) = (next(), next(), next());
        if self.primary.moves() {
            check_role(&server.address, next())?;
        }
        self.floors.raise_all(microseconds(&time).unwrap_or(0));
        self.primary.uptime().read(text(&about));
        if past.is_some() && before.is_none() {
            warn_if_evicting(&memory);
        }
        // Whoever is denied it once will be denied it again; and a connection that could not be named cannot be killed.
        let predecessors_closed = before
            .is_none_or(|last| last.predecessors_closed && last.peer.is_some())
            && !matches!(killed, Value::ServerError(_));
        let peer = Peer::read(&server.address, &peer);
        let last = Last {
            peer: peer.clone(),
            predecessors_closed,
        };
        if let Some(past) = past {
            past.lock().servers.insert(server.address.clone(), last);
        }
        Ok((predecessors_closed, peer))
    }
}

impl ManageConnection for Connector {
    type Connection = Connection;
    type Error = Error;

    async fn connect(&self) -> Result<Connection, Error> {
        let health = Arc::new(Health::default());
        let server = self.primary.find(self.limit).await?;
        let mut multiplexed = self.open(&server, health.clone()).await?;
        let (predecessors_closed, peer) = self.prepare(&server, &mut multiplexed).await?;
        self.primary.found(&server.address);
        let fraction = self
            .primary
            .by_clock()
            .then(|| Fraction::of(&server.address));
        Ok(Connection {
            multiplexed,
            health,
            predecessors_closed,
            address: server.address,
            fraction,
            peer,
        })
    }

    /// Never asked: a PING before every call would double the traffic, and prove nothing about the time after it.
    async fn is_valid(&self, _: &mut Connection) -> Result<(), Error> {
        Ok(())
    }

    fn has_broken(&self, connection: &mut Connection) -> bool {
        connection.health.is_broken()
    }
}

impl Peer {
    /// From the reply to CLIENT INFO: `id=3 addr=127.0.0.1:53412 …`.
    fn read(server: &Arc<str>, reply: &Value) -> Option<Self> {
        let info = text(reply)?;
        let field = |name| info.split_whitespace().find_map(|f| f.strip_prefix(name));
        Some(Self {
            server: server.clone(),
            id: field("id=")?.to_owned(),
            address: field("addr=")?.to_owned(),
        })
    }

    /// Whether it is a connection to this server.
    pub(super) fn is_to(&self, server: &Arc<str>) -> bool {
        self.server == *server
    }

    /// Has the server close it.
    pub(super) fn kill(&self) -> redis::Cmd {
        let mut kill = cmd("CLIENT");
        kill.arg("KILL").arg("ID").arg(&self.id);
        kill.arg("ADDR").arg(&self.address);
        kill
    }
}

fn warn_if_evicting(memory: &Value) {
    let policy = text(memory).and_then(|info| {
        let mut lines = info.lines();
        lines.find_map(|line| line.strip_prefix("maxmemory_policy:"))
    });
    if let Some(policy) = policy.filter(|policy| *policy != "noeviction") {
        trace::redis_evicts(policy);
    }
}

/// The reply to TIME.
fn microseconds(reply: &Value) -> Option<u64> {
    let Value::Array(parts) = reply else {
        return None;
    };
    let number = |part| text(part)?.parse::<u64>().ok();
    Some(number(parts.first()?)? * 1_000_000 + number(parts.get(1)?)?)
}

fn text(reply: &Value) -> Option<&str> {
    match reply {
        Value::BulkString(text) => std::str::from_utf8(text).ok(),
        Value::VerbatimString { text, .. } => Some(text),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}
