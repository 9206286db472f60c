//! Servers that refuse connections, temporarily or for good.

use std::time::Duration;

use futures_util::future::join_all;
use redis::Value;
use tokio::time::Instant;
use tower_distributed_lock::store::{Outcome, RedisStore, Release, Released, Store};

use crate::{
    LIMIT, keys,
    support::{eventually, proxy::Proxy, redis_server::RedisServer, words::*},
};

/// Runs a script that does not end until SCRIPT KILL.
async fn make_busy(server: &RedisServer) -> tokio::task::JoinHandle<()> {
    let mut control = server.connection().await;
    let busy = tokio::spawn(async move {
        let _: redis::RedisResult<Value> = redis::cmd("EVAL")
            .arg(&["while true do end", "0"])
            .query_async(&mut control)
            .await;
    });
    eventually("the server is busy", async || {
        let client = redis::Client::open(server.url()).unwrap();
        let asked = async {
            let mut connection = client.get_multiplexed_async_connection().await?;
            redis::cmd("PING")
                .query_async::<Value>(&mut connection)
                .await
        };
        asked.await.is_err_and(|error| error.code() == Some("BUSY"))
    })
    .await;
    busy
}

#[tokio::test]
async fn a_connection_to_a_busy_server_does_not_count() {
    let server = RedisServer::start_with(&["--lua-time-limit", "50"]).await;
    let mut proxy = Proxy::start(server.port()).await;
    let store = RedisStore::builder(proxy.url()).lanes(1).timeout(LIMIT * 4);
    let store = store.connect().await.unwrap();
    let (first, a) = (key("first"), owner());
    store.take(&first, a).await;

    let busy = make_busy(&server).await;
    proxy.cut();
    eventually("the error says why there is no connection", async || {
        let error = store.ask_for(attempt(&key("second"), owner())).await;
        let error = error.unwrap_err().to_string();
        error.contains("busy with a script")
    })
    .await;
    let _: Value = server.send(&["SCRIPT", "KILL"]).await;
    busy.await.unwrap();
    eventually("there is a connection", async || {
        store.inspect(first.clone()).await.is_ok()
    })
    .await;

    // Connections that were given up while the server was busy are closed by now.
    let in_doubt = Release {
        in_doubt: true,
        ..ending(&key("third"), owner())
    };
    assert_eq!(store.end(in_doubt).await.unwrap(), Released::NotOurs);
}

async fn wrong_password() -> (RedisServer, RedisStore) {
    let server = RedisServer::start().await;
    let _: Value = server
        .send(&["ACL", "SETUSER", "app", "on", ">other"])
        .await;
    let url = server.url().replace("redis://", "redis://app:secret@");
    let store = RedisStore::builder(url).build().unwrap();
    (server, store)
}

#[tokio::test]
async fn a_refused_connect_is_not_tried_again_at_once() {
    let (server, store) = wrong_password().await;
    let before = server.connections_received().await;
    let until = Instant::now() + Duration::from_secs(2);
    let asking = (0..16).map(|n| {
        let (store, key) = (store.clone(), key(&format!("k/{n}")));
        async move {
            while Instant::now() < until {
                let outcome = store.acquire(attempt(&key, owner())).await;
                assert!(matches!(outcome, Outcome::Refused(_)), "{outcome:?}");
            }
        }
    });
    join_all(asking).await;
    let connects = server.connections_received().await - before;
    // The lane connects about a dozen times, until its pause is half a second.
    assert!(connects < 20, "{connects} connects within two seconds");
}

#[tokio::test]
async fn all_waiting_calls_share_one_refusal() {
    let (server, store) = wrong_password().await;
    let before = server.connections_received().await;
    let keys: Vec<_> = (0..10).flat_map(|_| keys()).collect();
    let asking = keys.iter().map(|key| store.ask_for(attempt(key, owner())));
    for answer in join_all(asking).await {
        let error = answer.unwrap_err().to_string();
        assert!(error.contains("refused the user name"), "{error}");
    }
    let connects = server.connections_received().await - before;
    // The lane connects twice before its calls fail. The other connections belong to the test.
    assert!(connects <= 2 + 2, "{connects} connects for one refusal");
}

#[tokio::test]
async fn a_password_that_looks_like_an_option_is_none() {
    let server = RedisServer::start().await;
    let rule = "ACL SETUSER app on >protocol=2 ~* &* +@all";
    let rule: Vec<&str> = rule.split_whitespace().collect();
    let _: Value = server.send(&rule).await;
    let protocols = async |url: String| {
        server.reset_stats().await;
        let store = RedisStore::connect(url).await.unwrap();
        store.ping().await.unwrap();
        server.stats().await.contains_key("hello")
    };
    let url = server.url().replace("redis://", "redis://app:protocol=2@");
    assert!(protocols(url.clone()).await, "RESP3 begins with HELLO");
    assert!(!protocols(url + "?protocol=resp2").await);
}
