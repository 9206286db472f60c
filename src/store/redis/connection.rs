//! One connection of a lane, and the bb8 manager that makes it and tells when it is broken.
//!
//! 1. A manager serves one lane. When a connection of it works, all earlier ones are **fenced**: the server has closed
//!    them, so that nothing that was sent on them can still take effect. Commands can lie unread in the buffers of a
//!    server that hangs, long after the client has closed its end.
//! 2. Fencing takes CLIENT INFO and CLIENT KILL. Where they are denied, the connection works all the same, and
//!    says that it is not fenced.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bb8_redis::bb8::ManageConnection;
use redis::{
    AsyncConnectionConfig, Client, PushInfo, PushKind, Value, aio::MultiplexedConnection, cmd, pipe,
};
use tokio::time::Instant;

use super::{explain, fence::Floors, script, uptime::Uptime};
use crate::{Error, sync::Mutex, trace};

/// How many commands may be on their way to the socket before a sender waits. Senders are then served in order, too.
const BUFFERED: usize = 1024;

#[derive(Debug, Clone)]
pub(super) struct Connection {
    pub(super) multiplexed: MultiplexedConnection,
    pub(super) health: Arc<Health>,
    pub(super) is_fenced: bool,
}

/// What is known about a connection's state without asking it.
#[derive(Debug, Default)]
pub(super) struct Health {
    is_broken: AtomicBool,
    /// When the first command was sent that nothing came after.
    silent_since: Mutex<Option<Instant>>,
}

impl Health {
    pub(super) fn is_broken(&self) -> bool {
        self.is_broken.load(Ordering::Acquire)
    }

    pub(super) fn broke(&self) {
        self.is_broken.store(true, Ordering::Release);
    }

    pub(super) fn sent(&self) {
        self.silent_since.lock().get_or_insert_with(Instant::now);
    }

    pub(super) fn heard(&self) {
        *self.silent_since.lock() = None;
    }

    /// Gives a connection up that has not brought a word for so long, although it was asked: its other end may have
    /// vanished without a goodbye, which TCP would notice only after many minutes.
    pub(super) fn broke_if_silent_for(&self, limit: Duration) {
        if self
            .silent_since
            .lock()
            .is_some_and(|since| since.elapsed() >= limit)
        {
            self.broke();
        }
    }
}

#[derive(Debug)]
pub(super) struct Manager {
    client: Client,
    address: Arc<str>,
    floors: Arc<Floors>,
    uptime: Arc<Uptime>,
    past: Mutex<Past>,
}

/// What a manager remembers of its connections.
#[derive(Debug)]
struct Past {
    latest: Option<Peer>,
    is_fenced: bool,
    is_first: bool,
}

/// How the server knows a connection. The address makes sure that no stranger is hit: after a restart, ids start anew.
#[derive(Debug, Clone)]
struct Peer {
    id: String,
    address: String,
}

impl Manager {
    pub(super) fn new(
        client: Client,
        address: Arc<str>,
        floors: Arc<Floors>,
        uptime: Arc<Uptime>,
    ) -> Self {
        Self {
            client,
            address,
            floors,
            uptime,
            past: Mutex::new(Past {
                latest: None,
                is_fenced: true,
                is_first: true,
            }),
        }
    }

    async fn open(&self, health: Arc<Health>) -> Result<MultiplexedConnection, Error> {
        // The lane has time limits of its own, which know what a command that timed out leaves behind.
        let mut config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_pipeline_buffer_size(BUFFERED);
        let settings = self.client.get_connection_info().redis_settings();
        if settings.protocol().supports_resp3() {
            config = config.set_push_sender(move |push: PushInfo| {
                if push.kind == PushKind::Disconnection {
                    health.broke();
                }
                Ok::<(), ()>(())
            });
        }
        self.client
            .get_multiplexed_async_connection_with_config(&config)
            .await
            .map_err(|error| explain::cannot_connect(&self.address, error))
    }

    /// Everything that has to happen before the first call, in one round trip.
    async fn prepare(&self, connection: &mut MultiplexedConnection) -> Result<bool, Error> {
        let (before, is_first) = {
            let past = self.past.lock();
            (past.latest.clone(), past.is_first)
        };
        let mut commands = pipe();
        commands.cmd("CLIENT").arg("INFO").cmd("TIME");
        // One section each: servers before 7.0 take no more.
        commands.cmd("INFO").arg("memory");
        commands.cmd("INFO").arg("server");
        match &before {
            Some(peer) => commands.add_command(peer.kill()),
            None => commands.cmd("ECHO").arg("first"),
        };
        for script in script::in_daily_use() {
            commands.add_command(script.load());
        }
        let replies = connection
            .send_packed_commands(&commands, 0, commands.len())
            .await
            .map_err(|error| explain::cannot_connect(&self.address, error))?;

        let mut replies = replies.into_iter();
        let mut next = || replies.next().unwrap_or(Value::Nil);
        let (peer, time) = (next(), next());
        let (memory, server, killed) = (next(), next(), next());
        self.floors.raise_all(microseconds(&time).unwrap_or(0));
        self.uptime.read(text(&server));
        if is_first {
            warn_if_evicting(&memory);
        }
        let mut past = self.past.lock();
        // Whoever is denied it once will be denied it again; and a connection that could not be named cannot be killed.
        let could_be_killed = before.is_some() || is_first;
        past.is_fenced &= could_be_killed && !matches!(killed, Value::ServerError(_));
        past.is_first = false;
        past.latest = Peer::read(&peer);
        Ok(past.is_fenced)
    }
}

impl ManageConnection for Manager {
    type Connection = Connection;
    type Error = Error;

    async fn connect(&self) -> Result<Connection, Error> {
        let health = Arc::new(Health::default());
        let mut multiplexed = self.open(health.clone()).await?;
        let is_fenced = self.prepare(&mut multiplexed).await?;
        Ok(Connection {
            multiplexed,
            health,
            is_fenced,
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
    fn read(reply: &Value) -> Option<Self> {
        let info = text(reply)?;
        let field = |name| info.split_whitespace().find_map(|f| f.strip_prefix(name));
        Some(Self {
            id: field("id=")?.to_owned(),
            address: field("addr=")?.to_owned(),
        })
    }

    fn kill(&self) -> redis::Cmd {
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
