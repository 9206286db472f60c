//! Several hosts in the URL: one that hangs, and a replica that is promoted.

use std::time::Duration;

use tower_distributed_lock::{
    Status,
    store::{Hint, PostgresStore, Store},
};

use crate::support::{
    eventually,
    postgres::{PostgresServer, connect},
    words::*,
};

/// A store that looks for the primary among two servers.
fn store_of(servers: [&PostgresServer; 2]) -> PostgresStore {
    let [one, two] = servers.map(PostgresServer::port);
    let url = format!("postgres://postgres@127.0.0.1:{one},127.0.0.1:{two}/postgres");
    let store = PostgresStore::builder(url).timeout(Duration::from_secs(2));
    store.build().unwrap()
}

#[tokio::test]
async fn a_host_that_hangs_is_not_the_only_one_that_is_tried() {
    let (hanging, alive) = (PostgresServer::start().await, PostgresServer::start().await);
    let store = store_of([&alive, &alive]);
    store.migrate().await.unwrap();
    hanging.freeze();
    let store = store_of([&hanging, &alive]);
    eventually("the store answers", async || store.ping().await.is_ok()).await;
}

#[tokio::test]
async fn after_a_promotion_leases_are_confirmed_and_tokens_rise() {
    let mut primary = PostgresServer::start().await;
    let replica = primary.replica().await;
    let store = store_of([&replica, &primary]);
    store.migrate().await.unwrap();
    let locks = crate::locks(&store);
    let kept = locks.lock("kept").await.unwrap();
    eventually("the replica follows", async || {
        let client = connect(&replica.url()).await;
        let rows = client.query("SELECT FROM tdl.keys", &[]).await;
        rows.is_ok_and(|rows| rows.len() == 1)
    })
    .await;
    // What comes now is lost.
    replica
        .execute("ALTER SYSTEM SET primary_conninfo = ''")
        .await;
    replica.execute("SELECT pg_reload_conf()").await;
    eventually("the replica is cut off", async || {
        let client = connect(&primary.url()).await;
        let rows = client.query("SELECT FROM pg_stat_replication", &[]).await;
        rows.unwrap().is_empty()
    })
    .await;
    let lost = locks.lock("lost").await.unwrap();
    let mut hints = store.watch_for_sure(owner().instance).await;
    let before = store.server_id();
    primary.crash();
    replica.execute("SELECT pg_promote()").await;
    hinted(&mut hints, Hint::Reconnected).await;
    eventually("the store answers", async || store.ping().await.is_ok()).await;
    assert_ne!(store.server_id(), before, "another history");
    assert!(store.uptime() < Duration::from_secs(60));
    assert_eq!(store.holder(&key("kept")).await, Some(kept.owner()));
    eventually("the loss is noticed", async || {
        matches!(lost.status(), Status::Lost(_))
    })
    .await;
    assert_eq!(kept.status(), Status::Held);
    let (kept_token, lost_token) = (kept.token(), lost.token());
    kept.release().await.unwrap();
    for (name, before) in [("kept", kept_token), ("lost", lost_token)] {
        assert!(locks.lock(name).await.unwrap().token() > before, "{name}");
    }
}

/// Fault: the connection stayed, and every call failed.
#[tokio::test]
async fn a_server_that_accepts_no_writes_any_more_is_left_for_one_that_does() {
    let (one, two) = (PostgresServer::start().await, PostgresServer::start().await);
    let read_only = async |server: &PostgresServer, on: &str| {
        let set = format!("ALTER SYSTEM SET default_transaction_read_only = {on}");
        server.execute(&set).await;
        server.execute("SELECT pg_reload_conf()").await;
    };
    for server in [&one, &two] {
        store_of([server, server]).migrate().await.unwrap();
    }
    read_only(&two, "on").await;
    let store = store_of([&one, &two]);
    eventually("the store answers", async || store.ping().await.is_ok()).await;
    store.take(&key("k"), owner()).await;
    read_only(&two, "off").await;
    read_only(&one, "on").await;
    let client = connect(&two.url()).await;
    eventually("the other server grants", async || {
        // A free one each time: a key that is held is read, not written.
        let key = key(&owner().to_string());
        let _ = store.ask_for(attempt(&key, owner())).await;
        let rows = client.query("SELECT FROM tdl.keys", &[]).await;
        !rows.unwrap().is_empty()
    })
    .await;
}
