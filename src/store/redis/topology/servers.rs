//! The URLs that a store is configured with.

use std::{sync::Arc, time::Duration};

use redis::{
    ConnectionInfo, IntoConnectionInfo, ProtocolVersion,
    io::tcp::{TcpSettings, socket2::TcpKeepalive},
};

use super::{LaneSettings, Server, Topology, Upstream, cluster::Cluster};
use crate::{
    Error, ErrorKind,
    store::{certificates::Certificates, credentials::Provider, redis::explain},
};

/// The servers of a store, as the user names them.
#[derive(Clone)]
pub(crate) enum Servers {
    /// The URL of the server.
    Single(String),
    Sentinel {
        /// The name of the service, or a URL with this name in the place of the host.
        service: String,
        /// The URLs of the sentinels.
        sentinels: Vec<String>,
    },
    /// The URLs of some nodes.
    Cluster(Vec<String>),
}

/// How connections are opened, besides the settings in the URLs.
#[derive(Clone, Default)]
pub(crate) struct Access {
    pub(crate) certificates: Certificates,
    pub(crate) provider: Option<Provider>,
}

impl Servers {
    /// Checks the URLs and builds the topology, which connects at first use.
    pub(crate) fn topology(&self, access: Access, lanes: LaneSettings) -> Result<Topology, Error> {
        access.certificates.check_use(self.urls())?;
        match self {
            Self::Single(url) => {
                let single = Upstream::single(access.server(url)?)?;
                Ok(Topology::of_primary(single, &lanes))
            }
            Self::Sentinel { service, sentinels } => {
                let login = if service.contains("://") {
                    access.server(service)
                } else {
                    access.server(&format!("redis://{service}"))
                };
                // The provider is for the servers. The sentinels have users of their own.
                let sentinels_access = Access {
                    provider: None,
                    ..access.clone()
                };
                let sentinels = sentinels_access.servers(sentinels)?;
                let primary = Upstream::behind_sentinel(login?, &sentinels)?;
                Ok(Topology::of_primary(primary, &lanes))
            }
            Self::Cluster(nodes) => {
                let cluster = Cluster::new(access.servers(nodes)?, lanes)?;
                Ok(Topology::Cluster(Arc::new(cluster)))
            }
        }
    }

    fn urls(&self) -> Vec<&String> {
        match self {
            Self::Single(url) => vec![url],
            Self::Sentinel { service, sentinels } => sentinels.iter().chain([service]).collect(),
            Self::Cluster(nodes) => nodes.iter().collect(),
        }
    }
}

impl Access {
    fn server(&self, url: &str) -> Result<Server, Error> {
        let info = self.certificates.apply(parse(url)?)?;
        Ok(Server::at(info, self.provider.clone()))
    }

    fn servers(&self, urls: &[String]) -> Result<Vec<Server>, Error> {
        urls.iter().map(|url| self.server(url)).collect()
    }
}

/// Parses a URL. RESP3 is the default, and TCP keepalive is always set.
fn parse(url: &str) -> Result<ConnectionInfo, Error> {
    if cfg!(not(feature = "tls-rustls")) {
        let schemes = ["rediss://", "valkeys://"];
        if let Some(scheme) = schemes.into_iter().find(|scheme| url.starts_with(scheme)) {
            let message = format!("`{scheme}` needs the feature `tls-rustls`");
            return Err(explain::invalid(message));
        }
    }
    let info = url.into_connection_info().map_err(|error| {
        // The message leaves the URL out, because the URL may contain a password.
        let message =
            format!("not a Redis URL: expected `redis://user:password@host:6379/0`: {error}");
        Error::with_source(ErrorKind::InvalidConfig, message, error)
    })?;
    // A subscription sends nothing, and without keepalive would never notice that the server has
    // vanished.
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(15))
        .with_interval(Duration::from_secs(5));
    let tcp = TcpSettings::default()
        .set_nodelay(true)
        .set_keepalive(keepalive);
    let names_protocol = redis::parse_redis_url(url)
        .is_some_and(|url| url.query_pairs().any(|(name, _)| name == "protocol"));
    // Under RESP3, the client library reports the end of a connection at once.
    let protocol = if names_protocol {
        info.redis_settings().protocol()
    } else {
        ProtocolVersion::RESP3
    };
    let settings = info.redis_settings().clone().set_protocol(protocol);
    Ok(info.set_tcp_settings(tcp).set_redis_settings(settings))
}
