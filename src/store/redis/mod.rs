//! Leases in Redis.

mod builder;
mod calls;
mod connection;
mod explain;
mod floors;
mod in_order;
mod key_order;
mod lane;
mod names;
mod operations;
mod outcome;
mod owed;
mod replicated;
mod reply;
mod script;
mod subscription;
mod topology;
mod value;

use std::{
    fmt,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use tokio::sync::mpsc;

pub use builder::RedisStoreBuilder;

use self::{
    floors::Floors,
    key_order::KeyOrder,
    names::Names,
    owed::Owed,
    replicated::Replicated,
    topology::{Servers, Topology},
};
use super::{
    Acquire, Acquired, Hints, Inspection, Instance, Release, Released, Renew, RenewAnswers, Store,
    StoreFuture, sealed::Sealed,
};
use crate::{Error, LockKey};

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
/// One EVALSHA takes a free key, and one gives it back; without waiters, nothing else is sent. Held leases are renewed in
/// pipelines. The store keeps a few connections for calls (`lanes`), which many requests share, and one more for the
/// hints of each [`Locks`](crate::Locks).
///
/// # What it leaves in Redis
///
/// | name | what | until |
/// |---|---|---|
/// | `tdl:2:{b2089}:lock:orders/42` | the holder of the key, or the record in its place | released or expired |
/// | `tdl:2:{b2089}:queue:orders/42` | the attempts that wait for the key, and for how long their places are kept | the queue is empty |
/// | `tdl:2:{b2089}:fence` | a counter for tokens, shared by the keys of a bucket: at most 4,096 of them | for ever |
///
/// `tdl` is the [prefix](RedisStoreBuilder::prefix), and `2` the version of the format. The text in braces keeps the names of one
/// key together in a Cluster. Hints are published on the channels `tdl:2:hints:<instance>`. A lock is a string:
///
/// | value | meaning |
/// |---|---|
/// | `lease:<instance>:<attempt>@<label>` | held; the [label](RedisStoreBuilder::label) says by which host |
/// | `wanted:<instance>:<attempt>@<label>` | held, and others wait or have waited |
/// | `record:<instance>:<attempt> <content>` | a record in the lease's place |
///
/// In the value of a lease for an idempotent request, a space and the request's fingerprint follow the label.
///
/// # Versions of the format
///
/// Stores of two versions have no name in common: neither reads or removes what the other wrote, *and neither sees the
/// other's locks*. So a rolling deployment from one version to another is no deployment of locks: while processes of both run,
/// a key can be held once in each version. Stop the processes of the old version before those of the new one start, or let
/// the two share no work. Records of idempotent requests are left behind as well, and expire by themselves. Tokens go on
/// rising, because a new counter starts at the server's clock; of the old version, only the counters `tdl:{b…}:fence` stay, and can
/// be deleted. Version 1 had no number in its names and no label.
///
/// # What it needs
///
/// - `maxmemory-policy noeviction`: a lease that is evicted is a lease that is lost. The store warns at start-up.
/// - A user with an ACL needs `+eval +evalsha +script|load`, `+get +set +psetex +del +exists +incr +incrby +pttl +pexpire +time`,
///   `+zadd +zrem +zscore +zrange +zrangebyscore +zrevrangebyscore`, `+publish +subscribe`, `~tdl:*` and `&tdl:*`.
///   Better with `+client|info +client|kill` (see below), `+hello +echo +info`. With
///   [`replicas`](RedisStoreBuilder::replicas), `+wait`. As a node of a [`QuorumStore`](super::QuorumStore) it needs
///   `+info` to tell its age: without, it is as old as its connection.
///
/// # When Redis does not answer
///
/// Every call ends within the [timeout](RedisStoreBuilder::timeout). A connection that broke is replaced, and all calls without an
/// answer are sent again in their order, in the name of the same owners. A call that failed may have taken effect, or may do so later: commands
/// can lie unread in the buffers of a server that hangs. So the store first closes the old connection from the server's side (CLIENT
/// KILL), so that nothing on it can run any more; and it releases what a failed acquire may have taken, as soon as it reaches
/// the server again. Where CLIENT KILL is denied, no acquire is sent again, and the release is repeated until the
/// lease must have passed. Where no connection can be made, all calls that wait for one fail with the reason, and the next attempt
/// waits longer, up to half the timeout.
///
/// # Sentinel
///
/// With [`sentinel`](Self::sentinel), every new connection asks the sentinels for the primary, all of them at once. The answer with
/// the latest configuration counts, if the server says as well that it is the primary. A server that was
/// demoted counts as gone, and once one connection has found the new primary, connections to the old one are given up. The
/// subscription moves as well, and then all leases are confirmed, or reported as lost.
///
/// Redis replicates asynchronously, so a fail-over can forget the last leases that were granted, and then the same key is
/// granted again. The *tokens* of the two leases keep them apart: behind Sentinel, tokens follow the server's clock, so those of a new
/// primary are above those of the old one. And an old primary that was only cut off, or frozen, accepts writes until it learns
/// of its fail-over, for ten seconds or more: for that time there are two primaries. Settings in `redis.conf` make the old one refuse
/// writes:
///
/// ```text
/// min-replicas-to-write 1
/// min-replicas-max-lag 5
/// ```
///
/// A user with an ACL needs `+role` besides, and the sentinels' own user `+sentinel|master`.
///
/// # Cluster
///
/// With [`cluster`](Self::cluster), every key is on the node that has its slot, and all names of a key are in one
/// slot. The store asks the nodes for their slots, follows MOVED and ASK, and asks again when a node fails. While a slot
/// moves from one node to another, Redis refuses scripts with several keys in it (TRYAGAIN): the store tries again for as long as its
/// [timeout](RedisStoreBuilder::timeout). Calls for one key wait for each other, because redirected calls have no order. When slots have
/// moved, their leases are confirmed, or reported as lost.
///
/// The warnings about fail-overs under [Sentinel](Self#sentinel) apply here as well, `min-replicas-to-write` included. A
/// user with an ACL needs `+cluster|slots +cluster|info +asking` besides.
///
/// # Why it does not take a bb8 pool of yours
///
/// The order of calls matters here: a release must not overtake its acquire. So a key always uses the same
/// connection, which the store makes and replaces itself. A pool has no such order, nor does bb8-redis's manager notice that a
/// connection broke. To share what matters, give both the same URL. (With [`replicas`](RedisStoreBuilder::replicas), bb8 manages
/// the connections that acquires wait on.)
#[derive(Clone)]
pub struct RedisStore(Arc<Shared>);

struct Shared {
    names: Names,
    topology: Arc<Topology>,
    floors: Arc<Floors>,
    owed: Owed,
    /// Set where acquires wait for replicas.
    replicated: Option<Replicated>,
    /// Set where no lane keeps the order of calls.
    order: Option<KeyOrder>,
    /// Set when a release was started outside of a runtime, and may wait for one.
    is_stopped: AtomicBool,
    space: Arc<str>,
    timeout: Duration,
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
        RedisStoreBuilder::new(Servers::Single(url.as_ref().to_owned()))
    }

    /// Connects every lane that has no connection.
    pub(crate) async fn reach(&self) -> Result<(), Error> {
        self.0.topology.connect().await
    }

    /// A store on the primary of a service that Redis Sentinel watches over, to be configured: the URLs of the sentinels,
    /// and the service's name. See [Sentinel](Self#sentinel).
    ///
    /// Where the servers want a password, TLS or another database, the service is a URL with its name in the
    /// place of the host: `rediss://user:password@mymaster/2`. The URLs of the sentinels have their own.
    ///
    /// ```no_run
    /// # async fn connect() -> Result<(), tower_distributed_lock::Error> {
    /// use tower_distributed_lock::{Locks, store::RedisStore};
    ///
    /// let sentinels = ["redis://node-1:26379", "redis://node-2:26379", "redis://node-3:26379"];
    /// let store = RedisStore::sentinel(sentinels, "mymaster").connect().await?;
    /// let locks = Locks::builder(store).build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn sentinel(
        sentinels: impl IntoIterator<Item = impl Into<String>>,
        service: impl AsRef<str>,
    ) -> RedisStoreBuilder {
        RedisStoreBuilder::new(Servers::Sentinel {
            service: service.as_ref().to_owned(),
            sentinels: sentinels.into_iter().map(Into::into).collect(),
        })
    }

    /// A store in a Redis Cluster, to be configured: the URLs of some of its nodes. See [Cluster](Self#cluster).
    ///
    /// ```no_run
    /// # async fn connect() -> Result<(), tower_distributed_lock::Error> {
    /// use tower_distributed_lock::{Locks, store::RedisStore};
    ///
    /// let nodes = ["redis://node-1:6379", "redis://node-2:6379", "redis://node-3:6379"];
    /// let locks = Locks::builder(RedisStore::cluster(nodes).connect().await?).build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn cluster(nodes: impl IntoIterator<Item = impl Into<String>>) -> RedisStoreBuilder {
        let nodes = nodes.into_iter().map(Into::into).collect();
        RedisStoreBuilder::new(Servers::Cluster(nodes))
    }
}

