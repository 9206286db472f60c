//! Turns that are held while the server goes away and comes back.

use std::time::Duration;

use tower_distributed_lock::{ErrorKind, Locks, Loss, store::RedisStore};

use crate::support::{eventually, redis_server::RedisServer};

async fn short_leased(server: &RedisServer, lease: Duration) -> Locks {
    let builder = RedisStore::builder(server.url()).timeout(Duration::from_millis(250));
    let store = builder.connect().await.unwrap();
    Locks::builder(store)
        .wait_forever()
        .lease(lease)
        .build()
        .unwrap()
}

#[tokio::test]
async fn a_server_that_is_gone_fails_acquires_at_once_and_leases_at_their_deadline() {
    let mut server = RedisServer::start().await;
    let locks = short_leased(&server, Duration::from_secs(2)).await;
    let guard = locks.lock("held").await.unwrap();
    server.kill();
    let refused = locks.lock("other").await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unreachable, "{refused}");
    assert!(guard.is_held(), "its time is not over");
    assert_eq!(guard.lost().await, Loss::Expired);
    server.restart().await;
    eventually("all goes on", async || locks.lock("other").await.is_ok()).await;
}

#[tokio::test]
async fn a_server_that_comes_back_empty_is_noticed_at_once() {
    let mut server = RedisServer::start().await;
    let locks = short_leased(&server, Duration::from_secs(600)).await;
    let guard = locks.lock("k").await.unwrap();
    let token = guard.token();
    server.kill();
    server.restart().await;
    // Long before the renewal that is due: the connection came back, and so the leases are asked
    // for.
    assert_eq!(guard.lost().await, Loss::NotOurs);
    let next = locks.lock("k").await.unwrap();
    assert!(next.token() > token, "tokens go on rising");
}

#[tokio::test]
async fn a_server_that_froze_for_a_while_costs_no_lease() {
    let server = RedisServer::start().await;
    let locks = short_leased(&server, Duration::from_secs(30)).await;
    let guard = locks.lock("k").await.unwrap();
    server.freeze();
    let refused = locks.lock("other").await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unreachable, "{refused}");
    server.thaw();
    eventually("all goes on", async || locks.lock("other").await.is_ok()).await;
    assert!(guard.is_held());
    guard.release().await.unwrap();
    eventually("nothing is left", async || {
        server.leftovers().await.is_empty()
    })
    .await;
}
