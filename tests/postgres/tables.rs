//! The tables: how they come to be, who may use them, and what is left in them.

use std::time::Duration;

use tower_distributed_lock::{
    ErrorKind, Locks,
    store::{Acquired, Expected, PostgresStore, Store},
};

use crate::{
    start,
    support::{
        postgres::{PostgresServer, ROLE, connect},
        words::*,
    },
};

#[tokio::test]
async fn a_store_makes_its_tables_once_whoever_begins() {
    let database = PostgresServer::shared().await.database().await;
    let store = || {
        let store = PostgresStore::builder(database.url()).schema("some_locks");
        store.timeout(Duration::from_secs(10)).build().unwrap()
    };
    let refused = store().ping().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidConfig);
    assert!(refused.to_string().contains("migrate"), "{refused}");
    let stores = [store(), store(), store()];
    let migrations = stores.iter().map(PostgresStore::migrate);
    for migrated in futures_util::future::join_all(migrations).await {
        migrated.unwrap();
    }
    stores[0].ping().await.unwrap();
    stores[1].take(&key("k"), owner()).await;
    stores[2].migrate().await.unwrap();
    held(stores[2].ask(&key("k"), owner()).await);
}

/// Fault: nobody but its owner could call it any more.
#[tokio::test]
async fn a_migration_leaves_the_functions_of_others_alone() {
    let database = PostgresServer::shared().await.database().await;
    let own = "CREATE SCHEMA tdl; CREATE FUNCTION tdl.of_the_user() RETURNS int LANGUAGE sql AS 'SELECT 7'";
    database.execute(own).await;
    let store = PostgresStore::builder(database.url()).build().unwrap();
    store.migrate().await.unwrap();
    let grant = format!("GRANT USAGE ON SCHEMA tdl TO {ROLE}");
    database.execute(&grant).await;
    let client = connect(&database.url_as(ROLE)).await;
    client
        .batch_execute("SELECT tdl.of_the_user()")
        .await
        .unwrap();
    let ours = client.batch_execute("SELECT tdl.clock()").await;
    assert_eq!(ours.unwrap_err().code().unwrap().code(), "42501");
}

/// A process that starts must not stop the others.
#[tokio::test]
async fn a_migration_of_tables_that_are_there_waits_for_nobody() {
    let (database, store) = start().await;
    let locks = crate::locks(&store);
    let mut client = connect(&database.url_as(ROLE)).await;
    let guard = locks.lock("k").await.unwrap();
    let transaction = client.transaction().await.unwrap();
    guard.fence().unwrap().run(&transaction).await.unwrap();
    let again = PostgresStore::builder(database.url()).build().unwrap();
    let migrated = tokio::time::timeout(Duration::from_secs(20), again.migrate()).await;
    migrated
        .expect("it does not wait for the transaction")
        .unwrap();
    transaction.commit().await.unwrap();
}

#[tokio::test]
async fn another_version_of_the_tables_is_refused() {
    let (database, store) = start().await;
    database.execute("INSERT INTO tdl.version VALUES (2)").await;
    let refused = store.ping().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidConfig);
    assert!(refused.to_string().contains("version 2"), "{refused}");
}

#[tokio::test]
async fn transactions_that_are_not_read_committed_are_refused() {
    let (database, store) = start().await;
    let (name, level) = (database.name(), "repeatable read");
    let sql = format!("ALTER DATABASE {name} SET default_transaction_isolation = '{level}'");
    database.execute(&sql).await;
    let refused = store.ping().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidConfig);
    assert!(refused.to_string().contains(level), "{refused}");
}

#[tokio::test]
async fn the_role_of_a_store_has_no_right_to_its_tables() {
    let (database, store) = start().await;
    store.take(&key("k"), owner()).await;
    let client = connect(&database.url_as(ROLE)).await;
    for table in ["keys", "claims", "floor", "boot", "version"] {
        let refused = client.query(&format!("TABLE tdl.{table}"), &[]).await;
        let refused = refused.unwrap_err();
        assert_eq!(refused.code().unwrap().code(), "42501", "{table}");
    }
}

#[tokio::test]
async fn a_url_or_a_setting_that_cannot_work_is_refused() {
    let build = |url: &str| PostgresStore::builder(url).build();
    for url in [
        "",
        "postgres://",
        "redis://localhost",
        "postgres://host:port/",
    ] {
        let refused = build(url).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidConfig, "{url}");
    }
    let builder = || PostgresStore::builder("postgres://localhost/");
    let refused = [
        builder().schema("a b"),
        builder().schema(""),
        builder().schema("x; DROP TABLE y"),
        builder().schema("public"),
        builder().schema("pg_locks"),
        builder().schema("information_schema"),
        builder().timeout(Duration::ZERO),
        builder().connections(0),
        builder().listen_url("nonsense"),
    ];
    for refused in refused {
        let refused = refused.build().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidConfig);
    }
    let secret = "postgres://app:secret@[host/";
    assert!(!build(secret).unwrap_err().to_string().contains("secret"));
    let away = Locks::postgres("postgres://127.0.0.1:1/")
        .await
        .unwrap_err();
    assert_eq!(away.kind(), ErrorKind::Unreachable);
}

