//! Recipes for connections to Redis: the settings of an existing client, a private certificate
//! authority, credentials that rotate.
//!
//! # The settings of your own client or pool
//!
//! A [`RedisStore`](crate::store::RedisStore) makes its own connections, because the order of its
//! calls depends on them. An application that has a `redis::Client` or a pool of bb8-redis gives
//! the same URL to both:
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
//! No method accepts a `redis::Client` itself: this crate would then have to follow every major
//! version of the `redis` crate with one of its own, and an application with another version could
//! not call the method. Where only the client is at hand, a function in the application, which
//! knows its own version, reads the settings from the client:
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
