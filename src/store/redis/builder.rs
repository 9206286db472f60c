//! The configuration of a [`RedisStore`].

use std::{error::Error as StdError, fmt, sync::Arc, time::Duration};

use super::{
    RedisStore, Shared,
    explain::invalid,
    floors::Floors,
    names::Names,
    persistence::Persistence,
    replicated::{Replicas, Replicated},
    topology::{Access, LaneSettings, Servers, Topology},
};
#[cfg(doc)]
use crate::ErrorKind;
use crate::{
    Error,
    defaults::redis as defaults,
    store::{
        certificates::ClientCertificate,
        credentials::{Credentials, Provider},
        home::Home,
        label,
    },
};

/// The shortest time limit in which a server can answer.
const SHORTEST_TIMEOUT: Duration = Duration::from_millis(1);
/// The longest time limit. Sums and multiples of time limits cannot overflow up to here, and no
/// request waits for so long.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(60 * 60);

/// Configures a [`RedisStore`].
///
/// A builder comes from [`RedisStore::builder`], [`RedisStore::sentinel`] or
/// [`RedisStore::cluster`]. [`connect`](Self::connect) connects at once, [`build`](Self::build) at
/// first use. Both refuse a setting that cannot work.
///
/// | setting | default |
/// |---|---|
/// | [`prefix`](Self::prefix) | `tdl` |
/// | [`lanes`](Self::lanes) | 1 |
/// | [`timeout`](Self::timeout) | 1 s |
/// | [`label`](Self::label) | the name of the host |
/// | [`replicas`](Self::replicas) | none |
/// | [`credentials`](Self::credentials) | those of the URL |
/// | [`root_certificates`](Self::root_certificates) | those of the system |
/// | [`client_certificate`](Self::client_certificate) | none |
///
/// ```
/// use std::time::Duration;
/// use tower_distributed_lock::store::RedisStore;
///
/// let store = RedisStore::builder("redis://127.0.0.1/")
///     .prefix("shop")
///     .label("checkout-3")
///     .lanes(4)
///     .timeout(Duration::from_millis(500))
///     .build()?;
/// # Ok::<(), tower_distributed_lock::Error>(())
/// ```
#[derive(Clone)]
#[must_use = "a builder does nothing until it is built"]
pub struct RedisStoreBuilder {
    servers: Servers,
    prefix: String,
    label: Option<Arc<str>>,
    lanes: usize,
    timeout: Duration,
    replicas: Option<Replicas>,
    access: Access,
}

impl RedisStoreBuilder {
    pub(super) fn new(servers: Servers) -> Self {
        Self {
            servers,
            prefix: defaults::PREFIX.to_owned(),
            label: label::of_this_host(),
            lanes: defaults::LANES,
            timeout: defaults::TIMEOUT,
            replicas: None,
            access: Access::default(),
        }
    }

