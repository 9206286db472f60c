//! Locks on Redis, in one call.

use super::Locks;
use crate::Error;

impl Locks {
    /// Locks for a fleet, on the server of a URL such as `redis://user:password@host:6379/0`, with all defaults.
    ///
    /// For settings of the connection, give a [`RedisStore`](crate::store::RedisStore) to [`builder`](Locks::builder).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) for a URL that cannot work, and [`ErrorKind::Unreachable`](crate::ErrorKind::Unreachable) when the server does not
    /// answer in time or refuses the connection.
    pub async fn redis(url: impl AsRef<str>) -> Result<Self, Error> {
        let store = crate::store::RedisStore::connect(url).await?;
        Self::builder(store).build()
    }

    /// Locks for a fleet, on a majority of independent servers, with all defaults: 3 or 5 URLs. See [`QuorumStore`]
    /// for what that gives and costs.
    ///
    /// Servers that are down may come later. For settings, give a [`QuorumStore`] of [`RedisStore`]s to
    /// [`builder`](Locks::builder).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) for a URL that cannot work, an even number of them, less than three, or one that
    /// is there twice; and [`ErrorKind::Unreachable`](crate::ErrorKind::Unreachable) when less than a majority of the servers can be reached.
    ///
    /// [`QuorumStore`]: crate::store::QuorumStore
    /// [`RedisStore`]: crate::store::RedisStore
    pub async fn quorum(urls: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Self, Error> {
        use crate::store::{QuorumStore, RedisStore};

        let nodes = urls.into_iter().map(|url| RedisStore::builder(url).build());
        let nodes = nodes.collect::<Result<Vec<_>, Error>>()?;
        let store = QuorumStore::new(nodes.clone())?;
        let connecting = nodes.iter().map(RedisStore::reach);
        store.need_majority(futures_util::future::join_all(connecting).await)?;
        Self::builder(store).build()
    }

    /// Locks for a fleet, on the primary of a service that Redis Sentinel watches over, with all defaults. See
    /// [`RedisStore::sentinel`](crate::store::RedisStore::sentinel).
    ///
    /// # Errors
    ///
    /// As for [`redis`](Locks::redis).
    pub async fn sentinel(
        sentinels: impl IntoIterator<Item = impl Into<String>>,
        service: impl AsRef<str>,
    ) -> Result<Self, Error> {
        let store = crate::store::RedisStore::sentinel(sentinels, service);
        Self::builder(store.connect().await?).build()
    }

    /// Locks for a fleet, in a Redis Cluster, with all defaults. See
    /// [`RedisStore::cluster`](crate::store::RedisStore::cluster).
    ///
    /// # Errors
    ///
    /// As for [`redis`](Locks::redis).
    pub async fn cluster(
        nodes: impl IntoIterator<Item = impl Into<String>>,
    ) -> Result<Self, Error> {
        let store = crate::store::RedisStore::cluster(nodes);
        Self::builder(store.connect().await?).build()
    }
}
