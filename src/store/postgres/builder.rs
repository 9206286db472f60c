//! The settings of a store.

use std::{
    fmt,
    sync::{Arc, Once, atomic::AtomicBool},
    time::Duration,
};

use tokio_postgres::{
    Config,
    config::{LoadBalanceHosts, SslMode, TargetSessionAttrs},
};

use super::{
    PostgresStore, Wire,
    connect::{Server, Tls, invalid, name},
    lane::Lane,
    listener::Watchers,
};
use crate::{
    Error,
    defaults::postgres as defaults,
    store::{
        certificates::{Certificates, ClientCertificate},
        credentials::{Credentials, Provider},
        engine::{EngineStore, Settings},
        home::Home,
        label,
    },
    sync::Mutex,
};

const SHORTEST_TIMEOUT: Duration = Duration::from_millis(1);
const MOST_CONNECTIONS: usize = 64;
/// A connection whose server does not acknowledge anything for so long has ended.
const DEAD_AFTER: Duration = Duration::from_secs(30);

/// The settings of a [`PostgresStore`], from [`PostgresStore::builder`].
///
/// | setting | default |
/// |---|---|
/// | [`listen_url`](Self::listen_url) | the URL of the store |
/// | [`schema`](Self::schema) | `tdl` |
/// | [`timeout`](Self::timeout) | 1 s |
/// | [`connections`](Self::connections) | 2 |
/// | [`fenced`](Self::fenced) | no |
/// | [`label`](Self::label) | the name of the host |
/// | [`credentials`](Self::credentials) | those of the URL |
/// | [`root_certificates`](Self::root_certificates) | those of the system |
/// | [`client_certificate`](Self::client_certificate) | none |
#[derive(Clone)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct PostgresStoreBuilder {
    url: String,
    listen_url: Option<String>,
    schema: String,
    timeout: Duration,
    connections: usize,
    is_fenced: bool,
    label: Option<Arc<str>>,
    provider: Option<Provider>,
    certificates: Certificates,
}

impl PostgresStoreBuilder {
    pub(super) fn new(url: String) -> Self {
        Self {
            url,
            listen_url: None,
            schema: defaults::SCHEMA.to_owned(),
            timeout: defaults::TIMEOUT,
            connections: defaults::CONNECTIONS,
            is_fenced: defaults::FENCED,
            label: label::of_this_host(),
            provider: None,
            certificates: Certificates::default(),
        }
    }

    /// Sets the address at which the store listens for hints: the server's own, if the URL of the
    /// store leads to a pooler.
    pub fn listen_url(mut self, url: impl Into<String>) -> Self {
        self.listen_url = Some(url.into());
        self
    }

    /// Sets the schema of the tables and functions: lower-case letters, digits and underscores.
    /// Default: `tdl`. It is one of their own: [`build`](Self::build) refuses `public` and those of
    /// PostgreSQL itself.
    pub fn schema(mut self, schema: impl Into<String>) -> Self {
        self.schema = schema.into();
        self
    }

    /// Sets the time limit of every call, and of a connect. Default: 1 s. At least 1 ms.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets the number of connections for calls, from 1 to 64. Default: 2. A key is always on the
    /// same one.
    ///
    /// Two are enough for most services. More of them help where many keys are locked at once and
    /// the disk is slow, because a connection waits for the disk with each group of grants.
    pub fn connections(mut self, connections: usize) -> Self {
        self.connections = connections;
        self
    }

    /// Sets whether [`LockGuard::fence`](crate::LockGuard::fence) works for every exclusive lock.
    /// Default: no.
    ///
    /// A grant then writes a second row, which names the owner who may fence. Claims of idempotent
    /// requests can always be fenced.
    pub fn fenced(mut self, fenced: bool) -> Self {
        self.is_fenced = fenced;
        self
    }

    /// Sets the label of this store's leases, which operators and callers that find a key held
    /// [see](crate::store::Holder::label): 1 to 64 ASCII letters, digits, dots, underscores and
    /// hyphens. By default, it is the name of the host, with other characters replaced by hyphens.
    pub fn label(mut self, label: impl Into<Arc<str>>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// Asks `provider` for the credentials of every new connection, for credentials that rotate. By
    /// default, they are those of the URL.
    ///
    /// The time that the provider takes counts towards the [timeout](Self::timeout). When it fails,
    /// the calls that need a connection fail with
    /// [`Unreachable`](crate::ErrorKind::Unreachable), with its error as the source.
    ///
    /// ```
    /// use tower_distributed_lock::store::{Credentials, PostgresStore};
    ///
    /// let store = PostgresStore::builder("postgres://db/shop")
    ///     .credentials(|| async {
    ///         let password = std::fs::read_to_string("/run/secrets/postgres")?;
    ///         Ok::<_, std::io::Error>(Credentials::new("app", password.trim()))
    ///     })
    ///     .build()?;
    /// # Ok::<(), tower_distributed_lock::Error>(())
    /// ```
    pub fn credentials<F, Answer, E>(mut self, provider: F) -> Self
    where
        F: Fn() -> Answer + Send + Sync + 'static,
        Answer: Future<Output = Result<Credentials, E>> + Send + 'static,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        self.provider = Some(Provider::new(provider));
        self
    }