    /// Sets the start of all names in Redis. Default: `tdl`.
    ///
    /// Services with different prefixes do not see each other's locks. A prefix is 1 to 64 bytes of
    /// visible ASCII without braces.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Sets the name under which operators see the leases of this store. Default: the name of the
    /// host.
    ///
    /// Callers that find a key held, or [inspect](crate::store::Holder::label) the key, see the
    /// label. The connections for calls are named after the [prefix](Self::prefix) and the
    /// label: CLIENT LIST shows `name=tdl@web-3`. A label is 1 to 64 ASCII letters, digits,
    /// `.`, `_` and `-`. In the name of a host, every other character becomes a `-`; if
    /// the host has no known name, there is no label.
    pub fn label(mut self, label: impl Into<Arc<str>>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// Sets the number of connections over which calls are spread: 1 to 64, in a Cluster for each
    /// node. Default: 1.
    ///
    /// A connection carries many calls at once, and the more calls share a connection, the fewer
    /// packets each call costs: with dozens of calls at once, one connection takes more locks a
    /// second than several do. Several connections are for services that keep large
    /// records, because a record of megabytes delays the calls behind it on the same connection. A
    /// connection that hangs delays only its own share of the keys.
    pub fn lanes(mut self, lanes: usize) -> Self {
        self.lanes = lanes;
        self
    }

    /// Sets the time limit of every call, connecting and a repetition included. Default: 1 s.
    /// The least is 1 ms, the most is an hour.
    ///
    /// The time limit should be well below the lease, because an unanswered renewal is repeated
    /// only after the time limit.
    ///
    /// Two kinds of calls may take longer. When several hundred leases are renewed at once, every
    /// 128 renewals have a tenth of the time limit more than those before them. An acquire that
    /// waits for [`replicas`](Self::replicas) may take three time limits and the timeout of the
    /// replicas: for the acquire, for the acknowledgement, and for the release of a lock that was
    /// not acknowledged. A record may take two time limits and the timeout of the replicas.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Grants a lock, and confirms the record of an idempotent request, only after `replicas`
    /// replicas have acknowledged it (WAIT). By default, no replica is waited for.
    ///
    /// If fewer replicas acknowledge a lock within `timeout`, the lock is released again, and the
    /// acquire fails with [`ErrorKind::Unreachable`]. A record stays, and is confirmed by a
    /// later try, or its request is answered as one whose outcome could not be kept. The loss
    /// of the primary alone then loses neither a granted lock nor a confirmed record. The price is
    /// a second round trip and the way to the replicas, on one of 16 connections for this
    /// purpose; renewals and releases do not wait.
    ///
    /// This is not consensus. WAIT says that replicas have *received* the lock: not that the lock
    /// is on a disk, nor that one of these replicas will be the next primary, nor that this
    /// server still is the primary. A lock that is released again was visible for a moment.
    /// Fencing tokens are as necessary as without replicas.
    ///
    /// `replicas` must be at least 1, and `timeout` between 1 ms and an hour. A Cluster does not
    /// support this setting yet.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_distributed_lock::store::RedisStore;
    ///
    /// let sentinels = ["redis://node-1:26379", "redis://node-2:26379", "redis://node-3:26379"];
    /// let store = RedisStore::sentinel(sentinels, "mymaster")
    ///     .replicas(1, Duration::from_millis(100))
    ///     .build()?;
    /// # Ok::<(), tower_distributed_lock::Error>(())
    /// ```
    pub fn replicas(mut self, replicas: usize, timeout: Duration) -> Self {
        self.replicas = Some(Replicas {
            count: replicas,
            timeout,
        });
        self
    }

    /// Asks `provider` for the credentials of every new connection, for credentials that rotate. By
    /// default, the credentials are those of the URL.
    ///
    /// The provider is asked when a connection is made, the connections of subscriptions included,
    /// and once for each question to the nodes of a Cluster. The time that the provider takes
    /// counts towards the [timeout](Self::timeout), so a provider that calls a remote service
    /// should keep the answer for a while. A connection that is already made stays as it is: Redis
    /// does not end connections when a password changes, and a server that ends them makes the
    /// store ask for new credentials.
    ///
    /// When the provider fails, the calls that need a connection fail with
    /// [`ErrorKind::Unreachable`], with the provider's error as the source. The next attempt to
    /// connect asks again.
    ///
    /// Sentinels are not asked with these credentials: a password of the sentinels belongs into
    /// their URLs.
    ///
    /// ```
    /// use tower_distributed_lock::store::{Credentials, RedisStore};
    ///
    /// // A file that the platform replaces, such as a secret that is mounted by Kubernetes.
    /// let read = || async { tokio::fs::read_to_string("/run/secrets/redis").await };
    /// let store = RedisStore::builder("redis://127.0.0.1/")
    ///     .credentials(move || async move {
    ///         let password = read().await?;
    ///         Ok::<_, std::io::Error>(Credentials::new("shop", password.trim()))
    ///     })
    ///     .build()?;
    /// # Ok::<(), tower_distributed_lock::Error>(())
    /// ```
    pub fn credentials<F, Answer, E>(mut self, provider: F) -> Self
    where
        F: Fn() -> Answer + Send + Sync + 'static,
        Answer: Future<Output = Result<Credentials, E>> + Send + 'static,
        E: Into<Box<dyn StdError + Send + Sync>>,
    {
        self.access.provider = Some(Provider::new(provider));
        self
    }

    /// Trusts only the servers that these certificates have signed for, for a private certificate
    /// authority. By default, the root certificates of the system count.
    ///
    /// `pem` has one or more certificates in PEM. They hold for all servers, sentinels and nodes
    /// whose URL begins with `rediss://` or `valkeys://`. [`build`](Self::build) refuses text
    /// that is not PEM, a store without such a URL, and the lack of the feature `tls-rustls`.
    ///
    /// ```no_run
    /// # async fn connect() -> Result<(), Box<dyn std::error::Error>> {
    /// use tower_distributed_lock::store::RedisStore;
    ///
    /// let store = RedisStore::builder("rediss://redis.internal/")
    ///     .root_certificates(std::fs::read("ca.pem")?)
    ///     .client_certificate(std::fs::read("client.pem")?, std::fs::read("client.key")?)
    ///     .connect()
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn root_certificates(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.access.certificates.roots = Some(pem.into());
        self
    }

    /// Shows this certificate to servers that ask clients for one. By default, there is none.
    ///
    /// `pem` has the certificate, followed by those of the authorities in between, and `key_pem`
    /// the private key. Both hold for the same servers as
    /// [`root_certificates`](Self::root_certificates), and [`build`](Self::build) refuses a key
    /// that does not belong to the certificate.
    pub fn client_certificate(
        mut self,
        pem: impl Into<Vec<u8>>,
        key_pem: impl Into<Vec<u8>>,
    ) -> Self {
        self.access.certificates.client = Some(ClientCertificate {
            chain: pem.into(),
            key: key_pem.into(),
        });
        self
    }

    /// Builds the store and connects all lanes.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`build`](Self::build), and [`ErrorKind::Unreachable`] when the server
    /// does not answer in time or refuses the connection.
    ///
    /// # Cancel safety
    ///
    /// Connections that were made are closed when the future is dropped.
    pub async fn connect(self) -> Result<RedisStore, Error> {
        let store = self.build()?;
        store.reach().await?;
        Ok(store)
    }

    /// Builds the store, which connects at first use. Neither a running server nor a runtime is
    /// needed yet.
    ///
    /// # Errors
    ///
    /// Returns [`ErrorKind::InvalidConfig`] for a URL or a setting that cannot work.
    pub fn build(self) -> Result<RedisStore, Error> {
        self.check()?;
        let floors = Arc::new(Floors::new());
        let names = Names::new(&self.prefix, self.label);
        let (home, persistence) = (Home::default(), Persistence::default());
        let settings = LaneSettings {
            count: self.lanes,
            limit: self.timeout,
            floors: floors.clone(),
            names: names.clone(),
            strays: Arc::default(),
            persistence: persistence.clone(),
            home: home.clone(),
        };
        let topology = self.servers.topology(self.access, settings.clone())?;
        let replicated = match (self.replicas, &topology) {
            (None, _) => None,
            (Some(wanted), Topology::Primary { primary, .. }) => {
                Some(Replicated::new(primary.clone(), settings, wanted))
            }
            (Some(_), Topology::Cluster(_)) => {
                return Err(invalid(
                    "`replicas` does not work in a Cluster yet: leave the setting out",
                ));
            }
        };
        let (name, database) = (topology.name(), topology.database());
        let space = format!("redis:{name}/{database}/{}", self.prefix).into();
        Ok(RedisStore(Arc::new(Shared {
            names,
            topology: Arc::new(topology),
            floors,
            persistence,
            replicated,
            home,
            space,
            timeout: self.timeout,
        })))
    }

    /// Refuses settings that cannot work.
    fn check(&self) -> Result<(), Error> {
        let is_fit = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'{' | b'}');
        if !(1..=64).contains(&self.prefix.len()) || !self.prefix.bytes().all(is_fit) {
            return Err(invalid(
                "a prefix is 1 to 64 bytes of visible ASCII without braces",
            ));
        }
        label::check(self.label.as_deref())?;
        if !(1..=64).contains(&self.lanes) {
            return Err(invalid(format!(
                "a store has 1 to 64 lanes, not {}",
                self.lanes
            )));
        }
        if self.timeout < SHORTEST_TIMEOUT {
            return Err(invalid(
                "no call can succeed within a timeout below 1 ms: set a longer one",
            ));
        }
        if let Some(Replicas { count, timeout }) = self.replicas
            && (count == 0 || timeout < SHORTEST_TIMEOUT)
        {
            return Err(invalid(
                "`replicas` needs at least 1 replica and a timeout of at least 1 ms: leave the setting out to wait for none",
            ));
        }
        let timeouts = [Some(self.timeout), self.replicas.map(|it| it.timeout)];
        match timeouts.into_iter().flatten().max() {
            Some(longest) if longest > LONGEST_TIMEOUT => Err(invalid(format!(
                "a timeout is at most an hour, not {longest:?}: set a shorter one"
            ))),
            _ => Ok(()),
        }
    }
}

impl fmt::Debug for RedisStoreBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The URLs, keys and credentials are left out, because they may be secret.
        f.debug_struct("RedisStoreBuilder")
            .field("prefix", &self.prefix)
            .field("label", &self.label)
            .field("lanes", &self.lanes)
            .field("timeout", &self.timeout)
            .field("replicas", &self.replicas)
            .finish_non_exhaustive()
    }
}
