//! Leases in Redis.
//!
//! ```text
//! RedisStore ─┬─ operations ──> topology ──> lane ──> connection ──> server
//!             │      one file for each operation; names, value, script: its command
//!             └─ subscription <── hints of the server that the topology names
//! ```
//!
//! A call is made at most once, and nothing is promised about the order of two calls (see
//! [`Store`]). `floors` keeps tokens rising, and `explain` has the texts of all errors.

mod builder;
mod connection;
mod explain;
mod floors;
mod lane;
mod names;
mod operations;
mod persistence;
mod replicated;
mod script;
mod subscription;
mod topology;
mod value;

use std::{fmt, sync::Arc, time::Duration};

use tokio::sync::mpsc;

pub use builder::RedisStoreBuilder;

use self::{
    floors::Floors,
    names::Names,
    persistence::Persistence,
    replicated::Replicated,
    subscription::Listener,
    topology::{Servers, Topology},
};
use super::{
    Acquire, Acquired, Answer, Expected, Hints, Inspection, Instance, KeyPage, List, Outcome,
    Release, Renew, RenewAnswers, Store, StoreFuture, home::Home, sealed::Sealed,
};
use crate::{Error, LockKey};

/// A [`Store`] in Redis 6.2 or later, or in Valkey. Tested with Redis 6.2.14 and 7.0.15, and with
/// Valkey 9.1.
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
/// Settings are made with a [builder](Self::builder):
///
/// ```
/// use std::time::Duration;
/// use tower_distributed_lock::store::RedisStore;
///
/// // `build` connects at first use, so this example needs no server.
/// let store = RedisStore::builder("redis://127.0.0.1/")
///     .prefix("shop")
///     .timeout(Duration::from_millis(500))
///     .build()?;
/// # Ok::<(), tower_distributed_lock::Error>(())
/// ```
///
/// # Cost
///
/// One EVALSHA takes a free key, and another one releases the key; without waiters, nothing else is
/// sent. Held leases are renewed in pipelines. The store keeps one connection for calls, which all
/// requests share (or several, see [`lanes`](RedisStoreBuilder::lanes)), and one more connection
/// for the hints of each [`Locks`](crate::Locks).
///
/// # Data in Redis
///
/// | name | content | until |
/// |---|---|---|
/// | `tdl:2:{b2089}:lock:orders/42` | the holder or holders of the key, or the record in their place | released or expired |
/// | `tdl:2:{b2089}:queue:orders/42` | the attempts that wait for the key, and how long their places are kept | the queue is empty |
/// | `tdl:2:{b2089}:fence` | a counter for tokens, shared by the keys of a bucket: at most 4,096 of them | for ever |
///
/// `tdl` is the [prefix](RedisStoreBuilder::prefix), and `2` the version of the format. The text in
/// braces keeps the names of one key on one node of a Cluster. Hints are published on the channels
/// `tdl:2:hints:<instance>`. A lock that is held exclusively, or has a record, is a string:
///
/// | value | meaning |
/// |---|---|
/// | `lease:<instance>:<attempt>@<label>` | held; the [label](RedisStoreBuilder::label) says by which host |
/// | `wanted:<instance>:<attempt>@<label>` | held, and others wait or have waited |
/// | `record:<instance>:<attempt> <content>` | a record in the lease's place |
///
/// In the value of a lease for an idempotent request, a space and the request's fingerprint follow
/// the label. An operator sees, for example:
///
/// ```text
/// > GET tdl:2:{b2089}:lock:orders/42
/// "lease:0c6f5e1e-6a1d-4f3b-9d0e-2f8b7c9a4d11:7@web-3"
/// > PTTL tdl:2:{b2089}:lock:orders/42
/// (integer) 8214
/// ```
///
/// A lock that is [shared](super::Mode::Shared), or has [permits](super::Mode::Permit), is a sorted
/// set. Each member is a holder, and its score is the time at which the holder's lease ends, in ms
/// of the server's clock. The set expires with the last of its leases:
///
/// | member | meaning |
/// |---|---|
/// | `shared:<instance>:<attempt>@<label>` | shares the key |
/// | `permit:<n>:<instance>:<attempt>@<label>` | has one of *n* permits |
///
/// ```text
/// > ZRANGE tdl:2:{b2089}:lock:orders/42 0 -1 WITHSCORES
/// 1) "shared:0c6f5e1e-6a1d-4f3b-9d0e-2f8b7c9a4d11:7@web-3"
/// 2) "1794825692000"
/// ```
///
/// In the queue, an attempt is `<instance>:<attempt>`, `shared:<instance>:<attempt>` or
/// `permit:<n>:<instance>:<attempt>`. Its score is its place. The member `until:<attempt>` has the
/// time until which the place is kept, and `free:<attempt>` says that the key was offered to the
/// attempt.
///
/// A shared lease or a permit is renewed and released by stores with the label that the lease was
/// acquired with. An exclusive lease is found by its owner alone.
///
/// # Versions of the format
///
/// Stores of two versions have no name in common: neither reads or removes the values of the other,
/// *and neither sees the other's locks*. During a rolling deployment from one version to another, a
/// key can therefore be held once in each version. Stop the processes of the old version before
/// those of the new one start, or let the two share no work. Records of idempotent requests are
/// left behind as well, and expire by themselves. Tokens go on rising, because a new counter starts
/// at the server's clock. Of the old version, only the counters `tdl:{b…}:fence` stay; they can be
/// deleted. Version 1 had neither a number in the names nor a label.
///
/// # Requirements
///
/// - `maxmemory-policy noeviction`, because an evicted lease is a lost lease. The store warns at
///   start-up about any other policy.
/// - `appendonly yes` for idempotency, because a lost record lets its request run again. The store
///   warns once if records are kept on a server without it.
/// - A user with an ACL needs the rights of the user in [A Redis user with few
///   rights](crate::guide::redis#a-user-with-few-rights), where a table says which of
///   these rights can be left out. [`replicas`](RedisStoreBuilder::replicas) needs `+wait` besides.
///   A node of a [`QuorumStore`](super::QuorumStore) needs `+info`, which tells the age of the
///   server: without INFO, a server counts as being as old as its connection.
///
/// # When Redis does not answer
///
/// Every call ends within the [timeout](RedisStoreBuilder::timeout), with two exceptions: of
/// several hundred renewals at once, the later ones have more time, and with
/// [`replicas`](RedisStoreBuilder::replicas), acquires and records also wait for the replicas. A
/// broken connection is replaced, and the calls that were not sent yet wait for the next one. A
/// call that was sent and not answered is not sent again: it may have taken effect, or may do so
/// later, because commands can lie unread in the buffers of a server that hangs.
/// [`Locks`](crate::Locks) then asks again in the name of another owner, so that a broken
/// connection fails no request, and has everything ended that the first question may have taken,
/// with releases that are repeated until the server has answered. Each new connection of the store
/// first has the server close the earlier ones (CLIENT KILL), after which no command on them can
/// run any more. Where CLIENT KILL is denied, such a release is repeated until the lease must have
/// expired. Where no connection can be made, all waiting calls fail with the reason, and the
/// pause before the next attempt to connect grows, up to half the timeout, and to a second at most.
///
/// # Sentinel
///
/// With [`sentinel`](Self::sentinel), every new connection asks all sentinels for the primary at
/// once. The answer with the latest configuration counts, provided that the server confirms the
/// role of a primary. A demoted server counts as gone, and once one connection has found the new
/// primary, connections to the old primary are given up. The subscription moves as well, and then
/// all leases are confirmed, or reported as lost.
///
/// Redis replicates asynchronously, so a fail-over can forget the last leases that were granted,
/// and then the same key is granted again. The *tokens* of the two leases keep them apart: behind
/// Sentinel, tokens follow the server's clock, so those of a new primary are above those of the old
/// one. An old primary that was only cut off, or frozen, accepts writes until the news of the
/// fail-over arrives there, for ten seconds or more: for that time there are two primaries.
/// Settings in `redis.conf` make the old primary refuse writes:
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
/// With [`cluster`](Self::cluster), every key is on the node that has the key's slot, and all names
/// of a key are in one slot. The store asks the nodes for their slots, follows MOVED and ASK, and
/// asks again when a node fails. While a slot moves from one node to another, Redis refuses scripts
/// with several keys of that slot (TRYAGAIN): the store tries again until the
/// [timeout](RedisStoreBuilder::timeout) has passed. When slots have moved, or their node has
/// restarted, the leases in these slots are confirmed, or reported as lost. A restart is noticed at
/// once under RESP3, which is the default.
///
/// The warnings about fail-overs under [Sentinel](Self#sentinel) apply here as well,
/// `min-replicas-to-write` included. A user with an ACL needs `+cluster|slots +cluster|info
/// +asking` besides.
///
/// # Why the store does not accept a bb8 pool
///
/// A pool gives each call a connection to itself. This store sends the calls of all requests on one
/// connection, many of them in one message, which costs the client and the server a fraction; and
/// it has to know every connection that it gives up, because the server must close those
/// before an unknown outcome is settled. Nor does the manager of bb8-redis notice a broken
/// connection. An application with a pool of its own gives the same URL to both; see
/// [The settings of your own client or
/// pool](crate::guide::redis#the-settings-of-your-own-client-or-pool). (With
/// [`replicas`](RedisStoreBuilder::replicas), bb8 manages the connections on which acquires and
/// records wait.)
#[derive(Clone)]
pub struct RedisStore(Arc<Shared>);

