//! Constructors of [`Locks`] on the stores of a fleet.

use super::Locks;
use crate::Error;

#[cfg(feature = "postgres")]
impl Locks {
    /// Connects to the PostgreSQL server of a URL such as
    /// `postgres://user:password@host:5432/database`, and creates locks there with default
    /// settings.
    ///
    /// The tables must be there: see [`PostgresStore::migrate`]. To change settings of the
    /// connection, pass a [`PostgresStore`] to [`builder`](Locks::builder).
    ///
    /// ```no_run
    /// # async fn run() -> Result<(), tower_distributed_lock::Error> {
    /// use tower_distributed_lock::Locks;
    ///
    /// let locks = Locks::postgres("postgres://app@localhost/shop").await?;
    /// let guard = locks.lock("orders/42").await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) for a URL that cannot work,
    /// and for a database without the tables of this version, and
    /// [`ErrorKind::Unreachable`](crate::ErrorKind::Unreachable) when the server does not answer in
    /// time or refuses the connection.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends the attempt to connect.
    ///
    /// [`PostgresStore`]: crate::store::PostgresStore
    /// [`PostgresStore::migrate`]: crate::store::PostgresStore::migrate
    pub async fn postgres(url: impl AsRef<str>) -> Result<Self, Error> {
        let store = crate::store::PostgresStore::connect(url).await?;
        Self::builder(store).build()
    }
}

#[cfg(feature = "redis")]
impl Locks {
    /// Connects to the Redis server of a URL such as `redis://user:password@host:6379/0`, and
    /// creates locks there with default settings.
    ///
    /// To change settings of the connection, pass a [`RedisStore`](crate::store::RedisStore) to
    /// [`builder`](Locks::builder).
    ///
    /// ```no_run
    /// # async fn run() -> Result<(), tower_distributed_lock::Error> {
    /// use tower_distributed_lock::Locks;
    ///
    /// let locks = Locks::redis("redis://127.0.0.1:6379").await?;
    /// let guard = locks.lock("orders/42").await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) for a URL that cannot work,
    /// and [`ErrorKind::Unreachable`](crate::ErrorKind::Unreachable) when the server does not
    /// answer in time or refuses the connection.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends the attempt to connect.
    pub async fn redis(url: impl AsRef<str>) -> Result<Self, Error> {
        let store = crate::store::RedisStore::connect(url).await?;
        Self::builder(store).build()
    }

    /// Connects to 3 or 5 independent Redis servers, and creates locks on a majority of them with
    /// default settings.
    ///
    /// See [`QuorumStore`] for the guarantees and the costs of a quorum. Servers that are down may
    /// come up later. To change settings, pass a [`QuorumStore`] of [`RedisStore`]s to
    /// [`builder`](Locks::builder).
    ///
    /// ```no_run
    /// # async fn run() -> Result<(), tower_distributed_lock::Error> {
    /// use tower_distributed_lock::Locks;
    ///
    /// let locks = Locks::quorum([
    ///     "redis://redis-a:6379",
    ///     "redis://redis-b:6379",
    ///     "redis://redis-c:6379",
    /// ])
    /// .await?;
    /// let guard = locks.lock("orders/42").await?; // granted by two of the three, or by all
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) for a URL that cannot work, an
    /// even number of URLs, fewer than three, or a URL given twice; and
    /// [`ErrorKind::Unreachable`](crate::ErrorKind::Unreachable) when fewer than a majority of
    /// the servers can be reached.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends the attempts to connect.
    ///
    /// [`QuorumStore`]: crate::store::QuorumStore
    /// [`RedisStore`]: crate::store::RedisStore
    pub async fn quorum(urls: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Self, Error> {
        use crate::store::{QuorumStore, RedisStore, Store};

        let nodes = urls.into_iter().map(|url| RedisStore::builder(url).build());
        let nodes = nodes.collect::<Result<Vec<_>, Error>>()?;
        let store = QuorumStore::new(nodes.clone())?;
        // Connecting takes more time than the nodes have for a ping.
        futures_util::future::join_all(nodes.iter().map(RedisStore::reach)).await;
        store.ping().await?;
        Self::builder(store).build()
    }

    /// Connects to the primary of a service that Redis Sentinel watches, and creates locks there
    /// with default settings. See [`RedisStore::sentinel`](crate::store::RedisStore::sentinel).
    ///
    /// ```no_run
    /// # async fn run() -> Result<(), tower_distributed_lock::Error> {
    /// use tower_distributed_lock::Locks;
    ///
    /// let sentinels = ["redis://sentinel-a:26379", "redis://sentinel-b:26379"];
    /// let locks = Locks::sentinel(sentinels, "mymaster").await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The same as for [`redis`](Locks::redis).
    ///
    /// # Cancel safety
    ///
    /// The same as for [`redis`](Locks::redis).
    pub async fn sentinel(
        sentinels: impl IntoIterator<Item = impl Into<String>>,
        service: impl AsRef<str>,
    ) -> Result<Self, Error> {
        let store = crate::store::RedisStore::sentinel(sentinels, service);
        Self::builder(store.connect().await?).build()
    }

    /// Connects to a Redis Cluster, and creates locks there with default settings. See
    /// [`RedisStore::cluster`](crate::store::RedisStore::cluster).
    ///
    /// ```no_run
    /// # async fn run() -> Result<(), tower_distributed_lock::Error> {
    /// use tower_distributed_lock::Locks;
    ///
    /// // One reachable node is enough to find the others; name several for the case that one is down.
    /// let locks = Locks::cluster(["redis://node-a:6379", "redis://node-b:6379"]).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The same as for [`redis`](Locks::redis).
    ///
    /// # Cancel safety
    ///
    /// The same as for [`redis`](Locks::redis).
    pub async fn cluster(
        nodes: impl IntoIterator<Item = impl Into<String>>,
    ) -> Result<Self, Error> {
        let store = crate::store::RedisStore::cluster(nodes);
        Self::builder(store.connect().await?).build()
    }
}
