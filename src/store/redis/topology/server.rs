//! A server, and the clients for its connections.

use std::sync::Arc;

use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, ProtocolVersion, Value, cmd,
};

use crate::{Error, ErrorKind, store::redis::explain};

/// A server: its address, login and TLS settings.
#[derive(Debug, Clone)]
pub(crate) struct Server {
    pub(crate) address: Arc<str>,
    info: ConnectionInfo,
}

impl Server {
    pub(super) fn at(info: ConnectionInfo) -> Self {
        let address = info.addr().to_string().into();
        Self { address, info }
    }

    /// A server at another address, with the same login and TLS settings.
    pub(super) fn like(login: &ConnectionInfo, host: String, port: u16) -> Self {
        let mut address = login.addr().clone();
        match &mut address {
            ConnectionAddr::Tcp(old, old_port)
            | ConnectionAddr::TcpTls {
                host: old,
                port: old_port,
                ..
            } => (*old, *old_port) = (host, port),
            _ => address = ConnectionAddr::Tcp(host, port),
        }
        Self::at(login.clone().set_addr(address))
    }

    /// The host of the server, for nodes that do not know their own name.
    pub(super) fn host(&self) -> &str {
        match self.info.addr() {
            ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => host,
            _ => "127.0.0.1",
        }
    }

    /// A client for calls, with the protocol of the URL.
    pub(crate) fn client_for_calls(&self) -> Result<Client, Error> {
        open(self.info.clone())
    }

    /// A client for subscriptions, in RESP2, under which the client library supports them.
    pub(crate) fn client_for_hints(&self) -> Result<Client, Error> {
        let settings = self.info.redis_settings().clone();
        let settings = settings.set_protocol(ProtocolVersion::RESP2);
        open(self.info.clone().set_redis_settings(settings))
    }

    /// Checks on a separate connection that the server is a primary, because the connection of a subscription can only subscribe.
    pub(super) async fn ask_role(&self) -> Result<(), Error> {
        let client = self.client_for_hints()?;
        let asked = async {
            let mut connection = client.get_multiplexed_async_connection().await?;
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
        Value::Array(parts) => {
            matches!(parts.first(), Some(Value::BulkString(role)) if role == b"master")
        }
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

pub(super) fn open(info: ConnectionInfo) -> Result<Client, Error> {
    #[cfg(feature = "tls-rustls")]
    if matches!(info.addr(), ConnectionAddr::TcpTls { .. }) {
        ensure_crypto_provider();
    }
    Client::open(info).map_err(|error| {
        Error::with_source(
            ErrorKind::InvalidConfig,
            "the client library cannot use this Redis URL",
            error,
        )
    })
}

/// Installs the default provider of cryptography for rustls, unless the application has installed one. The client library takes the
/// provider from the process and from nowhere else.
#[cfg(feature = "tls-rustls")]
fn ensure_crypto_provider() {
    use rustls::crypto::{CryptoProvider, ring};

    if CryptoProvider::get_default().is_none() {
        // Fails only if another thread has installed a provider meanwhile, which is as good.
        let _ = ring::default_provider().install_default();
    }
}
