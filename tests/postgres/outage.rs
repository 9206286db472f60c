//! Servers that crash, and servers that hang.

use std::time::{Duration, Instant};

use tower_distributed_lock::{
    ErrorKind, Status,
    store::{Acquired, Hint, Outcome, PostgresStore, Release, Released, Store},
};

use crate::support::{
    eventually,
    postgres::{PostgresServer, ROLE, connect},
    words::*,
};

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

/// Fault: the statement was cancelled, which makes the server commit without the standby.
#[tokio::test]
async fn a_grant_that_waits_for_a_standby_is_not_made_without_it() {
    let (server, store) = start_alone().await;
    let locks = crate::locks(&store);
    // Greets, and knows the clock and the key.
    locks.lock("k").await.unwrap().release().await.unwrap();
    let store = PostgresStore::builder(server.url());
    let store = store.timeout(Duration::from_millis(300)).build().unwrap();
    store.inspect(key("other")).await.unwrap();
    let standby = async |name: &str| {
        let set = format!("ALTER SYSTEM SET synchronous_standby_names = '{name}'");
        server.execute(&set).await;
        server.execute("SELECT pg_reload_conf()").await;
    };
    standby("away").await;
    let rows = "SELECT count(*) FROM tdl.keys WHERE key = 'other'";
    let client = connect(&server.url()).await;
    let count = async || client.query_one(rows, &[]).await.unwrap().get::<_, i64>(0);
    eventually("a grant waits for the standby", async || {
        let outcome = store.acquire(attempt(&key("other"), owner())).await;
        let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
        let waits: i64 = client.query_one(waits, &[]).await.unwrap().get(0);
        matches!(outcome, Outcome::Unknown(_)) && waits > 0
    })
    .await;
    // Longer than the lane keeps the connection.
    for _ in 0..30 {
        assert_eq!(count().await, 0, "it was made without the standby");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    standby("").await;
    eventually("the store answers", async || {
        store.inspect(key("other")).await.is_ok()
    })
    .await;
}

/// Fault: every three time limits, one more connection was left behind with its commit.
#[tokio::test]
async fn commits_that_wait_for_a_standby_take_few_connections() {
    let (server, _) = start_alone().await;
    let store = PostgresStore::builder(server.url()).connections(1);
    let store = store.timeout(Duration::from_millis(300)).build().unwrap();
    store.inspect(key("k")).await.unwrap();
    let set = "ALTER SYSTEM SET synchronous_standby_names = 'away'";
    server.execute(set).await;
    server.execute("SELECT pg_reload_conf()").await;
    let client = connect(&server.url()).await;
    let (mut is_told, began) = (false, Instant::now());
    for n in 0.. {
        if began.elapsed() > Duration::from_secs(10) {
            break;
        }
        let outcome = store
            .acquire(attempt(&key(&format!("k/{n}")), owner()))
            .await;
        is_told |=
            matches!(&outcome, Outcome::Refused(error) if error.to_string().contains("standby"));
    }
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
    let waits: i64 = client.query_one(waits, &[]).await.unwrap().get(0);
    assert!((1..=5).contains(&waits), "{waits} connections wait");
    assert!(is_told, "and the callers do not know why");
}

/// Fault: a statement without a durable swap waited for the row without limit.
#[tokio::test]
async fn a_release_at_a_row_that_somebody_has_locked_is_in_the_way_of_no_other() {
    let (database, _) = crate::start().await;
    let store = PostgresStore::builder(database.url_as(ROLE)).connections(1);
    let store = store.timeout(Duration::from_secs(4)).build().unwrap();
    let [(a, stuck), (b, free)] = ["k/1", "k/2"].map(|name| (owner(), key(name)));
    store.take(&stuck, a).await;
    store.take(&free, b).await;
    let mut client = database.client().await;
    let transaction = client.transaction().await.unwrap();
    let delete = "DELETE FROM tdl.keys WHERE key = 'k/1'";
    transaction.execute(delete, &[]).await.unwrap();
    let both = [ending(&stuck, a), ending(&free, b)].map(|release| store.end(release));
    let [stuck, free] = futures_util::future::join_all(both)
        .await
        .try_into()
        .unwrap();
    assert!(stuck.is_err(), "{stuck:?}");
    assert_eq!(free.unwrap(), Released::Freed);
    transaction.rollback().await.unwrap();
}

/// Fault: all calls of the lane waited for the row, and were lost.
#[tokio::test]
async fn a_row_that_somebody_has_locked_is_in_the_way_of_its_own_key_only() {
    let (database, _) = crate::start().await;
    let store = PostgresStore::builder(database.url_as(ROLE)).connections(1);
    let store = store.timeout(Duration::from_secs(4)).build().unwrap();
    let stuck = key("k/5");
    let before = owner();
    store.take(&stuck, before).await;
    store.free(&stuck, before).await;
    let mut client = database.client().await;
    let transaction = client.transaction().await.unwrap();
    let delete = "DELETE FROM tdl.keys WHERE key = 'k/5'";
    transaction.execute(delete, &[]).await.unwrap();
    let asked = (0..10).map(async |n| {
        let key = key(&format!("k/{n}"));
        (n, store.acquire(attempt(&key, owner())).await)
    });
    for (n, outcome) in futures_util::future::join_all(asked).await {
        let is_granted = matches!(outcome, Outcome::Answered(Acquired::Granted(_)));
        assert_eq!(is_granted, n != 5, "k/{n}: {outcome:?}");
    }
    transaction.rollback().await.unwrap();
    eventually("the key is granted", async || {
        let asked = store.ask_for(attempt(&stuck, owner())).await;
        matches!(asked, Ok(Acquired::Granted(_)))
    })
    .await;
}