#[tokio::test]
async fn a_sweep_removes_what_is_not_used_and_tokens_go_on_rising() {
    let (database, store) = start().await;
    let [free, leased, recorded] = ["free", "leased", "recorded"].map(key);
    let (a, b, c) = (owner(), owner(), owner());
    store.take(&free, a).await;
    store.free(&free, a).await;
    store.take(&leased, b).await;
    store.take(&recorded, c).await;
    store.record(&recorded, c, b"done").await;
    tokio::time::sleep(Duration::from_millis(5)).await;
    store.sweep(Duration::ZERO).await.unwrap();
    assert_eq!(database.number("SELECT count(*) FROM tdl.keys").await, 2);
    assert_eq!(store.holder(&leased).await, Some(b));
    assert!(store.see(&recorded).await.record.is_some());
    // As after rows with tokens that the clock would not give again, because it was set back.
    let highest = 1 << 52;
    let raise = format!("UPDATE tdl.floor SET token = {highest}");
    database.execute(&raise).await;
    // This store remembers the row; another process guesses that there is none.
    for store in [store.clone(), crate::store(&database)] {
        let again = granted(store.ask(&free, a).await);
        assert!(again.tokens.first().unwrap() > highest);
        store.free(&free, a).await;
        database.execute("DELETE FROM tdl.keys WHERE key = 'free'; DELETE FROM tdl.claims WHERE key = 'free'").await;
    }
}

#[tokio::test]
async fn a_fence_that_was_raised_above_the_clock_is_of_its_own_key_only() {
    let (database, store) = start().await;
    let [raised, other] = ["raised", "other"].map(key);
    let floor = 1 << 52;
    store.raise_fence(raised.clone(), floor).await.unwrap();
    tokio::time::sleep(Duration::from_millis(5)).await;
    store.sweep(Duration::ZERO).await.unwrap();
    let store = crate::store(&database);
    let token = async |key| {
        granted(store.ask(key, owner()).await)
            .tokens
            .first()
            .unwrap()
    };
    assert!(token(&raised).await > floor);
    assert!(token(&other).await < floor);
}

#[tokio::test]
async fn an_operator_removes_a_record_that_a_transaction_has_written() {
    let (database, store) = start().await;
    let (key, a) = (key("k"), owner());
    let token = granted(store.ask(&key, a).await).tokens.first().unwrap();
    let keep = format!("SELECT tdl.keep('k', '{a}', {token}, 'done', 60000)");
    database.execute(&keep).await;
    // The store remembers the lease, and does not know of the record.
    let holder = Expected::Holder(a);
    let taken = store.force_release_if(key.clone(), holder).await.unwrap();
    assert!(!taken, "the record has taken the place of the lease");
    assert!(store.force_release(key.clone()).await.unwrap());
    assert!(store.see(&key).await.record.is_none());
    assert!(matches!(
        store.ask(&key, owner()).await,
        Acquired::Granted(_)
    ));
}

/// Fault: the key could not be claimed any more, and all calls that were made together with such a
/// claim failed.
#[tokio::test]
async fn a_claim_whose_key_was_deleted_by_hand_still_counts() {
    for is_locked_again in [false, true] {
        let (database, store) = start().await;
        let (k, a) = (key("k"), owner());
        let token = granted(store.ask(&k, a).await).tokens.first().unwrap();
        let mut client = connect(&database.url_as(ROLE)).await;
        let transaction = client.transaction().await.unwrap();
        let fence = format!("SELECT tdl.fence('k', '{a}', {token})");
        transaction.batch_execute(&fence).await.unwrap();
        database.execute("DELETE FROM tdl.keys").await;
        if is_locked_again {
            // As by a call that has nothing to do with claims.
            store.raise_fence(k.clone(), token).await.unwrap();
        }
        for store in [store.clone(), crate::store(&database)] {
            let other = key("other");
            let (asked, beside) = tokio::join!(store.ask(&k, owner()), store.ask(&other, a));
            held(asked);
            granted(beside);
            store.free(&other, a).await;
        }
        transaction.commit().await.unwrap();
        store.take(&k, owner()).await;
    }
}

#[tokio::test]
async fn a_record_whose_key_was_deleted_by_hand_is_answered_with() {
    let (database, store) = start().await;
    let (k, a) = (key("k"), owner());
    store.take(&k, a).await;
    store.record(&k, a, b"done").await;
    database.execute("DELETE FROM tdl.keys").await;
    let asked = crate::store(&database).ask(&k, owner()).await;
    assert!(matches!(asked, Acquired::Recorded(_)), "{asked:?}");
}

#[tokio::test]
async fn a_sweep_leaves_the_claim_of_an_open_transaction() {
    let (database, store) = start().await;
    let locks = crate::locks(&store);
    let mut client = connect(&database.url_as(ROLE)).await;
    let guard = locks.lock("k").await.unwrap();
    let transaction = client.transaction().await.unwrap();
    guard.fence().unwrap().run(&transaction).await.unwrap();
    guard.release().await.unwrap();
    tokio::time::sleep(Duration::from_millis(5)).await;
    store.sweep(Duration::ZERO).await.unwrap();
    held(store.ask(&key("k"), owner()).await);
    transaction.commit().await.unwrap();
    assert!(matches!(
        store.ask(&key("k"), owner()).await,
        Acquired::Granted(_)
    ));
}

#[tokio::test]
async fn the_table_does_not_grow_with_the_locks() {
    let (database, store) = start().await;
    let keys: Vec<_> = (0..50).map(|n| key(&format!("k/{n}"))).collect();
    for _ in 0..100 {
        let turns = keys.iter().map(async |key| {
            let a = owner();
            store.take(key, a).await;
            store.free(key, a).await;
        });
        futures_util::future::join_all(turns).await;
    }
    // 50 rows of 5,000 locks, each written twice: without updates in place, over 1 MB.
    let size = database.number("SELECT pg_relation_size('tdl.keys')").await;
    assert!(size < 600_000, "{size}");
}
