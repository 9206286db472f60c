//! Pings, listings and the names of connections, on real servers.

use std::{collections::BTreeSet, time::Duration};

use redis::Value;
use tokio::time::Instant;
use tower_distributed_lock::{
    ErrorKind, Locks,
    store::{List, RedisStore, Store},
};

use crate::{
    LIMIT, impatient, server_and_store,
    support::{redis_server::RedisServer, words::*},
};

#[tokio::test]
async fn connections_for_calls_have_the_name_of_the_label() {
    let server = RedisServer::start().await;
    let store = RedisStore::builder(server.url())
        .prefix("shop*")
        .label("web-3")
        .lanes(2);
    let store = store.connect().await.unwrap();
    let clients: String = server.send(&["CLIENT", "LIST"]).await;
    let named = clients.matches(" name=shop*@web-3 ").count();
    assert_eq!(named, 2, "{clients}");
    drop(store);
}

#[tokio::test]
async fn a_connection_that_replaces_another_has_the_name_too() {
    let (server, store) = server_and_store().await;
    server.break_connections().await;
    store.ping().await.unwrap();
    let clients: String = server.send(&["CLIENT", "LIST"]).await;
    assert_eq!(clients.matches(" name=tdl@").count(), 1, "{clients}");
}

#[tokio::test]
async fn the_label_of_the_holder_is_in_the_error_of_a_waiting_request() {
    let server = RedisServer::start().await;
    let labelled = |label: &str| RedisStore::builder(server.url()).label(label);
    let holder = Locks::builder(labelled("web-3").connect().await.unwrap());
    let other = Locks::builder(labelled("web-4").connect().await.unwrap());
    let (holder, other) = (holder.build().unwrap(), other.build().unwrap());
    let guard = holder.lock("k").await.unwrap();
    let error = other.lock("k").within(Duration::from_secs(1)).await;
    let error = error.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Held);
    assert!(error.to_string().contains("web-3"), "{error}");
    let seen = other.inspect("k").await.unwrap();
    let seen = seen.holder().unwrap();
    assert_eq!(
        (seen.label.as_deref(), seen.owner),
        (Some("web-3"), guard.owner())
    );
}

#[tokio::test]
async fn a_ping_names_the_server_that_does_not_answer() {
    let mut server = RedisServer::start().await;
    let store = impatient(&server.url()).await;
    let address = format!("127.0.0.1:{}", server.port());
    store.ping().await.unwrap();

    server.freeze();
    let began = Instant::now();
    let error = store.ping().await.unwrap_err();
    assert!(began.elapsed() < LIMIT * 20, "{:?}", began.elapsed());
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert!(error.to_string().contains(&address), "{error}");
    server.thaw();
    crate::support::eventually("the server answers again", async || {
        store.ping().await.is_ok()
    })
    .await;

    server.kill();
    let error = store.ping().await.unwrap_err();
    assert!(error.to_string().contains(&address), "{error}");
    server.restart().await;
    crate::support::eventually("the server is back", async || store.ping().await.is_ok()).await;
}

#[tokio::test]
async fn a_ping_fails_at_a_server_that_takes_no_writes() {
    let (server, store) = server_and_store().await;
    server.refuse_writes(true).await;
    let error = store.ping().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "no replicas: {error}");
    server.refuse_writes(false).await;
    store.ping().await.unwrap();

    let _: Value = server.send(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let error = store.ping().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "no memory: {error}");
    let _: Value = server.send(&["CONFIG", "SET", "maxmemory", "0"]).await;
    store.ping().await.unwrap();

    let _: Value = server.send(&["REPLICAOF", "127.0.0.1", "1"]).await;
    let error = store.ping().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "a replica: {error}");
}

#[tokio::test]
async fn a_ping_reaches_every_lane_and_writes_nothing() {
    let server = RedisServer::start().await;
    let store = RedisStore::builder(server.url()).lanes(3);
    let store = store.connect().await.unwrap();
    server.reset_stats().await;
    store.ping().await.unwrap();
    assert_eq!(server.commands().await.get("eval"), Some(&3));
    let keys: Vec<String> = server.send(&["KEYS", "*"]).await;
    assert!(keys.is_empty(), "{keys:?}");
}

