//! The URLs that a store is configured with.

use std::time::Duration;

use redis::{
    ConnectionInfo, IntoConnectionInfo, ProtocolVersion,
    io::tcp::{TcpSettings, socket2::TcpKeepalive},
};

use super::{LaneSettings, Topology, cluster::Cluster, sentinel::Sentinel, single::Single};
use crate::{Error, ErrorKind, store::redis::explain};

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

impl Servers {
    /// Checks the URLs and builds the topology, which connects at first use.
    pub(crate) fn topology(&self, lanes: LaneSettings) -> Result<Topology, Error> {
        match self {
            Self::Single(url) => Single::topology(parse(url)?, &lanes),
            Self::Sentinel { service, sentinels } => {
                let login = if service.contains("://") {
                    parse(service)
                } else {
                    parse(&format!("redis://{service}"))
                };
                Sentinel::topology(login?, parse_all(sentinels)?, &lanes)
            }
            Self::Cluster(nodes) => Cluster::topology(parse_all(nodes)?, lanes),
        }
    }
}

fn parse_all(urls: &[String]) -> Result<Vec<ConnectionInfo>, Error> {
    urls.iter().map(|url| parse(url)).collect()
}

/// Parses a URL. RESP3 is the default, and TCP keepalive is always set.
fn parse(url: &str) -> Result<ConnectionInfo, Error> {
    if cfg!(not(feature = "tls-rustls")) && url.starts_with("rediss://") {
        return Err(explain::invalid(
            "`rediss://` needs the feature `tls-rustls`",
        ));
    }
    let info = url.into_connection_info().map_err(|error| {
        // The message leaves the URL out, because the URL may contain a password.
        Error::with_source(
            ErrorKind::InvalidConfig,
            "not a Redis URL: expected `redis://user:password@host:6379/0`",
            error,
        )
    })?;
    // A subscription sends nothing, and without keepalive would never notice that the server has vanished.
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(15))
        .with_interval(Duration::from_secs(5));
    let tcp = TcpSettings::default()
        .set_nodelay(true)
        .set_keepalive(keepalive);
    // Under RESP3, the client library reports the end of a connection at once.
    let protocol = if url.contains("protocol=") {
        info.redis_settings().protocol()
    } else {
        ProtocolVersion::RESP3
    };
    let settings = info.redis_settings().clone().set_protocol(protocol);
    Ok(info.set_tcp_settings(tcp).set_redis_settings(settings))
}