/// The state that all clones of a [`RedisStore`] share.
struct Shared {
    names: Names,
    topology: Arc<Topology>,
    floors: Arc<Floors>,
    persistence: Persistence,
    /// Set if acquires and records wait for replicas.
    replicated: Option<Replicated>,
    /// Shared with the lanes.
    home: Home,
    space: Arc<str>,
    timeout: Duration,
}

impl RedisStore {
    /// Connects to the server at `url`, with the default [settings](RedisStoreBuilder).
    ///
    /// The URL has the form `redis://user:password@host:6379/0`, or `rediss://…` with the feature
    /// `tls-rustls`. The builder has settings for a [private certificate
    /// authority](RedisStoreBuilder::root_certificates) and for [credentials that
    /// rotate](RedisStoreBuilder::credentials).
    ///
    /// ```no_run
    /// # async fn connect() -> Result<(), tower_distributed_lock::Error> {
    /// use tower_distributed_lock::store::RedisStore;
    ///
    /// let store = RedisStore::connect("redis://locks:secret@redis.internal:6379/2").await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`InvalidConfig`](crate::ErrorKind::InvalidConfig) for a URL that cannot work, and
    /// [`Unreachable`](crate::ErrorKind::Unreachable) when the server does not answer in time or
    /// refuses the connection.
    ///
    /// # Cancel safety
    ///
    /// Connections that were made are closed when the future is dropped.
    pub async fn connect(url: impl AsRef<str>) -> Result<Self, Error> {
        Self::builder(url).connect().await
    }

