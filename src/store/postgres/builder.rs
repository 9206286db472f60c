//! The settings of a store.

use std::{fmt, sync::Arc, time::Duration};

use tokio_postgres::{
    Config,
    config::{LoadBalanceHosts, TargetSessionAttrs},
};

use super::{
    PostgresStore, Wire,
    connect::{Server, invalid},
    lane::Lane,
    listener::Watchers,
};
use crate::{
    Error,
    store::{
        engine::{EngineStore, Settings},
        home::Home,
    },
};

const SHORTEST_TIMEOUT: Duration = Duration::from_millis(1);
const MOST_CONNECTIONS: usize = 64;

/// The settings of a [`PostgresStore`], from [`PostgresStore::builder`].
///
/// | setting | default |
/// |---|---|
/// | [`listen_url`](Self::listen_url) | the URL of the store |
/// | [`schema`](Self::schema) | `tdl` |
/// | [`timeout`](Self::timeout) | 1 s |
/// | [`connections`](Self::connections) | 2 |
/// | [`fenced`](Self::fenced) | no |
#[derive(Clone)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct PostgresStoreBuilder {
    url: String,
    listen_url: Option<String>,
    schema: String,
    timeout: Duration,
    connections: usize,
    is_fenced: bool,
}

impl PostgresStoreBuilder {
    pub(super) fn new(url: String) -> Self {
        Self {
            url,
            listen_url: None,
            schema: "tdl".to_owned(),
            timeout: Duration::from_secs(1),
            connections: 2,
            is_fenced: false,
        }
    }

    /// Sets the address at which the store listens for hints: the server's own, if the URL of the
    /// store leads to a pooler.
    pub fn listen_url(mut self, url: impl Into<String>) -> Self {
        self.listen_url = Some(url.into());
        self
    }

    /// Sets the schema of the tables and functions: lower-case letters, digits and underscores.
    pub fn schema(mut self, schema: impl Into<String>) -> Self {
        self.schema = schema.into();
        self
    }

    /// Sets the time limit of every call, and of a connect. At least 1 ms.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets the number of connections for calls, from 1 to 64. A key is always on the same one.
    ///
    /// Two are enough for most services. More of them help where many keys are locked at once and
    /// the disk is slow, because a connection waits for the disk with each group of grants.
    pub fn connections(mut self, connections: usize) -> Self {
        self.connections = connections;
        self
    }

    /// Sets whether [`LockGuard::fence`](crate::LockGuard::fence) works for every exclusive lock.
    ///
    /// A grant then writes a second row, which names the owner who may fence. Claims of idempotent
    /// requests can always be fenced.
    pub fn fenced(mut self, fenced: bool) -> Self {
        self.is_fenced = fenced;
        self
    }

    /// Creates the store. It connects at first use.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) for a URL or a setting that cannot work.
    pub fn build(self) -> Result<PostgresStore, Error> {
        self.check()?;
        let config = self.read(&self.url, "tower-distributed-lock")?;
        let listen = self.listen_url.as_ref().unwrap_or(&self.url);
        let listen = self.read(listen, "tower-distributed-lock hints")?;
        let watchers = Arc::<Watchers>::default();
        let server = Server::new(config, self.schema, self.timeout, watchers);
        let (server, home) = (Arc::new(server), Home::default());
        let lane = |_| Lane::new(server.clone(), home.clone());
        let wire = Wire {
            listen,
            lanes: (0..self.connections).map(lane).collect(),
            space: format!("postgres:{}/{}", server.name(), server.schema).into(),
            server,
        };
        let settings = Settings {
            limit: self.timeout,
            is_fenced: self.is_fenced,
        };
        Ok(PostgresStore(EngineStore::new(wire, home, settings)))
    }

    fn check(&self) -> Result<(), Error> {
        let mut letters = self.schema.bytes();
        let is_name = letters
            .next()
            .is_some_and(|byte| byte.is_ascii_lowercase() || byte == b'_')
            && letters
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
            && self.schema.len() <= 40;
        if !is_name {
            return Err(invalid(format!(
                "the schema {:?} is not a name of lower-case letters, digits and underscores",
                self.schema
            )));
        }
        if self.timeout < SHORTEST_TIMEOUT {
            return Err(invalid(
                "no call can succeed within a timeout below 1 ms: set a longer one",
            ));
        }
        if !(1..=MOST_CONNECTIONS).contains(&self.connections) {
            return Err(invalid(format!(
                "a store has 1 to {MOST_CONNECTIONS} connections, not {}",
                self.connections
            )));
        }
        Ok(())
    }

    /// Reads a URL. Nothing is set for a session that a pooler would refuse.
    fn read(&self, url: &str, application: &str) -> Result<Config, Error> {
        let mut config: Config = url.parse().map_err(|error| {
            // The text of the error does not quote the URL, which may have a password.
            invalid(format!("the URL of PostgreSQL cannot be read: {error}"))
        })?;
        let hosts = config.get_hosts().len().max(config.get_hostaddrs().len());
        if hosts == 0 {
            return Err(invalid("the URL of PostgreSQL names no host"));
        }
        if config.get_application_name().is_none() {
            config.application_name(application);
        }
        if hosts > 1 {
            // One that does not answer must not take the time of the others, nor always be the first.
            config.connect_timeout(self.timeout / hosts as u32);
            config.load_balance_hosts(LoadBalanceHosts::Random);
        }
        config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        Ok(config)
    }
}

/// A URL may have a password.
impl fmt::Debug for PostgresStoreBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStoreBuilder")
            .field("schema", &self.schema)
            .field("timeout", &self.timeout)
            .field("connections", &self.connections)
            .field("is_fenced", &self.is_fenced)
            .finish_non_exhaustive()
    }
}
