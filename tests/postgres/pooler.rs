//! PgBouncer in transaction mode, between the store and the server.

use std::time::Duration;

use futures_util::future::join_all;
use tower_distributed_lock::{
    Locks,
    store::{Hint, Outcome, PostgresStore, Store},
};

use crate::{
    start,
    support::{
        eventually,
        pooler::Pooler,
        postgres::{PostgresServer, ROLE},
        proxy::{Network, Proxy},
        warnings::Warnings,
        words::*,
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

/// A store behind a pooler in front of a port.
async fn behind_a_pooler(server: &PostgresServer, port: u16) -> Option<(Pooler, PostgresStore)> {
    let database = server.database().await;
    let pooler = Pooler::before(&database, port, 2).await?;
    let url = database.url_through(pooler.port());
    let store = PostgresStore::builder(url).timeout(Duration::from_secs(2));
    let store = store.build().unwrap();
    database.migrate(&store.schema_sql()).await;
    Some((pooler, store))
}

/// The connections of an idle store stay: they are the pooler's.
#[tokio::test]
async fn a_crash_behind_a_pooler_is_noticed_without_hints() {
    let mut server = PostgresServer::start().await;
    let Some((_pooler, store)) = behind_a_pooler(&server, server.port()).await else {
        return;
    };
    store.ping().await.unwrap();
    let mut hints = store.watch(owner().instance);
    server.crash();
    server.restart().await;
    hinted(&mut hints, Hint::Reconnected).await;
}

/// The statement may have been committed.
#[tokio::test]
async fn a_call_during_which_the_pooler_loses_its_server_has_an_unknown_outcome() {
    let server = PostgresServer::shared().await;
    let proxy = Proxy::start(server.port()).await;
    let Some((_pooler, store)) = behind_a_pooler(server, proxy.port()).await else {
        return;
    };
    let (key, a) = (key("k"), owner());
    store.take(&key, a).await;
    store.free(&key, a).await;
    proxy.set(Network::RepliesHeldBack);
    let asked = store.acquire(attempt(&key, a));
    let cut = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        proxy.set(Network::Cut);
    };
    let (outcome, ()) = futures_util::future::join(asked, cut).await;
    assert!(matches!(outcome, Outcome::Unknown(_)), "{outcome:?}");
    proxy.set(Network::Fine);
    eventually("the store answers", async || store.ping().await.is_ok()).await;
}

/// Fault: the listener told itself, and a pooler passed that on.
#[tokio::test]
async fn that_a_pooler_delivers_no_hints_is_noticed_and_logged() {
    let (database, _) = start().await;
    let server = PostgresServer::shared().await;
    let Some(pooler) = Pooler::start(&database, server, 2).await else {
        return;
    };
    let warnings = Warnings::default();
    let _collecting = tracing::subscriber::set_default(warnings.clone());
    let builder = || PostgresStore::builder(database.url_through(pooler.port()));
    let direct = builder().listen_url(database.url_as(ROLE)).build().unwrap();
    let _hints = direct.watch_for_sure(owner().instance).await;
    assert_eq!(warnings.count("postgres.no_hints"), 0);
    let without = builder().build().unwrap();
    let _hints = without.watch(owner().instance);
    eventually("the lack of hints is logged", async || {
        warnings.count("postgres.no_hints") == 1
    })
    .await;
}

/// Fault: only the listener asked who the server is, and the lanes' connections to the pooler stay.
#[tokio::test]
async fn a_crash_behind_a_pooler_is_noticed_without_a_listener() {
    let mut server = PostgresServer::start().await;
    let database = server.database().await;
    let Some(pooler) = Pooler::start(&database, &server, 2).await else {
        return;
    };
    let store = PostgresStore::builder(database.url_through(pooler.port()));
    // Where nobody listens, as after a failover.
    let store = store.listen_url("postgres://127.0.0.1:1/").build().unwrap();
    database.migrate(&store.schema_sql()).await;
    store.ping().await.unwrap();
    let mut hints = store.watch(owner().instance);
    server.crash();
    server.restart().await;
    hinted(&mut hints, Hint::Reconnected).await;
}
