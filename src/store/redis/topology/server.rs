//! A server, and the clients for its connections.

use std::sync::Arc;

use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, ProtocolVersion, Value, cmd,
};

use crate::{
    Error, ErrorKind,
    store::{
        credentials::{Credentials, Provider},
        redis::{explain, operations::text},
    },
};

/// A server: its address, login and TLS settings.
#[derive(Debug, Clone)]
pub(crate) struct Server {
    pub(crate) address: Arc<str>,
    info: ConnectionInfo,
    /// Asked for the credentials of each new connection. Without a provider, the credentials are
    /// those of the URL.
    provider: Option<Provider>,
}

impl Server {
    pub(super) fn at(info: ConnectionInfo, provider: Option<Provider>) -> Self {
        Self {
            address: info.addr().to_string().into(),
            info,
            provider,
        }
    }

    /// A server at another address, with the same login and TLS settings.
    pub(super) fn moved_to(&self, host: String, port: u16) -> Self {
        let mut address = self.info.addr().clone();
        match &mut address {
            ConnectionAddr::Tcp(old, old_port)
            | ConnectionAddr::TcpTls {
                host: old,
                port: old_port,
                ..
            } => (*old, *old_port) = (host, port),
            _ => address = ConnectionAddr::Tcp(host, port),
        }
        Self::at(self.info.clone().set_addr(address), self.provider.clone())
    }

    pub(super) fn database(&self) -> i64 {
        self.info.redis_settings().db()
    }

    /// The name of the server's host. `None` for the path of a socket.
    pub(super) fn host_name(&self) -> Option<&str> {
        match self.info.addr() {
            ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => Some(host),
            _ => None,
        }
    }

    /// The host of the server, for nodes that do not know their own name.
    pub(super) fn host(&self) -> &str {
        self.host_name().unwrap_or("127.0.0.1")
    }

    /// Asks the provider for the credentials of new connections. `None` if the credentials are
    /// those of the URL.
    pub(super) async fn credentials(&self) -> Result<Option<Credentials>, Error> {
        match &self.provider {
            Some(provider) => provider.ask().await.map(Some),
            None => Ok(None),
        }
    }

    /// A client with the protocol of the URL, and with the given credentials or those of the URL.
    pub(super) fn client(&self, credentials: Option<&Credentials>) -> Result<Client, Error> {
        open(self.with(credentials))
    }

    /// A client for one connection for calls, with the protocol of the URL.
    ///
    /// # Cancel safety
    ///
    /// The provider of the credentials is asked again by the next call.
    pub(crate) async fn client_for_calls(&self) -> Result<Client, Error> {
        self.client(self.credentials().await?.as_ref())
    }

    /// A client for one subscription, in RESP2, under which the client library supports them.
    ///
    /// # Cancel safety
    ///
    /// The provider of the credentials is asked again by the next call.
    pub(crate) async fn client_for_hints(&self) -> Result<Client, Error> {
        let info = self.with(self.credentials().await?.as_ref());
        let settings = info.redis_settings().clone();
        open(info.set_redis_settings(settings.set_protocol(ProtocolVersion::RESP2)))
    }

    fn with(&self, credentials: Option<&Credentials>) -> ConnectionInfo {
        let info = self.info.clone();
        match credentials {
            Some(credentials) => {
                let mut settings = info.redis_settings().clone();
                if let Some(user) = &credentials.user {
                    settings = settings.set_username(user);
                }
                let settings = settings.set_password(&credentials.password);
                info.set_redis_settings(settings)
            }
            None => info,
        }
    }

    /// Checks on a separate connection that the server is a primary, because the connection of a
    /// subscription can only subscribe. The caller limits the time.
    pub(super) async fn ask_role(&self) -> Result<(), Error> {
        let client = self.client_for_hints().await?;
        let asked = async {
            let mut connection = client
                .get_multiplexed_async_connection_with_config(&without_timeouts())
                .await?;
            cmd("ROLE").query_async(&mut connection).await
        };
        let role = asked.await;
        let role = role.map_err(|error| explain::cannot_connect(&self.address, error))?;
        check_role(&self.address, role)
    }
}

/// Reads the reply to ROLE. Returns an error unless the server is a primary.
pub(crate) fn check_role(address: &str, reply: Value) -> Result<(), Error> {
    let role = reply.extract_error().map_err(explain::refused)?;
    let is_primary = match &role {
        Value::Array(parts) => parts.first().and_then(text) == Some("master"),
        _ => false,
    };
    if is_primary {
        Ok(())
    } else {
        Err(explain::not_a_primary(address))
    }
}

/// The configuration of a connection whose caller limits the time.
pub(super) fn without_timeouts() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new()
        .set_connection_timeout(None)
        .set_response_timeout(None)
}

fn open(info: ConnectionInfo) -> Result<Client, Error> {
    #[cfg(feature = "tls-rustls")]
    if matches!(info.addr(), ConnectionAddr::TcpTls { .. }) {
        crate::store::certificates::ensure_crypto_provider();
    }
    Client::open(info).map_err(|error| {
        let message = format!("the client library cannot use this Redis URL: {error}");
        Error::with_source(ErrorKind::InvalidConfig, message, error)
    })
}
