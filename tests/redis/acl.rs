//! Users with few rights, under both protocols.

use std::collections::HashMap;

use futures_util::future::join_all;
use redis::Value;
use tower_distributed_lock::{
    ErrorKind, Locks,
    store::{Hint, List, RedisStore, Store},
};

use crate::support::{eventually, redis_server::RedisServer, words::*};

const PROTOCOLS: [&str; 2] = ["resp2", "resp3"];

/// The words of the command that the guide prints.
fn printed_user() -> Vec<&'static str> {
    let guide = include_str!("../../src/guide/redis.rs");
    let start = guide
        .find("ACL SETUSER shop")
        .expect("the guide has a user");
    let command = guide[start..].split("```").next().unwrap();
    let words = command.split_whitespace();
    words
        .filter(|word| !matches!(*word, "//!" | "\\"))
        .collect()
}

/// A server that knows the user, without some of the rights.
async fn server_without(denied: &[&str]) -> RedisServer {
    let server = RedisServer::start().await;
    let user = printed_user();
    assert!(
        denied.iter().all(|right| user.contains(right)),
        "{denied:?}"
    );
    let mut command = user;
    command.retain(|word| !denied.contains(word));
    let _: Value = server.send(&command).await;
    server
}

fn url(server: &RedisServer, protocol: &str) -> String {
    let url = server.url().replace("redis://", "redis://shop:secret@");
    format!("{url}?protocol={protocol}")
}

/// Does everything that locks do, with one instance after another at the same key.
async fn assert_locks_work(store: &RedisStore) {
    let (key, a, b) = (key("k"), owner(), owner());
    store.take(&key, a).await;
    held(store.queue(&key, b).await);
    assert!(is_renewed(&store.renew_one(renewal(&key, a, 2)).await));
    assert_eq!(store.see(&key).await.queue, [b]);
    store.free(&key, a).await;
    granted(store.queue(&key, b).await);
    store.record(&key, b, b"done").await;
    store.raise_fence(key.clone(), 7).await.unwrap();
    assert!(store.force_release(key).await.unwrap());
    store.ping().await.unwrap();

    let [first, second] = [(), ()].map(|()| Locks::builder(store.clone()).build().unwrap());
    let guard = first.lock("handed over").await.unwrap();
    let next = tokio::spawn(async move { second.lock("handed over").await });
    eventually("the other instance waits", async || {
        first.inspect("handed over").await.unwrap().queue.len() == 1
    })
    .await;
    guard.release().await.unwrap();
    let next = next.await.unwrap().unwrap();
    next.release().await.unwrap();
}

#[tokio::test]
async fn the_user_that_the_guide_prints_has_all_rights_that_are_needed() {
    let server = server_without(&[]).await;
    for protocol in PROTOCOLS {
        let store = RedisStore::builder(url(&server, protocol)).label("web-3");
        let store = store.connect().await.unwrap();
        assert_locks_work(&store).await;
        let mut hints = store.watch_for_sure(owner().instance).await;
        assert!(!matches!(hints.try_recv(), Ok(Hint::Reconnected)));
        store.list(List::all()).await.unwrap();
        let clients: String = server.send(&["CLIENT", "LIST"]).await;
        assert_eq!(clients.matches(" name=tdl@web-3 ").count(), 1, "{clients}");
    }
    let log: Vec<HashMap<String, Value>> = server.send(&["ACL", "LOG"]).await;
    // The client library introduces itself (CLIENT SETINFO), and goes on without. Redis 6.2 names
    // no subcommands.
    let introduction = match server.version().await {
        (6, _) => "client",
        _ => "client|setinfo",
    };
    for entry in log {
        let object = entry["object"].clone();
        assert_eq!(object, Value::BulkString(introduction.into()), "{entry:?}");
    }
}

#[tokio::test]
async fn locks_work_although_a_right_is_denied_that_is_not_needed() {
    let unneeded = [
        "+client|setname",
        "+client|info",
        "+client|kill",
        "+script|load",
        "+publish",
        "+subscribe",
        "+info",
        "+scan",
    ];
    let each = unneeded.iter().map(std::slice::from_ref);
    // Side by side, because keys are handed over slowly where hints are denied.
    join_all(each.chain([&unneeded[..]]).map(assert_locks_work_without)).await;
}

async fn assert_locks_work_without(denied: &[&str]) {
    let server = server_without(denied).await;
    for protocol in PROTOCOLS {
        println!("{denied:?} {protocol}");
        let store = RedisStore::connect(url(&server, protocol)).await.unwrap();
        assert_locks_work(&store).await;
        server.break_connections().await;
        // Without CLIENT INFO and CLIENT KILL, the first calls on a broken connection fail.
        eventually("the store is back", async || store.ping().await.is_ok()).await;
        assert_locks_work(&store).await;
        let listed = store.list(List::all()).await;
        match denied.contains(&"+scan") {
            true => assert_eq!(listed.unwrap_err().kind(), ErrorKind::Unreachable),
            false => drop(listed.unwrap()),
        }
    }
}

#[tokio::test]
async fn keys_and_channels_of_other_programs_are_out_of_reach() {
    let server = server_without(&[]).await;
    let store = RedisStore::builder(url(&server, "resp3")).prefix("other");
    let store = store.connect().await.unwrap();
    let error = store.ask_for(attempt(&key("k"), owner())).await;
    let error = error.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert!(error.to_string().contains("denies"), "{error}");
}

/// Tokens of a counter that was lost begin at the server's clock.
#[tokio::test]
async fn a_user_who_may_not_ask_for_the_time_cannot_connect() {
    let server = server_without(&["+time"]).await;
    for protocol in PROTOCOLS {
        let connected = RedisStore::connect(url(&server, protocol)).await;
        let error = connected.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unreachable);
        assert!(error.to_string().contains("denies"), "{error}");
    }
}
