//! The stores that the table runs over.

use std::time::Duration;

use tower_distributed_lock::{
    LocksBuilder,
    store::{Fault, FaultyStore, QuorumStore, Store},
};
#[cfg(feature = "redis")]
use {crate::support::redis_server::RedisServer, tower_distributed_lock::store::RedisStore};

#[cfg(feature = "postgres")]
use {
    crate::support::{
        postgres::{Database, PostgresServer},
        proxy::{Network, Proxy},
    },
    tower_distributed_lock::store::PostgresStore,
};

pub(crate) trait Subject {
    async fn start() -> Self;
    /// One more replica.
    fn replica(&self) -> LocksBuilder;
    fn store(&self) -> &dyn Store;
    /// Cuts the store off, or restores it.
    fn cut_off(&self, is_so: bool);
    /// The number of calls to the store so far.
    async fn asked(&self) -> u64;
}

pub(crate) struct Memory(FaultyStore);

impl Subject for Memory {
    async fn start() -> Self {
        Self(FaultyStore::new())
    }

    fn replica(&self) -> LocksBuilder {
        tower_distributed_lock::Locks::builder(self.0.clone())
    }

    fn store(&self) -> &dyn Store {
        &self.0
    }

    fn cut_off(&self, is_so: bool) {
        self.0.set_fault(is_so.then_some(Fault::Unreachable));
    }

    async fn asked(&self) -> u64 {
        let calls = self.0.calls();
        calls.acquires + calls.renewals + calls.releases
    }
}

/// A quorum with one node that is down from the beginning.
pub(crate) struct Quorum {
    nodes: [FaultyStore; 3],
    store: QuorumStore,
}

impl Subject for Quorum {
    async fn start() -> Self {
        let nodes = std::array::from_fn(|_| FaultyStore::new());
        let store = QuorumStore::new(nodes.clone()).unwrap();
        nodes[2].set_fault(Some(Fault::Unreachable));
        Self { nodes, store }
    }

    fn replica(&self) -> LocksBuilder {
        tower_distributed_lock::Locks::builder(self.store.clone())
    }

    fn store(&self) -> &dyn Store {
        &self.store
    }

    fn cut_off(&self, is_so: bool) {
        self.nodes[1].set_fault(is_so.then_some(Fault::Unreachable));
    }

    async fn asked(&self) -> u64 {
        let calls = self.nodes[0].calls();
        calls.acquires + calls.renewals + calls.releases
    }
}

#[cfg(feature = "redis")]
pub(crate) struct Redis {
    pub(crate) server: RedisServer,
    store: RedisStore,
}

#[cfg(feature = "redis")]
impl Subject for Redis {
    async fn start() -> Self {
        let server = RedisServer::start().await;
        // Soon over when the server is cut off, and still enough for a slow machine to answer a
        // healthy call in.
        let builder = RedisStore::builder(server.url()).timeout(Duration::from_millis(500));
        let store = builder.connect().await.unwrap();
        Self { server, store }
    }

    fn replica(&self) -> LocksBuilder {
        tower_distributed_lock::Locks::builder(self.store.clone())
    }

    fn store(&self) -> &dyn Store {
        &self.store
    }

    fn cut_off(&self, is_so: bool) {
        match is_so {
            true => self.server.freeze(),
            false => self.server.thaw(),
        }
    }

    async fn asked(&self) -> u64 {
        let commands = self.server.commands().await;
        commands.get("evalsha").copied().unwrap_or(0) + commands.get("eval").copied().unwrap_or(0)
    }
}

/// A database of its own, through a proxy that can cut it off.
#[cfg(feature = "postgres")]
pub(crate) struct Postgres {
    database: Database,
    proxy: Proxy,
    store: PostgresStore,
}

/// Puts a function that counts the calls in a statement before the one that makes them.
#[cfg(feature = "postgres")]
const COUNTS_CALLS: &str = r#"
CREATE SEQUENCE public.asked MINVALUE 0;
SELECT nextval('public.asked');
ALTER FUNCTION tdl.swap_1 RENAME TO counted;
DO $do$
DECLARE
  arguments text := pg_get_function_identity_arguments('tdl.counted'::regproc);
  result text := pg_get_function_result('tdl.counted'::regproc);
BEGIN
  EXECUTE 'CREATE FUNCTION tdl.swap_1(' || arguments || ') RETURNS ' || result || ' LANGUAGE plpgsql SECURITY DEFINER AS $f$
    BEGIN
      PERFORM nextval(''public.asked'') FROM generate_series(1, cardinality($2));
      RETURN QUERY SELECT * FROM tdl.counted($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16);
    END $f$';
END $do$;
"#;

#[cfg(feature = "postgres")]
impl Subject for Postgres {
    async fn start() -> Self {
        let server = PostgresServer::shared().await;
        let (database, proxy) = (server.database().await, Proxy::start(server.port()).await);
        let store = PostgresStore::builder(database.url_through(proxy.port()));
        // A connect is several round trips to a server that all tests share.
        let store = store.timeout(Duration::from_secs(2)).build().unwrap();
        database.migrate(&store.schema_sql()).await;
        database.execute(COUNTS_CALLS).await;
        store.ping().await.unwrap();
        Self {
            database,
            proxy,
            store,
        }
    }

    fn replica(&self) -> LocksBuilder {
        tower_distributed_lock::Locks::builder(self.store.clone())
    }

    fn store(&self) -> &dyn Store {
        &self.store
    }

    fn cut_off(&self, is_so: bool) {
        self.proxy.set(match is_so {
            true => Network::BlackHole,
            false => Network::Fine,
        });
    }

    async fn asked(&self) -> u64 {
        let sql = "SELECT last_value FROM public.asked";
        self.database.number(sql).await as u64
    }
}

/// Longer than any step of a test, and the time for which a test watches that something does not
/// happen.
pub(crate) const A_WHILE: Duration = Duration::from_millis(300);
