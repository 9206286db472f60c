//! Leases in PostgreSQL.
//!
//! ```text
//! PostgresStore ── EngineStore ── Wire ─┬─ lane ──> batch ──> tdl.swap_1 (schema.sql)
//!                  the calls; rules     │   two connections, a key always on the same one
//!                                       ├─ listener <── NOTIFY, one connection
//!                                       └─ sweep
//! ```
//!
//! The rules of leases and of the queue run in the client ([`engine`](super::engine)). The server
//! compares and swaps the values of many keys in one statement, and keeps the records and the
//! claims of transactions (`schema.sql`).

mod batch;
mod builder;
mod connect;
mod fence;
mod lane;
mod listener;
mod sweep;
#[cfg(feature = "tls-rustls")]
mod tls;

use std::{fmt, sync::Arc, time::Duration};

use tokio_postgres::types::Type;

pub use builder::PostgresStoreBuilder;
pub use fence::{Checkpoint, Fence, KeepAnswer, Reached};

use self::{
    connect::{Param, Server, failed},
    lane::Lane,
    sweep::Sweeper,
};
use super::{
    Acquire, Acquired, Answer, Cursor, Expected, Hints, Inspection, Instance, KeyPage, List,
    Outcome, Release, Renew, RenewAnswers, Store, StoreFuture,
    engine::{Engine, EngineStore, Swap, Swapped},
    sealed::Sealed,
};
use crate::{Error, LockKey, time::Instant};

/// The tables and functions, as a user may run them.
const SCHEMA: &str = include_str!("schema.sql");

/// A [`Store`] in PostgreSQL 14 or later. Tested with PostgreSQL 15 and 18.
///
/// Locks and idempotency in the database that a service already has, and a [fence](Fence) that its
/// transactions enforce.
///
/// ```no_run
/// # async fn connect() -> Result<(), tower_distributed_lock::Error> {
/// use tower_distributed_lock::{Locks, store::PostgresStore};
///
/// let store = PostgresStore::builder("postgres://app@localhost/shop").build()?;
/// store.migrate().await?; // or run `schema.sql` with your own migrations
/// let locks = Locks::builder(store).build()?;
/// # Ok(())
/// # }
/// ```
///
/// # Cost
///
/// A lock is an update of one row in place, and so is its release. The calls of all requests that
/// come at the same time are one statement. Grants, renewals and records wait for the disk, as the
/// server's `synchronous_commit` says; refusals, places in the queue and releases do not. So a lock
/// takes about as long as a commit, and many locks at once hardly longer. A key that is contended
/// by several processes costs two round trips more than on Redis: the rules of the queue run in the
/// client, which has to read what others wrote.
///
/// The store has two connections for calls, and one that listens for hints, whatever the number of
/// requests. A fourth one is made for a moment where keys are listed or unused rows deleted, and
/// when the store begins to listen.
///
/// # Data
///
/// | table | a row |
/// |---|---|
/// | `tdl.keys` | for each key in use, and for an hour after; updated in place |
/// | `tdl.claims` | for each key of an idempotent request, or that can be [fenced](PostgresStoreBuilder::fenced): who may fence a transaction, and the record or the checkpoint |
/// | `tdl.floor`, `tdl.boot`, `tdl.version` | one |
///
/// `schema.sql` in the source of this module has them all, with comments. Rows that are idle for an
/// hour are deleted by one of the processes, every five minutes.
///
/// # Requirements
///
/// - Transactions of the store are READ COMMITTED, which is PostgreSQL's default, and the encoding
///   of the database is UTF8. The store checks both when it connects.
/// - Calls go to the primary. With several hosts in the URL, the store looks for the one that
///   accepts writes.
/// - A role needs `USAGE` on the schema and `EXECUTE` on its functions, and no right to the tables.
///   See [a role with few rights](crate::guide::postgres#a-role-with-few-rights).
/// - Somebody's transaction that stays open for hours keeps PostgreSQL from reusing the space of
///   updated rows, also in these tables.
///
/// # TLS
///
/// With `sslmode=require` in the URL and the feature `tls-rustls`, connections are encrypted, and
/// the server's certificate is checked: its name, and that the system or your own
/// [authority](PostgresStoreBuilder::root_certificates) trusts it, as with `verify-full`, which
/// means the same here. There is nothing in between: with `prefer`, which is the default of a URL,
/// connections are not encrypted.
///
/// # Poolers
///
/// The store prepares no statements and sets nothing for a session, so it works behind PgBouncer in
/// transaction mode. LISTEN does not: give the server's own address as
/// [`listen_url`](PostgresStoreBuilder::listen_url). Without hints, which the store notices at the
/// start and logs, waiting requests ask again every 20 ms.
///
/// # When PostgreSQL does not answer
///
/// Every call ends within the [timeout](PostgresStoreBuilder::timeout). A call that was sent and
/// not answered may have taken effect; [`Locks`](crate::Locks) then has everything ended that it
/// may have taken. A connection that breaks is replaced.
///
/// # Crashes and failover
///
/// What was granted, renewed or recorded survives a crash of the server, if `synchronous_commit`
/// and `fsync` are on. A replica that is promoted may lack the last transactions of the old
/// primary, unless it replicates synchronously: then a key can be granted again while its holder
/// still believes in its lease. The store notices both a crash and a promotion, and has all leases
/// confirmed; tokens rise in either case, because they follow the server's clock.
///
/// # Not there yet
///
/// Several keys all or none in one step: [`lock_all`](crate::Locks::lock_all) asks for each of
/// them, and gives back what it got if one is held. Not tested: other servers than PostgreSQL
/// itself, such as CockroachDB or YugabyteDB, whose nodes have clocks of their own.
#[derive(Clone)]
pub struct PostgresStore(Arc<EngineStore<Wire>>);

