//! The configuration of a Redis store.

use std::{
    fmt,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use super::{
    RedisStore, Shared,
    explain::invalid,
    floors::Floors,
    key_order::KeyOrder,
    names::Names,
    owed::Owed,
    replicated::{Replicas, Replicated},
    topology::{LaneSettings, Servers},
    value::{is_label, label_of_host},
};
use crate::Error;
#[cfg(doc)]
use crate::ErrorKind;

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
    servers: Servers,
    prefix: String,
    label: Option<Arc<str>>,
    lanes: usize,
    timeout: Duration,
    replicas: Option<Replicas>,
}

impl RedisStoreBuilder {
    pub(super) fn new(servers: Servers) -> Self {
        Self {
            servers,
            prefix: "tdl".to_owned(),
            label: host_name().as_deref().and_then(label_of_host),
            lanes: 2,
            timeout: Duration::from_secs(1),
            replicas: None,
        }
    }

    /// The start of all names in Redis, `tdl` by default. Services with different prefixes do not see each other's
    /// locks. Visible ASCII without braces, at most 64 bytes.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// The name by which operators know this store's leases, the name of the host by default. The label is shown to callers that find a
    /// key [held](crate::store::Held::label) or [inspect](crate::store::Holder::label) the key. ASCII letters, digits, `.`, `_` and
    /// `-`, at most 64.
    ///
    /// A host whose name is not known has no label. In the name of a host, every other character becomes a `-`.
    pub fn label(mut self, label: impl Into<Arc<str>>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// The number of connections that calls are spread over, 2 by default; in a Cluster, for each node. A connection carries many
    /// calls at once, and the more calls share one, the fewer packets each of them costs. More connections keep a large record in one
    /// lane from delaying the others, and let more threads send at once. From 1 to 64.
    pub fn lanes(mut self, lanes: usize) -> Self {
        self.lanes = lanes;
        self
    }

    /// The time limit of every call, connecting and a repetition included; 1 s by default.
    ///
    /// The time limit should be well below the lease, because an unanswered renewal is repeated only after it.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Grants a lock only once so many replicas have acknowledged it (WAIT). If they have not done so within `timeout`, the lock is
    /// given back, and the acquire fails with [`ErrorKind::Unreachable`]. Off by default.
    ///
    /// So the loss of the primary alone does not lose a granted lock. The price is a second round trip and the
    /// way to the replicas, on one of 16 connections for this purpose; renewals and releases do not wait.
    ///
    /// This is not consensus. WAIT says that replicas have *received* the lock: not that the lock is on a disk, nor that one of
    /// these replicas will be the next primary, nor that this server still is the primary. A lock that is given back
    /// was there for a moment. Fencing tokens are as necessary as without replicas.
    pub fn replicas(mut self, replicas: usize, timeout: Duration) -> Self {
        self.replicas = Some(Replicas {
            count: replicas,
            timeout,
        });
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
    /// Connections that were made are closed when this is dropped.
    pub async fn connect(self) -> Result<RedisStore, Error> {
        let store = self.build()?;
        store.reach().await?;
        Ok(store)
    }

    /// Connects at first use: the server need not run yet, and there need not be a runtime.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] for a URL or a setting that cannot work.
    pub fn build(self) -> Result<RedisStore, Error> {
        self.check()?;
        let floors = Arc::new(Floors::new());
        let names = Names::new(&self.prefix, self.label);
        let owed = Owed::default();
        let topology = self.servers.topology(LaneSettings {
            count: self.lanes,
            limit: self.timeout,
            floors: floors.clone(),
            names: names.clone(),
            owed: owed.clone(),
        })?;
        let only_upstream = topology.only_upstream();
        let lanes_keep_order = only_upstream.is_some() && self.replicas.is_none();
        let replicated = match (self.replicas, only_upstream) {
            (None, _) => None,
            (Some(wanted), Some(upstream)) => {
                let replicated = Replicated::new(upstream, floors.clone(), self.timeout, wanted);
                Some(replicated)
            }
            (Some(_), None) => {
                return Err(invalid("a Cluster's replicas cannot be waited for yet"));
            }
        };
        let (name, database) = (topology.name(), topology.database());
        let space = format!("redis:{name}/{database}/{}", self.prefix).into();
        Ok(RedisStore(Arc::new(Shared {
            names,
            topology: Arc::new(topology),
            floors,
            owed,
            replicated,
            order: (!lanes_keep_order).then(KeyOrder::default),
            is_stopped: AtomicBool::new(false),
            space,
            timeout: self.timeout,
        })))
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
        if let Some(Replicas { count, timeout }) = self.replicas
            && (count == 0 || timeout < Duration::from_millis(1))
        {
            return Err(invalid(
                "waiting for no replica, or for less than 1 ms, is no waiting",
            ));
        }
        Ok(())
    }
}

/// The name of this host: from the kernel on Linux, elsewhere from the environment.
fn host_name() -> Option<String> {
    let named = |variable| std::env::var(variable).ok();
    std::fs::read_to_string("/proc/sys/kernel/hostname")
        .ok()
        .or_else(|| named("HOSTNAME"))
        .or_else(|| named("COMPUTERNAME"))
}

impl fmt::Debug for RedisStoreBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the URLs, which may have passwords in them.
        f.debug_struct("RedisStoreBuilder")
            .field("prefix", &self.prefix)
            .field("label", &self.label)
            .field("lanes", &self.lanes)
            .field("timeout", &self.timeout)
            .field("replicas", &self.replicas)
            .finish_non_exhaustive()
    }
}
