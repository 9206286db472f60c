//! Which server the calls go to.
//!
//! 1. Under a fixed URL it is always the same. Behind Sentinel it is whichever the sentinels name, asked anew for every
//!    connection, and only if it takes itself for the primary, too (ROLE).
//! 2. The server of the latest connection that worked is the *current* one. A connection to any other counts as broken
//!    from then on, also if it still answers: a primary that was frozen past its fail-over goes on for seconds as
//!    if nothing had happened, and one lane's news must reach the others and the subscription.

use std::{sync::Arc, time::Duration};

use redis::{Client, ConnectionAddr, ConnectionInfo, ProtocolVersion, RedisResult, Value, cmd};
use tokio::sync::watch;

use super::{explain, sentinel::Sentinels, uptime::Uptime};
use crate::{Error, ErrorKind};

#[derive(Debug)]
pub(super) struct Primary {
    /// Where it is, or how to log in wherever it is.
    server: ConnectionInfo,
    sentinels: Option<Sentinels>,
    /// One of the nodes of a Cluster.
    is_node: bool,
    /// What errors call it.
    name: Arc<str>,
    current: watch::Sender<Option<Arc<str>>>,
    uptime: Uptime,
}

/// A server that may be the primary.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) address: Arc<str>,
    info: ConnectionInfo,
}

impl Primary {
    pub(super) fn fixed(server: ConnectionInfo) -> Self {
        let name = server.addr().to_string().into();
        Self {
            server,
            sentinels: None,
            is_node: false,
            name,
            current: watch::Sender::new(None),
            uptime: Uptime::default(),
        }
    }

    /// A node of a Cluster, which sends away whoever asks for what it has not.
    pub(super) fn node(server: ConnectionInfo) -> Self {
        Self {
            is_node: true,
            ..Self::fixed(server)
        }
    }

    pub(super) fn behind(sentinels: Sentinels, server: ConnectionInfo) -> Self {
        Self {
            server,
            name: sentinels.to_string().into(),
            sentinels: Some(sentinels),
            is_node: false,
            current: watch::Sender::new(None),
            uptime: Uptime::default(),
        }
    }

    pub(super) fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// For how long it has kept its memory.
    pub(super) fn uptime(&self) -> &Uptime {
        &self.uptime
    }

    /// Whether another server can take its place.
    pub(super) fn moves(&self) -> bool {
        self.sentinels.is_some()
    }

    pub(super) fn is_node(&self) -> bool {
        self.is_node
    }

    /// Whether tokens follow the server's clock: where another takes its place, or where a connection to it can outlive
    /// a time in which it was not in place.
    pub(super) fn by_clock(&self) -> bool {
        self.moves() || self.is_node
    }

    /// Within how much time depends on the caller; no sentinel that hangs takes more than a part of `limit`.
    pub(super) async fn find(&self, limit: Duration) -> Result<Server, Error> {
        let info = self.server.clone();
        let info = match &self.sentinels {
            None => info,
            Some(sentinels) => {
                let (host, port) = sentinels.ask(limit).await?;
                let address = moved(info.addr(), host, port);
                info.set_addr(address)
            }
        };
        Ok(Server::at(info))
    }

    /// A connection to this server works.
    pub(super) fn found(&self, address: &Arc<str>) {
        self.current.send_if_modified(|current| {
            let is_news = current.as_ref() != Some(address);
            *current = Some(address.clone());
            is_news
        });
    }

    pub(super) fn is_current(&self, address: &Arc<str>) -> bool {
        !self.moves() || self.current.borrow().as_ref() == Some(address)
    }

    /// Resolves when another server than this one is the primary.
    pub(super) async fn moved_from(&self, address: &Arc<str>) {
        let mut current = self.current.subscribe();
        let has_moved =
            |current: &Option<Arc<str>>| current.as_ref().is_some_and(|at| at != address);
        if current.wait_for(has_moved).await.is_err() {
            std::future::pending().await
        }
    }
}

impl Server {
    pub(super) fn at(info: ConnectionInfo) -> Self {
        let address = info.addr().to_string().into();
        Self { address, info }
    }

    /// For calls. Under RESP3, the client library says at once that a connection ended.
    pub(super) fn for_calls(&self) -> Result<Client, Error> {
        open(self.info.clone())
    }

    pub(super) fn for_hints(&self) -> Result<Client, Error> {
        let settings = self.info.redis_settings().clone();
        let settings = settings.set_protocol(ProtocolVersion::RESP2);
        open(self.info.clone().set_redis_settings(settings))
    }
}

/// The same way to connect, to another place.
pub(super) fn moved(address: &ConnectionAddr, host: String, port: u16) -> ConnectionAddr {
    let mut address = address.clone();
    match &mut address {
        ConnectionAddr::Tcp(old, old_port)
        | ConnectionAddr::TcpTls {
            host: old,
            port: old_port,
            ..
        } => (*old, *old_port) = (host, port),
        _ => return ConnectionAddr::Tcp(host, port),
    }
    address
}

pub(super) fn open(info: ConnectionInfo) -> Result<Client, Error> {
    #[cfg(feature = "tls-rustls")]
    if matches!(info.addr(), ConnectionAddr::TcpTls { .. }) {
        ensure_crypto_provider();
    }
    Client::open(info).map_err(|error| {
        Error::with_source(
            ErrorKind::InvalidConfig,
            "cannot connect to Redis this way",
            error,
        )
    })
}

/// The client library takes rustls's provider of cryptography from the process and from nowhere else. An application that
/// prefers a provider has installed it by now; one that uses no TLS here keeps its choice.
#[cfg(feature = "tls-rustls")]
fn ensure_crypto_provider() {
    use rustls::crypto::{CryptoProvider, ring};

    if CryptoProvider::get_default().is_none() {
        // Fails only if another thread has installed one meanwhile, which is as good.
        let _ = ring::default_provider().install_default();
    }
}

/// From the reply to ROLE: whether the server takes itself for a primary.
pub(super) fn check_role(address: &str, reply: Value) -> Result<(), Error> {
    let role = reply.extract_error().map_err(explain::refused)?;
    let is_primary = match &role {
        Value::Array(parts) => {
            matches!(parts.first(), Some(Value::BulkString(role)) if role == b"master")
        }
        _ => false,
    };
    match is_primary {
        true => Ok(()),
        false => Err(explain::not_a_primary(address)),
    }
}

/// Asks a server, on a connection that is only for this.
pub(super) async fn ask_role(client: &Client) -> RedisResult<Value> {
    let mut connection = client.get_multiplexed_async_connection().await?;
    cmd("ROLE").query_async(&mut connection).await
}