/// The connections of a store.
#[derive(Debug)]
struct Wire {
    server: Arc<Server>,
    lanes: Vec<Lane>,
}

impl PostgresStore {
    /// Connects to the server at `url`, with the default [settings](PostgresStoreBuilder).
    ///
    /// The URL has the form `postgres://user:password@host:5432/database`. Several hosts are
    /// separated by commas.
    ///
    /// ```no_run
    /// # async fn connect() -> Result<(), tower_distributed_lock::Error> {
    /// use tower_distributed_lock::store::PostgresStore;
    ///
    /// let store = PostgresStore::connect("postgres://app@db-1,db-2/shop").await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) for a URL that cannot work and for a
    /// database without the tables of this version, and
    /// [`Unreachable`](crate::ErrorKind::Unreachable) when the server does not answer in time.
    ///
    /// # Cancel safety
    ///
    /// Connections that were made are closed when the future is dropped and no other use follows.
    pub async fn connect(url: impl AsRef<str>) -> Result<Self, Error> {
        let store = Self::builder(url).build()?;
        store.ping().await?;
        Ok(store)
    }

    /// Creates a builder for a store on the server at `url`, with the URL of
    /// [`connect`](Self::connect).
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_distributed_lock::store::PostgresStore;
    ///
    /// // `build` connects at first use, so this example needs no server.
    /// let store = PostgresStore::builder("postgres://app@pooler:6432/shop")
    ///     .listen_url("postgres://app@db:5432/shop")
    ///     .schema("locks")
    ///     .timeout(Duration::from_millis(500))
    ///     .build()?;
    /// # Ok::<(), tower_distributed_lock::Error>(())
    /// ```
    pub fn builder(url: impl AsRef<str>) -> PostgresStoreBuilder {
        PostgresStoreBuilder::new(url.as_ref().to_owned())
    }

    /// Creates the tables and functions, or brings them to the version of this crate. Does nothing
    /// if they are there.
    ///
    /// The role of the store needs the rights of an owner for this. Where it does not have them,
    /// run [`schema_sql`](Self::schema_sql) with your own migrations. Several processes may call
    /// this method at the same time.
    ///
    /// # Errors
    ///
    /// [`Unreachable`](crate::ErrorKind::Unreachable) when the server does not answer in a minute,
    /// or refuses a statement.
    ///
    /// # Cancel safety
    ///
    /// All is created or nothing, when the future is dropped.
    pub async fn migrate(&self) -> Result<(), Error> {
        /// One process at a time: the lock of this number is held until the transaction ends.
        const ONE_AT_A_TIME: &str = "SELECT pg_advisory_xact_lock(8391126040193)";
        let server = &self.0.engine.server;
        let migrating = async {
            let client = server.open(&server.config).await?.client;
            let sql = format!("BEGIN; {ONE_AT_A_TIME}; {}; COMMIT", self.schema_sql());
            let migrated = client.batch_execute(&sql).await;
            migrated.or_else(|error| failed(error).into_result())
        };
        server.in_time(Duration::from_secs(60), migrating).await
    }

    /// Returns the statements that create the tables and functions in the schema of this store, for
    /// a migration of your own.
    ///
    /// ```
    /// use tower_distributed_lock::store::PostgresStore;
    ///
    /// let store = PostgresStore::builder("postgres://localhost/shop").schema("locks").build()?;
    /// assert!(store.schema_sql().contains("CREATE TABLE IF NOT EXISTS locks.keys"));
    /// # Ok::<(), tower_distributed_lock::Error>(())
    /// ```
    pub fn schema_sql(&self) -> String {
        let schema = self.0.engine.schema();
        let sql = SCHEMA.replace("tdl.", &format!("{schema}."));
        sql.replace("SCHEMA tdl", &format!("SCHEMA {schema}"))
            .replace(
                "SCHEMA IF NOT EXISTS tdl",
                &format!("SCHEMA IF NOT EXISTS {schema}"),
            )
    }

