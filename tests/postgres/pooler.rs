//! PgBouncer in transaction mode, between the store and the server.

use std::time::Duration;

use futures_util::future::join_all;
use tower_distributed_lock::{Locks, store::PostgresStore};

use crate::{
    start,
    support::{
        pooler::Pooler,
        postgres::{PostgresServer, ROLE},
    },
};

/// Ten tasks in two processes that lock three keys, one after another.
async fn hand_over(stores: [PostgresStore; 2]) {
    let locks = stores.map(|store| Locks::builder(store).build().unwrap());
    let tasks = (0..10).map(async |task| {
        for turn in 0..5 {
            let locks = &locks[task % 2];
            let guard = locks.lock(format!("k/{}", (task + turn) % 3)).await;
            guard.unwrap().release().await.unwrap();
        }
    });
    join_all(tasks).await;
}

#[tokio::test]
async fn locks_work_behind_a_pooler_with_and_without_an_address_to_listen_at() {
    let (database, _) = start().await;
    let server = PostgresServer::shared().await;
    let Some(pooler) = Pooler::start(&database, server, 2).await else {
        return;
    };
    let url = database.url_through(pooler.port());
    let builder = || PostgresStore::builder(&url).timeout(Duration::from_secs(5));
    let direct = || builder().listen_url(database.url_as(ROLE)).build().unwrap();
    hand_over([direct(), direct()]).await;
    let without = || builder().build().unwrap();
    hand_over([without(), without()]).await;
}