/// Puts names of other programs into the server.
async fn other_names(server: &RedisServer, count: usize) {
    let mut pipeline = redis::pipe();
    for n in 0..count {
        pipeline.cmd("SET").arg(format!("other:{n}")).arg("x");
    }
    let mut connection = server.connection().await;
    let _: Value = pipeline.query_async(&mut connection).await.unwrap();
}

#[tokio::test]
async fn a_page_does_a_limited_amount_of_work() {
    let (server, store) = server_and_store().await;
    other_names(&server, 50_000).await;
    for n in 0..5 {
        store.take(&key(&format!("k/{n}")), owner()).await;
    }
    server.reset_stats().await;
    let (mut pages, mut found) = (0, BTreeSet::new());
    let mut request = List::all().at_most(10);
    loop {
        let page = store.list(request.clone()).await.unwrap();
        found.extend(page.keys);
        pages += 1;
        let Some(next) = page.next else { break };
        request = request.after(next);
    }
    assert_eq!(found.len(), 5);
    let scans = server.commands().await["scan"];
    println!("{pages} pages, {scans} scans");
    assert!((4..=8).contains(&pages), "{pages} pages of 10,000 names");
    assert!(scans < 150, "{scans}");
}

#[tokio::test]
async fn names_that_this_crate_did_not_write_are_not_listed() {
    let (server, store) = server_and_store().await;
    store.take(&key("k"), owner()).await;
    let mut connection = server.connection().await;
    let foreign: [&[u8]; 8] = [
        b"tdl:2:{b1}:lock:wrong-bucket",
        b"tdl:2:{b2089}:lock:orders/42\n",
        b"tdl:2:{b2089}:lock:\xff\xfe",
        b"tdl:2:{b2089}:lock:",
        b"tdl:2:{b2089}:other:orders/42",
        b"tdl:2:{b02089}:lock:orders/42",
        b"tdl:1:{b2089}:lock:orders/42",
        b"other:2:{b2089}:lock:orders/42",
    ];
    for name in foreign {
        let mut set = redis::cmd("SET");
        let _: Value = set
            .arg(name)
            .arg("x")
            .query_async(&mut connection)
            .await
            .unwrap();
    }
    let page = store.list(List::all().at_most(1000)).await.unwrap();
    assert_eq!((page.keys, page.next), (vec![key("k")], None));
}

#[tokio::test]
async fn locks_go_on_while_ten_thousand_keys_are_listed() {
    let (server, store) = server_and_store().await;
    let takes = (0..10_000).map(|n| {
        let store = store.clone();
        async move { store.take(&key(&format!("many/{n}")), owner()).await }
    });
    let mut takes = takes.collect::<Vec<_>>();
    while !takes.is_empty() {
        let some = takes.split_off(takes.len().saturating_sub(500));
        futures_util::future::join_all(some).await;
    }
    let locks = Locks::builder(store.clone()).build().unwrap();
    let listing = tokio::spawn({
        let locks = locks.clone();
        async move {
            let (mut pages, mut found) = (0, BTreeSet::new());
            let mut request = List::starting_with("many/").at_most(100);
            loop {
                let page = locks.list(request.clone()).await.unwrap();
                assert!(page.keys.len() <= 150, "{}", page.keys.len());
                found.extend(page.keys);
                pages += 1;
                let Some(next) = page.next else { break };
                request = request.after(next);
            }
            (pages, found.len())
        }
    });
    let (mut turns, mut slowest) = (0, Duration::ZERO);
    while !listing.is_finished() {
        let began = Instant::now();
        drop(locks.lock("hot").await.unwrap());
        slowest = slowest.max(began.elapsed());
        turns += 1;
    }
    let (pages, found) = listing.await.unwrap();
    println!("{pages} pages, {turns} turns meanwhile, the slowest took {slowest:?}");
    assert_eq!(found, 10_000);
    assert!(turns > 10);
    drop(server);
}