impl Sealed for RedisStore {}

impl Store for RedisStore {
    fn acquire(&self, request: Acquire) -> StoreFuture<Result<Acquired, Error>> {
        self.0.acquire(request)
    }

    fn renew(&self, requests: Vec<Renew>) -> RenewAnswers {
        self.0.renew(requests)
    }

    fn start_release(&self, request: Release) -> StoreFuture<Result<Released, Error>> {
        self.0.release(request)
    }

    fn owed(&self) -> usize {
        self.0.owed.count()
    }

    fn settled(&self) -> StoreFuture<()> {
        let shared = self.0.clone();
        Box::pin(async move {
            shared.resume();
            shared.owed.settled().await;
        })
    }

    fn raise_fence(&self, key: LockKey, floor: u64) -> StoreFuture<Result<u64, Error>> {
        self.0.raise_fence(key, floor)
    }

    fn inspect(&self, key: LockKey) -> StoreFuture<Result<Inspection, Error>> {
        self.0.inspect(key)
    }

    fn force_release(&self, key: LockKey) -> StoreFuture<Result<bool, Error>> {
        self.0.force_release(key)
    }

    fn space(&self) -> Arc<str> {
        self.0.space.clone()
    }

    fn uptime(&self) -> Duration {
        self.0.topology.uptime()
    }

    fn server_id(&self) -> Option<Arc<str>> {
        self.0.topology.server_id()
    }

    fn watch(&self, instance: Instance) -> Hints {
        let (sender, hints) = mpsc::unbounded_channel();
        tokio::spawn(subscription::listen(
            self.0.topology.clone(),
            self.0.names.hints(instance),
            self.0.timeout,
            sender,
        ));
        hints
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore")
            .field("address", &self.0.topology.name())
            .field("prefix", &self.0.names.prefix())
            .finish_non_exhaustive()
    }
}
