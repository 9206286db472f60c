//! How a Redis store is configured.

use std::{
    fmt,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use redis::{
    ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion,
    io::tcp::{TcpSettings, socket2::TcpKeepalive},
};

use super::{
    RedisStore, Shared,
    cluster::Cluster,
    fence::Floors,
    key_order::KeyOrder,
    lane::Lane,
    names::Names,
    owed::Owed,
    primary::{Primary, open},
    replicated::Replicated,
    routes::{Routes, Station},
    sentinel::Sentinels,
    value::{is_label, label_of_host},
};
use crate::{Error, ErrorKind};

/// Configures a [`RedisStore`].
///
/// | setting | default |
/// |---|---|
/// | [`prefix`](Self::prefix) | `tdl` |
/// | [`lanes`](Self::lanes) | 2 |
/// | [`timeout`](Self::timeout) | 1 s |
/// | [`label`](Self::label) | the name of the host |
/// | [`replicas`](Self::replicas) | none |
#[derive(Clone)]
#[must_use = "a builder does nothing until it is built"]
pub struct RedisStoreBuilder {
    url: String,
    topology: Topology,
    prefix: String,
    label: Option<Arc<str>>,
    lanes: usize,
    timeout: Duration,
    replicas: Option<(usize, Duration)>,
}

/// Which servers there are. The URL says how to log in.
#[derive(Clone)]
enum Topology {
    /// The server of the URL.
    One,
    /// These sentinels know where it is, under the name in the URL.
    Sentinel(Vec<String>),
    /// These nodes know all the others.
    Cluster(Vec<String>),
}

impl RedisStoreBuilder {
    pub(super) fn new(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            topology: Topology::One,
            prefix: "tdl".to_owned(),
            label: host_name().as_deref().and_then(label_of_host),
            lanes: 2,
            timeout: Duration::from_secs(1),
            replicas: None,
        }
    }

    pub(super) fn behind(sentinels: Vec<String>, service: &str) -> Self {
        let url = match service.contains("://") {
            true => service.to_owned(),
            false => format!("redis://{service}"),
        };
        Self {
            topology: Topology::Sentinel(sentinels),
            ..Self::new(&url)
        }
    }

    pub(super) fn in_cluster(nodes: Vec<String>) -> Self {
        let first = nodes.first().cloned().unwrap_or_default();
        Self {
            topology: Topology::Cluster(nodes),
            ..Self::new(&first)
        }
    }

    /// What all names in Redis start with, `tdl` by default. Services with different prefixes do not see each other's
    /// locks. Visible ASCII without braces, at most 64 bytes.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// What operators know this store's leases by, the name of the host by default. Everybody sees the label who finds a key
    /// [held](crate::store::Held::label) or [inspects](crate::store::Holder::label) the key. ASCII letters, digits, `.`, `_` and
    /// `-`, at most 64.
    ///
    /// A host without a name, and one whose name cannot be found out, has no label; of a name with other characters, each of
    /// those becomes a `-`.
    pub fn label(mut self, label: impl Into<Arc<str>>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// Over how many connections the calls are spread, 2 by default. A connection carries many calls at once, and the more calls
    /// share one, the fewer packets each of them costs. More connections keep a large record in one lane from delaying
    /// the others, and let more threads send at once. From 1 to 64.
    pub fn lanes(mut self, lanes: usize) -> Self {
        self.lanes = lanes;
        self
    }

    /// The time limit of every call, connecting and a repetition included; 1 s by default.
    ///
    /// Well below the lease: an unanswered renewal is repeated only after it.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Grants a lock only once so many replicas have it, and gives it back if they have not acknowledged it within
    /// `timeout`: then the acquire fails with [`ErrorKind::Unreachable`]. Off by default.
    ///
    /// So a grant that was answered is not forgotten with the primary alone. It costs a second round trip and the
    /// way to the replicas, on one of 16 connections that are there for this; renewals and releases do not wait.
    ///
    /// It is not consensus. WAIT says that replicas have *received* the lock: not that it is on a disk, nor that one of
    /// them will be the next primary rather than another that has not received it; and not that this server still is the
    /// primary. A lock that is given back was there for a moment. Fencing tokens are as necessary as without it.
    pub fn replicas(mut self, replicas: usize, timeout: Duration) -> Self {
        self.replicas = Some((replicas, timeout));
        self
    }

    /// Connects now.
    ///
    /// # Errors
    ///
    /// As [`build`](Self::build); and [`ErrorKind::Unreachable`] when the server does not answer in time or refuses the
    /// connection.
    ///
    /// # Cancel safety
    ///
    /// Nothing is left behind when this is dropped.
    pub async fn connect(self) -> Result<RedisStore, Error> {
        let store = self.build()?;
        store.0.routes.connect().await?;
        Ok(store)
    }

    /// Connects at first use: the server need not be there yet.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] for a URL or a setting that cannot work.
    pub fn build(self) -> Result<RedisStore, Error> {
        self.check()?;
        let info = connection_info(&self.url)?;
        let db = info.redis_settings().db();
        let floors = Arc::new(Floors::new());
        let owed = Owed::default();
        let (routes, station) = self.routes(info, &floors, &owed)?;
        let replicated = match (self.replicas, &station) {
            (None, _) => None,
            (Some((replicas, timeout)), Station::Primary(primary)) => Some(Replicated::new(
                primary.clone(),
                floors.clone(),
                self.timeout,
                replicas,
                timeout,
            )),
            (Some(_), Station::Cluster(_)) => {
                return Err(invalid("a Cluster's replicas cannot be waited for yet"));
            }
        };
        let lanes_keep_order = replicated.is_none() && matches!(routes, Routes::One(..));
        let space = format!("redis:{}/{db}/{}", routes.name(), self.prefix).into();
        Ok(RedisStore(Arc::new(Shared {
            names: Names::new(&self.prefix, self.label),
            routes,
            floors,
            owed,
            replicated,
            station,
            order: (!lanes_keep_order).then(KeyOrder::default),
            is_stopped: AtomicBool::new(false),
            space,
            timeout: self.timeout,
        })))
    }

    fn routes(
        &self,
        info: ConnectionInfo,
        floors: &Arc<Floors>,
        owed: &Owed,
    ) -> Result<(Routes, Station), Error> {
        let names = Names::new(&self.prefix, self.label.clone());
        if let Topology::Cluster(nodes) = &self.topology {
            if info.redis_settings().db() != 0 {
                return Err(invalid("a Cluster has no database but 0"));
            }
            let nodes = nodes.iter().map(|url| connection_info(url));
            let nodes = nodes.collect::<Result<Vec<_>, Error>>()?;
            let (floors, owed) = (floors.clone(), owed.clone());
            let cluster = Cluster::new(nodes, self.lanes, self.timeout, floors, names, owed);
            let cluster = Arc::new(cluster);
            return Ok((Routes::Cluster(cluster.clone()), Station::Cluster(cluster)));
        }
        let primary = Arc::new(self.primary(info)?);
        let lane = |_| {
            let (floors, names) = (floors.clone(), names.clone());
            let lane = Lane::new(primary.clone(), floors, self.timeout, names, owed.clone());
            Arc::new(lane)
        };
        let lanes = (0..self.lanes).map(lane).collect();
        Ok((
            Routes::One(primary.clone(), lanes),
            Station::Primary(primary),
        ))
    }

    fn primary(&self, info: ConnectionInfo) -> Result<Primary, Error> {
        // Checked here, because behind Sentinel nothing else connects before the first call.
        open(info.clone())?;
        let Topology::Sentinel(sentinels) = &self.topology else {
            return Ok(Primary::fixed(info));
        };
        let service = service(&info)?;
        let clients = sentinels.iter().map(|url| open(connection_info(url)?));
        let clients = clients.collect::<Result<Vec<_>, Error>>()?;
        if clients.is_empty() {
            return Err(invalid(
                "without a sentinel nobody says where the primary is",
            ));
        }
        Ok(Primary::behind(Sentinels::new(clients, service), info))
    }

    fn check(&self) -> Result<(), Error> {
        let is_fit = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'{' | b'}');
        if !(1..=64).contains(&self.prefix.len()) || !self.prefix.bytes().all(is_fit) {
            return Err(invalid(
                "a prefix is 1 to 64 bytes of visible ASCII without braces",
            ));
        }
        if !self.label.as_deref().is_none_or(is_label) {
            return Err(invalid(
                "a label is 1 to 64 ASCII letters, digits, dots, underscores and hyphens",
            ));
        }
        if !(1..=64).contains(&self.lanes) {
            return Err(invalid(format!(
                "a store has 1 to 64 lanes, not {}",
                self.lanes
            )));
        }
        if self.timeout < Duration::from_millis(1) {
            return Err(invalid("a timeout below 1 ms lets no call succeed"));
        }
        if let Some((replicas, timeout)) = self.replicas
            && (replicas == 0 || timeout < Duration::from_millis(1))
        {
            return Err(invalid(
                "waiting for no replica, or for less than 1 ms, is no waiting",
            ));
        }
        let others = match &self.topology {
            Topology::One => &[][..],
            Topology::Sentinel(urls) | Topology::Cluster(urls) => urls,
        };
        let mut urls = others.iter().chain([&self.url]);
        if cfg!(not(feature = "tls-rustls")) && urls.any(|url| url.starts_with("rediss://")) {
            return Err(invalid("`rediss://` needs the feature `tls-rustls`"));
        }
        Ok(())
    }
}

