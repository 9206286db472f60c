//! How do I set Redis up, and connect to it?
//!
//! # Settings of the server
//!
//! | setting | effect on leases and records | recommendation |
//! |---|---|---|
//! | `maxmemory-policy` other than `noeviction` | a lease or record can be evicted: the key is free, or a payment is made again | `noeviction`; the store logs `redis.evicts` at start-up otherwise |
//! | no persistence | a restart frees all keys and drops all records | acceptable for locks with tokens; not for idempotency: the store logs `redis.forgets` if an [`IdempotencyLayer`](crate::IdempotencyLayer) or [`run_once`](crate::Locks::run_once) uses such a server |
//! | snapshots only (`save`) | a restart drops what was written since the last snapshot | as without persistence |
//! | `appendonly yes`, `appendfsync everysec` | a crash may lose the last second | enough for most uses of idempotency |
//! | `appendfsync always` | a crash loses nothing that was answered | if a duplicate is worse than a slow write |
//! | replicas (Sentinel, Cluster) | replication is asynchronous: a fail-over may forget the last leases and records | [tokens](super::guarantees#the-paused-process); `min-replicas-to-write`, `min-replicas-max-lag`; perhaps [`replicas`](crate::store::RedisStoreBuilder::replicas) |
//!
//! # One server for several services
//!
//! Keys and scopes are names on the server. Two services with a key `account,tenant=1,id=7`, or
//! with a scope `tenant=1`, exclude each other and find each other's answers. Give each service a
//! prefix:
//!
//! ```no_run
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), tower_distributed_lock::Error> {
//! use tower_distributed_lock::{Locks, store::RedisStore};
//!
//! let store = RedisStore::builder("redis://127.0.0.1/").prefix("shop").connect().await?;
//! let locks = Locks::builder(store).build()?;
//! # Ok(())
//! # }
//! ```
//!
//! # A user with few rights
//!
//! This user has every right that a store on one server uses, and no other:
//!
//! ```text
//! ACL SETUSER shop on >secret resetkeys ~tdl:* resetchannels &tdl:* nocommands \
//!   +eval +evalsha +script|load \
//!   +get +mget +set +psetex +del +exists +incr +incrby +pttl +pexpire +time \
//!   +zadd +zrem +zscore +zrange +zrangebyscore +zrevrangebyscore +zcard +zcount +zrank +zremrangebyscore \
//!   +publish +subscribe \
//!   +client|setname +client|info +client|kill +info \
//!   +scan
//! ```
//!
//! `tdl` is the [prefix](crate::store::RedisStoreBuilder::prefix).
//! [Sentinel](crate::store::RedisStore#sentinel), a [Cluster](crate::store::RedisStore#cluster) and
//! [`replicas`](crate::store::RedisStoreBuilder::replicas) need a few more. Managed servers often
//! deny some of these commands. Locks work without them:
//!
//! | denied | the effect |
//! |---|---|
//! | `CLIENT SETNAME` | CLIENT LIST shows no names |
//! | `CLIENT INFO`, `CLIENT KILL` | after a connection has broken, the releases of acquires without an answer are repeated until the lease would have expired |
//! | `SCRIPT LOAD` | the first call of each script is sent twice: by hash, then by text |
//! | `PUBLISH`, `SUBSCRIBE`, or the channels | a key is handed over to another process within [`poll_interval`](crate::LocksBuilder::poll_interval) (1 s), not at once; `redis.subscription_lost` is logged |
//! | `INFO` | no warning about eviction and missing persistence; a node of a quorum counts as young for one lease after each connect |
//! | `SCAN` | [`Locks::list`](crate::Locks::list) fails |
//!
//! The other rights are needed: without them, calls fail with an error that says that Redis denies
//! a command. RESP3 is the default protocol, and `?protocol=resp2` in the URL chooses RESP2; locks
//! work the same under both, but the end of a connection is noticed later under RESP2.
//!
//! # The settings of your own client or pool
//!
//! A [`RedisStore`](crate::store::RedisStore) makes its own connections. An application that has a
//! `redis::Client` or a pool of bb8-redis gives the same URL to both:
//!
//! ```no_run
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use tower_distributed_lock::Locks;
//!
//! let url = std::env::var("REDIS_URL")?;
//! let client = redis::Client::open(&*url)?; // or `bb8_redis::RedisConnectionManager::new(&*url)?`
//! let locks = Locks::redis(&url).await?;
//! # Ok(())
//! # }
//! ```
//!
//! No method accepts a `redis::Client`, because an application with another major version of that
//! crate could not call it. Where only the client is at hand, read the settings from it:
//!
//! ```
//! use std::{convert::Infallible, future::ready};
//! use tower_distributed_lock::store::{Credentials, RedisStore, RedisStoreBuilder};
//!
//! /// A store with the server, database, user and password of a client that connects by TCP.
//! fn store_like(client: &redis::Client) -> RedisStoreBuilder {
//!     let info = client.get_connection_info();
//!     let scheme = match info.addr() {
//!         redis::ConnectionAddr::TcpTls { .. } => "rediss",
//!         _ => "redis",
//!     };
//!     let settings = info.redis_settings();
//!     let store = RedisStore::builder(format!("{scheme}://{}/{}", info.addr(), settings.db()));
//!     let Some(password) = settings.password() else {
//!         return store;
//!     };
//!     let credentials = match settings.username() {
//!         Some(user) => Credentials::new(user, password),
//!         None => Credentials::password(password),
//!     };
//!     store.credentials(move || ready(Ok::<_, Infallible>(credentials.clone())))
//! }
//!
//! let client = redis::Client::open("redis://shop:secret@127.0.0.1:6379/2")?;
//! let store = store_like(&client).prefix("shop").build()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # A private certificate authority
//!
//! With the feature `tls-rustls`,
//! [`root_certificates`](crate::store::RedisStoreBuilder::root_certificates) replaces the root
//! certificates of the system, and
//! [`client_certificate`](crate::store::RedisStoreBuilder::client_certificate) is for servers with
//! `tls-auth-clients yes`. Both take PEM, and both hold for all servers, sentinels and Cluster
//! nodes with a `rediss://` URL:
//!
//! ```no_run
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use tower_distributed_lock::{Locks, store::RedisStore};
//!
//! let sentinels = ["rediss://node-1:26379", "rediss://node-2:26379", "rediss://node-3:26379"];
//! let store = RedisStore::sentinel(sentinels, "rediss://mymaster")
//!     .root_certificates(std::fs::read("ca.pem")?)
//!     .client_certificate(std::fs::read("client.pem")?, std::fs::read("client.key")?)
//!     .connect()
//!     .await?;
//! let locks = Locks::builder(store).build()?;
//! # Ok(())
//! # }
//! ```
//!
//! The certificates of the servers must contain the names under which the servers are found: those
//! in the URLs, those that the sentinels announce for the primary, and those in CLUSTER SLOTS.
//!
//! # Credentials that rotate
//!
//! A password in the URL is fixed for the life of the store. For tokens of a cloud provider, or a
//! secret that is replaced from time to
//! time, [`credentials`](crate::store::RedisStoreBuilder::credentials) takes a closure that is
//! asked at every new connection:
//!
//! ```
//! use std::sync::{Arc, RwLock};
//! use tower_distributed_lock::store::{Credentials, RedisStore};
//!
//! // Replaced by a task of the application, before the old token expires.
//! let token = Arc::new(RwLock::new("first".to_owned()));
//!
//! let current = token.clone();
//! let store = RedisStore::builder("redis://127.0.0.1/")
//!     .credentials(move || {
//!         let password = current.read().unwrap().clone();
//!         async move { Ok::<_, std::io::Error>(Credentials::new("shop", password)) }
//!     })
//!     .build()?;
//!
//! *token.write().unwrap() = "second".to_owned();
//! # Ok::<(), tower_distributed_lock::Error>(())
//! ```
//!
//! Change a password in this order: add the new one (`ACL SETUSER shop >second`; a user can have
//! several), let the provider return it, and then remove the old one (`ACL SETUSER shop <first`).
//! Connections that exist keep working throughout, and a connection that is made in between finds a
//! valid password in either case.