    /// Creates a builder for a store on the server at `url`, with the URL of
    /// [`connect`](Self::connect).
    ///
    /// ```no_run
    /// # async fn connect() -> Result<(), tower_distributed_lock::Error> {
    /// use tower_distributed_lock::store::RedisStore;
    ///
    /// let store = RedisStore::builder("redis://127.0.0.1/").lanes(4).connect().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn builder(url: impl AsRef<str>) -> RedisStoreBuilder {
        RedisStoreBuilder::new(Servers::Single(url.as_ref().to_owned()))
    }

    /// Connects every lane that has no connection.
    pub(crate) async fn reach(&self) -> Result<(), Error> {
        self.0.connect().await
    }

    /// Creates a builder for a store on the primary of a service that Redis Sentinel watches over.
    /// See [Sentinel](Self#sentinel).
    ///
    /// `sentinels` are the URLs of the sentinels. `service` is the name of the service; where the
    /// servers need a password, TLS or another database, `service` is a URL with the name in
    /// the place of the host: `rediss://user:password@mymaster/2`. A password of the sentinels
    /// themselves belongs into their URLs.
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

    /// Creates a builder for a store in a Redis Cluster. See [Cluster](Self#cluster).
    ///
    /// `nodes` are the URLs of some nodes, which tell the store about all the others.
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
    fn acquire(&self, request: Acquire) -> StoreFuture<Outcome<Acquired>> {
        self.0.acquire(request)
    }

    fn renew(&self, requests: Vec<Renew>) -> RenewAnswers {
        self.0.renew(requests)
    }

    fn release(&self, request: Release, answer: Answer) {
        self.0.release(request, answer);
    }

    fn label(&self) -> Option<Arc<str>> {
        self.0.names.label().map(Arc::from)
    }

    fn expect_records(&self) {
        self.0.persistence.expect_records();
    }

    fn raise_fence(&self, key: LockKey, floor: u64) -> StoreFuture<Result<u64, Error>> {
        self.0.raise_fence(key, floor)
    }

    fn inspect(&self, key: LockKey) -> StoreFuture<Result<Inspection, Error>> {
        self.0.inspect(key)
    }

    fn force_release_if(
        &self,
        key: LockKey,
        expected: Expected,
    ) -> StoreFuture<Result<bool, Error>> {
        self.0.force_release(key, expected)
    }

    fn list(&self, request: List) -> StoreFuture<Result<KeyPage, Error>> {
        self.0.list(request)
    }

    fn ping(&self) -> StoreFuture<Result<(), Error>> {
        self.0.ping()
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
        let resident = self.0.home.settle();
        self.0.topology.move_home();
        let (sender, hints) = mpsc::unbounded_channel();
        let listener = Listener {
            topology: self.0.topology.clone(),
            channel: self.0.names.hints(instance),
            limit: self.0.timeout,
            hints: sender,
        };
        tokio::spawn(async move {
            listener.listen().await;
            drop(resident);
        });
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