/// The name of this host: as the kernel knows it on Linux, and elsewhere as the shell does.
fn host_name() -> Option<String> {
    let named = |variable| std::env::var(variable).ok();
    std::fs::read_to_string("/proc/sys/kernel/hostname")
        .ok()
        .or_else(|| named("HOSTNAME"))
        .or_else(|| named("COMPUTERNAME"))
}

fn connection_info(url: &str) -> Result<ConnectionInfo, Error> {
    let info = url.into_connection_info().map_err(|error| {
        // Without the URL, which may have a password in it.
        Error::with_source(
            ErrorKind::InvalidConfig,
            "not a Redis URL: expected `redis://user:password@host:6379/0`",
            error,
        )
    })?;
    // A subscription sends nothing by itself, and so would never learn that its other end has vanished.
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(15))
        .with_interval(Duration::from_secs(5));
    let tcp = TcpSettings::default()
        .set_nodelay(true)
        .set_keepalive(keepalive);
    // Under RESP3, the client library says at once that a connection ended.
    let protocol = match url.contains("protocol=") {
        true => info.redis_settings().protocol(),
        false => ProtocolVersion::RESP3,
    };
    let settings = info.redis_settings().clone().set_protocol(protocol);
    Ok(info.set_tcp_settings(tcp).set_redis_settings(settings))
}

/// The name of a service, in the place of the host.
fn service(info: &ConnectionInfo) -> Result<String, Error> {
    match info.addr() {
        ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => Ok(host.clone()),
        _ => Err(invalid("a socket's path is no name that sentinels know")),
    }
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidConfig, message)
}

impl fmt::Debug for RedisStoreBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the URL: it may have a password in it.
        f.debug_struct("RedisStoreBuilder")
            .field("prefix", &self.prefix)
            .field("label", &self.label)
            .field("lanes", &self.lanes)
            .field("timeout", &self.timeout)
            .field("replicas", &self.replicas)
            .finish_non_exhaustive()
    }
}
