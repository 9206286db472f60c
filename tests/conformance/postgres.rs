//! The PostgreSQL store, with a database of each test's own, as a role with few rights.

use std::time::Duration;

use tower_distributed_lock::store::{PostgresStore, Store};

use crate::{
    subject::{LABEL, Subject},
    support::postgres::{Database, PostgresServer, ROLE},
};

pub(crate) struct Postgres {
    database: Database,
    store: PostgresStore,
}

impl Subject for Postgres {
    async fn start() -> Self {
        let database = PostgresServer::shared().await.database().await;
        let store = PostgresStore::builder(database.url_as(ROLE)).label(LABEL);
        let store = store.timeout(Duration::from_secs(10)).build().unwrap();
        database.migrate(&store.schema_sql()).await;
        Self { database, store }
    }

    fn store(&self) -> &dyn Store {
        &self.store
    }

    fn label(&self) -> Option<&str> {
        Some(LABEL)
    }

    async fn is_empty(&self) -> bool {
        let sql = "SELECT count(*) FROM tdl.list_1('', NULL, 1)";
        self.database.number(sql).await == 0
    }

    async fn break_connections(&self) {
        self.database.end_sessions("tower-distributed-lock").await;
    }

    async fn interrupt_hints(&self) -> bool {
        let name = "tower-distributed-lock hints";
        self.database.end_sessions(name).await;
        true
    }

    async fn refuse_writes(&self, refused: bool) -> bool {
        let change = if refused {
            "ADD CONSTRAINT refused CHECK (false) NOT VALID"
        } else {
            "DROP CONSTRAINT refused"
        };
        let sql = format!("ALTER TABLE tdl.keys {change}");
        self.database.execute(&sql).await;
        true
    }
}