    /// Deletes all rows that are not in use. The background does the same every five minutes, for
    /// rows that have been idle for an hour.
    #[cfg(feature = "test-util")]
    #[doc(hidden)]
    pub async fn sweep(&self, idle: Duration) -> Option<()> {
        Sweeper(Arc::downgrade(&self.0)).sweep(idle).await
    }
}

impl Wire {
    fn schema(&self) -> &str {
        &self.server.schema
    }

    /// Checks every connection for calls. A connection that is made checks the server.
    async fn ping(&self, deadline: Instant) -> Result<(), Error> {
        for lane in &self.lanes {
            let read = Swap::read(LockKey::new("ping")?);
            lane.swap(read, deadline).await.into_result()?;
        }
        Ok(())
    }

    async fn list(&self, list: List) -> Result<KeyPage, Error> {
        let after = list.cursor.as_ref().map(Cursor::last_key).transpose()?;
        if list.prefix.contains('\0') {
            // No key has it, and PostgreSQL has no such text.
            return Ok(KeyPage::default());
        }
        let at_most = i64::try_from(list.at_most.max(1)).unwrap_or(i64::MAX);
        let params: [Param<'_>; 3] = [
            (&list.prefix, Type::TEXT),
            (&after, Type::TEXT),
            (&at_most, Type::INT8),
        ];
        let sql = format!("SELECT * FROM {}.list_1($1, $2, $3)", self.schema());
        let rows = self.server.query(&sql, &params).await?;
        let mut page = KeyPage::default();
        for row in rows {
            let key = LockKey::new(row.get::<_, String>(0))?;
            if row.get::<_, Option<bool>>(1).is_some() {
                page.keys.push(key);
            } else {
                // The last key that was looked at, unless all were.
                page.next = Some(Cursor::after_key(&key));
            }
        }
        Ok(page)
    }
}

impl Engine for Wire {
    async fn swap(&self, swap: Swap, deadline: Instant) -> Outcome<Swapped> {
        // A key is always on the same connection.
        let lane = swap.key.map_hash() as usize % self.lanes.len();
        self.lanes[lane].swap(swap, deadline).await
    }

    fn sends_hints(&self) -> bool {
        self.server.watchers.sends_hints()
    }
}

impl Sealed for PostgresStore {}

impl Store for PostgresStore {
    fn acquire(&self, request: Acquire) -> StoreFuture<Outcome<Acquired>> {
        self.0.clone().acquire(request)
    }

    fn renew(&self, requests: Vec<Renew>) -> RenewAnswers {
        self.0.clone().renew(requests)
    }

    fn release(&self, request: Release, answer: Answer) {
        self.0.clone().release(request, answer);
    }

    fn raise_fence(&self, key: LockKey, floor: u64) -> StoreFuture<Result<u64, Error>> {
        self.0.clone().raise_fence(key, floor)
    }

    fn inspect(&self, key: LockKey) -> StoreFuture<Result<Inspection, Error>> {
        self.0.clone().inspect(key)
    }

    fn force_release_if(
        &self,
        key: LockKey,
        expected: Expected,
    ) -> StoreFuture<Result<bool, Error>> {
        self.0.clone().force_release(key, expected)
    }

    fn list(&self, request: List) -> StoreFuture<Result<KeyPage, Error>> {
        let store = self.0.clone();
        Box::pin(async move { store.engine.list(request).await })
    }

    fn ping(&self) -> StoreFuture<Result<(), Error>> {
        let store = self.0.clone();
        Box::pin(async move { store.engine.ping(store.deadline()).await })
    }

    fn expect_records(&self) {
        self.0.engine.server.expect_records();
    }

    fn label(&self) -> Option<Arc<str>> {
        self.0.settings.label.clone()
    }

    fn space(&self) -> Arc<str> {
        self.0.engine.server.space.clone()
    }

    fn fence_schema(&self, is_claim: bool) -> Option<Arc<str>> {
        let is_fenced = is_claim || self.0.settings.is_fenced;
        is_fenced.then(|| self.0.engine.schema().into())
    }

    fn uptime(&self) -> Duration {
        self.0.engine.server.uptime()
    }

    fn server_id(&self) -> Option<Arc<str>> {
        self.0.engine.server.id()
    }

    fn watch(&self, instance: Instance) -> Hints {
        let Wire { server, lanes } = &self.0.engine;
        let sweeper = Sweeper(Arc::downgrade(&self.0));
        let hints = listener::watch(server, &self.0.home, sweeper, instance);
        lanes.iter().for_each(Lane::move_home);
        hints
    }
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStore")
            .field("space", &self.0.engine.server.space)
            .finish_non_exhaustive()
    }
}
