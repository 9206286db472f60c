//! Leases in Redis.

mod builder;
mod calls;
mod connection;
mod explain;
mod fence;
mod lane;
mod names;
mod operations;
mod orphans;
mod reply;
mod script;
mod subscription;
mod uptime;
mod value;

use std::{
    fmt,
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use futures_util::future::try_join_all;
use redis::Client;
use tokio::sync::mpsc;

pub use builder::RedisStoreBuilder;

use self::{fence::Floors, lane::Lane, names::Names, orphans::Orphans, uptime::Uptime};
use super::{
    Acquire, Acquired, Hints, Inspection, Instance, Release, Released, Renew, Renewed, Store,
    StoreFuture, sealed::Sealed,
};
use crate::{Error, LockKey};

/// How many calls travel in one pipeline: enough to spare round trips, few enough not to keep others waiting.
const BATCH: usize = 128;

/// A [`Store`] in Redis 6.2 or later, or Valkey. Tested with Redis 6.2.14 and 7.0.15, and with Valkey 9.1.
///
/// ```no_run
/// # async fn connect() -> Result<(), tower_distributed_lock::Error> {
/// use tower_distributed_lock::{Locks, store::RedisStore};
///
/// let store = RedisStore::connect("redis://127.0.0.1/").await?;
/// let locks = Locks::builder(store).build()?;
/// # Ok(())
/// # }
/// ```
///
/// # What it costs
///
/// One EVALSHA takes a free key, and one gives it back; nothing else is sent while nobody waits. Held leases are renewed in
/// pipelines. The store keeps a few connections for calls (`lanes`), which many requests share, and one more for the
/// hints of each [`Locks`](crate::Locks).
///
/// # What it leaves in Redis
///
/// | name | what | until |
/// |---|---|---|
/// | `tdl:{b2089}:lock:orders/42` | who holds the key, or the record in its place | released or expired |
/// | `tdl:{b2089}:queue:orders/42` | who waits for it, and for how long a place is kept | nobody waits |
/// | `tdl:{b2089}:fence` | a counter for tokens, shared by the keys of a bucket: at most 4,096 of them | for ever |
///
/// `tdl` is the [prefix](RedisStoreBuilder::prefix). The text in braces keeps the names of one key together in a Cluster.
///
/// # What it needs
///
/// - `maxmemory-policy noeviction`: a lease that is evicted is a lease that is lost. The store warns at start-up.
/// - A user with an ACL needs `+eval +evalsha +script|load`, `+get +set +psetex +del +exists +incr +incrby +pttl +pexpire +time`,
///   `+zadd +zrem +zscore +zrange +zrangebyscore +zrevrangebyscore`, `+publish +subscribe`, `~tdl:*` and `&tdl:*`.
///   Better with `+client|info +client|kill` (see below), `+hello +echo +info`. As a node of
///   a [`QuorumStore`](super::QuorumStore) it needs `+info` to tell its age: without, it is as old as its connection.
///
/// # When Redis does not answer
///
/// Every call ends within the [timeout](RedisStoreBuilder::timeout). A connection that broke is replaced, and the call repeated
/// once, in the name of the same owner. A call that failed may have taken effect, or may do so later: commands can lie
/// unread in the buffers of a server that hangs. The store clears up behind it in the background, as soon as it reaches
/// the server again: it closes the old connection from the server's side (CLIENT KILL), so that nothing on it
/// can run any more, and then releases. Where CLIENT KILL is denied, nothing is repeated, and the release goes on until the
/// lease must have passed.
///
/// # Why it does not take a bb8 pool of yours
///
/// The order of calls matters here: a release must not overtake its acquire. So a key always uses the same
/// connection, and bb8 manages each lane's one connection in a pool of its own. A pool that others use, too, has neither the
/// order, nor does bb8-redis's manager notice that a connection broke. To share what matters, give both the same URL.
#[derive(Clone)]
pub struct RedisStore(Arc<Shared>);

struct Shared {
    names: Names,
    lanes: Vec<Lane>,
    floors: Arc<Floors>,
    uptime: Arc<Uptime>,
    orphans: Orphans,
    /// For subscriptions.
    client: Client,
    address: Arc<str>,
    space: Arc<str>,
    timeout: Duration,
    /// The longest lease that was ever asked for, in ms: after this time, a lease that is left alone is over.
    longest_lease: AtomicU64,
}

impl RedisStore {
    /// Connects to the server of a URL, with all defaults: `redis://user:password@host:6379/0`. With the feature
    /// `tls-rustls` also `rediss://`.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) for a URL that cannot work, and [`Unreachable`](crate::ErrorKind::Unreachable) when the server does not
    /// answer in time or refuses the connection.
    pub async fn connect(url: impl AsRef<str>) -> Result<Self, Error> {
        Self::builder(url).connect().await
    }

    /// A store on the server of a URL, to be configured.
    pub fn builder(url: impl AsRef<str>) -> RedisStoreBuilder {
        RedisStoreBuilder::new(url.as_ref())
    }

    /// Connects, where there is no connection.
    pub(crate) async fn reach(&self) -> Result<(), Error> {
        try_join_all(self.0.lanes.iter().map(Lane::connect)).await?;
        Ok(())
    }
}

impl Sealed for RedisStore {}

impl Store for RedisStore {
    fn acquire(&self, request: Acquire) -> StoreFuture<Result<Acquired, Error>> {
        Box::pin(self.0.clone().acquire(request))
    }

    fn renew(&self, requests: Vec<Renew>) -> StoreFuture<Vec<Renewed>> {
        Box::pin(self.0.clone().renew(requests))
    }

    fn release(&self, request: Release) -> StoreFuture<Result<Released, Error>> {
        Box::pin(self.0.clone().release(request))
    }

    fn raise_fence(&self, key: LockKey, floor: u64) -> StoreFuture<Result<u64, Error>> {
        Box::pin(self.0.clone().raise_fence(key, floor))
    }

    fn inspect(&self, key: LockKey) -> StoreFuture<Result<Inspection, Error>> {
        Box::pin(self.0.clone().inspect(key))
    }

    fn force_release(&self, key: LockKey) -> StoreFuture<Result<bool, Error>> {
        Box::pin(self.0.clone().force_release(key))
    }

    fn space(&self) -> Arc<str> {
        self.0.space.clone()
    }

    fn uptime(&self) -> Duration {
        self.0.uptime.get()
    }

    fn watch(&self, instance: Instance) -> Hints {
        let (sender, hints) = mpsc::unbounded_channel();
        let Shared {
            names,
            client,
            timeout,
            ..
        } = &*self.0;
        tokio::spawn(subscription::listen(
            client.clone(),
            names.hints(instance),
            *timeout,
            sender,
        ));
        hints
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore")
            .field("address", &self.0.address)
            .field("prefix", &self.0.names.prefix())
            .field("lanes", &self.0.lanes.len())
            .finish_non_exhaustive()
    }
}
