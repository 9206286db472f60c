//! Servers that crash, and servers that hang.

use std::time::{Duration, Instant};

use tower_distributed_lock::{
    ErrorKind, Status,
    store::{Acquired, Hint, Outcome, PostgresStore, Release, Released, Store},
};

use crate::support::{eventually, postgres::PostgresServer, words::*};

async fn start_alone() -> (PostgresServer, PostgresStore) {
    let server = PostgresServer::start().await;
    let store = PostgresStore::builder(server.url());
    let store = store.timeout(Duration::from_secs(2)).build().unwrap();
    store.migrate().await.unwrap();
    (server, store)
}

#[tokio::test]
async fn leases_survive_a_crash_of_the_server_and_are_confirmed() {
    let (mut server, store) = start_alone().await;
    let locks = crate::locks(&store);
    let guard = locks.lock("k").await.unwrap();
    let mut hints = store.watch_for_sure(owner().instance).await;
    let before = store.server_id();
    server.crash();
    let failed = store.inspect(key("k")).await.unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::Unreachable);
    server.restart().await;
    hinted(&mut hints, Hint::Reconnected).await;
    eventually("the store answers", async || store.ping().await.is_ok()).await;
    assert_eq!(store.holder(&key("k")).await, Some(guard.owner()));
    assert_eq!(guard.status(), Status::Held);
    assert_eq!(store.server_id(), before, "the same history");
    assert!(store.uptime() < Duration::from_secs(60));
    let token = guard.token();
    guard.release().await.unwrap();
    assert!(locks.lock("k").await.unwrap().token() > token);
}

#[tokio::test]
async fn calls_to_a_server_that_hangs_end_in_time_and_leave_nothing_behind() {
    let (server, store) = start_alone().await;
    let (key, a) = (key("k"), owner());
    // A store that knows nothing of the key and the clock would only read.
    let before = owner();
    store.take(&key, before).await;
    store.free(&key, before).await;
    server.freeze();
    let began = Instant::now();
    let outcome = store.acquire(attempt(&key, a)).await;
    assert!(began.elapsed() < Duration::from_secs(20));
    assert!(matches!(outcome, Outcome::Unknown(_)), "{outcome:?}");
    // This one waits behind the first, and is not sent.
    let second = store.acquire(attempt(&key, owner())).await;
    assert!(matches!(second, Outcome::Refused(_)), "{second:?}");
    server.thaw();
    let release = Release {
        in_doubt: true,
        ..ending(&key, a)
    };
    eventually("the release is answered", async || {
        let released = store.end(release.clone()).await;
        matches!(released, Ok(Released::Freed | Released::NotOurs))
    })
    .await;
    assert!(matches!(
        store.ask(&key, owner()).await,
        Acquired::Granted(_)
    ));
}
