//! What only the PostgreSQL store has: its tables, transactions that are fenced, poolers, crashes.

mod access;
mod checkpoint;
mod claims;
mod exactly_once;
mod fence;
mod hosts;
mod keep;
mod outage;
mod pooler;
mod tables;

use std::time::Duration;

use test_support as support;
use tower_distributed_lock::{Locks, store::PostgresStore};

use self::support::postgres::{Database, PostgresServer, ROLE};

/// A database of the test's own with all tables, and a store that can be fenced.
async fn start() -> (Database, PostgresStore) {
    let database = PostgresServer::shared().await.database().await;
    let store = store(&database);
    database.migrate(&store.schema_sql()).await;
    (database, store)
}

/// One more store, like another process.
fn store(database: &Database) -> PostgresStore {
    let store = PostgresStore::builder(database.url_as(ROLE)).fenced(true);
    store.timeout(Duration::from_secs(10)).build().unwrap()
}

fn locks(store: &PostgresStore) -> Locks {
    Locks::builder(store.clone()).build().unwrap()
}