    /// Trusts only the servers that these certificates, in PEM, have signed for. By default, the
    /// root certificates of the system count.
    ///
    /// [`build`](Self::build) refuses what is not PEM, URLs without `sslmode=require`, and the lack
    /// of the feature `tls-rustls`.
    pub fn root_certificates(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.certificates.roots = Some(pem.into());
        self
    }

    /// Shows this certificate to servers that ask for one. By default, there is none.
    ///
    /// `pem` has the certificate, followed by those of the authorities in between, and `key_pem`
    /// its key. The conditions are those of [`root_certificates`](Self::root_certificates), and the
    /// key must belong to the certificate.
    pub fn client_certificate(
        mut self,
        pem: impl Into<Vec<u8>>,
        key_pem: impl Into<Vec<u8>>,
    ) -> Self {
        self.certificates.client = Some(ClientCertificate {
            chain: pem.into(),
            key: key_pem.into(),
        });
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
        let server = Arc::new(Server {
            tls: self.tls([&config, &listen])?,
            space: format!("postgres:{}/{}", name(&config), self.schema).into(),
            config,
            listen,
            schema: self.schema,
            limit: self.timeout,
            provider: self.provider,
            watchers: Watchers::default(),
            keeps_records: AtomicBool::new(false),
            warned: Once::new(),
            known: Mutex::new(None),
        });
        let home = Home::default();
        let lane = |_| Lane::new(server.clone(), home.clone());
        let wire = Wire {
            lanes: (0..self.connections).map(lane).collect(),
            server,
        };
        let settings = Settings {
            limit: self.timeout,
            is_fenced: self.is_fenced,
            label: self.label,
        };
        Ok(PostgresStore(EngineStore::new(wire, home, settings)))
    }

    /// The settings of TLS connections, if there are any.
    fn tls(&self, urls: [&Config; 2]) -> Result<Tls, Error> {
        if urls
            .iter()
            .all(|url| url.get_ssl_mode() == SslMode::Disable)
        {
            if self.certificates.is_empty() {
                #[cfg(feature = "tls-rustls")]
                return Ok(Tls::default());
                #[cfg(not(feature = "tls-rustls"))]
                return Ok(Tls);
            }
            return Err(invalid(
                "certificates were set, but no URL has `sslmode=require`, so no connection would use them",
            ));
        }
        #[cfg(feature = "tls-rustls")]
        return Ok(Tls(Some(Arc::new(self.certificates.client_config()?))));
        #[cfg(not(feature = "tls-rustls"))]
        return Err(invalid("`sslmode=require` needs the feature `tls-rustls`"));
    }

    fn check(&self) -> Result<(), Error> {
        label::check(self.label.as_deref())?;
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
        let is_shared = ["public", "information_schema"].contains(&&*self.schema);
        if is_shared || self.schema.starts_with("pg_") {
            return Err(invalid(format!(
                "the tables of the store need a schema of their own, which `{}` is not",
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
        // The driver does not know these. Whether a certificate is trusted is always checked.
        let url = url
            .replace("sslmode=verify-full", "sslmode=require")
            .replace("sslmode=verify-ca", "sslmode=require");
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
            // One that does not answer must not take the time of the others, nor always be the
            // first.
            config.connect_timeout(self.timeout / hosts as u32);
            config.load_balance_hosts(LoadBalanceHosts::Random);
        }
        if config.get_ssl_mode() != SslMode::Require {
            config.ssl_mode(SslMode::Disable);
        }
        // A connection ends with its server, also one that was left with a commit under way.
        config.keepalives_idle(config.get_keepalives_idle().min(DEAD_AFTER));
        if config.get_tcp_user_timeout().is_none() {
            config.tcp_user_timeout(DEAD_AFTER);
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
            .field("label", &self.label)
            .finish_non_exhaustive()
    }
}
